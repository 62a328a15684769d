# Sourced by .ci/run.

fail() { echo "$*" >&2; exit 1; }

# Runs the named steps; each prints its name and how long it took.
run_steps() {
  local started total=$SECONDS
  trap '[ -z "${step-}" ] || echo "== $step FAILED" >&2; rm -rf "$scratch"' EXIT
  for step in $*; do
    started=$SECONDS
    printf '\n== %s\n' "$step"
    "$step" </dev/null
    printf '== %s: %d s\n' "$step" $((SECONDS - started))
  done
  step=
  printf '\nAll steps passed: %d s\n' $((SECONDS - total))
}

install_packages() {
  local missing=() package sudo=
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# c_build NAME COMPILER OPTION...: the library, installed into $work/NAME/prefix.
c_build() {
  local dir="$work/$1" compiler=$2
  shift 2
  cmake -S . -B "$dir/library" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_INSTALL_PREFIX="$dir/prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DGATEMIX_WERROR=ON "$@" >/dev/null
  cmake --build "$dir/library" -j "$jobs" >"$dir/build.log" || { cat "$dir/build.log"; return 1; }
  cmake --install "$dir/library" >/dev/null
}

# c_test NAME COMPILER OPTION...: tests/c against what c_build installed, run by $emulator.
c_test() {
  local dir="$work/$1" compiler=$2
  shift 2
  cmake -S tests/c -B "$dir/tests" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$dir/prefix" \
    -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=BOTH -DCMAKE_BUILD_TYPE=Release -DGATEMIX_WERROR=ON "$@" >/dev/null
  cmake --build "$dir/tests" -j "$jobs" >"$dir/build.log" || { cat "$dir/build.log"; return 1; }
  ${emulator:-} "$dir/tests/gatemix_c_tests"
}

# c_example PREFIX: the C and Python examples with what is installed there.
c_example() {
  local flags
  flags=$(PKG_CONFIG_PATH="$1/lib/pkgconfig" pkg-config --cflags --libs gatemix)
  # shellcheck disable=SC2086
  cc -std=c11 -Wall -Wextra -pedantic -Werror examples/c/gate.c $flags -Wl,-rpath,"$1/lib" -o "$work/gate"
  "$work/gate"
  python3 examples/python/rms_norm.py "$1/lib/libgatemix.so"
}

# Where build.rs put the C library of a cargo build with these options.
build_script_out() {
  cargo build "$@" --message-format=json 2>/dev/null |
    grep -o '"out_dir":"[^"]*/gatemix-[0-9a-f]*/out"' | cut -d '"' -f 4
}

newest() { ls -t "$@" | head -n 1; }

# A prefix for a command, where the kernel allows it.
without_network() {
  if unshare --map-root-user --net true 2>/dev/null; then echo unshare --map-root-user --net; fi
}

# PATH less the folders that hold a program of this name.
path_without() {
  local dir kept=
  while IFS= read -r -d : dir; do
    [ -x "$dir/$1" ] || kept="$kept${kept:+:}$dir"
  done <<<"$PATH:"
  echo "$kept"
}
