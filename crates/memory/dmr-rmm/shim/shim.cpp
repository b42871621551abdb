// RMM's resources behind C functions, which dmr-rmm loads: no exception leaves them.
//
// Each function returns a code of `Code`, and writes the text of what was thrown to `text`, which has
// room for `TEXT` bytes. The resources are RMM's; only what lies below them, `counted`, is not.

#include <rmm/detail/error.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include <cuda/memory_resource>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

namespace {

/// Raised with every change of these functions.
constexpr std::uint32_t INTERFACE = 1;

constexpr std::size_t TEXT = 256;

/// A number in `Config` that was not set.
constexpr std::uint64_t UNSET = UINT64_MAX;

enum Code : std::int32_t { OK, OUT_OF_MEMORY, BAD_ALLOC, CUDA_ERROR, LOGIC_ERROR, OTHER };

enum Kind : std::uint32_t { CUDA, CUDA_ASYNC, POOL, ARENA, BINNING };

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

/// RMM's resource over `cudaMalloc`, which counts the bytes that it has allocated: what a pool
/// reports itself may not be read while another thread allocates.
class counted {
 public:
  explicit counted(std::shared_ptr<std::atomic<std::uint64_t>> bytes) : bytes_{std::move(bytes)} {}

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256)
  {
    void* const ptr = upstream_.allocate(stream, bytes, alignment);
    bytes_->fetch_add(bytes);
    return ptr;
  }

  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t bytes, std::size_t alignment = 256) noexcept
  {
    upstream_.deallocate(stream, ptr, bytes, alignment);
    bytes_->fetch_sub(bytes);
  }

  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256)
  {
    void* const ptr = upstream_.allocate_sync(bytes, alignment);
    bytes_->fetch_add(bytes);
    return ptr;
  }

  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment = 256) noexcept
  {
    upstream_.deallocate_sync(ptr, bytes, alignment);
    bytes_->fetch_sub(bytes);
  }

  bool operator==(counted const& other) const noexcept { return bytes_ == other.bytes_; }

  friend void get_property(counted const&, cuda::mr::device_accessible) noexcept {}

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> bytes_;
  rmm::mr::cuda_memory_resource upstream_;
};

static_assert(cuda::mr::resource_with<counted, cuda::mr::device_accessible>);

/// What `dmr_rmm_create` makes.
struct Resource {
  std::shared_ptr<std::atomic<std::uint64_t>> bytes;
  /// The driver's pool of `CUDA_ASYNC`, which counts its bytes itself.
  cudaMemPool_t pool;
  any_resource resource;
};

void copy(char const* from, char* text) noexcept { std::snprintf(text, TEXT, "%s", from); }

/// Calls `body`, and returns what it has thrown as a code.
template <class Body>
std::int32_t caught(char* text, Body&& body) noexcept
{
  try {
    body();
    return OK;
  } catch (rmm::out_of_memory const& error) {
    copy(error.what(), text);
    return OUT_OF_MEMORY;
  } catch (std::bad_alloc const& error) {
    copy(error.what(), text);
    return BAD_ALLOC;
  } catch (rmm::cuda_error const& error) {
    copy(error.what(), text);
    return CUDA_ERROR;
  } catch (std::logic_error const& error) {
    copy(error.what(), text);
    return LOGIC_ERROR;
  } catch (std::exception const& error) {
    copy(error.what(), text);
    return OTHER;
  } catch (...) {
    copy("an exception of another type", text);
    return OTHER;
  }
}

}  // namespace

extern "C" {

/// The numbers of a resource, in bytes; `UNSET` for RMM's own default.
struct Config {
  std::uint32_t kind;
  /// The powers of two of the bins' sizes.
  std::uint8_t smallest_bin;
  std::uint8_t largest_bin;
  std::uint16_t unused;
  /// Of a pool, at first; of an arena.
  std::uint64_t initial;
  std::uint64_t maximum;
  std::uint64_t release_threshold;
};

static_assert(sizeof(Config) == 32, "the layout that dmr-rmm has");

#define EXPORTED __attribute__((visibility("default"))) // the rest is hidden

EXPORTED std::uint32_t dmr_rmm_interface() { return INTERFACE; }

/// RMM's version as one number: 261000 is 26.10.0.
EXPORTED std::uint32_t dmr_rmm_version()
{
  return RMM_VERSION_MAJOR * 10000 + RMM_VERSION_MINOR * 100 + RMM_VERSION_PATCH;
}

/// Makes a resource on the device of the context that is current.
EXPORTED std::int32_t dmr_rmm_create(Config const* config, Resource** made, char* text)
{
  return caught(text, [&] {
    auto const set = [](std::uint64_t bytes) {
      return bytes == UNSET ? std::nullopt : std::optional<std::size_t>{bytes};
    };
    auto const bytes   = std::make_shared<std::atomic<std::uint64_t>>(0);
    cudaMemPool_t pool = nullptr;
    auto const pooled  = [&] {
      return rmm::mr::pool_memory_resource{counted{bytes}, set(config->initial).value_or(0), set(config->maximum)};
    };
    auto const make = [&]() -> any_resource {
      switch (config->kind) {
        case CUDA: return counted{bytes};
        case CUDA_ASYNC: {
          rmm::mr::cuda_async_memory_resource made{set(config->initial), set(config->release_threshold)};
          pool = made.pool_handle();
          return made;
        }
        case POOL: return pooled();
        case ARENA: return rmm::mr::arena_memory_resource{counted{bytes}, set(config->initial)};
        case BINNING:
          return rmm::mr::binning_memory_resource{pooled(),
                                                  static_cast<std::int8_t>(config->smallest_bin),
                                                  static_cast<std::int8_t>(config->largest_bin)};
        default: throw std::invalid_argument("this kind of resource is not known");
      }
    };
    any_resource resource = make();
    *made                 = new Resource{bytes, pool, std::move(resource)};
  });
}

EXPORTED std::int32_t dmr_rmm_destroy(Resource* resource, char* text)
{
  return caught(text, [&] { delete resource; });
}

EXPORTED std::int32_t dmr_rmm_allocate(Resource* resource, std::size_t bytes, void* stream, void** ptr, char* text)
{
  return caught(text, [&] {
    *ptr = resource->resource.allocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, bytes, 256);
  });
}

EXPORTED std::int32_t dmr_rmm_deallocate(Resource* resource, void* ptr, std::size_t bytes, void* stream, char* text)
{
  return caught(text, [&] {
    resource->resource.deallocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, ptr, bytes, 256);
  });
}

/// Writes the bytes that the resource has taken from the device.
EXPORTED std::int32_t dmr_rmm_reserved(Resource* resource, std::uint64_t* reserved, char* text)
{
  return caught(text, [&] {
    *reserved = resource->bytes->load();
    if (resource->pool != nullptr) {
      RMM_CUDA_TRY(cudaMemPoolGetAttribute(resource->pool, cudaMemPoolAttrReservedMemCurrent, reserved));
    }
  });
}

}  // extern "C"
