// A program on RMM whose memory is dmr's: vectors, RMM's own resources on top, errors, several streams
// and threads. Returns 0 if all is right; on the simulated driver a race is a finding, too.

#include <dmr/rmm.hpp>

#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

namespace {

constexpr std::size_t COUNT = 10000;

/// The resources that have seen the streams.
std::vector<dmr::rmm_resource> resources;

/// A stream of the program, which is retired before it is destroyed: releases of RMM differ in theirs.
class own_stream {
 public:
  own_stream() { CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess); }
  own_stream(own_stream const&)            = delete;
  own_stream& operator=(own_stream const&) = delete;
  ~own_stream()
  {
    for (auto const& resource : resources) { resource.retire(ref()); }
    CHECK(cudaStreamDestroy(stream_) == cudaSuccess);
  }

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void sync() const { CHECK(cudaStreamSynchronize(stream_) == cudaSuccess); }
  [[nodiscard]] cuda::stream_ref ref() const { return cuda::stream_ref{stream_}; }

 private:
  cudaStream_t stream_ = nullptr;
};

std::vector<int> numbers(int first)
{
  std::vector<int> made(COUNT);
  std::iota(made.begin(), made.end(), first);
  return made;
}

void copy(void* to, void const* from, std::size_t bytes, cuda::stream_ref stream)
{
  CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()) == cudaSuccess);
}

dmr_usage usage(dmr::rmm_resource const& resource)
{
  dmr_usage usage{};
  usage.size    = sizeof usage;
  usage.version = DMR_USAGE_VERSION;
  CHECK(dmr_runtime_usage(resource.runtime(), &usage) == DMR_STATUS_OK);
  return usage;
}

/// Vectors of RMM are blocks of dmr, also those that are made by RMM itself.
void vectors_have_their_memory_from_dmr(dmr::rmm_resource const& resource)
{
  own_stream stream;
  auto const sent = numbers(1);
  rmm::device_uvector<int> vector{COUNT, stream.ref()};
  CHECK(usage(resource).live >= COUNT * sizeof(int));
  copy(vector.data(), sent.data(), COUNT * sizeof(int), stream.ref());
  vector.resize(2 * COUNT, stream.ref());
  copy(vector.data() + COUNT, sent.data(), COUNT * sizeof(int), stream.ref());
  rmm::device_uvector<int> other{vector, stream.ref()};
  std::vector<int> received(COUNT);
  copy(received.data(), other.data(), COUNT * sizeof(int), stream.ref());
  stream.sync();
  CHECK(received == sent);
}

/// A vector whose last use is on another stream is freed there, as RMM's programs do.
void memory_is_freed_behind_the_stream_of_the_deallocation(dmr::rmm_resource const& resource)
{
  own_stream first;
  own_stream second;
  for (int round = 0; round < 50; ++round) {
    auto const sent = numbers(round);
    rmm::device_uvector<int> kept{COUNT, second.ref()};
    {
      rmm::device_uvector<int> vector{COUNT, first.ref()};
      copy(vector.data(), sent.data(), COUNT * sizeof(int), first.ref());
      first.sync();
      vector.set_stream(second.ref());
      copy(kept.data(), vector.data(), COUNT * sizeof(int), second.ref());
    }
    rmm::device_uvector<int> next{COUNT, first.ref()};
    CHECK(cudaMemsetAsync(next.data(), 0, COUNT * sizeof(int), first.get()) == cudaSuccess);
    std::vector<int> received(COUNT);
    copy(received.data(), kept.data(), COUNT * sizeof(int), second.ref());
    first.sync();
    second.sync();
    CHECK(received == sent);
  }
  CHECK(usage(resource).live == 0);
}

/// RMM's pool takes its segments from dmr.
void a_pool_of_rmm_on_top(dmr::rmm_resource const& resource)
{
  own_stream stream;
  {
    rmm::mr::pool_memory_resource pool{resource, 1 << 20};
    CHECK(usage(resource).live == 1 << 20);
    rmm::device_buffer buffer{1000, stream.ref(), pool};
    CHECK(buffer.data() != nullptr);
    CHECK(usage(resource).live == 1 << 20);
  }
  CHECK(usage(resource).live == 0);
}

