// A library in C that makes columns of Arrow on a stream of its own, and one that reads them: both ways through dmr.h,
// on side streams, with a slow producer. With the argument `early` the consumer does not wait for the event of the
// array, with `unordered` the producer has none: the simulated driver reports a race, and a GPU has wrong bytes, which
// the program prints.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../dmr-arrow/tests/c/arrow.h"
#include "dmr.h"

#define ROWS 100000
#define BYTES ((size_t)ROWS * 4)
// Copies of a large block before the bytes are written: milliseconds on a GPU.
#define SLOW_COPIES 40
#define SLOW_BYTES ((size_t)64 << 20)

typedef int (*Function)();

static void *driver;
static dmr_runtime *runtime;
static void *context;
static int released;
static int wrong;

static Function function(const char *name) {
    Function found = (Function)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

#define CUDA(name, ...) \
    do { \
        int code = function(#name)(__VA_ARGS__); \
        if (code) { \
            fprintf(stderr, "line %d: %s: %d\n", __LINE__, #name, code); \
            exit(3); \
        } \
    } while (0)

#define EXPECT(status, call) \
    do { \
        dmr_status got = (call); \
        if (got != (status)) { \
            char text[512]; \
            dmr_last_error(text, sizeof text); \
            fprintf(stderr, "line %d: %s returned %s: %s\n", __LINE__, #call, dmr_status_name(got), text); \
            exit(4); \
        } \
    } while (0)

#define OK(call) EXPECT(DMR_STATUS_OK, call)

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
            exit(5); \
        } \
    } while (0)

static void *new_stream(void) {
    void *stream;
    CUDA(cuStreamCreate, &stream, 1);
    return stream;
}

// Keeps a stream busy.
static void be_slow(void *stream, unsigned long long slow) {
    for (int copy = 0; copy < SLOW_COPIES; copy++)
        CUDA(cuMemcpyDtoDAsync_v2, slow + SLOW_BYTES / 2, slow, SLOW_BYTES / 2, stream);
}

// What the array of this program has kept.
struct kept {
    const void *buffers[2];
    struct ArrowArray child;
    struct ArrowArray *children[1];
    unsigned long long memory;
    void *event;
};

static void release_nothing(struct ArrowArray *array) {
    array->release = NULL;
}

static void release_array(struct ArrowArray *array) {
    struct kept *kept = array->private_data;
    CHECK(array->release == release_array);
    if (kept->child.release)
        kept->child.release(&kept->child);
    // On a thread of the library, when the device has done all recorded uses.
    CUDA(cuCtxSetCurrent, context);
    CUDA(cuMemFree_v2, kept->memory);
    if (kept->event)
        CUDA(cuEventDestroy_v2, kept->event);
    free(kept);
    array->release = NULL;
    __atomic_add_fetch(&released, 1, __ATOMIC_SEQ_CST);
}

static struct ArrowSchema child_schema, *child_schemas[1] = {&child_schema};

static void release_schema(struct ArrowSchema *schema) {
    schema->release = NULL;
}

// A struct of one child, a slice of int32 that begins at row 2.
static void produce(void *stream, unsigned long long slow, int has_event, struct ArrowDeviceArray *array,
                    struct ArrowSchema *schema) {
    struct kept *kept = calloc(1, sizeof *kept);
    CUDA(cuMemAlloc_v2, &kept->memory, BYTES);
    be_slow(stream, slow);
    CUDA(cuMemsetD32Async, kept->memory, 7, ROWS, stream);
    if (has_event) {
        CUDA(cuEventCreate, &kept->event, 2);
        CUDA(cuEventRecord, kept->event, stream);
    }
    kept->buffers[1] = (const void *)(uintptr_t)kept->memory;
    kept->child = (struct ArrowArray){
        .length = ROWS - 2, .offset = 2, .n_buffers = 2, .buffers = kept->buffers, .release = release_nothing};
    kept->children[0] = &kept->child;
    static const void *none[1];
    *array = (struct ArrowDeviceArray){
        .array = {.length = ROWS - 2,
                  .n_buffers = 1,
                  .n_children = 1,
                  .buffers = none,
                  .children = kept->children,
                  .release = release_array,
                  .private_data = kept},
        .device_type = ARROW_DEVICE_CUDA,
        .sync_event = has_event ? &kept->event : NULL,
    };
    child_schema = (struct ArrowSchema){.format = "i", .name = "n", .release = release_schema};
    *schema = (struct ArrowSchema){
        .format = "+s", .name = "table", .n_children = 1, .children = child_schemas, .release = release_schema};
}

static void compare(const unsigned *host, int count, unsigned expected, const char *what) {
    for (int row = 0; row < count; row++) {
        if (host[row] != expected) {
            printf("wrong: %s, row %d is %u and not %u\n", what, row, host[row], expected);
            wrong = 1;
            return;
        }
    }
}

static void import_from_c(unsigned long long slow, int has_event) {
    void *producer = new_stream(), *home = new_stream(), *reader = new_stream();
    struct ArrowDeviceArray array;
    struct ArrowSchema schema;
    produce(producer, slow, has_event, &array, &schema);
    dmr_column *column, *child;
    array.array.length = -1;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_column_import(runtime, &array, &schema, home, &column));
    CHECK(array.array.release && schema.release);
    array.array.length = ROWS - 2;
    OK(dmr_column_import(runtime, &array, &schema, home, &column));
    CHECK(!array.array.release && !schema.release);
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_column_import(runtime, &array, &schema, home, &child));
    OK(dmr_column_child(runtime, column, 0, &child));
    dmr_column_info info = {.size = sizeof info, .version = DMR_COLUMN_INFO_VERSION};
    OK(dmr_column_describe(runtime, child, &info));
    CHECK(!strcmp(info.format, "i") && !strcmp(info.name, "n"));
    CHECK(info.length == ROWS - 2 && info.offset == 2 && info.null_count == 0 && info.buffers == 2);
    dmr_address address;
    uint64_t bytes;
    OK(dmr_column_buffer(runtime, child, 1, &address, &bytes));
    CHECK(bytes == BYTES);
    OK(dmr_column_wait(runtime, column, reader));
    unsigned *host = malloc(BYTES);
    CUDA(cuMemcpyDtoHAsync_v2, host, address, bytes, reader);
    OK(dmr_column_record_read(runtime, column, reader));
    OK(dmr_column_destroy(runtime, column));
    OK(dmr_column_destroy(runtime, child));
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_column_destroy(runtime, child));
    CUDA(cuStreamSynchronize, reader);
    compare(host, ROWS, 7, "imported");
    free(host);
    // A thread of the library releases the array: within milliseconds, on a machine that is not busy.
    for (int round = 0; round < 20000 && !__atomic_load_n(&released, __ATOMIC_SEQ_CST); round++)
        usleep(1000);
}

