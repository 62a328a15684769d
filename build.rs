//! Compiles csrc/ into one static library and, with feature `cuda`, the CUDA kernels into the same.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

const WARNINGS: [&str; 9] = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wundef",
    "-pedantic",
];

/// Files with one of these suffixes are for x86-64, and need these flags. dispatch.c has neither.
const ISAS: [(&str, &[&str]); 2] = [
    ("_avx2", &["-mavx2", "-mfma", "-mf16c"]),
    ("_avx512", &["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"]),
];

/// Machine code, and PTX for devices that are newer than all of it.
const CUDA_CODE: [&str; 7] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120", "compute_80"];

fn main() {
    for path in ["build.rs", "csrc", "include"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let package = PathBuf::from(cargo_variable("CARGO_MANIFEST_DIR"));
    println!("cargo::metadata=include={}", package.join("include").display());
    println!("cargo::metadata=root={}", cargo_variable("OUT_DIR"));

    #[cfg(feature = "bindgen")]
    generate_bindings();

    if variable("DOCS_RS").is_none() {
        check_target();
        compile();
    }
}

fn check_target() {
    if cargo_variable("CARGO_CFG_TARGET_ENV") == "msvc" {
        fail("gatemix needs gcc or clang: use a -gnu or -gnullvm target instead of -msvc");
    }
    if cargo_variable("CARGO_CFG_TARGET_POINTER_WIDTH") != "64" {
        fail("gatemix needs a 64-bit target");
    }
}

fn compile() {
    let nvcc = cfg!(feature = "cuda").then(find_nvcc);
    // LTO objects are opaque to the Rust linker, and results are defined to the bit.
    append_to_variable("CFLAGS", "-fno-lto -fno-fast-math -ffp-contract=off");

    let is_x86_64 = cargo_variable("CARGO_CFG_TARGET_ARCH") == "x86_64";
    let mut common = new_build();
    let mut isa_builds = ISAS.map(|(_, flags)| {
        let mut build = new_build();
        add_flags(&mut build, flags);
        build
    });
    for file in ["csrc/core", "csrc/ops", "csrc/cpu"].into_iter().flat_map(|dir| files(dir, "c")) {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        match ISAS.iter().position(|(suffix, _)| stem.ends_with(suffix)) {
            None => _ = common.file(file),
            Some(isa) if is_x86_64 => _ = isa_builds[isa].file(file),
            Some(_) => {}
        }
    }
    for build in isa_builds {
        common.objects(build.compile_intermediates());
    }

    if let Some(nvcc) = nvcc {
        common.objects(compile_cuda(&nvcc));
        common.compile("gatemix");
        link_cudart(&nvcc);
    } else {
        common.file("csrc/cuda/absent.c");
        common.compile("gatemix");
    }
    // musl has its math in libc.
    if env::var_os("CARGO_CFG_UNIX").is_some() && cargo_variable("CARGO_CFG_TARGET_ENV") != "musl" {
        println!("cargo::rustc-link-lib=m");
    }
}

/// The same code in every profile.
fn new_build() -> cc::Build {
    let mut build = cc::Build::new();
    build.std("c11").opt_level(3).debug(false).include("include").include("csrc").flag("-fvisibility=hidden");
    add_flags(&mut build, &WARNINGS);
    build.warnings_into_errors(is_ci());
    build
}

fn add_flags(build: &mut cc::Build, flags: &[&str]) {
    for flag in flags {
        build.flag(flag);
    }
}

// ---- CUDA ------------------------------------------------------------------------------------------------

/// One cc::Build per file: several in one make cc ask for relocatable device code.
fn compile_cuda(nvcc: &Path) -> Vec<PathBuf> {
    // SAFETY: a build script has one thread.
    unsafe { env::set_var("NVCC", nvcc) };
    append_to_variable("CXXFLAGS", "-fno-lto");
    let code = code_flags();
    let compile = |file: PathBuf| {
        let mut build = cc::Build::new();
        build.cuda(true).ccbin(false).cpp_link_stdlib(None);
        build.std("c++17").opt_level(3).debug(false).include("include").include("csrc").file(file);
        // So that the host side needs no C++ runtime and fits into any executable or library.
        build.flag("-Xcompiler=-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden");
        if is_ci() {
            build.flag("-Werror=all-warnings");
        }
        for flag in &code {
            build.flag(flag);
        }
        build.compile_intermediates()
    };
    files("csrc/cuda", "cu").into_iter().flat_map(compile).collect()
}

/// What to compile for; device.cu hands it on to the support check.
fn code_flags() -> Vec<String> {
    let list = variable("GATEMIX_CUDA_ARCHS").unwrap_or_default();
    let list = list.to_string_lossy();
    let mut code: Vec<String> = list.split([';', ',', ' ']).filter(|arch| !arch.is_empty()).map(machine_code).collect();
    if code.is_empty() {
        code = CUDA_CODE.map(String::from).into();
    }
    let gencode = |code: &String| format!("-gencode=arch={},code={code}", code.replace("sm_", "compute_"));
    code.iter().map(gencode).chain([format!("-DGM_CUDA_CODE={}", code.join(":"))]).collect()
}

/// 90 is taken for 90a, which runs on the same devices and has all of their instructions.
fn machine_code(arch: &str) -> String {
    if arch.strip_suffix(['a', 'f']).unwrap_or(arch).parse::<u32>().is_err() {
        fail(&format!("GATEMIX_CUDA_ARCHS: {arch:?} is not an architecture like 80, 90a or 100f"));
    }
    format!("sm_{}", if arch == "90" { "90a" } else { arch })
}

fn find_nvcc() -> PathBuf {
    let on_path = |name: OsString| {
        let path = env::var_os("PATH").unwrap_or_default();
        // An absolute name replaces the folder that it is joined to.
        env::split_paths(&path).map(|dir| dir.join(&name)).find(|file| file.is_file())
    };
    let in_toolkit = |root: OsString| Some(Path::new(&root).join("bin/nvcc")).filter(|file| file.is_file());
    variable("NVCC")
        .and_then(on_path)
        .or_else(|| variable("CUDA_HOME").and_then(in_toolkit))
        .or_else(|| variable("CUDA_PATH").and_then(in_toolkit))
        .or_else(|| on_path("nvcc".into()))
        .or_else(|| in_toolkit("/usr/local/cuda".into()))
        .unwrap_or_else(|| {
            fail(
                "feature \"cuda\" needs nvcc: looked in $NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin, PATH, \
                 /usr/local/cuda/bin; scripts/cuda-toolkit.sh installs one",
            )
        })
}

/// After the kernels: some linkers resolve symbols in one pass.
fn link_cudart(nvcc: &Path) {
    let target = if cargo_variable("CARGO_CFG_TARGET_ARCH") == "aarch64" { "sbsa" } else { "x86_64" };
    let dirs = [format!("targets/{target}-linux/lib"), "lib64".into(), "lib".into()];
    let real = fs::canonicalize(nvcc).unwrap_or_else(|_| nvcc.into());
    let root = real.ancestors().nth(2).unwrap_or(&real);
    let Some(dir) = dirs.iter().map(|dir| root.join(dir)).find(|dir| dir.join("libcudart_static.a").is_file()) else {
        fail(&format!(
            "feature \"cuda\" needs libcudart_static.a: looked in {} of {}",
            dirs.join(", "),
            root.display()
        ));
    };
    println!("cargo::rustc-link-search=native={}", dir.display());
    println!("cargo::rustc-link-lib=static=cudart_static");
    for library in ["dl", "rt", "pthread"] {
        println!("cargo::rustc-link-lib={library}");
    }
}

// ---- Bindings --------------------------------------------------------------------------------------------

/// Writes OUT_DIR/sys.rs. scripts/check-bindings.sh compares it with src/sys.rs.
#[cfg(feature = "bindgen")]
fn generate_bindings() {
    let bindings = bindgen::Builder::default()
        .header("include/gatemix.h")
        .allowlist_item("(gm|GM)_.*")
        .parse_callbacks(Box::new(PlainComments))
        .use_core()
        .generate_cstr(true)
        .derive_default(true)
        .merge_extern_blocks(true)
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_else(|error| fail(&format!("bindgen: {error}"))))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .unwrap_or_else(|error| fail(&format!("bindgen: {error}")));
    let path = Path::new(&cargo_variable("OUT_DIR")).join("sys.rs");
    fs::write(&path, plain_constants(&bindings.to_string()))
        .unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())));
}

