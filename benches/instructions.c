/* Counts the instructions of an allreduce of 4 bytes from the call to the first byte sent, with callgrind.
 *
 *   instructions RANK STORE    two processes, ranks 0 and 1, connect via the folder STORE; started by scripts/test-instructions.sh
 *
 * Callgrind must be started with --collect-atstart=no. Collection starts at the call and stops when the library calls send, so
 * later instructions, which depend on when the other rank answers, are not counted. Each counted call ends with a dump. A dump
 * takes so long that the device's thread may become responsible for the context; therefore an uncounted call precedes each
 * counted one. */
#include <gloo_rs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { WARM_UP = 100, COUNTED = 15 };

static _Thread_local int counting = 0;

/* Replaces the C library's function in the whole program. */
ssize_t send(int fd, const void *bytes, size_t count, int flags) {
  if (counting) {
    CALLGRIND_TOGGLE_COLLECT;
    counting = 0;
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
  gloo_rs_device_t *device = NULL;
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = NULL;
  float cell = 1;
  if (argc != 3) {
    fprintf(stderr, "usage: instructions RANK STORE\n");
    return 2;
  }
  gloo_rs_device_options_init(&device_options, sizeof device_options);
  device_options.hostname = "127.0.0.1";
  must(gloo_rs_device_create(&device_options, &device));
  must(gloo_rs_store_create_file(argv[2], &store));
  must(gloo_rs_context_create(device, atoi(argv[1]), 2, NULL, &context));
  must(gloo_rs_context_connect(context, store));
  for (int i = 0; i < WARM_UP + 2 * COUNTED; i++) {
    int counted = i >= WARM_UP && i % 2 != 0;
    cell = 1;
    if (counted) {
      counting = 1;
      CALLGRIND_TOGGLE_COLLECT;
    }
    must(gloo_rs_allreduce(context, &cell, &cell, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    if (counting) {
      fprintf(stderr, "instructions: call %d sent nothing\n", i);
      return 1;
    }
    if (counted) CALLGRIND_DUMP_STATS;
    if (cell != 2) {
      fprintf(stderr, "instructions: the sum is %g, not 2\n", (double)cell);
      return 1;
    }
  }
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
  return 0;
}
