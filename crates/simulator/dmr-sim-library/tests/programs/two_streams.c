// A program for the driver API: one stream writes, another one reads. With the argument `in-order` it waits.
//
// It declares what it calls itself, and opens the driver by its name, as programs without the toolkit do.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

#define CALL(name, ...) \
    do { \
        int code = function(#name)(__VA_ARGS__); \
        if (code) { \
            fprintf(stderr, "%s: %d\n", #name, code); \
            exit(3); \
        } \
    } while (0)

int main(int count, char **arguments) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *writer, *reader, *written;
    unsigned long long memory;
    unsigned char bytes[64];
    int device;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &writer, 1);
    CALL(cuStreamCreate, &reader, 1);
    CALL(cuEventCreate, &written, 2);
    CALL(cuMemAlloc_v2, &memory, sizeof bytes);
    CALL(cuMemsetD8Async, memory, (unsigned char)9, sizeof bytes, writer);
    CALL(cuEventRecord, written, writer);
    if (count > 1 && !strcmp(arguments[1], "in-order"))
        CALL(cuStreamWaitEvent, reader, written, 0);
    CALL(cuMemcpyDtoHAsync_v2, bytes, memory, sizeof bytes, reader);
    CALL(cuStreamSynchronize, reader);
    printf("read %d", bytes[63]); // without a newline: the exit must flush it
    return 0;
}
