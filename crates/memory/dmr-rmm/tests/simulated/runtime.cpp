// What RMM calls of CUDA's runtime library, on the driver of the process: for the simulated one, on which
// NVIDIA's library does not run. It is no runtime library: other functions are missing.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

/// Returns the driver that is loaded, or the one that the dynamic linker finds.
void* driver()
{
  static void* const found = [] {
    for (int flag : {RTLD_NOLOAD, 0}) {
      for (char const* name : {"libcuda.so", "libcuda.so.1"}) {
        if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flag)) { return library; }
      }
    }
    std::fputs("runtime.cpp: there is no CUDA driver\n", stderr);
    std::abort();
  }();
  return found;
}

void* function(char const* name)
{
  if (void* found = dlsym(driver(), name)) { return found; }
  std::fprintf(stderr, "runtime.cpp: the driver has no function %s\n", name);
  std::abort();
}

thread_local cudaError_t last = cudaSuccess;

/// The codes of the runtime library that its users meet here are those of the driver.
cudaError_t as_error(CUresult code)
{
  if (code != CUDA_SUCCESS) { last = static_cast<cudaError_t>(code); }
  return static_cast<cudaError_t>(code);
}

}  // namespace

/// The driver's function of this name, with the type of its declaration.
#define DRIVER(name) (reinterpret_cast<decltype(&::name)>(function(NAME(name))))
// The headers define some names as those of a later version.
#define NAME(name) NAME_OF(name)
#define NAME_OF(name) #name

namespace {

/// Makes the first device's primary context current where none is.
CUresult ready()
{
  CUcontext context = nullptr;
  CUresult code     = DRIVER(cuInit)(0);
  if (code == CUDA_SUCCESS) { code = DRIVER(cuCtxGetCurrent)(&context); }
  if (code != CUDA_SUCCESS || context != nullptr) { return code; }
  code = DRIVER(cuDevicePrimaryCtxRetain)(&context, 0);
  return code == CUDA_SUCCESS ? DRIVER(cuCtxSetCurrent)(context) : code;
}

template <class... Parameters, class... Arguments>
cudaError_t call(CUresult (*function)(Parameters...), Arguments... arguments)
{
  CUresult const code = ready();
  return as_error(code == CUDA_SUCCESS ? function(arguments...) : code);
}

CUdeviceptr address(void const* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

}  // namespace

extern "C" {

cudaError_t cudaGetLastError()
{
  cudaError_t const error = last;
  last                    = cudaSuccess;
  return error;
}

char const* cudaGetErrorName(cudaError_t error)
{
  char const* name = nullptr;
  DRIVER(cuGetErrorName)(static_cast<CUresult>(error), &name);
  return name != nullptr ? name : "unknown";
}

char const* cudaGetErrorString(cudaError_t error)
{
  char const* text = nullptr;
  DRIVER(cuGetErrorString)(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unknown";
}

cudaError_t cudaDriverGetVersion(int* version) { return as_error(DRIVER(cuDriverGetVersion)(version)); }

cudaError_t cudaRuntimeGetVersion(int* version)
{
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count)
{
  CUresult const code = DRIVER(cuInit)(0);
  return as_error(code == CUDA_SUCCESS ? DRIVER(cuDeviceGetCount)(count) : code);
}

cudaError_t cudaGetDevice(int* device) { return call(DRIVER(cuCtxGetDevice), device); }

cudaError_t cudaSetDevice(int device)
{
  int current         = 0;
  cudaError_t const e = cudaGetDevice(&current);
  if (e != cudaSuccess || current == device) { return e; }
  CUcontext context   = nullptr;
  CUresult const code = DRIVER(cuDevicePrimaryCtxRetain)(&context, device);
  return as_error(code == CUDA_SUCCESS ? DRIVER(cuCtxSetCurrent)(context) : code);
}

cudaError_t cudaDeviceSynchronize() { return call(DRIVER(cuCtxSynchronize)); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device)
{
  return call(DRIVER(cuDeviceGetAttribute), value, static_cast<CUdevice_attribute>(attribute), device);
}

cudaError_t cudaMalloc(void** ptr, size_t bytes)
{
  return call(DRIVER(cuMemAlloc), reinterpret_cast<CUdeviceptr*>(ptr), bytes);
}

cudaError_t cudaFree(void* ptr) { return call(DRIVER(cuMemFree), address(ptr)); }

cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
  return call(DRIVER(cuMemAllocFromPoolAsync), reinterpret_cast<CUdeviceptr*>(ptr), bytes, pool, stream);
}

cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream)
{
  return call(DRIVER(cuMemFreeAsync), address(ptr), stream);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, cudaMemPoolProps const* properties)
{
  static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
  return call(DRIVER(cuMemPoolCreate), pool, reinterpret_cast<CUmemPoolProps const*>(properties));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return call(DRIVER(cuMemPoolDestroy), pool); }

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value)
{
  return call(DRIVER(cuMemPoolSetAttribute), pool, static_cast<CUmemPool_attribute>(attribute), value);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value)
{
  return call(DRIVER(cuMemPoolGetAttribute), pool, static_cast<CUmemPool_attribute>(attribute), value);
}

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t*, cudaMemLocation*, cudaMemAllocationType)
{
  return as_error(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemAdvise(void const*, size_t, cudaMemoryAdvise, cudaMemLocation)
{
  return as_error(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemPrefetchAsync(void const*, size_t, cudaMemLocation, unsigned int, cudaStream_t)
{
  return as_error(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return call(DRIVER(cuMemGetInfo), free, total); }

cudaError_t cudaMemcpyAsync(void* to, void const* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
  return call(DRIVER(cuMemcpyAsync), address(to), address(from), bytes, stream);
}

cudaError_t cudaMemsetAsync(void* ptr, int value, size_t bytes, cudaStream_t stream)
{
  return call(DRIVER(cuMemsetD8Async), address(ptr), static_cast<unsigned char>(value), bytes, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags)
{
  return call(DRIVER(cuStreamCreate), stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return call(DRIVER(cuStreamDestroy), stream); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return call(DRIVER(cuStreamSynchronize), stream); }

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id)
{
  return call(DRIVER(cuStreamGetId), stream, id);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
  return call(DRIVER(cuStreamWaitEvent), stream, event, flags);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
  return call(DRIVER(cuStreamBeginCapture), stream, static_cast<CUstreamCaptureMode>(mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph)
{
  return call(DRIVER(cuStreamEndCapture), stream, graph);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return call(DRIVER(cuGraphDestroy), graph); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags)
{
  return call(DRIVER(cuEventCreate), event, flags);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  return call(DRIVER(cuEventRecord), event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return call(DRIVER(cuEventSynchronize), event); }

cudaError_t cudaEventDestroy(cudaEvent_t event) { return call(DRIVER(cuEventDestroy), event); }

}  // extern "C"
