// Uses each function of dmr.h, on a GPU or on the simulated driver. With the argument `unordered` it leaves out the
// wait between its two streams, which the simulated driver reports; with `uninitialised` it passes a configuration
// that it has not set, which valgrind reports. With `share` it joins a limit of 16 MiB that processes share; with `log`
// and a path it ends without a destruction.
//
// It declares what it calls of the driver itself, and opens the driver by its name, as programs without the toolkit do.

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dmr.h"

#define BYTES ((size_t)1 << 20)
#define THREADS 4
#define ROUNDS 200
#define PASSED 8

typedef int (*Function)();

static void *driver;

static Function function(const char *name) {
    Function found = (Function)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

// Calls the driver.
#define CUDA(name, ...) \
    do { \
        int code = function(#name)(__VA_ARGS__); \
        if (code) { \
            fprintf(stderr, "line %d: %s: %d\n", __LINE__, #name, code); \
            exit(3); \
        } \
    } while (0)

// Calls the library, which must return this status.
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

static dmr_runtime *runtime;
static void *context;

static void *new_stream(void) {
    void *stream;
    CUDA(cuStreamCreate, &stream, 1);
    return stream;
}

static void destroy_stream(void *stream) {
    OK(dmr_stream_retire(runtime, stream));
    CUDA(cuStreamDestroy_v2, stream);
}

static dmr_usage usage_now(void) {
    dmr_usage usage = {.size = sizeof usage, .version = DMR_USAGE_VERSION};
    OK(dmr_runtime_usage(runtime, &usage));
    return usage;
}

static void error_contains(const char *words) {
    char text[1024];
    size_t length = dmr_last_error(text, sizeof text);
    CHECK(length == strlen(text));
    if (!strstr(text, words)) {
        fprintf(stderr, "not in the error: \"%s\": %s\n", words, text);
        exit(6);
    }
}

static void make_runtime(void) {
    dmr_config config;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_config_init(NULL, sizeof config));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_config_init(&config, 3));
    OK(dmr_config_init(&config, sizeof config));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_runtime_create(&config, NULL));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_runtime_create(NULL, &runtime));
    config.backend = 99;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_runtime_create(&config, &runtime));
    error_contains("99");
    config.backend = DMR_BACKEND_POOL;
    config.device = 1000;
    EXPECT(DMR_STATUS_NO_DEVICE, dmr_runtime_create(&config, &runtime));
    config.device = 0;
    config.version = 77;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_runtime_create(&config, &runtime));
    config.version = DMR_CONFIG_VERSION;
    CHECK(runtime == NULL);
    config.statistics = 1;
    config.spill = 1;
    config.budget_bytes = 64 * BYTES;
    // A program of a later version, with a setting that this library does not have.
    struct {
        dmr_config known;
        uint64_t later;
    } longer = {config, 0};
    longer.known.size = sizeof longer;
    longer.later = 1;
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_runtime_create(&longer.known, &runtime));
    longer.later = 0;
    OK(dmr_runtime_create(&longer.known, &runtime));
}

// One stream writes, another one reads; the memory is freed and allocated again at once.
static void order_two_streams(int is_ordered) {
    void *writer = new_stream();
    void *reader = new_stream();
    dmr_address first, second;
    OK(dmr_allocate_tagged(runtime, BYTES, writer, "first", &first));
    CUDA(cuMemsetD8Async, first, (unsigned char)9, BYTES, writer);
    OK(dmr_record_use(runtime, first, writer, DMR_ACCESS_WRITE));
    if (is_ordered)
        OK(dmr_wait_for_uses(runtime, first, reader, DMR_ACCESS_READ));
    static unsigned char bytes[BYTES];
    CUDA(cuMemcpyDtoHAsync_v2, bytes, first, BYTES, reader);
    OK(dmr_free_on(runtime, first, reader));
    OK(dmr_allocate(runtime, BYTES, writer, &second));
    CUDA(cuMemsetD8Async, second, (unsigned char)7, BYTES, writer);
    CUDA(cuStreamSynchronize, reader);
    for (size_t at = 0; is_ordered && at < BYTES; at++)
        CHECK(bytes[at] == 9);
    OK(dmr_free(runtime, second));
    destroy_stream(writer);
    destroy_stream(reader);
}

static void refuse(void) {
    void *stream = new_stream();
    dmr_address address = 5;
    EXPECT(DMR_STATUS_UNKNOWN_RUNTIME, dmr_allocate(NULL, 1, stream, &address));
    error_contains("null");
    EXPECT(DMR_STATUS_UNKNOWN_RUNTIME, dmr_allocate((dmr_runtime *)&address, 1, stream, &address));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_allocate(runtime, 1, stream, NULL));
    EXPECT(DMR_STATUS_STREAM_MISUSE, dmr_allocate(runtime, 1, (void *)2, &address));
    error_contains("cuStreamCreate");
    EXPECT(DMR_STATUS_OUT_OF_BUDGET, dmr_allocate(runtime, 100 * BYTES, stream, &address));
    EXPECT(DMR_STATUS_OUT_OF_MEMORY, dmr_allocate(runtime, SIZE_MAX, stream, &address));
    CHECK(address == 5);
    OK(dmr_allocate(runtime, 0, stream, &address));
    CHECK(address == 0);
    OK(dmr_free(runtime, 0));
    OK(dmr_allocate(runtime, 1000, stream, &address));
    CHECK(address % 256 == 0);
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_free(runtime, address + 256));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_record_use(runtime, address, stream, 0));
    EXPECT(DMR_STATUS_INVALID_ARGUMENT, dmr_wait_for_uses(runtime, address, stream, 4));
    OK(dmr_free(runtime, address));
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_free(runtime, address));
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_record_use(runtime, address, stream, DMR_ACCESS_READ));
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_wait_for_uses(runtime, address, stream, DMR_ACCESS_READ));
    destroy_stream(stream);
}

