/* Long runs: 100,000 calls, 2,000 contexts, eight threads for 20 s. At the end a process has as much memory, and as
 * many descriptors and threads, as after the warm-up. */
#include "harness.h"

#include <dirent.h>
#include <malloc.h>

/* The resources of a process. */
struct usage {
  /* Bytes allocated by malloc, in all threads' arenas and by mmap. */
  long long heap;
  /* Resident memory in bytes. */
  long long resident;
  int descriptors;
  int threads;
};

static int entries(const char *path) {
  DIR *directory = opendir(path);
  int count = 0;
  CHECK(directory != NULL);
  while (readdir(directory) != NULL) count++;
  closedir(directory);
  return count;
}

static struct usage measure(void) {
  struct usage usage;
  struct mallinfo2 heap = mallinfo2();
  long total = 0, resident = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm != NULL);
  CHECK_INT(fscanf(statm, "%ld %ld", &total, &resident), 2);
  fclose(statm);
  usage.heap = (long long)(heap.uordblks + heap.hblkhd);
  usage.resident = (long long)resident * sysconf(_SC_PAGESIZE);
  usage.descriptors = entries("/proc/self/fd");
  usage.threads = entries("/proc/self/task");
  return usage;
}

/* Queues and kept messages may still find a depth that they never had: that many bytes are not much. A leak of 16 bytes
 * per call would be more. */
#define HEAP_SLACK (512 << 10)
#define RESIDENT_SLACK (8 << 20)

static void check_flat(const char *what, struct usage before) {
  struct usage now = measure();
  int64_t deadline = now_ms() + 10000;
  /* Connections that have ended exist for a moment longer, until the peer has received everything. */
  while ((now.descriptors != before.descriptors || now.threads != before.threads) && now_ms() < deadline) {
    sleep_ms(20);
    now = measure();
  }
  if (test_rank == 0)
    printf("%s: rank %d: heap %lld -> %lld, resident %lld -> %lld, descriptors %d -> %d, threads %d -> %d\n", what, test_rank,
           before.heap, now.heap, before.resident, now.resident, before.descriptors, now.descriptors, before.threads,
           now.threads);
  fflush(stdout);
  CHECK(now.heap <= before.heap + HEAP_SLACK);
  CHECK(now.resident <= before.resident + RESIDENT_SLACK);
  CHECK_INT(now.descriptors, before.descriptors);
  CHECK_INT(now.threads, before.threads);
}

/* Sums of whole numbers over all ranks; returns the last element's. */
static int32_t sum(gloo_rs_context_t *context, uint64_t tag, int32_t *cells, size_t count, int32_t last) {
  gloo_rs_collective_options_t options;
  void *outputs[1];
  size_t i;
  outputs[0] = cells;
  for (i = 0; i + 1 < count; i++) cells[i] = (int32_t)(i % 1000) + test_rank + (int32_t)tag;
  cells[count - 1] = last;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.tag = tag;
  options.data_type = GLOO_RS_INT32;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  for (i = 0; i + 1 < count; i++)
    if (cells[i] != test_size * ((int32_t)(i % 1000) + (int32_t)tag) + test_size * (test_size - 1) / 2)
      check_failed(__FILE__, __LINE__, "element %zu of %zu is %d", i, count, (int)cells[i]);
  return cells[count - 1];
}

/* Number of elements: mostly small, up to 256 KiB. */
static size_t draw_count(uint64_t *state) {
  static const size_t few[] = {1, 2, 3, 10, 16, 64, 100, 256, 1000}, many[] = {3000, 4096, 10000, 16384, 16385, 40000, 65536};
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  if ((*state >> 33) % 50 != 0) return few[(*state >> 40) % (sizeof few / sizeof few[0])];
  return many[(*state >> 40) % (sizeof many / sizeof many[0])];
}

