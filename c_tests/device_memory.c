/* Pointers to device memory are recognised, where CUDA's driver is loaded to tell them. This driver has nothing else, so
 * collectives cannot use the memory. */
#define _DEFAULT_SOURCE /* for MAP_ANONYMOUS */
#include "harness.h"

#include <dlfcn.h>
#include <sys/mman.h>

#define BYTES (4u << 20)

static void (*set_device_memory)(const void *memory, uintptr_t bytes, int is_managed);
static int (*calls_of_driver)(void);

/* Addresses that belong to nothing else, and that no code may touch. */
static char *reserve(void) {
  char *memory = (char *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

static void device_memory(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_unbound_buffer_t *buffer = NULL;
  gloo_rs_buffer_t *bound = NULL;
  gloo_rs_pair_t *pair = NULL;
  float host[4] = {1, 2, 3, 4}, out[4];
  char *device = reserve(), *managed = reserve(), *again = reserve();
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  const void *input;
  void *output;
  int i, calls;
  void *driver;

  gloo_rs_collective_options_init(&options, sizeof options);
  /* Without the driver the process has no device memory. */
  CHECK_OK(gloo_rs_allreduce(context, host, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  CHECK_INT(mprotect(again, BYTES, PROT_READ | PROT_WRITE), 0);
  CHECK_OK(gloo_rs_allreduce(context, again, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  CHECK_INT(mprotect(again, BYTES, PROT_NONE), 0);

  /* A program may begin to use CUDA late. */
  driver = dlopen(FAKE_CUDA, RTLD_NOW);
  CHECK(driver != NULL);
  *(void **)&set_device_memory = dlsym(driver, "fake_cuda_set_device_memory");
  *(void **)&calls_of_driver = dlsym(driver, "fake_cuda_calls");
  CHECK(set_device_memory != NULL && calls_of_driver != NULL);
  set_device_memory(device, BYTES, 0);

#define REFUSED(call, text) CHECK_FAILS(call, GLOO_RS_ERROR_UNSUPPORTED, text " (0x")
  options.data_type = GLOO_RS_FLOAT32;
  options.inputs = &input;
  options.outputs = &output;
  options.num_inputs = options.num_outputs = 1;
  options.count = 4;
  input = device;
  output = out;
  REFUSED(gloo_rs_allreduce(context, device, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM), "input 0");
  REFUSED(gloo_rs_allreduce(context, host, device + BYTES - 16, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM), "output 0");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "): memory of a CUDA device: ");
  CHECK_CONTAINS(gloo_rs_last_error_message(), strstr(gloo_rs_built_features(), "cuda") != NULL
                                                   ? "CUDA's driver has no function cuDriverGetVersion, which that of CUDA"
                                                   : "this build cannot access it: it has no feature cuda");
  REFUSED(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "input 0");
  REFUSED(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request), "input 0");
  CHECK(request == NULL);
  REFUSED(gloo_rs_broadcast(context, device, 4, GLOO_RS_FLOAT32, 0), "output 0");
  REFUSED(gloo_rs_reduce_local(device, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM), "input");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "is memory of a CUDA device; copy it to host memory first");
  REFUSED(gloo_rs_unbound_buffer_create(context, device, 16, &buffer), "data");
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  REFUSED(gloo_rs_pair_create_send_buffer(pair, 1, device, 16, &bound), "data");
  REFUSED(gloo_rs_pair_create_recv_buffer(pair, 1, device, 16, &bound), "data");
  CHECK(buffer == NULL && bound == NULL);
  /* No elements, no memory. */
  CHECK_OK(gloo_rs_allreduce(context, device, device, 0, GLOO_RS_FLOAT32, GLOO_RS_SUM));

  /* Nothing was sent, and the context is as it was; the driver is asked once for each buffer. */
  for (i = 0, calls = calls_of_driver(); i < 10; i++) {
    CHECK_OK(gloo_rs_allreduce(context, host, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    CHECK(out[3] == 8);
  }
  CHECK_INT(calls_of_driver(), calls + 10 * 2);

  /* Who says that it is the host's has nobody asked. */
  options.memory = GLOO_RS_MEMORY_HOST;
  input = host;
  calls = calls_of_driver();
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  CHECK(out[3] == 8);
  CHECK_INT(calls_of_driver(), calls);
  options.memory = GLOO_RS_MEMORY_DEVICE;
  REFUSED(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "input 0");
  options.memory = (gloo_rs_memory_t)3;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options),
                "memory is 3, which is not a value of its enumeration");

  /* What was the host's may come back as a device's, at the same address. */
  set_device_memory(again, BYTES, 0);
  REFUSED(gloo_rs_allreduce(context, again, out, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM), "input 0");

  /* The host reaches managed memory. */
  CHECK_INT(mprotect(managed, BYTES, PROT_READ | PROT_WRITE), 0);
  set_device_memory(managed, BYTES, 1);
  CHECK_OK(gloo_rs_allreduce(context, host, managed, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  CHECK(calls_of_driver() > calls);

  gloo_rs_pair_destroy(pair);
  barrier(context);
  gloo_rs_context_destroy(context);
  munmap(device, BYTES);
  munmap(managed, BYTES);
  munmap(again, BYTES);
  dlclose(driver);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"device_memory", 2, device_memory, -1},
  };
  return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
