#!/usr/bin/env bash
# Compares src/sys.rs with what bindgen makes of include/gatemix.h; --update rewrites it. Needs libclang.
set -euo pipefail
cd "$(dirname "$0")/.."

out_dir=$(cargo check --quiet --lib --features bindgen --message-format=json |
  sed -n '/"reason":"build-script-executed".*[/#]gatemix[@#]/s/.*"out_dir":"\([^"]*\)".*/\1/p')

case ${1-} in
  --update) cp "$out_dir/sys.rs" src/sys.rs ;;
  '') diff -u src/sys.rs "$out_dir/sys.rs" || { echo "src/sys.rs is stale: run $0 --update" >&2; exit 1; } ;;
  *) echo "usage: $0 [--update]" >&2; exit 2 ;;
esac