void errors_are_those_of_rmm()
{
  dmr_config config   = dmr::rmm_resource::defaults();
  config.budget_bytes = 1 << 20;
  dmr::rmm_resource limited{config};
  resources.push_back(limited);
  own_stream stream;
  bool was_full = false;
  try {
    rmm::device_buffer buffer{2 << 20, stream.ref(), limited};
  } catch (rmm::out_of_memory const& error) {
    was_full = std::string{error.what()}.find("out of budget") != std::string::npos;
  }
  CHECK(was_full);
  bool was_refused = false;
  try {
    (void)limited.allocate(stream.ref(), 100, 512);
  } catch (rmm::out_of_memory const&) {
  } catch (rmm::bad_alloc const&) {
    was_refused = true;
  }
  CHECK(was_refused);
  CHECK(limited.allocate(stream.ref(), 0) == nullptr);
  limited.deallocate(stream.ref(), nullptr, 0);
}

void synchronous_memory_can_be_used_on_any_stream(dmr::rmm_resource resource)
{
  own_stream stream;
  void* const ptr = resource.allocate_sync(COUNT * sizeof(int));
  auto const sent = numbers(5);
  std::vector<int> received(COUNT);
  copy(ptr, sent.data(), COUNT * sizeof(int), stream.ref());
  copy(received.data(), ptr, COUNT * sizeof(int), stream.ref());
  stream.sync();
  CHECK(received == sent);
  resource.deallocate_sync(ptr, COUNT * sizeof(int));
  CHECK(usage(resource).live == 0);
}

/// More streams than a runtime has room for, one after the other.
void streams_come_and_go()
{
  for (int round = 0; round < 300; ++round) {
    own_stream stream;
    rmm::device_uvector<int> vector{COUNT, stream.ref()};
    copy(vector.data(), numbers(round).data(), COUNT * sizeof(int), stream.ref());
    stream.sync();
  }
}

void threads_share_a_resource(dmr::rmm_resource const& resource)
{
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      own_stream stream;
      for (int round = 0; round < 50; ++round) {
        auto const sent = numbers(thread);
        std::vector<int> received(COUNT);
        rmm::device_uvector<int> vector{COUNT, stream.ref()};
        copy(vector.data(), sent.data(), COUNT * sizeof(int), stream.ref());
        copy(received.data(), vector.data(), COUNT * sizeof(int), stream.ref());
        stream.sync();
        CHECK(received == sent);
      }
    });
  }
  for (auto& thread : threads) { thread.join(); }
  CHECK(usage(resource).live == 0);
}

/// A deallocation that a capture refuses is made by a later call.
void a_deallocation_during_a_capture_is_not_lost(dmr::rmm_resource resource)
{
  own_stream stream;
  void* const ptr = resource.allocate(stream.ref(), 1000);
  CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  resource.deallocate(stream.ref(), ptr, 1000);
  CHECK(usage(resource).live == 1000);
  bool was_refused = false;
  try {
    (void)resource.allocate(stream.ref(), 1000);
  } catch (rmm::bad_alloc const&) {
    was_refused = true;
  }
  CHECK(was_refused);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  resource.deallocate(stream.ref(), resource.allocate(stream.ref(), 1000), 1000);
  CHECK(usage(resource).live == 0);
}

}  // namespace

int main()
{
  dmr::rmm_resource const resource;
  CHECK(resource == dmr::rmm_resource{resource});
  CHECK(!(resource == dmr::rmm_resource{}));
  resources.push_back(resource);
  auto before = rmm::mr::set_current_device_resource(resource);
  vectors_have_their_memory_from_dmr(resource);
  memory_is_freed_behind_the_stream_of_the_deallocation(resource);
  a_pool_of_rmm_on_top(resource);
  errors_are_those_of_rmm();
  synchronous_memory_can_be_used_on_any_stream(resource);
  a_deallocation_during_a_capture_is_not_lost(resource);
  threads_share_a_resource(resource);
  streams_come_and_go();
  resources.clear();
  rmm::mr::set_current_device_resource(std::move(before));
  std::puts("all is right");
  return 0;
}
