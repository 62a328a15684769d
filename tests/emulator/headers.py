#!/usr/bin/env python3
"""headers.py CSRC OUT: the headers that wrap PTX, for the emulator.

A function that contains asm calls emulator::NAME with the same arguments instead; all else stays as it is. OUT goes before
CSRC among the include paths. Also writes OUT/dynamic_shared.cpp, which defines what `extern __shared__` declares.
"""

import pathlib
import re
import sys

HEADERS = ["ptx", "wgmma", "tensor_map"]
FUNCTION = re.compile(r"(?:template <([^>]*)>\s*)?__device__ __forceinline__ [^();]*?(\w+)\(")
NO_TYPE = re.compile(r"(\w+)\)?(?:\[[^]]*\])?\s*$")  # the name at the end of a parameter: `int a`, `float (&a)[4]`


def end_of(text, start, pair):
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    raise SystemExit(f"headers.py: no end of {text[start:start + 40]!r}")


def names(parameters):
    return ", ".join(NO_TYPE.search(p).group(1) for p in parameters.split(",") if p.strip())


def without_asm(text):
    macros = re.findall(r"#define (\w+)\((?:[^\n]*\\\n)*?[^\n]*\basm\b", text)
    is_asm = re.compile(r"\b(?:" + "|".join(["asm"] + macros) + r")\b")
    out, done = "", 0
    for function in FUNCTION.finditer(text):
        close = end_of(text, function.end() - 1, "()")
        opening = text.index("{", close)
        end = end_of(text, opening, "{}")
        if function.start() < done or not is_asm.search(text[opening:end]):
            continue
        template = f"<{names(function.group(1))}>" if function.group(1) else ""
        call = f"::emulator::{function.group(2)}{template}({names(text[function.end():close])})"
        out += text[done:opening] + "{ return " + call + "; }"
        done = end + 1
    return out + text[done:]


def dynamic_shared(sources):
    found = {n for s in sources for n in re.findall(r"extern __shared__ [^;\[]*?(\w+)\[\];", s.read_text())}
    lines = ['#include "emulator.h"', "alignas(1024) thread_local unsigned char emulator_dynamic_shared[emulator::kMaxShared];"]
    lines += [f'__asm__(".globl {n}\\n.set {n}, emulator_dynamic_shared");' for n in sorted(found)]
    return "\n".join(lines) + "\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    csrc, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for header in HEADERS:
        name = f"cuda/common/{header}.cuh"
        write(out / name, without_asm((csrc / name).read_text()))
    write(out / "dynamic_shared.cpp", dynamic_shared(sorted((csrc / "cuda").glob("*.cu"))))


main()
