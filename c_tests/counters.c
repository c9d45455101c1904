/* The counters of contexts, in structs and as text for Prometheus; and what is refused. */
#include "harness.h"

enum { KINDS = 8 };

static gloo_rs_context_t *context;

static void sum(const char *algorithm, float *values, size_t count) {
  gloo_rs_collective_options_t options;
  void *outputs[1];
  outputs[0] = values;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  options.data_type = GLOO_RS_FLOAT32;
  options.op = GLOO_RS_SUM;
  options.algorithm = algorithm;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
}

/* What there is of the collective and the algorithm; its calls are 0 if there is nothing. */
static gloo_rs_call_counters_t calls_of(const char *collective, const char *algorithm) {
  gloo_rs_call_counters_t calls[KINDS], found;
  size_t i, count = 0, links = 0;
  for (i = 0; i < KINDS; i++) gloo_rs_call_counters_init(&calls[i], sizeof calls[i]);
  CHECK_OK(gloo_rs_context_counters(context, calls, KINDS, &count, NULL, 0, &links));
  CHECK(count <= KINDS && links <= 1);
  gloo_rs_call_counters_init(&found, sizeof found);
  for (i = 0; i < count; i++) {
    CHECK_INT(calls[i].struct_size, sizeof found);
    if (strcmp(calls[i].collective, collective) == 0 && strcmp(calls[i].algorithm, algorithm) == 0) found = calls[i];
  }
  return found;
}

static void calls_are_counted(void) {
  float values[3] = {1, 2, 3};
  gloo_rs_call_counters_t calls;
  gloo_rs_link_counters_t link;
  size_t kinds = 0, links = 0;
  int call;
  context = connected_context();
  CHECK_OK(gloo_rs_context_counters(context, NULL, 0, &kinds, NULL, 0, &links));
  CHECK_INT(kinds, 0);
  for (call = 0; call < 5; call++) sum("ring", values, 3);
  for (call = 0; call < 2; call++) sum("recursive_doubling", values, 1);
  calls = calls_of("allreduce", "ring");
  CHECK_INT(calls.calls, 5);
  CHECK_INT(calls.failures, 0);
  CHECK_INT(calls.bytes, 5 * sizeof values);
  CHECK_TEXT(calls.link, "messages");
  CHECK_INT(calls_of("allreduce", "recursive_doubling").bytes, 2 * sizeof(float));
  CHECK_INT(calls_of("barrier", "").calls, 0);
  gloo_rs_link_counters_init(&link, sizeof link);
  CHECK_OK(gloo_rs_context_counters(context, NULL, 0, &kinds, &link, 1, &links));
  CHECK_INT(kinds, 2);
  CHECK_INT(links, 1);
  CHECK_INT(link.peer, 1 - test_rank);
  CHECK(link.sent_bytes >= 5 * sizeof values && link.received_bytes >= 5 * sizeof values);
  meet(context);
  CHECK_OK(gloo_rs_context_close(context));
  CHECK_INT(calls_of("allreduce", "ring").calls, 5);
  gloo_rs_context_destroy(context);
}

static char *prometheus(const char *name) {
  const gloo_rs_context_t *contexts[1];
  size_t needed = 0, again = 0;
  char *text;
  contexts[0] = context;
  CHECK_OK(gloo_rs_prometheus_text(contexts, name == NULL ? NULL : &name, 1, NULL, 0, &needed));
  /* The other rank may send something meanwhile. */
  needed += 64;
  text = (char *)check_alloc(needed);
  CHECK_OK(gloo_rs_prometheus_text(contexts, name == NULL ? NULL : &name, 1, text, needed, &again));
  CHECK(again <= needed && strlen(text) + 1 == again);
  return text;
}

static void texts(void) {
  const gloo_rs_context_t *contexts[2];
  static const char *const same[] = {"one", "one"}, *const two[] = {"one", "two"};
  char line[160], small[8];
  float value = 1;
  char *text;
  size_t needed = 0;
  context = connected_context();
  sum("ring", &value, 1);
  text = prometheus("a \"b\"");
  snprintf(line, sizeof line, "\ngloo_rs_calls_total{context=\"a \\\"b\\\"\",rank=\"%d\",collective=\"allreduce\",algorithm=\"ring\",link=\"messages\"} 1\n",
           test_rank);
  CHECK_CONTAINS(text, line);
  CHECK_CONTAINS(text, "# TYPE gloo_rs_link_sent_bytes_total counter\n");
  free(text);
  text = prometheus(NULL);
  snprintf(line, sizeof line, "gloo_rs_call_failures_total{rank=\"%d\",collective=", test_rank);
  CHECK_CONTAINS(text, line);
  free(text);
  contexts[0] = contexts[1] = context;
  CHECK_OK(gloo_rs_prometheus_text(contexts, two, 2, NULL, 0, &needed));
  CHECK_INVALID(gloo_rs_prometheus_text(contexts, same, 2, NULL, 0, &needed), "must all be different");
  CHECK_INVALID(gloo_rs_prometheus_text(contexts, NULL, 2, NULL, 0, &needed), "must be given");
  CHECK_INVALID(gloo_rs_prometheus_text(contexts, two, 2, small, sizeof small, NULL), "the buffer has 8 bytes");
  CHECK_INVALID(gloo_rs_prometheus_text(contexts, two, 2, NULL, 0, NULL), "buffer and needed are both NULL");
  CHECK_INVALID(gloo_rs_prometheus_text(NULL, two, 2, NULL, 0, &needed), "contexts is NULL");
  contexts[1] = NULL;
  CHECK_INVALID(gloo_rs_prometheus_text(contexts, two, 2, NULL, 0, &needed), "contexts[1] is NULL");
  meet(context);
  gloo_rs_context_destroy(context);
}

static void refused(void) {
  gloo_rs_call_counters_t calls;
  gloo_rs_link_counters_t links;
  size_t kinds = 7, others = 7;
  float value = 1;
  context = connected_context();
  sum("ring", &value, 1);
  sum("recursive_doubling", &value, 1);
  gloo_rs_call_counters_init(&calls, sizeof calls);
  gloo_rs_link_counters_init(&links, sizeof links);
  CHECK_INVALID(gloo_rs_context_counters(context, &calls, 1, &kinds, &links, 1, &others), "calls has room for 1; 2 are needed");
  CHECK_INT(kinds, 2);
  CHECK_INT(others, 1);
  CHECK_INVALID(gloo_rs_context_counters(context, NULL, 0, NULL, NULL, 0, &others), "count is NULL");
  CHECK_INVALID(gloo_rs_context_counters(context, NULL, 0, &kinds, NULL, 0, NULL), "count is NULL");
  CHECK_INVALID(gloo_rs_context_counters(NULL, NULL, 0, &kinds, NULL, 0, &others), "context is NULL");
  links.struct_size = 3;
  CHECK_INVALID(gloo_rs_context_counters(context, NULL, 0, &kinds, &links, 1, &others), "gloo_rs_link_counters_init");
  gloo_rs_call_counters_init(NULL, sizeof calls);
  meet(context);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"calls_are_counted", 2, calls_are_counted, -1},
      {"texts", 2, texts, -1},
      {"refused", 2, refused, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
