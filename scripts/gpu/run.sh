#!/usr/bin/env bash
# Tests and measures gatemix on this machine's GPU, from the folder that gpu-bundle.sh made. run.sh COMMAND [OPTION...]:
#   test       the tests of the CUDA backend
#   cpu-test   all others
#   sanitize   compute-sanitizer over the small cases
#   bench      scripts/peers.py with these options; the results go to peers.json as well
#   criterion  the Rust benches, such as: run.sh criterion cuda
#   forms      every form of gated_mla beside cuBLAS: run.sh forms [N,K,M]...
#   all        test, sanitize, bench
# $CUBLAS: which cuBLAS; default: torch's, so that all compare with the same, else the loader's.
set -euo pipefail
cd "$(dirname "$0")"
export GATEMIX_TEST_DATA="$PWD/data"

# Among the packages that torch brings.
find_cublas() {
  python3 -c '
import glob, sys
found = (f for p in sys.path for f in sorted(glob.glob(f"{p}/nvidia/*/lib/libcublas.so.[0-9]*"), reverse=True))
print(next(found, ""))'
}
[ -n "${CUBLAS-}" ] || CUBLAS=$(find_cublas)
[ -z "$CUBLAS" ] || export CUBLAS

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()

# attempt NAME COMMAND...: notes a failure and goes on.
attempt() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name"
  timeout 400 "$@" 2>&1 | tee "$log" || failed+=("$name")
  echo "== $name: $((SECONDS - started)) s"
}

run_test() {
  local binary
  for binary in tests/*; do
    attempt "$binary" "$binary" cuda:: "$@"
    if grep -q 'cuda:: tests are ignored' "$log"; then failed+=("$binary: no GPU"); fi
  done
}

run_cpu_test() {
  local binary
  for binary in tests/* cpu-tests/*; do attempt "$binary" "$binary" --skip cuda:: "$@"; done
}

sanitize() { # TOOL BINARY
  local before=${#failed[@]} options=(--tool "$1" --error-exitcode 1 --target-processes all)
  attempt "$1 $2" compute-sanitizer "${options[@]}" "$2" cuda:: --test-threads=1
  if grep -qi 'device not supported' "$log"; then
    failed=("${failed[@]:0:before}")
    echo "skipped: this machine does not let compute-sanitizer at its GPU"
    return 1
  fi
}

run_sanitize() {
  local binary tool
  command -v compute-sanitizer >/dev/null || { failed+=("no compute-sanitizer"); return 0; }
  for tool in memcheck racecheck initcheck synccheck; do sanitize "$tool" tests/golden || return 0; done
  for binary in tests/gated_mla tests/hc_* tests/mhc_* tests/rms_norm; do sanitize memcheck "$binary" || return 0; done
}

run_bench() {
  attempt peers python3 scripts/peers.py --lib lib/libgatemix.so --copy lib/libcopy.so --json peers.json "$@"
}

run_criterion() {
  local binary
  for binary in benches/*; do attempt "$binary" "$binary" --bench "$@"; done
}

run_forms() { attempt forms bin/gated_mla_forms "$@"; }

case ${1-} in
  test | cpu-test | sanitize | bench | criterion | forms) "run_${1//-/_}" "${@:2}" ;;
  all) run_test && run_sanitize && run_bench ;;
  *) sed -n '2,10s/^# //p' run.sh >&2; exit 2 ;;
esac
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all passed"
