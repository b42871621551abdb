// A program for the driver API whose null stream is the thread's own: one thread writes, a second one reads.
//
// It looks functions up as programs do that are compiled with `CUDA_API_PER_THREAD_DEFAULT_STREAM`. With the argument
// `in-order` the writer waits for its stream; with `legacy` both threads use the legacy stream.

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Function)();

static void *driver, *context;
static int flags = 2; // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
static unsigned long long memory;
static unsigned char bytes[64];

static Function exported(const char *name) {
    Function found = (Function)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static Function function(const char *name) {
    Function found = 0;
    int code = exported("cuGetProcAddress")(name, &found, 11030, (unsigned long long)flags);
    if (code) {
        fprintf(stderr, "no %s: %d\n", name, code);
        exit(2);
    }
    return found;
}

static void check(const char *name, int code) {
    if (code) {
        fprintf(stderr, "%s: %d\n", name, code);
        exit(3);
    }
}

#define CALL(name, ...) check(#name, function(#name)(__VA_ARGS__))

static void *read_bytes(void *ignored) {
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemcpyDtoHAsync, bytes, memory, sizeof bytes, (void *)0);
    CALL(cuStreamSynchronize, (void *)0);
    return ignored;
}

int main(int count, char **arguments) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const char *how = count > 1 ? arguments[1] : "";
    if (!strcmp(how, "legacy"))
        flags = 1; // CU_GET_PROC_ADDRESS_LEGACY_STREAM
    int device;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc, &memory, sizeof bytes);
    CALL(cuMemsetD8Async, memory, (unsigned char)9, sizeof bytes, (void *)0);
    if (!strcmp(how, "in-order"))
        check("cuStreamSynchronize_ptsz", exported("cuStreamSynchronize_ptsz")((void *)0));
    pthread_t reader;
    pthread_create(&reader, 0, read_bytes, 0);
    pthread_join(reader, 0);
    printf("read %d", bytes[63]);
    return 0;
}