// The blocks that the threads pass to each other, which free them on streams of their own.
static dmr_address passed[THREADS][PASSED];
static pthread_barrier_t all_allocated;

static void *work(void *index) {
    size_t own = (size_t)index;
    CUDA(cuCtxSetCurrent, context);
    void *stream = new_stream();
    for (int round = 0; round < ROUNDS; round++) {
        dmr_address address;
        size_t bytes = (size_t)(round % 7 + 1) << 12;
        OK(dmr_allocate(runtime, bytes, stream, &address));
        CUDA(cuMemsetD8Async, address, (unsigned char)round, bytes, stream);
        OK(dmr_free(runtime, address));
    }
    for (int at = 0; at < PASSED; at++) {
        OK(dmr_allocate(runtime, 5000, stream, &passed[own][at]));
        CUDA(cuMemsetD8Async, passed[own][at], (unsigned char)at, (size_t)5000, stream);
        OK(dmr_record_use(runtime, passed[own][at], stream, DMR_ACCESS_WRITE));
    }
    pthread_barrier_wait(&all_allocated);
    for (int at = 0; at < PASSED; at++) {
        dmr_address address = passed[(own + 1) % THREADS][at];
        OK(dmr_wait_for_uses(runtime, address, stream, DMR_ACCESS_WRITE));
        CUDA(cuMemsetD8Async, address, (unsigned char)own, (size_t)5000, stream);
        OK(dmr_free_on(runtime, address, stream));
    }
    destroy_stream(stream);
    return NULL;
}

static void use_threads(void) {
    pthread_t threads[THREADS];
    CHECK(!pthread_barrier_init(&all_allocated, NULL, THREADS));
    for (size_t at = 0; at < THREADS; at++)
        CHECK(!pthread_create(&threads[at], NULL, work, (void *)at));
    for (size_t at = 0; at < THREADS; at++)
        CHECK(!pthread_join(threads[at], NULL));
}

static void report(void) {
    dmr_address address;
    OK(dmr_allocate_tagged(runtime, 4096, NULL, "of the report", &address));
    dmr_usage usage = usage_now();
    CHECK(usage.live == 4096 && usage.limit == 64 * BYTES && usage.reserved >= 4096);
    dmr_statistics counts = {.size = sizeof counts, .version = DMR_STATISTICS_VERSION};
    OK(dmr_runtime_statistics(runtime, &counts));
    CHECK(counts.allocations.current == 1 && counts.bytes.peak >= BYTES && counts.failures >= 2);
    dmr_block blocks[2];
    size_t count = 0;
    OK(dmr_runtime_snapshot(runtime, blocks, sizeof blocks[0], 2, &count));
    CHECK(count == 1 && blocks[0].address == address && blocks[0].bytes == 4096);
    CHECK(!strcmp(blocks[0].tag, "of the report") && blocks[0].stream == NULL);
    CHECK(blocks[0].size == sizeof blocks[0] && blocks[0].version == DMR_BLOCK_VERSION);
    OK(dmr_free(runtime, address));
    CUDA(cuCtxSynchronize);
    OK(dmr_runtime_reap(runtime, 1, NULL));
    uint64_t trimmed = 0;
    OK(dmr_runtime_trim(runtime, 0, &trimmed));
    CHECK(trimmed > 0 && usage_now().reserved == 0 && usage_now().retired == 0);
}

// The second buffer moves the first one to the host.
static void spill(void) {
    void *stream = new_stream();
    dmr_spillable *buffers[2];
    dmr_address address;
    static unsigned char bytes[40 * BYTES];
    for (int at = 0; at < 2; at++) {
        OK(dmr_spillable_create(runtime, sizeof bytes, stream, "spilled", &buffers[at]));
        OK(dmr_spillable_pin(runtime, buffers[at], stream, &address));
        CUDA(cuMemsetD8Async, address, (unsigned char)(at + 1), sizeof bytes, stream);
        OK(dmr_record_use(runtime, address, stream, DMR_ACCESS_WRITE));
        OK(dmr_spillable_unpin(runtime, buffers[at]));
    }
    CHECK(usage_now().spilled == sizeof bytes);
    for (int at = 0; at < 2; at++) {
        OK(dmr_spillable_pin(runtime, buffers[at], stream, &address));
        EXPECT(DMR_STATUS_BUSY, dmr_spillable_destroy(runtime, buffers[at]));
        OK(dmr_wait_for_uses(runtime, address, stream, DMR_ACCESS_READ));
        CUDA(cuMemcpyDtoHAsync_v2, bytes, address, sizeof bytes, stream);
        CUDA(cuStreamSynchronize, stream);
        CHECK(bytes[0] == at + 1 && bytes[sizeof bytes - 1] == at + 1);
        OK(dmr_spillable_unpin(runtime, buffers[at]));
        OK(dmr_spillable_destroy(runtime, buffers[at]));
    }
    EXPECT(DMR_STATUS_UNKNOWN_ADDRESS, dmr_spillable_destroy(runtime, buffers[0]));
    destroy_stream(stream);
}

