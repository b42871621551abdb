// Times the functions that PyTorch calls, without PyTorch: nanoseconds of an allocation and a free, by size.
//
// g++ -O2 -std=c++17 pairs.cpp -I ../../crates/memory/dmr-capi/include -L FOLDER -ldmr_torch -ldmr_capi
//     -Wl,-rpath,FOLDER -o pairs

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

#include "dmr.h"

extern "C" {
int dmr_torch_set_runtime(int device, void* runtime);
void* dmr_torch_allocate(ptrdiff_t bytes, int device, void* stream);
void dmr_torch_free(void* memory, size_t bytes, int device, void* stream);
}

namespace {

double pairs(size_t bytes, int count) {
  const auto start = std::chrono::steady_clock::now();
  for (int made = 0; made < count; ++made) {
    void* memory = dmr_torch_allocate(static_cast<ptrdiff_t>(bytes), 0, nullptr);
    dmr_torch_free(memory, bytes, 0, nullptr);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / count;
}

}  // namespace

int main() {
  dmr_config config;
  dmr_config_init(&config, sizeof config);
  dmr_runtime* runtime = nullptr;
  if (dmr_runtime_create(&config, &runtime) != DMR_STATUS_OK) {
    char text[512];
    dmr_last_error(text, sizeof text);
    std::fprintf(stderr, "%s\n", text);
    return 1;
  }
  dmr_torch_set_runtime(0, runtime);
  for (const size_t bytes : {512u, 65536u, 1048576u, 33554432u}) {
    pairs(bytes, 2000);
    std::vector<double> rounds;
    for (int round = 0; round < 9; ++round) rounds.push_back(pairs(bytes, 20000));
    std::sort(rounds.begin(), rounds.end());
    std::printf("{\"bytes\": %zu, \"pair_ns\": %.1f, \"least\": %.1f, \"most\": %.1f}\n", bytes, rounds[4], rounds[0],
                rounds[8]);
  }
  return dmr_runtime_destroy(runtime) == DMR_STATUS_OK ? 0 : 1;
}