/// Keeps all but the summary of a C comment away from Markdown.
#[cfg(feature = "bindgen")]
#[derive(Debug)]
struct PlainComments;

#[cfg(feature = "bindgen")]
impl bindgen::callbacks::ParseCallbacks for PlainComments {
    fn process_comment(&self, comment: &str) -> Option<String> {
        let comment = format!(" {}", comment.trim_start_matches(['<', ' ']));
        let summary_end = comment.find("\n\n").or_else(|| comment.find("\n @")).unwrap_or(comment.len());
        let (summary, details) = comment.split_at(summary_end);
        Some(match details.trim_matches('\n') {
            "" => comment,
            details => format!("{summary}\n\n```text\n{details}\n```"),
        })
    }
}

/// Anonymous enums come out as numbered aliases of c_uint. In C their values are int, like the fields and
/// arguments that take them.
#[cfg(feature = "bindgen")]
fn plain_constants(bindings: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in bindings.lines() {
        if line.starts_with("pub type _bindgen_ty_") {
            if lines.last().is_some_and(|comment| comment.starts_with("///")) {
                lines.pop();
            }
        } else if let Some((name, rest)) = line.split_once(": _bindgen_ty_") {
            lines.push(format!("{name}: i32{}", rest.trim_start_matches(|c: char| c.is_ascii_digit())));
        } else {
            lines.push(line.into());
        }
    }
    lines.join("\n") + "\n"
}

// ---- Files and variables ---------------------------------------------------------------------------------

/// In a fixed order, so that builds are reproducible.
fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| fail(&format!("{dir}: {error}")));
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

fn is_ci() -> bool {
    variable("GATEMIX_CI").is_some_and(|value| value == "1")
}

/// A variable that the user may set.
fn variable(name: &str) -> Option<OsString> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var_os(name).filter(|value| !value.is_empty())
}

/// A variable that cargo sets.
fn cargo_variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| fail(&format!("{name}: {error}")))
}

/// cc puts the user's flags last, the most specific variable at the end of them.
fn append_to_variable(name: &str, flags: &str) {
    let name = format!("{name}_{}", cargo_variable("TARGET"));
    let value = env::var(&name).unwrap_or_default();
    // SAFETY: a build script has one thread.
    unsafe { env::set_var(&name, format!("{value} {flags}")) };
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    process::exit(1)
}