// A context that is current, or none, stays so.
static void keep_the_context(void) {
    void *current = NULL;
    CUDA(cuCtxSetCurrent, NULL);
    dmr_address address;
    OK(dmr_allocate(runtime, 3 * BYTES, NULL, &address));
    OK(dmr_free(runtime, address));
    CUDA(cuCtxGetCurrent, &current);
    CHECK(current == NULL);
    CUDA(cuCtxSetCurrent, context);
}

static void fork_a_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dmr_address address;
        dmr_config config;
        dmr_runtime *other;
        EXPECT(DMR_STATUS_FORKED_PROCESS, dmr_allocate(runtime, 1, NULL, &address));
        error_contains("forked");
        EXPECT(DMR_STATUS_FORKED_PROCESS, dmr_free(runtime, 256));
        EXPECT(DMR_STATUS_FORKED_PROCESS, dmr_runtime_destroy(runtime));
        OK(dmr_config_init(&config, sizeof config));
        EXPECT(DMR_STATUS_FORKED_PROCESS, dmr_runtime_create(&config, &other));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void destroy_with_blocks_left(void) {
    void *stream = new_stream();
    dmr_address left;
    OK(dmr_allocate(runtime, BYTES, stream, &left));
    CUDA(cuMemsetD8Async, left, (unsigned char)1, BYTES, stream);
    OK(dmr_runtime_destroy(runtime));
    CUDA(cuStreamDestroy_v2, stream);
    EXPECT(DMR_STATUS_UNKNOWN_RUNTIME, dmr_free(runtime, left));
    EXPECT(DMR_STATUS_UNKNOWN_RUNTIME, dmr_runtime_destroy(runtime));
}

static void share_a_limit(void) {
    dmr_config config;
    dmr_address address;
    OK(dmr_config_init(&config, sizeof config));
    config.shared_budget_bytes = 16 * BYTES;
    config.shared_budget_group = "program.c";
    config.page_bytes = 2 * BYTES;
    OK(dmr_runtime_create(&config, &runtime));
    EXPECT(DMR_STATUS_OUT_OF_BUDGET, dmr_allocate(runtime, 17 * BYTES, NULL, &address));
    OK(dmr_allocate(runtime, 8 * BYTES, NULL, &address));
    CHECK(usage_now().limit == 16 * BYTES && usage_now().remaining <= 8 * BYTES);
    config.shared_budget_bytes = 32 * BYTES;
    dmr_runtime *other;
    CHECK(dmr_runtime_create(&config, &other) != DMR_STATUS_OK);
    OK(dmr_runtime_destroy(runtime));
}

static void leave_a_log(const char *path) {
    dmr_config config;
    dmr_address address;
    OK(dmr_config_init(&config, sizeof config));
    config.log_path = path;
    OK(dmr_runtime_create(&config, &runtime));
    OK(dmr_allocate(runtime, 12345, NULL, &address));
    OK(dmr_free(runtime, address));
}

static void pass_what_is_not_set(void) {
    dmr_config *volatile config = malloc(sizeof *config);
    CHECK(dmr_runtime_create(config, &runtime) != DMR_STATUS_OK);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "uninitialised")) {
        pass_what_is_not_set();
        printf("good\n");
        return 0;
    }
    if (count > 1 && !strcmp(arguments[1], "share")) {
        share_a_limit();
        printf("good\n");
        return 0;
    }
    if (count > 2 && !strcmp(arguments[1], "log")) {
        leave_a_log(arguments[2]);
        printf("good\n");
        return 0;
    }
    CHECK(dmr_version() == DMR_VERSION);
    CHECK(dmr_last_error(NULL, 0) == 0);
    CHECK(!strcmp(dmr_status_name(DMR_STATUS_OTHER), "other"));
    CHECK(!strcmp(dmr_status_name(-1), "unknown"));
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int device;
    CUDA(cuInit, 0);
    CUDA(cuDeviceGet, &device, 0);
    CUDA(cuDevicePrimaryCtxRetain, &context, device);
    CUDA(cuCtxSetCurrent, context);
    make_runtime();
    int is_ordered = count < 2 || strcmp(arguments[1], "unordered");
    order_two_streams(is_ordered);
    if (is_ordered) {
        refuse();
        spill();
        use_threads();
        report();
        keep_the_context();
        fork_a_child();
    }
    destroy_with_blocks_left();
    printf("good\n");
    return 0;
}