static void many_calls(void) {
  const int calls = 100000, warm_up = 20000;
  gloo_rs_context_t *context = connected_context();
  int32_t *cells = (int32_t *)check_alloc(65536 * sizeof *cells);
  uint64_t state = 7;
  struct usage before;
  int call;
  memset(cells, 0, 65536 * sizeof *cells);
  for (call = 0; call < calls; call++) {
    if (call == warm_up) before = measure();
    CHECK_INT(sum(context, 0, cells, draw_count(&state), call), (int64_t)call * test_size);
  }
  check_flat("100,000 calls", before);
  barrier(context);
  free(cells);
  gloo_rs_context_destroy(context);
}

/* Contexts find each other over the store and over another context, in turn; every hundredth pair has a device of its
 * own. */
static void many_contexts(void) {
  const int contexts = 2000, warm_up = 300;
  gloo_rs_context_t *parent = connected_context();
  gloo_rs_device_t *shared = create_device();
  gloo_rs_store_t *base = open_store();
  struct usage before;
  int number;
  for (number = 0; number < contexts; number++) {
    gloo_rs_device_t *device;
    gloo_rs_context_t *context = NULL;
    gloo_rs_context_options_t options;
    int32_t cells[10];
    if (number == warm_up) {
      barrier(parent);
      /* The resources of the first contexts have been released. */
      sleep_ms(3000);
      before = measure();
    }
    device = number % 100 == 0 ? create_device() : shared;
    gloo_rs_context_options_init(&options, sizeof options);
    options.timeout_ms = test_timeout_ms();
    options.connect = number % 3 == 0 ? GLOO_RS_CONNECT_FULL : GLOO_RS_CONNECT_LAZY;
    CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
    if (number % 2 == 0) {
      char prefix[32];
      snprintf(prefix, sizeof prefix, "number %d", number);
      connect_context(context, base, prefix);
    } else {
      CHECK_OK(gloo_rs_context_connect_from(context, parent, 5));
    }
    CHECK_INT(sum(context, 0, cells, 10, number), number * test_size);
    if (device != shared) gloo_rs_device_destroy(device);
    gloo_rs_context_destroy(context);
  }
  check_flat("2,000 contexts", before);
  barrier(parent);
  gloo_rs_store_destroy(base);
  gloo_rs_device_destroy(shared);
  gloo_rs_context_destroy(parent);
}

#define THREADS 8

struct work {
  gloo_rs_context_t *context;
  uint64_t tag;
  int64_t until;
  long long calls;
};

/* The ranks must make the same number of calls: rank 0 signals the end in the last element. */
static void *calls_until(void *argument) {
  struct work *work = (struct work *)argument;
  int32_t *cells = (int32_t *)check_alloc(65536 * sizeof *cells);
  uint64_t state = work->tag;
  int over = 0;
  while (!over) {
    over = sum(work->context, work->tag, cells, draw_count(&state), test_rank == 0 && now_ms() >= work->until) != 0;
    work->calls++;
  }
  free(cells);
  return NULL;
}

static long long threads_for(gloo_rs_context_t *context, int64_t ms) {
  struct work works[THREADS];
  pthread_t threads[THREADS];
  long long calls = 0;
  int i;
  for (i = 0; i < THREADS; i++) {
    works[i].context = context;
    works[i].tag = (uint64_t)i + 1;
    works[i].until = now_ms() + ms;
    works[i].calls = 0;
    threads[i] = start_thread(calls_until, &works[i]);
  }
  for (i = 0; i < THREADS; i++) {
    join_thread(threads[i]);
    CHECK(works[i].calls > 100);
    calls += works[i].calls;
  }
  return calls;
}

static void many_threads(void) {
  gloo_rs_context_t *context = connected_context();
  struct usage before;
  long long calls;
  threads_for(context, 5000);
  before = measure();
  calls = threads_for(context, 20000);
  if (test_rank == 0) printf("eight threads: %lld calls\n", calls);
  check_flat("eight threads", before);
  barrier(context);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"many_calls", 4, many_calls, -1},
      {"many_contexts", 2, many_contexts, -1},
      {"many_threads", 2, many_threads, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
