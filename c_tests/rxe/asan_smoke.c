/* Makes an error that AddressSanitizer must report, in a program and a library as the tests with it are built.
 *
 *   asan_smoke program   this program reads behind a buffer
 *   asan_smoke library   the library does, since it is told a wrong length
 *   asan_smoke leak      memory of the library is lost
 */
#include "../harness.h"

#define COUNT 1000

static void read_behind(void) {
  volatile char *bytes = (volatile char *)check_alloc(8);
  if (bytes[8]) printf("not zero\n");
  free((void *)bytes);
}

/* The second input has one element too few. */
static void let_read_behind(gloo_rs_context_t *context) {
  int32_t *memory = (int32_t *)calloc(2 * COUNT, sizeof *memory), *input = (int32_t *)calloc(COUNT - 1, sizeof *input);
  const void *inputs[2];
  void *output = memory + COUNT;
  gloo_rs_collective_options_t options;
  inputs[0] = memory;
  inputs[1] = input;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.inputs = inputs;
  options.num_inputs = 2;
  options.outputs = &output;
  options.num_outputs = 1;
  options.count = COUNT;
  options.data_type = GLOO_RS_INT32;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  free(memory);
  free(input);
}

/* All but the last, of which a pointer may be left. */
static void lose(gloo_rs_store_t *store) {
  void *value = NULL;
  size_t bytes;
  int i;
  CHECK_OK(gloo_rs_store_set(store, "key", "value", 5));
  for (i = 0; i < 10; i++) CHECK_OK(gloo_rs_store_get(store, "key", test_timeout_ms(), &value, &bytes));
  gloo_rs_free(value);
}

int main(int argc, char **argv) {
  const char *error = argc == 2 ? argv[1] : "";
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = create_context();
  CHECK_OK(gloo_rs_store_create_in_process("here", &store));
  connect_context(context, store, "alone");
  if (strcmp(error, "program") == 0) read_behind();
  if (strcmp(error, "library") == 0) let_read_behind(context);
  if (strcmp(error, "leak") == 0) lose(store);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  return 0;
}
