// bcryptprimitives.dll for wine 8, which has none: Rust's standard library takes random numbers from its ProcessPrng.
#include <stddef.h>

int __stdcall SystemFunction036(void *bytes, unsigned long length); // advapi32's RtlGenRandom

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *bytes, size_t length) {
  const size_t most = 1ul << 30;
  while (length > 0) {
    const size_t part = length < most ? length : most;
    if (!SystemFunction036(bytes, (unsigned long)part)) return 0;
    bytes += part;
    length -= part;
  }
  return 1;
}
