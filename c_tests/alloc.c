/* Memory of gloo_rs_alloc: in calls beside memory of malloc, freed and allocated again, left to its context, without
 * shared memory, in a child by fork; and wrong calls. */
#include "harness.h"

static size_t most(void) { return test_is_slow() ? 100000 : (size_t)4 << 20; }

static float *allocate(gloo_rs_context_t *context, size_t count) {
  void *memory = NULL;
  CHECK_OK(gloo_rs_alloc(context, count * sizeof(float), &memory));
  CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
  CHECK(((float *)memory)[0] == 0 && ((float *)memory)[count - 1] == 0);
  return (float *)memory;
}

static void fill(float *data, size_t count, int round) {
  size_t i;
  for (i = 0; i < count; i++) data[i] = (float)(i % 1000 + (size_t)(test_rank + round));
}

static void expect_sum(const float *data, size_t count, int round) {
  size_t i;
  int others = test_size * (test_size - 1) / 2 + test_size * round;
  for (i = 0; i < count; i++) {
    float expected = (float)((size_t)test_size * (i % 1000) + (size_t)others);
    if (data[i] != expected) check_failed(__FILE__, __LINE__, "element %zu is %g, not %g", i, data[i], expected);
  }
}

/* The first `allocating` ranks allocate by the library, the others by malloc. */
static void mixed(gloo_rs_context_t *context, int allocating, size_t count) {
  int own = test_rank < allocating, round;
  float *in = own ? allocate(context, count) : (float *)check_alloc(count * sizeof(float));
  float *out = own ? allocate(context, count) : (float *)check_alloc(count * sizeof(float));
  for (round = 0; round < 3; round++) {
    fill(in, count, round);
    CHECK_OK(gloo_rs_allreduce(context, in, out, count, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    expect_sum(out, count, round);
    CHECK_OK(gloo_rs_allreduce(context, NULL, in, count, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    expect_sum(in, count, round);
    fill(in, count, test_rank == 0 ? 7 : -100);
    CHECK_OK(gloo_rs_broadcast(context, in, count, GLOO_RS_FLOAT32, 0));
    CHECK(in[0] == 7 && in[count - 1] == (float)((count - 1) % 1000 + 7));
    CHECK_OK(gloo_rs_alltoall(context, in, out, count / (size_t)test_size, GLOO_RS_FLOAT32));
    CHECK(out[0] == in[count / (size_t)test_size * (size_t)test_rank]);
  }
  if (own) {
    CHECK_OK(gloo_rs_dealloc(context, in));
    CHECK_OK(gloo_rs_dealloc(context, out));
  } else {
    free(in);
    free(out);
  }
}

static void run_mixed(void) {
  gloo_rs_context_t *context = connected_context();
  int allocating;
  for (allocating = test_size; allocating >= 0; allocating--) mixed(context, allocating, most());
  mixed(context, test_size, 30000);
  mixed(context, 1, 30000);
  gloo_rs_context_destroy(context);
}

static void run_without_sharing(void) {
  CHECK_INT(setenv("GLOO_RS_SHM", "0", 1), 0);
  run_mixed();
}

/* Mostly at the same addresses: other ranks must not take what they have mapped for what is there now. */
static void run_freed_and_allocated_again(void) {
  gloo_rs_context_t *context = connected_context();
  size_t count = most();
  int round;
  for (round = 0; round < 12; round++) {
    size_t now = round % 3 == 2 ? count / 2 : count;
    float *data = allocate(context, now);
    fill(data, now, round);
    CHECK_OK(gloo_rs_allreduce(context, NULL, data, now, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    expect_sum(data, now, round);
    CHECK_OK(gloo_rs_dealloc(context, data));
    if (round % 4 == 3) {
      /* Memory of malloc, perhaps where the other was. */
      data = (float *)check_alloc(now * sizeof(float));
      fill(data, now, round);
      CHECK_OK(gloo_rs_allreduce(context, NULL, data, now, GLOO_RS_FLOAT32, GLOO_RS_SUM));
      expect_sum(data, now, round);
      free(data);
    }
  }
  gloo_rs_context_destroy(context);
}

static void run_messages(void) {
  gloo_rs_context_t *context = connected_context();
  size_t count = most();
  float *in = allocate(context, count), *out = allocate(context, count);
  int32_t to = (test_rank + 1) % test_size, from = (test_rank + test_size - 1) % test_size;
  gloo_rs_unbound_buffer_t *send = NULL, *receive = NULL;
  size_t i;
  fill(in, count, 0);
  CHECK_OK(gloo_rs_unbound_buffer_create(context, in, count * sizeof(float), &send));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, out, count * sizeof(float), &receive));
  CHECK_OK(gloo_rs_unbound_buffer_recv(receive, from, 3, 0, count * sizeof(float)));
  CHECK_OK(gloo_rs_unbound_buffer_send(send, to, 3, 0, count * sizeof(float)));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(send, test_timeout_ms(), NULL));
  CHECK_OK(gloo_rs_unbound_buffer_wait_recv(receive, test_timeout_ms(), NULL, NULL));
  for (i = 0; i < count; i++) CHECK(out[i] == (float)(i % 1000 + (size_t)from));
  gloo_rs_unbound_buffer_destroy(send);
  /* What is left is freed with the buffer, which is the last to use the context. */
  gloo_rs_context_destroy(context);
  CHECK(out[count - 1] == (float)((count - 1) % 1000 + (size_t)from));
  gloo_rs_unbound_buffer_destroy(receive);
}

/* More than are shared, all left to the context. */
static void run_left(void) {
  gloo_rs_context_t *context = connected_context();
  float *all[100];
  size_t count = 20000;
  int i;
  for (i = 0; i < 100; i++) {
    all[i] = allocate(context, count);
    fill(all[i], count, i);
  }
  for (i = 99; i >= 0; i--) {
    CHECK_OK(gloo_rs_allreduce(context, NULL, all[i], count, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    expect_sum(all[i], count, i);
  }
  gloo_rs_context_destroy(context);
}

static void run_in_a_child(void) {
  gloo_rs_context_t *context = connected_context();
  size_t count = most();
  float *data = allocate(context, count);
  int status = 0;
  pid_t child;
  fill(data, count, 5);
  fflush(NULL);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    void *memory = NULL;
    CHECK(data[0] == (float)(test_rank + 5));
    CHECK_FAILS(gloo_rs_alloc(context, 1, &memory), GLOO_RS_ERROR_INVALID_OPERATION, "child by fork");
    CHECK(memory == NULL);
    CHECK_FAILS(gloo_rs_dealloc(context, data), GLOO_RS_ERROR_INVALID_OPERATION, "child by fork");
    gloo_rs_context_destroy(context);
    /* Another program, for which valgrind makes its own account. */
    execlp("true", "true", (char *)NULL);
    _exit(127);
  }
  CHECK_INT(waitpid(child, &status, 0), child);
  CHECK_INT(status, 0);
  CHECK_OK(gloo_rs_allreduce(context, NULL, data, count, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  expect_sum(data, count, 5);
  gloo_rs_context_destroy(context);
}

static void run_wrong_calls(void) {
  gloo_rs_context_t *context = create_context(), *other = create_context();
  char here = 0;
  void *memory = &here, *none = NULL;
  CHECK_INVALID(gloo_rs_alloc(NULL, 1, &memory), "context is NULL");
  CHECK(memory == NULL);
  CHECK_INVALID(gloo_rs_alloc(context, 1, NULL), "memory is NULL");
  memory = &here;
  CHECK_FAILS(gloo_rs_alloc(context, SIZE_MAX, &memory), GLOO_RS_ERROR_RESOURCE_EXHAUSTED, "cannot allocate");
  CHECK(memory == NULL);
  CHECK_FAILS(gloo_rs_alloc(context, SIZE_MAX / 2, &memory), GLOO_RS_ERROR_RESOURCE_EXHAUSTED, "cannot allocate");
  CHECK_OK(gloo_rs_alloc(context, 0, &none));
  CHECK(none != NULL);
  CHECK_OK(gloo_rs_alloc(context, 100000, &memory));
  CHECK_INVALID(gloo_rs_dealloc(NULL, memory), "context is NULL");
  CHECK_INVALID(gloo_rs_dealloc(other, memory), "no memory that was allocated on this context");
  CHECK_INVALID(gloo_rs_dealloc(context, &here), "no memory that was allocated on this context");
  CHECK_INVALID(gloo_rs_dealloc(context, (char *)memory + 4096), "no memory that was allocated on this context");
  memset(memory, 7, 100000);
  CHECK_OK(gloo_rs_dealloc(context, memory));
  CHECK_INVALID(gloo_rs_dealloc(context, memory), "or it was freed");
  CHECK_OK(gloo_rs_dealloc(context, NULL));
  gloo_rs_context_destroy(other);
  gloo_rs_context_close(context);
  CHECK_OK(gloo_rs_alloc(context, 100000, &memory));
  memset(memory, 7, 100000);
  gloo_rs_context_destroy(context);
}

static const struct test tests[] = {
    {"allocated_and_other_memory", 3, run_mixed, -1},
    {"without_sharing", 2, run_without_sharing, -1},
    {"freed_and_allocated_again", 2, run_freed_and_allocated_again, -1},
    {"messages", 3, run_messages, -1},
    {"left_to_the_context", 2, run_left, -1},
    {"in_a_child", 2, run_in_a_child, -1},
    {"wrong_calls", 1, run_wrong_calls, -1},
};

int main(int argc, char **argv) { return RUN_TESTS(argc, argv, tests); }
