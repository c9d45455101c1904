/* A stand-in for CUDA's driver library, libcuda.so.1, with the one function that the library under test asks for: which
 * addresses are device memory, the test says. */
#include <stdint.h>

static uintptr_t begin, end;
static int managed, calls;

void fake_cuda_set_device_memory(const void *memory, uintptr_t bytes, int is_managed) {
  begin = (uintptr_t)memory;
  end = begin + bytes;
  managed = is_managed;
}

int fake_cuda_calls(void) { return calls; }

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer) {
  const int invalid_value = 1, memory_type = 2, is_managed = 8, device = 2;
  calls++;
  if (pointer < begin || pointer >= end) return invalid_value;
  if (attribute == memory_type)
    *(unsigned *)data = (unsigned)device;
  else if (attribute == is_managed)
    *(unsigned *)data = (unsigned)managed;
  else
    return invalid_value;
  return 0;
}