static void export_to_c(unsigned long long slow, int waits) {
    void *writer = new_stream(), *side = new_stream(), *consumer = new_stream();
    dmr_address block;
    OK(dmr_allocate(runtime, BYTES, writer, &block));
    be_slow(writer, slow);
    CUDA(cuMemsetD32Async, block, 9, ROWS, writer);
    dmr_column_parts parts = {.size = sizeof parts, .version = DMR_COLUMN_PARTS_VERSION};
    dmr_address buffers[2] = {0, block};
    parts.format = "I";
    parts.name = "n";
    parts.length = ROWS + 1;
    parts.buffers = buffers;
    parts.buffer_count = 2;
    dmr_column *column;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_column_create(runtime, &parts, &column));
    parts.length = ROWS;
    OK(dmr_column_create(runtime, &parts, &column));
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_free(runtime, block));
    struct ArrowDeviceArray array;
    struct ArrowSchema schema;
    OK(dmr_column_export(runtime, column, side, &array, &schema));
    OK(dmr_column_destroy(runtime, column));
    CHECK(array.device_type == ARROW_DEVICE_CUDA && array.array.n_buffers == 2 && array.array.length == ROWS);
    CHECK(!strcmp(schema.format, "I") && !strcmp(schema.name, "n") && schema.n_children == 0);
    CHECK(array.sync_event);
    if (waits)
        CUDA(cuStreamWaitEvent, consumer, *(void **)array.sync_event, 0);
    unsigned *host = malloc(BYTES);
    CUDA(cuMemcpyDtoHAsync_v2, host, array.array.buffers[1], BYTES, consumer);
    CUDA(cuStreamSynchronize, consumer);
    compare(host, ROWS, 9, "exported");
    free(host);
    dmr_usage usage = {.size = sizeof usage, .version = DMR_USAGE_VERSION};
    OK(dmr_runtime_usage(runtime, &usage));
    CHECK(usage.live == BYTES);
    array.array.release(&array.array);
    CHECK(!array.array.release);
    schema.release(&schema);
    OK(dmr_runtime_usage(runtime, &usage));
    CHECK(usage.live == 0);
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver);
    CUDA(cuInit, 0);
    dmr_config config;
    OK(dmr_config_init(&config, sizeof config));
    OK(dmr_runtime_create(&config, &runtime));
    int device;
    CUDA(cuDeviceGet, &device, 0);
    CUDA(cuDevicePrimaryCtxRetain, &context, device);
    CUDA(cuCtxSetCurrent, context);
    unsigned long long slow;
    CUDA(cuMemAlloc_v2, &slow, SLOW_BYTES);
    CUDA(cuMemsetD8_v2, slow, (unsigned char)0, SLOW_BYTES);
    CUDA(cuCtxSynchronize);
    import_from_c(slow, strcmp(mode, "unordered") != 0);
    CHECK(__atomic_load_n(&released, __ATOMIC_SEQ_CST) == 1);
    export_to_c(slow, strcmp(mode, "early") != 0);
    CUDA(cuMemFree_v2, slow);
    OK(dmr_runtime_destroy(runtime));
    CUDA(cuDevicePrimaryCtxRelease_v2, device);
    printf(wrong ? "wrong\n" : "good\n");
    return 0;
}
