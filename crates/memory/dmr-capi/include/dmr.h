// The C interface of dmr: stream-ordered GPU memory. Made from the crate dmr-capi by cbindgen: do not edit it.
//
// Order. A block is allocated on a stream, and work that is submitted to that stream may use it at once. Work on
// other streams is ordered by two calls: dmr_wait_for_uses before it is submitted, dmr_record_use afterwards, also
// after work on the stream of the allocation that another stream must wait for. A free returns at once; the memory
// is used again after the work on the stream of the allocation and after all recorded uses.
//
// Threads. Any thread may call any function. The structs and buffers of a call are the calling thread's. No function
// changes the context that is current on the thread, and none unwinds.
//
// Processes. In a forked child of a process that has made a runtime, each function that takes a runtime, and
// dmr_runtime_create, return DMR_STATUS_FORKED_PROCESS at once.
//
// Structs begin with their size and version, which the program sets. Fields are added at the end: a program that was
// compiled with an older header keeps its size, and one of a newer header may leave what is unknown here zero.


#ifndef DMR_H
#define DMR_H

#include <stddef.h>
#include <stdint.h>

// The version of this interface, which `dmr_version` returns. It changes when a function or a
// field changes its meaning; a new function, status or field does not change it.
#define DMR_VERSION 1

// The version of `dmr_column_parts`.
#define DMR_COLUMN_PARTS_VERSION 1

// The version of `dmr_column_info`.
#define DMR_COLUMN_INFO_VERSION 1

// The version of `dmr_config`.
#define DMR_CONFIG_VERSION 1

// A backend: the one that the environment variable `DMR_BACKEND` names, otherwise the pool.
#define DMR_BACKEND_DEFAULT 0

// A backend: a pool, which makes no driver call where it finds what it needs.
#define DMR_BACKEND_POOL 1

// A backend: a memory pool of the driver, one driver call for each allocation and free.
#define DMR_BACKEND_ASYNC 2

// A backend: `cuMemAlloc` and `cuMemFree`, for memory checkers. It records no uses, so
// `dmr_record_use` and `dmr_wait_for_uses` return `DMR_STATUS_UNSUPPORTED`.
#define DMR_BACKEND_DIRECT 3

// A backend: `cuMemAlloc` and `cuMemFree`, with recorded uses.
#define DMR_BACKEND_DIRECT_TRACKED 4

// A value of `page_bytes`: the pool maps no pages, and carves up blocks of the driver's pool.
#define DMR_PAGES_NONE UINT64_MAX

// The number of streams of a program that a runtime has room for, unless the configuration says
// otherwise.
#define DMR_STREAMS_DEFAULT 128

// The work before a tensor is ready: it is done.
#define DMR_READY_DONE 0

// The work before a tensor is ready: that of a `CUstream` so far.
#define DMR_READY_STREAM 1

// The work before a tensor is ready: that behind a `CUevent`.
#define DMR_READY_EVENT 2

// The uses of a consumer are on its stream, which the runtime adopts.
#define DMR_CONSUMER_STREAM 0

// The consumer's stream waits, and is not adopted: its uses after that are unknown.
#define DMR_CONSUMER_WAITS 1

// The consumer orders its uses itself, after those that the runtime has recorded.
#define DMR_CONSUMER_UNKNOWN 2

// The most dimensions of a tensor.
#define DMR_MOST_DIMENSIONS 64

// The version of `dmr_tensor_info`.
#define DMR_TENSOR_INFO_VERSION 1

// The access of a use: the work reads the block.
#define DMR_ACCESS_READ 1

// The access of a use: the work writes the block. `DMR_ACCESS_READ | DMR_ACCESS_WRITE` for both.
#define DMR_ACCESS_WRITE 2

// The version of `dmr_usage`.
#define DMR_USAGE_VERSION 1

// The version of `dmr_statistics`.
#define DMR_STATISTICS_VERSION 1

// The version of `dmr_block`.
#define DMR_BLOCK_VERSION 1

// The bytes of a tag in `dmr_block`, with its NUL.
#define DMR_TAG_BYTES 136

