#!/usr/bin/env bash
# Builds libdmr_rmm.so into OUT, beside copies of the libraries that it needs: with the headers and
# libraries of RMM in SDK, which pip fetches, and a C++20 compiler. No GPU is needed.
#
#   python3 -m pip install --no-deps --target sdk librmm-cu13==26.10.0 rapids-logger==0.3.0 \
#       nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
#   SDK=sdk OUT=lib ./build.sh
#
# LIBRMM and CUDART name other libraries of RMM and of CUDA's runtime; CUDART is empty where LIBRMM has it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sdk=$(cd "${SDK:?the folder in which pip has installed librmm}" && pwd)
out=${OUT:?the folder for the libraries}
librmm=${LIBRMM-$sdk/librmm/lib64/librmm.so}
cudart=${CUDART-$sdk/nvidia/cu13/lib/libcudart.so.13}
mkdir -p "$out"
for library in "$librmm" "$sdk/rapids_logger/lib64/librapids_logger.so" ${cudart:+"$cudart"}; do
    [ "$library" -ef "$out/$(basename "$library")" ] || cp -f "$library" "$out/"
done
"${CXX:-c++}" -std=c++20 -O2 -Wall -Wextra -Werror -DNDEBUG -fPIC -fvisibility=hidden -shared -pthread \
    -isystem "$sdk/librmm/include" -isystem "$sdk/librmm/include/rapids" -isystem "$sdk/rapids_logger/include" \
    -isystem "$sdk/nvidia/cu13/include" "$here/shim.cpp" -o "$out/libdmr_rmm.so" -L"$out" -lrmm -lrapids_logger \
    ${cudart:+"$out/$(basename "$cudart")"} -Wl,-rpath,'$ORIGIN' -Wl,--no-undefined
