#!/usr/bin/env bash
# Runs on a GPU what `bundle.sh` has packed, in its folder: writes to OUT, or beside itself. ONLY names
# some of: conformance program bench peers random torch. TORCH_ALLOCATOR is `_torch_allocator.so` of
# RMM's package.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=${OUT:-$PWD}
export DMR_DRIVER=cuda DMR_RMM_LIBRARY=$PWD/lib/libdmr_rmm.so
failed=0
step() {
    local name=$1
    shift
    [[ " ${ONLY:-conformance program bench peers random torch} " == *" $name "* ]] || return 0
    echo "== $name: $*"
    "$@" 2>&1 | tee -a "$out/$name.log" | grep -v '\]\[error' | tail -40
    [ "${PIPESTATUS[0]}" = 0 ] || { echo "== $name FAILED"; failed=1; }
}
step conformance ./conformance --nocapture
step program ./program
for resource in rmm-pool rmm-arena rmm-binning rmm-cuda-async pool-pages; do
    step bench ./dmr-bench run --workloads w1,w3,w4 --threads 1,16 --resources "$resource" --traces traces/*.csv.gz
done
readonly PEERS=pool,pool0,arena,binning,cuda_async
step peers ./rmm_bench pingpong --resources "$PEERS"
step peers ./rmm_bench multistream --threads 1,16 --resources "$PEERS"
step peers ./rmm_bench replay traces/*.csv.gz --resources "$PEERS"
for resource in dmr pool arena cuda_async; do
    step random ./random_allocations -r "$resource" -n 10000 -m 256
done
[ -z "${TORCH_ALLOCATOR:-}" ] || step torch ./torch_pairs "$TORCH_ALLOCATOR"
exit "$failed"