// The result of a call. The numbers are stable: a later version may add some, and changes none.
//
// After any status but `DMR_STATUS_OK`, `dmr_last_error` returns the text of the error, which says
// what to do; nothing has changed unless the function says otherwise.
enum dmr_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The call succeeded.
    DMR_STATUS_OK = 0,
    // An argument is null, out of range, or a struct of an unknown size or version.
    DMR_STATUS_INVALID_ARGUMENT = 1,
    // The device has not enough free memory, or the size can never be allocated.
    DMR_STATUS_OUT_OF_MEMORY = 2,
    // The request exceeds what is left of a budget.
    DMR_STATUS_OUT_OF_BUDGET = 3,
    // No live block of the runtime begins at the address: it was freed before, or is not the
    // runtime's, or is inside of a block.
    DMR_STATUS_UNKNOWN_ADDRESS = 4,
    // The block was freed by another thread during the call.
    DMR_STATUS_USE_AFTER_FREE = 5,
    // The stream cannot be used here: the per-thread default stream, a stream of another context,
    // a handle whose stream was destroyed without `dmr_stream_retire`.
    DMR_STATUS_STREAM_MISUSE = 6,
    // The stream captures a graph, which cannot contain the call.
    DMR_STATUS_STREAM_CAPTURING = 7,
    // The device is lost, after a sticky error: no call of this process can use it again.
    DMR_STATUS_DEVICE_LOST = 8,
    // This process is a forked child of the one that made a runtime, and CUDA does not survive a
    // fork.
    DMR_STATUS_FORKED_PROCESS = 9,
    // There is no driver, or a driver that is too old, or no device of this ordinal.
    DMR_STATUS_NO_DEVICE = 10,
    // The driver refused a call; the text has its name and the `CUresult`.
    DMR_STATUS_DRIVER = 11,
    // The runtime's backend cannot do this.
    DMR_STATUS_UNSUPPORTED = 12,
    // All of a fixed number of things are in use, such as streams.
    DMR_STATUS_CAPACITY = 13,
    // Another thread uses the block or the stream at this moment: try again.
    DMR_STATUS_BUSY = 14,
    // The handle is null, or no runtime that exists.
    DMR_STATUS_UNKNOWN_RUNTIME = 15,
    // The library panicked, which is a fault of the library. The call may have had a part of its
    // effect.
    DMR_STATUS_PANIC = 16,
    // Another error, described by its text.
    DMR_STATUS_OTHER = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum dmr_status dmr_status;
#else
typedef int32_t dmr_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// `struct ArrowDeviceArray` of Arrow's C device interface, as its specification defines it.
typedef struct ArrowDeviceArray ArrowDeviceArray;

// `struct ArrowSchema` of Arrow's C data interface, as its specification defines it.
typedef struct ArrowSchema ArrowSchema;

// A column of Arrow, imported or made of blocks. A handle, which no program reads through.
typedef struct dmr_column dmr_column;

// A runtime: a device, its memory and the streams that it has seen. A handle, which no program
// reads through.
typedef struct dmr_runtime dmr_runtime;

// A buffer that is moved to host memory when memory runs out. A handle, which no program reads
// through.
typedef struct dmr_spillable dmr_spillable;

// A tensor. A handle, which no program reads through.
typedef struct dmr_tensor dmr_tensor;

// An address of device memory: the type of `CUdeviceptr`.
typedef unsigned long long dmr_address;

// The parts of a column that `dmr_column_create` makes of blocks. Set what you need, and the rest
// to zero.
typedef struct dmr_column_parts {
    // `sizeof(dmr_column_parts)`, in the program.
    uint32_t size;
    // `DMR_COLUMN_PARTS_VERSION`.
    uint32_t version;
    // The type, as a format string of Arrow: `"i"` for `int32_t`, `"+s"` for a struct.
    const char *format;
    // The name, or null.
    const char *name;
    // The flags of Arrow's schema.
    int64_t flags;
    // The number of rows.
    uint64_t length;
    // The rows in the buffers before the first one.
    uint64_t offset;
    // The number of null rows; -1 if it is not known.
    int64_t null_count;
    // The addresses of blocks, as Arrow lists the buffers of the type, without the sizes of the
    // data of binary views; 0 for absent ones.
    const dmr_address *buffers;
    // The number of `buffers`.
    uint64_t buffer_count;
    // The columns below, which may be used for others as well.
    const struct dmr_column *const *children;
    // The number of `children`.
    uint64_t child_count;
    // The values, if the column has their indices; otherwise null.
    const struct dmr_column *dictionary;
} dmr_column_parts;

// A column: its type, its rows, and what it has. The texts are those of the column, and stay until
// its handle is destroyed.
typedef struct dmr_column_info {
    // `sizeof(dmr_column_info)`, in the program.
    uint32_t size;
    // `DMR_COLUMN_INFO_VERSION`.
    uint32_t version;
    // The type, as a format string of Arrow.
    const char *format;
    // The name; empty for none.
    const char *name;
    // The flags of Arrow's schema.
    int64_t flags;
    // The number of rows.
    uint64_t length;
    // The rows in the buffers before the first one.
    uint64_t offset;
    // The number of null rows; -1 if it is not known.
    int64_t null_count;
    // The number of buffers, as Arrow lists them, without the sizes of the data of binary views.
    uint64_t buffers;
    // The number of columns below.
    uint64_t children;
    // 1 if the column has the indices of values in a dictionary, otherwise 0.
    uint64_t has_dictionary;
} dmr_column_info;

