#!/usr/bin/env bash
# The header compiles alone, as C11 and as C++17, without a warning, includes nothing but <stddef.h> and <stdint.h>, and
# has the crate's version.
set -euo pipefail
cd "$(dirname "$0")/.."

warnings='-Wall -Wextra -Wconversion -pedantic -Werror'
checked=0
check() { # compiler language standard
  command -v "$1" >/dev/null || return 0
  # shellcheck disable=SC2086
  echo '#include "gatemix.h"' | "$1" -x "$2" -std="$3" $warnings -Iinclude -fsyntax-only -
  echo "$1 $3: ok"
  checked=$((checked + 1))
}
for cc in gcc clang clang-14; do check "$cc" c c11; done
for cxx in g++ clang++ clang++-14; do check "$cxx" c++ c++17; done
[ "$checked" -gt 0 ] || { echo "check-header.sh: no compiler found" >&2; exit 1; }

includes=$(grep -E '^ *# *include' include/gatemix.h | sort)
[ "$includes" = $'#include <stddef.h>\n#include <stdint.h>' ] || {
  printf 'check-header.sh: unexpected includes:\n%s\n' "$includes" >&2
  exit 1
}

version=$(sed -n 's/^#define GM_VERSION "\(.*\)"$/\1/p' include/gatemix.h)
grep -qx "version = \"$version\"" Cargo.toml || {
  echo "check-header.sh: GM_VERSION is \"$version\", Cargo.toml says $(grep -m1 '^version' Cargo.toml)" >&2
  exit 1
}
