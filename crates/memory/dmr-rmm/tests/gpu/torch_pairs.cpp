// Times what PyTorch calls of `rmm_torch_allocator`, without PyTorch: nanoseconds of an allocation and a
// free of RMM's pool, by size. `python/gpu/pairs.cpp` is the same for dmr. The argument is
// `_torch_allocator.so` of RMM's package.

#include <rmm/cuda_device.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace {

using Allocate   = void* (*)(ptrdiff_t, int, void*);
using Deallocate = void (*)(void*, std::size_t, int, void*);

double pairs(Allocate allocate, Deallocate deallocate, std::size_t bytes, int count)
{
  auto const start = std::chrono::steady_clock::now();
  for (int made = 0; made < count; ++made) {
    void* const memory = allocate(static_cast<ptrdiff_t>(bytes), 0, nullptr);
    deallocate(memory, bytes, 0, nullptr);
  }
  std::chrono::duration<double, std::nano> const took = std::chrono::steady_clock::now() - start;
  return took.count() / count;
}

}  // namespace

int main(int count, char** arguments)
{
  void* const library   = count == 2 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  auto const allocate   = library ? reinterpret_cast<Allocate>(dlsym(library, "allocate")) : nullptr;
  auto const deallocate = library ? reinterpret_cast<Deallocate>(dlsym(library, "deallocate")) : nullptr;
  if (allocate == nullptr || deallocate == nullptr) {
    std::fprintf(stderr, "usage: torch_pairs .../rmm/librmm/_torch_allocator.so (%s)\n", dlerror());
    return 1;
  }
  rmm::mr::set_current_device_resource(
    rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, rmm::percent_of_free_device_memory(50)});
  for (std::size_t const bytes : {512u, 65536u, 1048576u, 33554432u}) {
    pairs(allocate, deallocate, bytes, 2000);
    std::vector<double> rounds;
    for (int round = 0; round < 9; ++round) { rounds.push_back(pairs(allocate, deallocate, bytes, 20000)); }
    std::sort(rounds.begin(), rounds.end());
    std::printf("{\"bytes\": %zu, \"rmm_pair_ns\": %.1f, \"least\": %.1f, \"most\": %.1f}\n", bytes, rounds[4],
                rounds[0], rounds[8]);
  }
  return 0;
}