// A tensor, as DLPack describes it.
typedef struct dmr_tensor_info {
    // `sizeof(dmr_tensor_info)`, in the program.
    uint32_t size;
    // `DMR_TENSOR_INFO_VERSION`.
    uint32_t version;
    // The lowest address of an element, for `dmr_record_use` and `dmr_wait_for_uses`; 0 without
    // elements.
    dmr_address address;
    // The bytes from there to the end of the highest element.
    uint64_t bytes;
    // The address of the element whose indices are 0.
    dmr_address first_element;
    // The code, the bits and the lanes of the type.
    uint32_t type_code;
    // The bits of a lane.
    uint32_t type_bits;
    // The lanes of an element.
    uint32_t type_lanes;
    // The number of dimensions.
    uint32_t dimensions;
    // 1 if the owner of the memory forbids to write it.
    uint32_t read_only;
    // 0.
    uint32_t reserved;
    // The sizes of the dimensions.
    int64_t shape[DMR_MOST_DIMENSIONS];
    // The strides of the dimensions, in elements.
    int64_t strides[DMR_MOST_DIMENSIONS];
} dmr_tensor_info;

// The configuration of a runtime. `dmr_config_init` sets the defaults; change what you need.
// Strings are read during `dmr_runtime_create` only.
typedef struct dmr_config {
    // `sizeof(dmr_config)`, in the program.
    uint32_t size;
    // `DMR_CONFIG_VERSION`.
    uint32_t version;
    // The CUDA ordinal of the device. Its primary context is used.
    uint32_t device;
    // One of `DMR_BACKEND_...`.
    uint32_t backend;
    // Not 0: the pool reserves less memory, and takes more time.
    uint32_t compact;
    // Not 0: counts what is allocated, for `dmr_runtime_statistics`.
    uint32_t statistics;
    // The most streams that can be in use at a time: from the first call with the stream until it
    // is retired. 0: `DMR_STREAMS_DEFAULT`.
    uint32_t max_streams;
    // Not 0: buffers of `dmr_spillable_create` are moved to pinned host memory when an allocation
    // finds too little memory.
    uint32_t spill;
    // The bytes of the pool's pages, rounded up by the pool. 0: its default; `DMR_PAGES_NONE`: no
    // pages.
    uint64_t page_bytes;
    // The most bytes that this process takes from the device, never exceeded, for all runtimes of
    // the device together. 0: no limit.
    uint64_t budget_bytes;
    // The most bytes that all processes of the user take from the device together, never exceeded.
    // Each of them must ask for the same limit. Excludes `budget_bytes`. 0: no limit.
    uint64_t shared_budget_bytes;
    // The group of processes that share `shared_budget_bytes`: 1 to 64 ASCII letters, digits, `.`,
    // `_` and `-`. Null: those that name no group.
    const char *shared_budget_group;
    // The file to which every allocation and free is logged as CSV, gzip if the name ends in
    // `.gz`; an existing one is overwritten. Null: no log.
    const char *log_path;
} dmr_config;

// The memory of a runtime, in bytes. Exact while no call is in progress.
typedef struct dmr_usage {
    // `sizeof(dmr_usage)`, in the program.
    uint32_t size;
    // `DMR_USAGE_VERSION`.
    uint32_t version;
    // Requested bytes of live blocks.
    uint64_t live;
    // Requested bytes of retired blocks: freed by the program, and perhaps still used by the
    // device.
    uint64_t retired;
    // Bytes that the runtime has reserved from the driver, in use or not.
    uint64_t reserved;
    // Requested bytes of all allocations so far.
    uint64_t total_allocated;
    // Requested bytes of all frees so far.
    uint64_t total_freed;
    // The budget's limit; 0 without a budget.
    uint64_t limit;
    // The bytes of the budget that are left; 0 without a budget.
    uint64_t remaining;
    // Bytes of spillable buffers that are in host memory now.
    uint64_t spilled;
} dmr_usage;

// A number that goes up and down.
typedef struct dmr_counter {
    // The current value.
    uint64_t current;
    // The highest value so far.
    uint64_t peak;
    // The sum of all that was added.
    uint64_t total;
} dmr_counter;

// The counts of a runtime, all of one instant.
typedef struct dmr_statistics {
    // `sizeof(dmr_statistics)`, in the program.
    uint32_t size;
    // `DMR_STATISTICS_VERSION`.
    uint32_t version;
    // Bytes, as requested.
    struct dmr_counter bytes;
    // Blocks.
    struct dmr_counter allocations;
    // Blocks freed.
    uint64_t frees;
    // Allocations that failed.
    uint64_t failures;
} dmr_statistics;

