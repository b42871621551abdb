#!/usr/bin/env bash
# Packs what `run.sh` beside it runs on a machine with a GPU and without Rust, into OUT. Run it after
# `cargo xtask rmm`, with the same CARGO_TARGET_DIR and RMM_SOURCE. Needs Google's benchmark library, of
# which BENCHMARK names the folder with `include` and `lib`; without it RMM's benchmark is left out.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
out=${OUT:?the folder to fill}
built=$target/rmm
source=${RMM_SOURCE:-$built/source}/cpp
cd "$root"
mkdir -p "$out/lib" "$out/lib-26.6" "$out/traces"

cargo build --release -p dmr-bench -p dmr-capi
cp "$target/release/dmr-bench" "$out/"
cp "$target/release/libdmr_capi.so" "$out/lib/"
cp "$target/release/libdmr_capi.so" "$out/lib-26.6/"
cp traces/*.csv.gz "$out/traces/"
test=$(cargo test -p dmr-rmm --test it --no-run --message-format short 2>&1 | sed -n 's/.*(\(.*\))$/\1/p' | tail -1)
cp "$test" "$out/conformance"
cp "$built/lib/"*.so* "$out/lib/"

# The folder of a package, the libraries, the file and the program.
compile() {
    local sdk=$1 lib=$2
    shift 2
    "${CXX:-c++}" -std=c++20 -O3 -DNDEBUG -pthread -rdynamic -I crates/memory/dmr-capi/include \
        -isystem "$sdk/librmm/include" -isystem "$sdk/librmm/include/rapids" -isystem "$sdk/rapids_logger/include" \
        -isystem "$sdk/nvidia/cu13/include" "$@" -L"$lib" -lrmm -lrapids_logger "$lib/libcudart.so.13" -ldmr_capi -ldl \
        -Wl,-rpath,"\$ORIGIN/$(basename "$lib")" -Wl,--disable-new-dtags
}
sdk=$built/sdk/site
compile "$sdk" "$out/lib" crates/memory/dmr-rmm/tests/cpp/resource.cpp -o "$out/program"
compile "$sdk" "$out/lib" crates/memory/dmr-rmm/tests/gpu/torch_pairs.cpp -o "$out/torch_pairs"
compile "$sdk" "$out/lib" crates/tools/dmr-bench/peers/src/bench.cpp -o "$out/rmm_bench"

# RMM's own benchmark, of the release of its sources, with one more resource: `dmr`.
if [ -n "${BENCHMARK:-}" ]; then
    sdk=$built/simulated-sdk/site
    cp "$sdk/librmm/lib64/librmm.so" "$sdk/rapids_logger/lib64/librapids_logger.so" \
        "$sdk/nvidia/cu13/lib/libcudart.so.13" "$out/lib-26.6/"
    cp -L "$BENCHMARK"/lib/libbenchmark.so.1* "$out/lib-26.6/"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    sed -e '/^#include <rmm\/resource_ref.hpp>/a #include <dmr/rmm.hpp>' \
        -e '/^inline any_device_resource make_cuda()/i inline any_device_resource make_dmr() { return dmr::rmm_resource{}; }' \
        -e 's/^  } else if (name == "arena") {/  } else if (name == "dmr") {\n    BENCHMARK_CAPTURE(BM_RandomAllocations, dmr_mr, \&make_dmr)->Apply(benchmark_range);\n&/' \
        -e 's/benchmark::Benchmark\*/benchmark::internal::Benchmark*/' \
        "$source/benchmarks/random_allocations/random_allocations.cpp" > "$scratch/random_allocations.cpp"
    compile "$sdk" "$out/lib-26.6" -I "$source" -I "$BENCHMARK/include" "$scratch/random_allocations.cpp" \
        -o "$out/random_allocations" -L"$out/lib-26.6" -l:libbenchmark.so.1debian
fi
cp "$here/run.sh" "$out/"
strip --strip-unneeded "$out"/{conformance,dmr-bench,program,torch_pairs,rmm_bench} "$out"/lib*/*.so* 2>/dev/null || true
du -sh "$out"
