// A runtime of dmr as a memory resource of RMM, for programs in C++: `cuda::mr::resource` with
// `cuda::mr::device_accessible`. Header-only; link libdmr_capi, and RMM as the program does. RMM 26.6 or
// newer, C++20.
//
//     rmm::mr::set_current_device_resource(dmr::rmm_resource{});
//     rmm::device_uvector<int> numbers(1000, stream);  // is memory of dmr
//
// A deallocation is ordered on the stream that it names, and need not be on the one of the allocation.
//
// Call `retire` before a stream is destroyed, after its last deallocation: dmr records events on the
// streams that it has seen, and has room for `max_streams` of them (`dmr_config`). RMM has no call for
// that. A program that keeps its streams, as most do, has nothing to call.

#ifndef DMR_RMM_HPP
#define DMR_RMM_HPP

#include <dmr.h>

#include <rmm/error.hpp>

#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dmr {

/// A runtime of dmr as a resource of RMM. Copies share it, and are equal; the last one destroys it.
///
/// Errors of an allocation are `rmm::out_of_memory` for a shortage of the device or of a budget, and
/// `rmm::bad_alloc` otherwise, with the text of dmr. On a stream that captures a graph nothing is
/// allocated; what is deallocated there is freed by a later call.
class rmm_resource {
 public:
  /// Makes a runtime with the defaults of dmr, on device 0.
  rmm_resource() : rmm_resource{defaults()} {}

  /// Makes a runtime with these settings, which `dmr_config_init` has filled.
  ///
  /// Throws `rmm::bad_alloc` if the runtime cannot be made.
  explicit rmm_resource(dmr_config const& config) : shared_{std::make_shared<shared>()}
  {
    if (dmr_runtime_create(&config, &shared_->runtime) != DMR_STATUS_OK) { throw rmm::bad_alloc(last_error()); }
  }

  /// Returns settings with the defaults of dmr.
  static dmr_config defaults()
  {
    dmr_config config;
    dmr_config_init(&config, sizeof config);
    return config;
  }

  /// Returns the runtime, for the functions of `dmr.h`. It lives as long as the copies of this.
  [[nodiscard]] dmr_runtime* runtime() const noexcept { return shared_->runtime; }

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = largest_alignment)
  {
    return allocate_on(stream.get(), bytes, alignment);
  }

  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t, std::size_t = largest_alignment) noexcept
  {
    shared_->free({reinterpret_cast<dmr_address>(ptr), stream.get()});
  }

  /// Ends the use of a stream, which may be destroyed then. Does not wait for its work. A stream that
  /// was not used is fine.
  ///
  /// Throws `rmm::logic_error` with the text of dmr, such as for a stream that captures a graph.
  void retire(cuda::stream_ref stream) const
  {
    shared_->free_refused();
    if (dmr_stream_retire(runtime(), stream.get()) != DMR_STATUS_OK) { throw rmm::logic_error(last_error()); }
  }

  /// Allocates for work on any stream: waits for the memory's last use.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = largest_alignment)
  {
    void* const ptr = allocate_on(nullptr, bytes, alignment);
    cuda::stream_ref{static_cast<cudaStream_t>(nullptr)}.sync();
    return ptr;
  }

  /// Deallocates memory whose uses are done.
  void deallocate_sync(void* ptr, std::size_t, std::size_t = largest_alignment) noexcept
  {
    shared_->free({reinterpret_cast<dmr_address>(ptr), nullptr});
  }

  bool operator==(rmm_resource const& other) const noexcept { return shared_ == other.shared_; }

  friend void get_property(rmm_resource const&, cuda::mr::device_accessible) noexcept {}

 private:
  static constexpr std::size_t largest_alignment = 256;

  /// A deallocation: the address, and the stream that it was ordered on.
  struct free_order {
    dmr_address address;
    void* stream;
  };

  struct shared {
    dmr_runtime* runtime = nullptr;
    std::mutex mutex;
    /// Deallocations that were refused, usually because a stream captures.
    std::vector<free_order> refused;

    shared()                         = default;
    shared(shared const&)            = delete;
    shared& operator=(shared const&) = delete;

    ~shared()
    {
      if (runtime != nullptr) { dmr_runtime_destroy(runtime); }
    }

    void free(free_order order) noexcept
    {
      free_refused();
      if (!try_free(order)) {
        std::lock_guard<std::mutex> const lock{mutex};
        refused.push_back(order);
      }
    }

    /// Frees once more what was refused.
    void free_refused() noexcept
    {
      std::vector<free_order> orders;
      {
        std::lock_guard<std::mutex> const lock{mutex};
        orders.swap(refused);
      }
      for (free_order const order : orders) {
        if (!try_free(order)) {
          std::lock_guard<std::mutex> const lock{mutex};
          refused.push_back(order);
        }
      }
    }

    bool try_free(free_order order) const noexcept
    {
      dmr_status status = dmr_free_on(runtime, order.address, order.stream);
      if (status == DMR_STATUS_STREAM_MISUSE && dmr_stream_retire(runtime, order.stream) == DMR_STATUS_OK) {
        status = dmr_free_on(runtime, order.address, order.stream);
      }
      // Another stream that dmr does not know, such as CUDA's default stream of the thread.
      if (status == DMR_STATUS_STREAM_MISUSE &&
          cudaStreamSynchronize(static_cast<cudaStream_t>(order.stream)) == cudaSuccess) {
        status = dmr_free(runtime, order.address);
      }
      // A lost device runs nothing, and a backend without records frees after all work.
      if (status == DMR_STATUS_DEVICE_LOST || status == DMR_STATUS_UNSUPPORTED) {
        status = dmr_free(runtime, order.address);
      }
      // No later call could free what is not there.
      return status == DMR_STATUS_OK || status == DMR_STATUS_UNKNOWN_ADDRESS;
    }
  };

  void* allocate_on(void* stream, std::size_t bytes, std::size_t alignment)
  {
    if (alignment > largest_alignment) {
      throw rmm::bad_alloc("dmr aligns memory to 256 bytes, not to " + std::to_string(alignment));
    }
    shared_->free_refused();
    dmr_address address = 0;
    dmr_status status   = dmr_allocate(runtime(), bytes, stream, &address);
    // Another stream has the handle of one that was destroyed: this waits for the work of both.
    if (status == DMR_STATUS_STREAM_MISUSE && dmr_stream_retire(runtime(), stream) == DMR_STATUS_OK) {
      status = dmr_allocate(runtime(), bytes, stream, &address);
    }
    switch (status) {
      case DMR_STATUS_OK: return reinterpret_cast<void*>(address);
      case DMR_STATUS_OUT_OF_MEMORY:
      case DMR_STATUS_OUT_OF_BUDGET: throw rmm::out_of_memory(last_error());
      default: throw rmm::bad_alloc(last_error());
    }
  }

  /// Returns the text of the calling thread's last error.
  static std::string last_error()
  {
    std::string text(dmr_last_error(nullptr, 0) + 1, '\0');
    dmr_last_error(text.data(), text.size());
    text.pop_back();
    return text;
  }

  std::shared_ptr<shared> shared_;
};

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>);

}  // namespace dmr

#endif  // DMR_RMM_HPP
