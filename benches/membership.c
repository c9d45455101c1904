/* How long ranks of one host take to have a new membership: by a device and a context that are made anew, by a new context on
 * the device that they have, and by a reconfigure of the context that they have; the latter two also without the last of the
 * ranks. From the moment when all begin until the last rank has the result of an allreduce of 4 B.
 *
 *   cc -O2 -std=c11 -IPREFIX/include benches/membership.c -o membership -LPREFIX/lib -lgloo_rs -Wl,-rpath,PREFIX/lib
 *   ./membership RANKS ROUNDS STORE_URL          GLOO_RS_SHM=0 for TCP alone
 */
#define _GNU_SOURCE
#include <gloo_rs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, HANDLE_BYTES = 64 };
enum way { DEVICE_AND_CONTEXT, CONTEXT, RECONFIGURE, CONTEXT_WITHOUT_ONE, RECONFIGURE_WITHOUT_ONE, WAYS };
static const char *const names[WAYS] = {"device and context", "context", "reconfigure", "context without one", "reconfigure without one"};

/* What all ranks share. */
static struct shared {
  pthread_barrier_t all;
  char handles[MOST][HANDLE_BYTES];
  double ended[MOST];
} *shared;

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

static int by_value(const void *one, const void *other) {
  const double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

static gloo_rs_context_t *connected(gloo_rs_device_t *device, gloo_rs_store_t *store, const char *prefix, int rank, int size) {
  gloo_rs_context_t *context = NULL;
  gloo_rs_store_t *part = NULL;
  check(gloo_rs_store_create_prefix(prefix, store, &part));
  check(gloo_rs_context_create(device, rank, size, NULL, &context));
  check(gloo_rs_context_connect(context, part));
  gloo_rs_store_destroy(part);
  return context;
}

/* Gives `kept` the first `size` processes as members. */
static void reconfigure(gloo_rs_context_t *kept, gloo_rs_store_t *store, int64_t id, int rank, int size) {
  const char *handles[MOST];
  for (int i = 0; i < size; i++) handles[i] = shared->handles[i];
  if (rank < size) check(gloo_rs_context_reconfigure(kept, store, id, handles, (size_t)size, true, GLOO_RS_TIMEOUT_DEFAULT));
}

/* Publishes the handle of `kept`, and waits for all processes. */
static void meet(gloo_rs_context_t *kept, int rank) {
  check(gloo_rs_context_handle(kept, shared->handles[rank], HANDLE_BYTES, NULL));
  pthread_barrier_wait(&shared->all);
}

/* Returns how long it takes, in ms, until the last of `size` ranks has a result. */
static double measure(enum way way, gloo_rs_context_t *kept, gloo_rs_device_t *device, gloo_rs_store_t *store, int rank, int size, int64_t id) {
  gloo_rs_context_t *context = kept;
  gloo_rs_device_t *own = NULL;
  const bool reconfigures = way == RECONFIGURE || way == RECONFIGURE_WITHOUT_ONE;
  char prefix[32];
  float cell = 1;
  double last = 0;
  snprintf(prefix, sizeof prefix, "%lld", (long long)id);
  meet(kept, rank);
  const double began = now();
  if (way == DEVICE_AND_CONTEXT) check(gloo_rs_device_create(NULL, &own));
  if (reconfigures) reconfigure(kept, store, id, rank, size);
  else if (rank < size) context = connected(own != NULL ? own : device, store, prefix, rank, size);
  if (rank < size) check(gloo_rs_allreduce(context, &cell, &cell, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  shared->ended[rank] = now();
  pthread_barrier_wait(&shared->all);
  for (int i = 0; i < size; i++)
    if (shared->ended[i] - began > last) last = shared->ended[i] - began;
  pthread_barrier_wait(&shared->all);
  if (context != kept) gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(own);
  return last;
}

static void run(int rank, int size, int rounds, const char *url) {
  gloo_rs_store_t *store = NULL;
  gloo_rs_device_t *device = NULL;
  gloo_rs_context_t *kept = NULL;
  double *times = calloc((size_t)rounds, sizeof *times);
  int64_t id = 0;
  check(gloo_rs_store_create_url(url, rank, GLOO_RS_TIMEOUT_DEFAULT, &store));
  check(gloo_rs_device_create(NULL, &device));
  kept = connected(device, store, "first", rank, size);
  for (enum way way = 0; way < (size > 1 ? WAYS : CONTEXT_WITHOUT_ONE); way++) {
    for (int round = 0; round < rounds; round++) {
      times[round] = measure(way, kept, device, store, rank, way < CONTEXT_WITHOUT_ONE ? size : size - 1, id++);
      if (way != RECONFIGURE_WITHOUT_ONE) continue;
      /* The last one comes back. */
      meet(kept, rank);
      reconfigure(kept, store, id++, rank, size);
    }
    if (rank == 0) {
      qsort(times, (size_t)rounds, sizeof *times, by_value);
      printf("%-24s %7.2f ms (median of %d; lowest %.2f, highest %.2f)\n", names[way], times[rounds / 2], rounds, times[0], times[rounds - 1]);
      fflush(stdout);
    }
  }
  gloo_rs_context_destroy(kept);
  gloo_rs_device_destroy(device);
  gloo_rs_store_destroy(store);
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc != 4 || atoi(argv[1]) < 1 || atoi(argv[1]) > MOST || atoi(argv[2]) < 1) {
    fprintf(stderr, "usage: membership RANKS ROUNDS STORE_URL\n");
    return 2;
  }
  const int size = atoi(argv[1]);
  pthread_barrierattr_t attributes;
  int status = 0, failed = 0;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->all, &attributes, (unsigned)size);
  for (int rank = 0; rank < size; rank++)
    if (fork() == 0) run(rank, size, atoi(argv[2]), argv[3]);
  while (wait(&status) > 0)
    if (status != 0) failed = 1;
  return failed;
}
