// The functions that PyTorch calls: libdmr_torch.so. It needs neither PyTorch's headers nor its libraries to be built.
//
// PyTorch does not look at the null return of an allocator: what reports that there is no memory must throw. The exception
// is PyTorch's own, made with the symbols of libc10.so where these are found, so that the program sees
// torch.cuda.OutOfMemoryError; otherwise it is a std::runtime_error, a RuntimeError in Python.

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "dmr.h"

namespace {

constexpr int kMaxDevices = 64;

// By CUDA ordinal. Set by the Python package, once for each device.
std::atomic<dmr_runtime*> runtimes[kMaxDevices];

// Makes room, if it can: called where an allocation of this number of bytes is refused. Not 0: try again.
using MakeRoom = int (*)(int device, size_t bytes);
std::atomic<MakeRoom> make_room{nullptr};

// The most times that one allocation asks for room.
constexpr int kAttempts = 8;

// Set in a forked child, where a thread of the parent may have held the lock, and no memory is freed.
std::atomic<bool> is_forked{false};

// A free that was refused, because its stream captures a graph, for example.
struct RefusedFree {
  int device;
  dmr_address address;
  std::vector<void*> streams;
};

// What all calls share.
struct Shared {
  std::mutex mutex;
  // The streams that have used a block beside that of its allocation. No two devices have one address.
  std::unordered_map<dmr_address, std::vector<void*>> streams;
  std::vector<RefusedFree> refused;
  // The sizes of both, to be read without the lock.
  std::atomic<size_t> recorded{0};
  std::atomic<size_t> waiting{0};
};

// Never destroyed: PyTorch frees memory at the end of the process, in no order.
Shared& shared() {
  static Shared* all = new Shared;
  return *all;
}

dmr_runtime* runtime_of(int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return runtimes[device].load(std::memory_order_acquire);
}

std::string last_error() {
  std::string text(dmr_last_error(nullptr, 0) + 1, '\0');
  dmr_last_error(&text[0], text.size());
  text.pop_back();
  return text;
}

// The layout of c10::SourceLocation, which is passed by value.
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// Throws c10::OutOfMemoryError, if the symbols of its base are found. The object is a c10::Error, made by its constructor in
// memory of more bytes than it has; the subclass adds no member. What a handler compares is the name of the type, and this
// type has that of PyTorch, with PyTorch's own base: the library exports no other.
void throw_out_of_memory_of_torch(const std::string& message) {
  constexpr size_t kMoreThanEnough = 1024;
  using Constructor = void (*)(void*, SourceLocation, std::string);
  // Python loads PyTorch's libraries for itself only, so its symbols are found through the library, which is loaded.
  void* const c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (c10 == nullptr) return;
  const auto construct = reinterpret_cast<Constructor>(
      dlsym(c10, "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  const auto base = static_cast<const abi::__class_type_info*>(dlsym(c10, "_ZTIN3c105ErrorE"));
  if (construct == nullptr || base == nullptr) return;
  static auto* const type = new abi::__si_class_type_info("N3c1016OutOfMemoryErrorE", base);
  void* exception = abi::__cxa_allocate_exception(kMoreThanEnough);
  construct(exception, SourceLocation{"allocate", "dmr", 0}, message);
  // The base of c10::Error, at its first byte, has a virtual destructor.
  abi::__cxa_throw(exception, type, [](void* thrown) { static_cast<std::exception*>(thrown)->~exception(); });
}

bool is_full(dmr_status status) {
  return status == DMR_STATUS_OUT_OF_MEMORY || status == DMR_STATUS_OUT_OF_BUDGET;
}

[[noreturn]] void throw_error(dmr_status status, ptrdiff_t bytes, int device) {
  const std::string message =
      "dmr: cannot allocate " + std::to_string(bytes) + " bytes on device " + std::to_string(device) + ": " + last_error();
  if (is_full(status)) throw_out_of_memory_of_torch(message);
  throw std::runtime_error(message);
}

// Records the uses of a block on the streams that PyTorch has named, and frees it. Returns false if one of them was refused;
// the streams whose use was recorded are removed then.
bool free_block(dmr_runtime* runtime, dmr_address address, std::vector<void*>& streams) {
  while (!streams.empty()) {
    const dmr_status recorded =
        dmr_record_use(runtime, address, streams.back(), DMR_ACCESS_READ | DMR_ACCESS_WRITE);
    // A lost device runs nothing any more, a backend without records frees after all work, and memory that is not the
    // runtime's has nothing to record.
    const bool is_over = recorded == DMR_STATUS_DEVICE_LOST || recorded == DMR_STATUS_UNSUPPORTED ||
                         recorded == DMR_STATUS_UNKNOWN_ADDRESS;
    if (recorded != DMR_STATUS_OK && !is_over) return false;
    streams.pop_back();
  }
  const dmr_status freed = dmr_free(runtime, address);
  return freed == DMR_STATUS_OK || freed == DMR_STATUS_UNKNOWN_ADDRESS;
}

// Frees once more what was refused.
void free_refused() {
  Shared& all = shared();
  if (all.waiting.load(std::memory_order_relaxed) == 0 || is_forked.load(std::memory_order_relaxed)) return;
  std::vector<RefusedFree> refused;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    refused.swap(all.refused);
    all.waiting.store(0, std::memory_order_relaxed);
  }
  std::vector<RefusedFree> left;
  for (RefusedFree& free : refused) {
    if (!free_block(runtime_of(free.device), free.address, free.streams)) left.push_back(std::move(free));
  }
  if (left.empty()) return;
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (RefusedFree& free : left) all.refused.push_back(std::move(free));
  all.waiting.store(all.refused.size(), std::memory_order_relaxed);
}

dmr_status allocate(ptrdiff_t bytes, int device, void* stream, void** memory) {
  dmr_runtime* runtime = runtime_of(device);
  if (runtime == nullptr) return DMR_STATUS_UNKNOWN_RUNTIME;
  free_refused();
  dmr_address address = 0;
  const dmr_status status = dmr_allocate(runtime, static_cast<size_t>(bytes), stream, &address);
  *memory = reinterpret_cast<void*>(address);
  return status;
}

// Allocates, and asks for room where there is none. What makes room may allocate, and is not asked again by that.
dmr_status allocate_with_room(ptrdiff_t bytes, int device, void* stream, void** memory) {
  thread_local bool is_asking = false;
  dmr_status status = allocate(bytes, device, stream, memory);
  const MakeRoom make = make_room.load(std::memory_order_acquire);
  for (int attempt = 0; attempt < kAttempts && is_full(status) && make != nullptr && !is_asking; ++attempt) {
    is_asking = true;
    const int again = make(device, static_cast<size_t>(bytes));
    is_asking = false;
    if (again == 0) break;
    // What was freed may still be used by the device.
    dmr_runtime_reap(runtime_of(device), 1, nullptr);
    status = allocate(bytes, device, stream, memory);
  }
  return status;
}

}  // namespace

extern "C" {

// Sets what makes room for dmr_torch_allocate; null for nothing. Segments ask for none: PyTorch holds a lock there, and frees
// what it has cached itself.
void dmr_torch_set_make_room(MakeRoom make) { make_room.store(make, std::memory_order_release); }

// Sets the runtime of a device: the handle that dmr_runtime_create has written. Returns 0, or 1 for a device that PyTorch
// cannot have.
int dmr_torch_set_runtime(int device, void* runtime) {
  if (device < 0 || device >= kMaxDevices) return 1;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });
  (void)registered;
  runtimes[device].store(static_cast<dmr_runtime*>(runtime), std::memory_order_release);
  return 0;
}