// A live block.
typedef struct dmr_block {
    // `sizeof(dmr_block)`, in the program.
    uint32_t size;
    // `DMR_BLOCK_VERSION`.
    uint32_t version;
    // The address of its first byte.
    dmr_address address;
    // Its bytes, as requested.
    uint64_t bytes;
    // The bytes that it takes from the pool.
    uint64_t reserved_bytes;
    // The stream that it was allocated on; null for the legacy default stream.
    void *stream;
    // Its tag, which ends with a NUL; empty without one.
    char tag[DMR_TAG_BYTES];
} dmr_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Destroys a capsule of Python, by its name: deletes a tensor of DLPack (`dltensor`,
// `dltensor_versioned`); releases a struct of Arrow (`arrow_schema`, `arrow_device_array`), unless
// it was moved out, and frees it. Leaves a capsule of another name alone, such as one whose tensor
// was taken. For bindings to Python, which pass it to `PyCapsule_New`. It leaves an exception that
// is being raised as it is. Outside of Python it does nothing.
//
// # Safety
//
// `capsule` is one of Python, whose tensor was exported here, or whose struct was allocated by
// `malloc`; the thread has the interpreter's lock.
void dmr_capsule_destroy(void *capsule);

// Imports a column of another library by Arrow's C device interface, and writes its handle to
// `column`. `stream` waits for the event of the array, and so does other work that
// `dmr_column_wait` orders. The host waits for the event only if the type has values of variable
// size.
//
// Both structs are moved: they are marked as released, and the array's callback is called once,
// when the handles of the column are destroyed and the device has done its recorded uses, by any
// thread. An array that this runtime has exported shares its memory with the column, and is
// released at once.
//
// Errors: nothing has changed, and both structs are as they were. `DMR_STATUS_INVALID_ARGUMENT`
// for a null pointer, and for a field with a value that it must not have: the text has its name
// and the path to it; `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_MISUSE`;
// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `array` and `schema` are null, or of structs that keep Arrow's specification, whose buffers have
// the bytes that the type, the rows and the offsets say and are not written any more. `stream` is
// null or a stream that was not destroyed. `column` is null, or the address of a handle.
dmr_status dmr_column_import(struct dmr_runtime *runtime,
                             struct ArrowDeviceArray *array,
                             struct ArrowSchema *schema,
                             void *stream,
                             struct dmr_column **column);

// Exports a column by Arrow's C device interface, and writes the structs to `array` and `schema`,
// whose content is overwritten. The array has one event, behind all recorded uses of all buffers,
// for which `stream` waits; the thread does not.
//
// The memory stays until both the array is released and the handle is destroyed. The release may
// be called on any thread, and waits for the device as `cudaFree` does.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer;
// `DMR_STATUS_UNSUPPORTED` if the runtime records no uses; `DMR_STATUS_BUSY`;
// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. The structs are
// not written then.
//
// # Safety
//
// `array` and `schema` are null, or the addresses of structs that are released or not initialised.
// `stream` is null or a stream that was not destroyed.
dmr_status dmr_column_export(struct dmr_runtime *runtime,
                             const struct dmr_column *column,
                             void *stream,
                             struct ArrowDeviceArray *array,
                             struct ArrowSchema *schema);

// Makes a column of blocks, and writes its handle to `column`. The blocks are the column's from
// then on: their addresses are unknown to other functions, and they are freed after the recorded
// uses when the column and its exports are gone. What the buffers contain is not read: offsets and
// indices are the program's word.
//
// Record the work that has written the blocks before (`dmr_record_use`), unless it was submitted
// to the stream of the allocation, which the export waits for.
//
// Errors: nothing has changed. `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, a struct of
// another version, and parts that do not belong together, named by the text;
// `DMR_STATUS_UNKNOWN_ADDRESS` for a buffer that is no live block, one that is named twice, and a
// handle that is no column; `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `parts` is null, or of a `dmr_column_parts` of the size that it says, whose texts end with a NUL
// and whose arrays have the elements that it says. `column` is null, or the address of a handle.
dmr_status dmr_column_create(struct dmr_runtime *runtime,
                             const struct dmr_column_parts *parts,
                             struct dmr_column **column);

// Writes the type of a column, its rows, and the numbers of its parts to `info`, whose `size` and
// `version` the program has set.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another
// version; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `info` is null, or of a `dmr_column_info` of the size that it says.
dmr_status dmr_column_describe(struct dmr_runtime *runtime,
                               const struct dmr_column *column,
                               struct dmr_column_info *info);

// Writes the address of a buffer of a column, which is only read, to `address`, 0 for an absent
// one, and its size to `bytes`, unless that is null.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// column of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a number that no
// buffer has; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `address` is null, or the address of an address; `bytes` is null, or the address of a number.
dmr_status dmr_column_buffer(struct dmr_runtime *runtime,
                             const struct dmr_column *column,
                             size_t index,
                             dmr_address *address,
                             uint64_t *bytes);

// Writes a handle of a column below another one to `child`: the dictionary, if `index` is the
// number of children. It shares the memory, and is destroyed apart.
//
// Errors: as `dmr_column_buffer`.
//
// # Safety
//
// `child` is null, or the address of a handle.
dmr_status dmr_column_child(struct dmr_runtime *runtime,
                            const struct dmr_column *column,
                            size_t index,
                            struct dmr_column **child);

// Makes a stream wait for the work that reads of a column, and of all below it, must come after:
// its producer's. Call it before you submit work that reads the column.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// column of the runtime; `DMR_STATUS_UNSUPPORTED` if the runtime records no uses;
// `DMR_STATUS_STREAM_MISUSE`; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`;
// `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `stream` is null or a stream that was not destroyed.
dmr_status dmr_column_wait(struct dmr_runtime *runtime,
                           const struct dmr_column *column,
                           void *stream);

// Records that the work which was submitted to a stream so far reads a column, and all below it:
// its memory is released after that work.
//
// Errors: as `dmr_column_wait`.
//
// # Safety
//
// `stream` is null or a stream that was not destroyed.
dmr_status dmr_column_record_read(struct dmr_runtime *runtime,
                                  const struct dmr_column *column,
                                  void *stream);

// Destroys a handle of a column. Its memory is freed, or its array released, after the recorded
// uses, once no other handle and no export has it.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// column of the runtime; `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_column_destroy(struct dmr_runtime *runtime, struct dmr_column *column);

// Allocates a tensor in C order for work on `stream`, and writes its handle to `tensor`. Its
// content is undefined. The type is one of DLPack, whose elements fill whole bytes.
//
// Errors: as `dmr_allocate_tagged`; `DMR_STATUS_INVALID_ARGUMENT` for a type or a shape that is
// none.
//
// # Safety
//
// As `dmr_allocate_tagged`; `shape` has `dimensions` numbers, and may be null if that is 0;
// `tensor` is null, or the address of a handle.
dmr_status dmr_tensor_create(struct dmr_runtime *runtime,
                             uint8_t type_code,
                             uint8_t type_bits,
                             uint16_t type_lanes,
                             const int64_t *shape,
                             size_t dimensions,
                             void *stream,
                             const char *tag,
                             struct dmr_tensor **tensor);

// Imports a tensor of another library: a `DLManagedTensor*`, or with `versioned` other than 0 a
// `DLManagedTensorVersioned*`. Writes its handle to `tensor`. Its home stream is `stream`, which
// waits for the work that `ready` names: `DMR_READY_DONE`, or `DMR_READY_STREAM` and
// `DMR_READY_EVENT` with the handle in `producer`.
//
// Its deleter is called once, after `dmr_tensor_destroy`, when the device has completed the last
// recorded use: by that call, or by a thread of the library. Each field that can be checked is.
//
// Errors: `managed` is the program's as before. `DMR_STATUS_INVALID_ARGUMENT`, with the field that
// is wrong, for null pointers, another `ready`, and memory that no driver has allocated; for the
// streams as `dmr_allocate`.
//
// # Safety
//
// `managed` is null, or a managed tensor of that kind that is the program's, whose shape and
// strides have as many numbers as its dimensions, whose memory has its elements, and whose deleter
// may be called on any thread. `stream` is as for `dmr_allocate`. `producer` is a stream or an
// event that was not destroyed. `tensor` is null, or the address of a handle.
dmr_status dmr_tensor_from_dlpack(struct dmr_runtime *runtime,
                                  void *managed,
                                  uint32_t versioned,
                                  uint32_t ready,
                                  void *producer,
                                  void *stream,
                                  struct dmr_tensor **tensor);

// Exports a tensor to one consumer, and writes a `DLManagedTensor*`, or with `versioned` other
// than 0 a `DLManagedTensorVersioned*`, to `managed`. The memory stays until the consumer deletes
// it, also when the tensor was destroyed before. Any thread may delete it, without a context.
//
// With `DMR_CONSUMER_STREAM` the stream waits for all recorded uses, and its work until the
// deletion is recorded as a use. With `DMR_CONSUMER_WAITS` it waits, and may be the per-thread
// default stream; with `DMR_CONSUMER_UNKNOWN` nothing waits: in both the deletion waits for the
// device.
//
// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
// `DMR_STATUS_UNSUPPORTED` for a read-only tensor without a version, and for the direct backend;
// `DMR_STATUS_INVALID_ARGUMENT` for another `consumer`; for the stream as `dmr_record_use`.
//
// # Safety
//
// `stream` is as for `dmr_allocate`; `managed` is null, or the address of a pointer.
dmr_status dmr_tensor_to_dlpack(struct dmr_runtime *runtime,
                                const struct dmr_tensor *tensor,
                                uint32_t versioned,
                                uint32_t consumer,
                                void *stream,
                                void **managed);

// Writes the description of a tensor to `info`, whose `size` and `version` the program has set.
//
// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
// `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another version.
//
// # Safety
//
// `info` is null, or of a `dmr_tensor_info` of the size that it says.
dmr_status dmr_tensor_describe(struct dmr_runtime *runtime,
                               const struct dmr_tensor *tensor,
                               struct dmr_tensor_info *info);

// Destroys a tensor. Its memory is freed, or its deleter called, after its recorded uses; if it
// was exported, not before its consumers have deleted it.
//
// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no tensor of the runtime;
// `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_tensor_destroy(struct dmr_runtime *runtime, struct dmr_tensor *tensor);

// Calls the deleter of a managed tensor that the program has not passed on: of one that was
// exported here, or of another library. Null is fine. Does nothing in a forked child.
//
// Errors: `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `managed` is null, or a managed tensor of that kind that is the program's to delete.
dmr_status dmr_dlpack_delete(void *managed, uint32_t versioned);

// Returns `DMR_VERSION` of the library that is loaded. Compare it with that of the header.
uint32_t dmr_version(void);

// Returns the name of a status, such as `"out_of_memory"`; `"unknown"` for any other number. The
// text stays for the life of the process.
const char *dmr_status_name(int32_t status);

// Copies the text of the last call of this thread that has failed into `buffer`, with a NUL. The
// text is UTF-8; it is empty if no call has failed. A call that succeeds leaves it as it is.
//
// Returns the bytes of the text without the NUL: if that is `bytes` or more, the text was cut.
// With a null `buffer`, or 0 bytes, it copies nothing.
//
// # Safety
//
// `buffer` is null, or has `bytes` bytes.
size_t dmr_last_error(char *buffer, size_t bytes);

// Sets the defaults of a configuration: device 0, the pool, no limit, no log. Pass
// `sizeof(dmr_config)` as `size`.
//
// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, or a size that no version has.
//
// # Safety
//
// `config` is null, or has `size` bytes.
dmr_status dmr_config_init(struct dmr_config *config, size_t size);

// Makes a runtime: opens the device and its primary context. Writes its handle to `runtime`.
//
// A process may have several, also of one device; each has memory of its own. The log is created
// here.
//
// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null pointer, a setting that is not one, settings
// that exclude each other, a log that cannot be created, a struct of another version, or a larger
// one in which something is set that this library does not have; `DMR_STATUS_NO_DEVICE`;
// `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`; `DMR_STATUS_OTHER`, if the limit that
// processes share cannot be joined. `runtime` is not written then.
//
// # Safety
//
// `config` is null, or of a `dmr_config` of the size that it says, whose strings end with a NUL.
// `runtime` is null, or the address of a handle.
dmr_status dmr_runtime_create(const struct dmr_config *config, struct dmr_runtime **runtime);

// Destroys a runtime: frees the blocks that are left, waits for the work of its streams, retires
// them, and returns the memory to the driver. The log is complete afterwards.
//
// After `DMR_STATUS_OK` the handle is unknown, and the streams may be destroyed. On a device that
// is lost it succeeds, and touches no stream. After any other error the runtime still exists, with
// the blocks that could not be freed: end the capture of its streams, for example, and call this
// again. Blocks that were freed and streams that were retired stay so.
//
// A call that another thread makes meanwhile ends as if it had come before, or with an error; it
// may use its stream until it has returned.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_BUSY`;
// `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_runtime_destroy(struct dmr_runtime *runtime);

// Ends the use of a stream: call it before the stream is destroyed. The runtime touches the stream
// no more, and whatever needs its work waits for an event behind it. Does not wait for the work.
//
// A stream that the runtime has not seen is fine. The legacy default stream need not be retired.
// The blocks that were allocated on the stream stay, and can be freed and used.
//
// If a stream was destroyed without this and a new one has its handle, calls with the handle
// return `DMR_STATUS_STREAM_MISUSE`, as far as the driver tells the two apart. Call this with the
// handle: it then waits for all work of the device, after which the handle is that of the new
// stream. A stream that is destroyed without this while blocks were allocated or used on it is a
// fault of the program: a later call may use the handle of a stream that does not exist.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_STREAM_MISUSE` for the per-thread default
// stream; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_BUSY` if calls of other threads use the
// stream for longer than a second; `DMR_STATUS_DEVICE_LOST`; `DMR_STATUS_DRIVER`;
// `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed.
dmr_status dmr_stream_retire(struct dmr_runtime *runtime, void *stream);

// Allocates `bytes` bytes for work on `stream`, and writes their address, a multiple of 256, to
// `address`. Their content is undefined. For 0 bytes the address is 0.
//
// Work that is submitted to `stream` after this may use the memory. For work on another stream
// call `dmr_wait_for_uses` before it is submitted, and `dmr_record_use` after.
//
// `stream` is a `CUstream` of the device's primary context. The runtime adopts a stream when it is
// first used, and keeps it until `dmr_stream_retire`. Null, and `CU_STREAM_LEGACY`, are the legacy
// default stream.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null `address`;
// `DMR_STATUS_OUT_OF_MEMORY`; `DMR_STATUS_OUT_OF_BUDGET`; `DMR_STATUS_STREAM_MISUSE` for the
// per-thread default stream, a stream of another context, and a handle of a stream that was
// destroyed without `dmr_stream_retire`; `DMR_STATUS_CAPACITY` for more than `max_streams`
// streams; `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DEVICE_LOST`; `DMR_STATUS_DRIVER`;
// `DMR_STATUS_FORKED_PROCESS`. `address` is not written then.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed, and is not until it is retired. `address` is
// null, or the address of one.
dmr_status dmr_allocate(struct dmr_runtime *runtime,
                        size_t bytes,
                        void *stream,
                        dmr_address *address);

// Allocates as `dmr_allocate` does, with a tag: the purpose of the memory, for statistics, the
// log, errors and snapshots. A null tag is none.
//
// The process keeps each different tag for good: 65,536 of them, of 128 bytes at most; more bytes
// are cut, more tags become `"(other)"`. Each call with a tag takes a lock.
//
// Errors: as `dmr_allocate`, and `DMR_STATUS_INVALID_ARGUMENT` for a tag that is not UTF-8.
//
// # Safety
//
// As `dmr_allocate`; `tag` is null, or a string that ends with a NUL.
dmr_status dmr_allocate_tagged(struct dmr_runtime *runtime,
                               size_t bytes,
                               void *stream,
                               const char *tag,
                               dmr_address *address);

// Frees the block at an address of `dmr_allocate`. Returns at once: the memory is used again after
// the work that was submitted so far to the stream of its allocation, and after all recorded uses.
// Address 0 is fine, and frees nothing.
//
// Any thread may free it. Of two threads that free one address, one gets
// `DMR_STATUS_UNKNOWN_ADDRESS`, unless the address was allocated again in between.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS`;
// `DMR_STATUS_STREAM_CAPTURING`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. After an error
// the block is still allocated: free it again later.
dmr_status dmr_free(struct dmr_runtime *runtime, dmr_address address);

// Frees a block as `dmr_free` does, also after the work that was submitted so far to `stream`: for
// a block whose last use was there.
//
// The stream waits for the other recorded uses of the block. If it is the stream of the
// allocation, this is `dmr_free`.
//
// Errors: as `dmr_free` and `dmr_record_use`. After an error the block is still allocated, and the
// use may be recorded.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
dmr_status dmr_free_on(struct dmr_runtime *runtime, dmr_address address, void *stream);

// Records that work which was submitted to `stream` so far uses the block at `address`: the memory
// is not used again before that work is done, and `dmr_wait_for_uses` of other streams waits for
// it. `access` is `DMR_ACCESS_READ`, `DMR_ACCESS_WRITE`, or both.
//
// Call it after the work was submitted, and `dmr_wait_for_uses` before. The stream also waits here
// for the uses that the work should have come after.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS`;
// `DMR_STATUS_INVALID_ARGUMENT` for another `access`; `DMR_STATUS_USE_AFTER_FREE`;
// `DMR_STATUS_UNSUPPORTED` for the direct backend; `DMR_STATUS_BUSY` if other threads record uses
// of the block for longer than a second; and for the stream as `dmr_allocate`. After an error the
// work may be unrecorded: synchronise the stream before the memory is freed.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
dmr_status dmr_record_use(struct dmr_runtime *runtime,
                          dmr_address address,
                          void *stream,
                          uint32_t access);

// Makes `stream` wait for the work that a use of the block at `address` must come after: its
// allocation, recorded writes, and for a `DMR_ACCESS_WRITE` recorded reads. Work that is submitted
// to the stream afterwards comes after them. The calling thread does not wait.
//
// Uses that are not recorded yet are not waited for: record a use before another thread, or
// another stream, uses the block.
//
// Errors: as `dmr_record_use`. After an error the stream may wait for some of the work.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed, and is not until it is retired.
dmr_status dmr_wait_for_uses(struct dmr_runtime *runtime,
                             dmr_address address,
                             void *stream,
                             uint32_t access);

// Allocates a buffer of `bytes` bytes that may be moved to pinned host memory, coldest first, when
// an allocation of the runtime finds too little memory. Writes its handle to `spillable`. The
// configuration must have `spill`.
//
// The buffer has no address of its own: `dmr_spillable_pin` returns the one that it has while it
// is pinned. `stream` and `tag` are as for `dmr_allocate_tagged`.
//
// Errors: as `dmr_allocate_tagged`; `DMR_STATUS_UNSUPPORTED` if the configuration has no `spill`,
// or the backend records no uses; `DMR_STATUS_INVALID_ARGUMENT` for zero bytes.
//
// # Safety
//
// As `dmr_allocate_tagged`; `spillable` is null, or the address of a handle.
dmr_status dmr_spillable_create(struct dmr_runtime *runtime,
                                size_t bytes,
                                void *stream,
                                const char *tag,
                                struct dmr_spillable **spillable);

// Keeps a spillable buffer on the device until `dmr_spillable_unpin`, and writes its address to
// `address`. If it was spilled, memory is allocated on `stream`, which may spill others, and
// filled by a copy there; otherwise `stream` is not used.
//
// Use the address as that of a block of another stream: `dmr_wait_for_uses` before work is
// submitted, `dmr_record_use` afterwards and before the buffer is unpinned. It is no address for
// `dmr_free`, and `dmr_runtime_snapshot` does not list it. A buffer may be pinned more than once;
// its address is the same until the last pin is taken back.
//
// Errors: `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no spillable buffer of the runtime;
// for the stream and the memory as `dmr_allocate`. After an error the buffer is where it was.
//
// # Safety
//
// `stream` is a `CUstream` that was not destroyed, and is not until it is retired. `address` is
// null, or the address of one.
dmr_status dmr_spillable_pin(struct dmr_runtime *runtime,
                             struct dmr_spillable *spillable,
                             void *stream,
                             dmr_address *address);

// Takes back one pin of a spillable buffer. After the last one the buffer may be spilled, after
// its recorded uses, and its address is unknown.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// spillable buffer of the runtime; `DMR_STATUS_INVALID_ARGUMENT` for one that is not pinned;
// `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_spillable_unpin(struct dmr_runtime *runtime, struct dmr_spillable *spillable);

// Frees a spillable buffer that is not pinned, wherever it is, after its recorded uses. If the
// driver refuses that, or a stream captures, the memory is freed by a later `dmr_runtime_reap`.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNKNOWN_ADDRESS` for a handle that is no
// spillable buffer of the runtime; `DMR_STATUS_BUSY` for one that is pinned;
// `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_spillable_destroy(struct dmr_runtime *runtime, struct dmr_spillable *spillable);

// Writes the accounting of a runtime to `usage`, whose `size` and `version` the program has set.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a
// struct of another version; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `usage` is null, or of a `dmr_usage` of the size that it says.
dmr_status dmr_runtime_usage(struct dmr_runtime *runtime, struct dmr_usage *usage);

// Writes the counts of a runtime to `statistics`, whose `size` and `version` the program has set.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_UNSUPPORTED` if the configuration has no
// `statistics`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a struct of another version;
// `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `statistics` is null, or of a `dmr_statistics` of the size that it says.
dmr_status dmr_runtime_statistics(struct dmr_runtime *runtime, struct dmr_statistics *statistics);

// Writes the live blocks of a runtime to the array `blocks` of `capacity` elements, in no order,
// and their number to `count`. Pass `sizeof(dmr_block)` as `size`. If there are more blocks than
// `capacity`, the first ones are written; with a capacity of 0, `blocks` may be null.
//
// Blocks that other threads allocate or free during the call may be there or not.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_INVALID_ARGUMENT` for a null pointer and a
// size that no version has; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `blocks` has `capacity` elements of `size` bytes. `count` is null, or the address of a number.
dmr_status dmr_runtime_snapshot(struct dmr_runtime *runtime,
                                struct dmr_block *blocks,
                                size_t size,
                                size_t capacity,
                                size_t *count);

// Frees the retired blocks whose work is done, and, if `wait` is not 0, waits for the work of the
// others and frees them. Writes their bytes to `bytes`, unless that is null.
//
// Errors: `DMR_STATUS_UNKNOWN_RUNTIME`; `DMR_STATUS_DRIVER`; `DMR_STATUS_FORKED_PROCESS`. Blocks
// that could not be freed are still retired: call it again.
//
// # Safety
//
// `bytes` is null, or the address of a number.
dmr_status dmr_runtime_reap(struct dmr_runtime *runtime, int32_t wait, uint64_t *bytes);

// Returns unused memory to the driver while more than `keep_bytes` bytes are reserved. Writes the
// returned bytes to `bytes`, unless that is null. Does not wait for the device: call
// `dmr_runtime_reap` with `wait` before, to include memory that it still uses.
//
// Errors: as `dmr_runtime_reap`. The rest is still reserved: call it again.
//
// # Safety
//
// `bytes` is null, or the address of a number.
dmr_status dmr_runtime_trim(struct dmr_runtime *runtime, uint64_t keep_bytes, uint64_t *bytes);

// Starts to record what the memory of this process does: allocations, frees, waits of streams,
// refusals. Call it before the first runtime is created to have all of them.
//
// The last events of each thread are kept, 1 MiB a thread. If `folder` is not null, a recording is
// written there when memory runs out and when a device is lost. If `file` is not null, all events
// are appended to it continuously. `dmr report` reads such files.
//
// Errors: `DMR_STATUS_INVALID_ARGUMENT` if the process records already, or the file is no
// recording or cannot be written; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `folder` and `file` are null, or strings that end with a NUL.
dmr_status dmr_recording_start(const char *folder, const char *file);

// Writes the events that are kept, and the memory as it is now, to a file, which is created or
// emptied. Other threads go on meanwhile.
//
// Errors: `DMR_STATUS_INVALID_ARGUMENT` for a null `file`, one that cannot be written, or if the
// process does not record; `DMR_STATUS_FORKED_PROCESS`.
//
// # Safety
//
// `file` is null, or a string that ends with a NUL.
dmr_status dmr_recording_write(const char *file);

// Stops to record, and ends the file to which events were appended. Does nothing if the process
// does not record.
//
// Errors: `DMR_STATUS_FORKED_PROCESS`.
dmr_status dmr_recording_stop(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DMR_H */
