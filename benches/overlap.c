/* How much of an allreduce is hidden behind other work: each of two ranks, on a core of its own, multiplies matrices, waits for
 * an allreduce, and does both at once, in turns. Rank 0 writes a line of JSON for each round, with times in ms of the slower rank.
 *
 *   cc -O3 -march=native -std=c11 -IPREFIX/include benches/overlap.c -o overlap -LPREFIX/lib -lgloo_rs -Wl,-rpath,PREFIX/lib
 *   RANK=0 WORLD_SIZE=2 GLOO_RS_STORE=URL ./overlap BYTES ROUNDS PARTS...
 *
 * PARTS are the times of the multiplications, as parts of the time of the allreduce.
 */
#define _GNU_SOURCE
#include <gloo_rs.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Matrices that fit in a first-level cache, three of them. */
enum { SIDE = 48, WARM_UP = 3 };
static float left[SIDE][SIDE], right[SIDE][SIDE], product[SIDE][SIDE];

static gloo_rs_context_t *context;
static float *elements;
static size_t count;

static void check(gloo_rs_status_t status) {
  if (status == GLOO_RS_OK) return;
  fprintf(stderr, "%s\n", gloo_rs_last_error_message());
  _exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void multiply(long times) {
  for (long n = 0; n < times; n++)
    for (int i = 0; i < SIDE; i++)
      for (int k = 0; k < SIDE; k++)
        for (int j = 0; j < SIDE; j++) product[i][j] += left[i][k] * right[k][j];
}

static gloo_rs_request_t *start(void) {
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  void *outputs[1] = {elements};
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = GLOO_RS_FLOAT32;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  check(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &request));
  return request;
}

static void finish(gloo_rs_request_t *request) {
  check(gloo_rs_wait(request));
  check(gloo_rs_request_free(request));
}

/* The time in ms of the slower rank, from when both begin; of `times` multiplications, of the allreduce if there is one, or of
 * both at once. */
static double measure(long times, bool reduces) {
  double began, took;
  check(gloo_rs_barrier(context));
  began = now();
  gloo_rs_request_t *request = reduces ? start() : NULL;
  multiply(times);
  if (reduces) finish(request);
  took = now() - began;
  check(gloo_rs_allreduce(context, &took, &took, 1, GLOO_RS_FLOAT64, GLOO_RS_MAX));
  return took;
}

static int number(const char *name) {
  const char *text = getenv(name);
  if (text != NULL) return atoi(text);
  fprintf(stderr, "%s is not set\n", name);
  exit(2);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: overlap BYTES ROUNDS PARTS...\n");
    return 2;
  }
  const int rank = number("RANK"), size = number("WORLD_SIZE"), rounds = atoi(argv[2]);
  cpu_set_t all, own;
  gloo_rs_store_t *store = NULL;
  gloo_rs_device_t *device = NULL;

  /* One of the cores on which the process may run, for all its threads. */
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < size) {
    fprintf(stderr, "each rank needs a core of its own\n");
    return 1;
  }
  CPU_ZERO(&own);
  for (int core = 0, found = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &all) && found++ == rank) CPU_SET(core, &own);
  if (sched_setaffinity(0, sizeof own, &own) != 0) return 1;

  count = (size_t)atoll(argv[1]) / sizeof(float);
  elements = calloc(count, sizeof(float));
  if (elements == NULL) return 1;
  check(gloo_rs_store_create_url(getenv("GLOO_RS_STORE"), rank, GLOO_RS_TIMEOUT_DEFAULT, &store));
  check(gloo_rs_device_create(NULL, &device));
  check(gloo_rs_context_create(device, rank, size, NULL, &context));
  check(gloo_rs_context_connect(context, store));

  for (int n = 0; n < WARM_UP; n++) measure(1000, true);
  const double reduction = measure(0, true), of_a_thousand = measure(1000, false);
  for (int round = 0; round < rounds; round++)
    for (int part = 3; part < argc; part++) {
      const long times = 1 + (long)(atof(argv[part]) * reduction / of_a_thousand * 1000);
      const double reduced = measure(0, true), multiplied = measure(times, false), both = measure(times, true);
      if (rank > 0) continue;
      printf("{\"round\": %d, \"part\": %s, \"reduce_ms\": %.3f, \"multiply_ms\": %.3f, \"both_ms\": %.3f, \"sum\": %g}\n", round, argv[part],
             reduced, multiplied, both, (double)product[1][2]);
      fflush(stdout);
    }
  check(gloo_rs_barrier(context));
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
  gloo_rs_store_destroy(store);
  free(elements);
  return 0;
}
