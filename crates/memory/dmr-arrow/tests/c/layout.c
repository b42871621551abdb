// Prints the size of each struct of Arrow's interfaces, and the offset of each field.

#include <stddef.h>
#include <stdio.h>

#include "arrow.h"

#define SIZE(type) printf("%s %zu\n", #type, sizeof(struct type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(struct type, field))
#define VALUE(name) printf("%s %d\n", #name, name)

int main(void) {
    SIZE(ArrowSchema);
    FIELD(ArrowSchema, format);
    FIELD(ArrowSchema, name);
    FIELD(ArrowSchema, metadata);
    FIELD(ArrowSchema, flags);
    FIELD(ArrowSchema, n_children);
    FIELD(ArrowSchema, children);
    FIELD(ArrowSchema, dictionary);
    FIELD(ArrowSchema, release);
    FIELD(ArrowSchema, private_data);
    SIZE(ArrowArray);
    FIELD(ArrowArray, length);
    FIELD(ArrowArray, null_count);
    FIELD(ArrowArray, offset);
    FIELD(ArrowArray, n_buffers);
    FIELD(ArrowArray, n_children);
    FIELD(ArrowArray, buffers);
    FIELD(ArrowArray, children);
    FIELD(ArrowArray, dictionary);
    FIELD(ArrowArray, release);
    FIELD(ArrowArray, private_data);
    SIZE(ArrowDeviceArray);
    FIELD(ArrowDeviceArray, array);
    FIELD(ArrowDeviceArray, device_id);
    FIELD(ArrowDeviceArray, device_type);
    FIELD(ArrowDeviceArray, sync_event);
    FIELD(ArrowDeviceArray, reserved);
    VALUE(ARROW_FLAG_DICTIONARY_ORDERED);
    VALUE(ARROW_FLAG_NULLABLE);
    VALUE(ARROW_FLAG_MAP_KEYS_SORTED);
    VALUE(ARROW_DEVICE_CUDA);
    VALUE(ARROW_DEVICE_CUDA_HOST);
    VALUE(ARROW_DEVICE_CUDA_MANAGED);
    return 0;
}
