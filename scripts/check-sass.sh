#!/usr/bin/env bash
# Reads the Hopper code of a library: no kernel may use local memory (spills, indexed arrays), the fast ones must store
# sixteen bytes at a time, and hc_head and gated_mla must run on tensor cores, with wgmma where they are made for it. Needs
# cuobjdump.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 LIBRARY" >&2; exit 2; }
cuobjdump -arch sm_90a --dump-sass "$1" | awk '
  /Function : / { kernel = $3; kernels++ }
  / (LDL|STL)[. ]/ { local[kernel]++ }
  / STG\.E/ { if (/ STG\.E\.128 /) wide[kernel]++; else narrow[kernel]++ }
  / HMMA\./ { mma[kernel]++ }
  / HGMMA\./ { wgmma[kernel]++ }
  /Function : .*gated_mla_sm(80|90_direct)/ { gates[kernel] = "HMMA" }
  /Function : .*gated_mla_sm90_(decode|prefill)/ { gates[kernel] = "HGMMA" }
  END {
    for (kernel in local) { print kernel ": local memory"; bad = 1 }
    fast = "post_registers|rms_norm_registers|hc_collapse_vector|hc_head_cluster"
    for (kernel in wide) if (kernel ~ fast) {
      seen++
      if (narrow[kernel]) { print kernel ": stores of less than 16 bytes"; bad = 1 }
      if (kernel ~ /hc_head_cluster/ && !mma[kernel]) { print kernel ": no tensor cores"; bad = 1 }
    }
    for (kernel in narrow) if (kernel ~ fast && !wide[kernel]) { print kernel ": no stores of 16 bytes"; bad = 1 }
    for (kernel in gates) {
      forms[gates[kernel]]++
      if (!(gates[kernel] == "HMMA" ? mma[kernel] : wgmma[kernel])) { print kernel ": no " gates[kernel]; bad = 1 }
    }
    if (!forms["HMMA"] || !forms["HGMMA"]) { print "no kernels of gated_mla"; bad = 1 }
    if (seen < 4) { print "only " seen + 0 " fast kernels among " kernels + 0; bad = 1 }
    exit bad
  }' || { echo "$1: not the code that it should be" >&2; exit 1; }
echo "$1: Hopper code ok"
