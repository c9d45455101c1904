/* Counts the instructions of an allreduce of 4 bytes, with callgrind.
 *
 *   instructions RANK STORE READY plain|request first|whole
 *
 * Two processes, ranks 0 and 1, connect via the folder STORE; started by scripts/test-instructions.sh, which has made the pipe
 * READY. Rank 0 makes plain calls, or starts a request and waits for it. Callgrind must be started with --collect-atstart=no.
 * Collection starts at the call. With `first` it stops when the library calls send, so it does not matter when the other rank
 * answers; with `whole`, when the call has returned, or the wait. Rank 1 reports through the pipe that it has sent its part, and
 * only then rank 0 calls, so it never waits. Each counted call ends with a dump. A dump takes so long that the device's thread may
 * become responsible for the context; therefore an uncounted call precedes each counted one. */
#include <fcntl.h>
#include <gloo_rs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { WARM_UP = 100, COUNTED = 15 };

static _Thread_local int until_first_byte = 0;

/* Replaces the C library's function in the whole program. */
ssize_t send(int fd, const void *bytes, size_t count, int flags) {
  if (until_first_byte) {
    CALLGRIND_TOGGLE_COLLECT;
    until_first_byte = 0;
  }
  return syscall(SYS_sendto, fd, bytes, count, flags, NULL, 0);
}

static void must(gloo_rs_status_t status) {
  if (status == GLOO_RS_OK) return;
  fprintf(stderr, "instructions: %s: %s\n", gloo_rs_status_name(status), gloo_rs_last_error_message());
  exit(1);
}

int main(int argc, char **argv) {
  gloo_rs_device_options_t device_options;
  gloo_rs_collective_options_t options;
  gloo_rs_device_t *device = NULL;
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = NULL;
  gloo_rs_request_t *request = NULL;
  float cell = 1;
  void *outputs[] = {&cell};
  char byte = 0;
  int rank, by_request, whole, ready;
  if (argc != 6) {
    fprintf(stderr, "usage: instructions RANK STORE READY plain|request first|whole\n");
    return 2;
  }
  rank = atoi(argv[1]);
  by_request = strcmp(argv[4], "request") == 0;
  whole = strcmp(argv[5], "whole") == 0;
  ready = open(argv[3], rank == 0 ? O_RDONLY : O_WRONLY);
  if (ready < 0) {
    perror(argv[3]);
    return 1;
  }
  gloo_rs_device_options_init(&device_options, sizeof device_options);
  device_options.hostname = "127.0.0.1";
  must(gloo_rs_device_create(&device_options, &device));
  must(gloo_rs_store_create_file(argv[2], &store));
  must(gloo_rs_context_create(device, rank, 2, NULL, &context));
  must(gloo_rs_context_connect(context, store));
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = GLOO_RS_FLOAT32;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = 1;
  must(gloo_rs_allreduce_init(context, &options, &request));
  for (int i = 0; i < WARM_UP + 2 * COUNTED; i++) {
    int counted = rank == 0 && i >= WARM_UP && i % 2 != 0;
    cell = 1;
    if (rank == 1) {
      must(gloo_rs_start(request));
      if (write(ready, &byte, 1) != 1) return 1;
      must(gloo_rs_wait(request));
      continue;
    }
    if (read(ready, &byte, 1) != 1) return 1;
    if (counted) {
      until_first_byte = !whole;
      CALLGRIND_TOGGLE_COLLECT;
    }
    if (by_request) {
      must(gloo_rs_start(request));
      must(gloo_rs_wait(request));
    } else {
      must(gloo_rs_allreduce(context, &cell, &cell, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    }
    if (counted && whole) CALLGRIND_TOGGLE_COLLECT;
    if (until_first_byte) {
      fprintf(stderr, "instructions: call %d sent nothing\n", i);
      return 1;
    }
    if (counted) CALLGRIND_DUMP_STATS;
    if (cell != 2) {
      fprintf(stderr, "instructions: the sum is %g, not 2\n", (double)cell);
      return 1;
    }
  }
  must(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
  return 0;
}
