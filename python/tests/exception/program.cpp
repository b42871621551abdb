// Allocates beyond the limit through the function that PyTorch calls, and prints what it catches.

#include <cstddef>
#include <cstdio>
#include <exception>

#include "c10.h"
#include "dmr.h"

extern "C" {
int dmr_torch_set_runtime(int device, void* runtime);
void* dmr_torch_allocate(ptrdiff_t bytes, int device, void* stream);
}

int main(int count, char**) {
  dmr_config config;
  dmr_config_init(&config, sizeof config);
  config.budget_bytes = 4 << 20;
  dmr_runtime* runtime = nullptr;
  if (dmr_runtime_create(&config, &runtime) != DMR_STATUS_OK) return 2;
  dmr_torch_set_runtime(0, runtime);
  // The program is linked to the library, and keeps it, only if it uses it.
  if (count > 9) throw c10::OutOfMemoryError({"", "", 0}, "");
  try {
    dmr_torch_allocate(64 << 20, 0, nullptr);
    std::puts("nothing");
  } catch (const c10::OutOfMemoryError& error) {
    std::printf("OutOfMemoryError: %s\n", error.what());
  } catch (const std::exception& error) {
    std::printf("another: %s\n", error.what());
  }
  return dmr_runtime_destroy(runtime) == DMR_STATUS_OK ? 0 : 3;
}
