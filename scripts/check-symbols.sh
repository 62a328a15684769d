#!/usr/bin/env bash
# What a built library makes global: check-symbols.sh LIB...
#   .so  exactly the functions that the header declares
#   .a   names that start with gm_, among them all functions that the header declares
set -euo pipefail
export LC_ALL=C

header="$(dirname "$0")/../include/gatemix.h"
nm=${NM:-nm}
fail() { echo "check-symbols.sh: $*" >&2; exit 1; }

[ $# -gt 0 ] || fail "usage: $0 LIB..."
declared=$(grep -oE '^GM_API .*\bgm_[a-z0-9_]+\(' "$header" | grep -oE 'gm_[a-z0-9_]+\($' | tr -d '(' | sort)
[ -n "$declared" ] || fail "no function found in the header"

for lib in "$@"; do
  case $lib in
    *.so | *.so.*)
      exported=$("$nm" -D --defined-only "$lib" | awk '{print $NF}' | sort)
      diff <(echo "$declared") <(echo "$exported") || fail "$lib: header (<) and dynamic table (>) differ"
      ;;
    *.a)
      globals=$("$nm" -g --defined-only "$lib" | awk 'NF == 3 {print $3}' | sort)
      strangers=$(grep -v '^gm_' <<<"$globals" || true)
      [ -z "$strangers" ] || fail "$lib: global symbols without gm_: $(tr '\n' ' ' <<<"$strangers")"
      twice=$(uniq -d <<<"$globals")
      [ -z "$twice" ] || fail "$lib: defined twice: $(tr '\n' ' ' <<<"$twice")"
      missing=$(comm -23 <(echo "$declared") <(echo "$globals"))
      [ -z "$missing" ] || fail "$lib: not defined: $(tr '\n' ' ' <<<"$missing")"
      ;;
    *) fail "$lib: neither .so nor .a" ;;
  esac
  echo "$lib: ok"
done
