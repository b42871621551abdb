#!/usr/bin/env bash
# Builds libdmr_rmm.so for the simulated driver into OUT: RMM from its own sources, in SOURCE, with
# runtime.cpp in place of CUDA's runtime library, which RMM's package has linked in and which does not
# run there. SDK as for ../../shim/build.sh, with the release of the sources.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sdk=$(cd "${SDK:?the folder in which pip has installed librmm}" && pwd)
source=$(cd "${SOURCE:?a checkout of the repository of RMM}" && pwd)/cpp
out=${OUT:?the folder for the libraries}
mkdir -p "$out/objects"
out=$(cd "$out" && pwd)
flags=(-std=c++20 -O1 -DNDEBUG -fPIC -pthread)
flags+=(-isystem "$sdk/librmm/include" -isystem "$sdk/librmm/include/rapids")
flags+=(-isystem "$sdk/rapids_logger/include" -isystem "$sdk/nvidia/cu13/include")
files=(aligned cuda_device cuda_stream cuda_stream_view device_buffer error logger runtime_shutdown)
for resource in arena binning callback cuda_async fixed_size pool; do
    files+=("mr/${resource}_memory_resource" "mr/detail/${resource}_memory_resource_impl")
done
# The file, and the name of its object.
compile() { "${CXX:-c++}" "${flags[@]}" -c "$1" -o "$out/objects/$2.o"; }
objects=("$out/objects/runtime.o")
compile "$here/runtime.cpp" runtime
for file in "${files[@]}"; do
    # A resource with little in it has one file.
    [ -f "$source/src/$file.cpp" ] || continue
    compile "$source/src/$file.cpp" "${file//\//_}"
    objects+=("$out/objects/${file//\//_}.o")
done
cp -f "$sdk/rapids_logger/lib64/librapids_logger.so" "$out/"
"${CXX:-c++}" -shared -pthread -Wl,-soname,librmm.so "${objects[@]}" -o "$out/librmm.so" -L"$out" -lrapids_logger -ldl \
    -Wl,-rpath,'$ORIGIN' -Wl,--no-undefined
LIBRMM=$out/librmm.so CUDART='' SDK=$sdk OUT=$out "$here/../../shim/build.sh"