// Allocates for a torch.cuda.memory.CUDAPluggableAllocator. Throws if there is no memory.
void* dmr_torch_allocate(ptrdiff_t bytes, int device, void* stream) {
  void* memory = nullptr;
  const dmr_status status = allocate_with_room(bytes, device, stream, &memory);
  if (status != DMR_STATUS_OK) throw_error(status, bytes, device);
  return memory;
}

// Allocates a segment for a torch.cuda.MemPool. Returns null if there is no memory: PyTorch then frees what it has cached,
// asks once more, and raises its own error.
void* dmr_torch_allocate_segment(ptrdiff_t bytes, int device, void* stream) {
  void* memory = nullptr;
  const dmr_status status = allocate(bytes, device, stream, &memory);
  if (status != DMR_STATUS_OK && !is_full(status)) throw_error(status, bytes, device);
  return status == DMR_STATUS_OK ? memory : nullptr;
}

// Frees a block of either. The stream is that of the allocation. PyTorch calls it where nothing may be thrown: what is
// refused, because a stream captures, is freed by a later call.
void dmr_torch_free(void* memory, size_t, int device, void*) {
  dmr_runtime* runtime = runtime_of(device);
  if (runtime == nullptr || memory == nullptr || is_forked.load(std::memory_order_relaxed)) return;
  Shared& all = shared();
  const auto address = static_cast<dmr_address>(reinterpret_cast<uintptr_t>(memory));
  std::vector<void*> streams;
  if (all.recorded.load(std::memory_order_relaxed) != 0) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.streams.find(address);
    if (found != all.streams.end()) {
      streams = std::move(found->second);
      all.streams.erase(found);
      all.recorded.store(all.streams.size(), std::memory_order_relaxed);
    }
  }
  if (!free_block(runtime, address, streams)) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.refused.push_back({device, address, std::move(streams)});
    all.waiting.store(all.refused.size(), std::memory_order_relaxed);
  }
}

// Tensor.record_stream: the memory is not used again before the work that the stream has when the block is freed.
void dmr_torch_record_stream(void* memory, void* stream) {
  if (memory == nullptr || is_forked.load(std::memory_order_relaxed)) return;
  Shared& all = shared();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<void*>& streams = all.streams[static_cast<dmr_address>(reinterpret_cast<uintptr_t>(memory))];
  for (void* known : streams) {
    if (known == stream) return;
  }
  streams.push_back(stream);
  all.recorded.store(all.streams.size(), std::memory_order_relaxed);
}

// torch.cuda.empty_cache of a pluggable allocator: returns unused memory to the driver.
void dmr_torch_empty_cache() {
  free_refused();
  for (int device = 0; device < kMaxDevices; ++device) {
    dmr_runtime* runtime = runtime_of(device);
    if (runtime == nullptr) continue;
    dmr_runtime_reap(runtime, 1, nullptr);
    dmr_runtime_trim(runtime, 0, nullptr);
  }
}

}  // extern "C"
