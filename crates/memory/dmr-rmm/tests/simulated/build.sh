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
export CXX=${CXX:-c++}
{
    printf '%s\0' "$here/runtime.cpp" "$out/objects/runtime.o"
    find "$source/src" -name '*.cpp' -print | while read -r file; do
        name=${file#"$source/src/"}
        printf '%s\0' "$file" "$out/objects/${name//\//_}.o"
    done
} | xargs -0 -n 2 -P "$(nproc)" bash -c '[ "$1" -nt "$0" ] || "$CXX" '"$(printf '%q ' "${flags[@]}")"' -c "$0" -o "$1"'
cp -f "$sdk/rapids_logger/lib64/librapids_logger.so" "$out/"
"$CXX" -shared -pthread -Wl,-soname,librmm.so "$out"/objects/*.o -o "$out/librmm.so" -L"$out" -lrapids_logger -ldl \
    -Wl,-rpath,'$ORIGIN' -Wl,--no-undefined
LIBRMM=$out/librmm.so CUDART='' SDK=$sdk OUT=$out "$here/../../shim/build.sh"
