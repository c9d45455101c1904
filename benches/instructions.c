/* Counts the instructions of an allreduce of 4 bytes, with callgrind.
 *
 *   instructions RANK STORE GO READY plain|request first|whole
 *
 * Two processes, ranks 0 and 1, connect via the folder STORE; started by scripts/test-instructions.sh, which has made
 * the pipes GO and READY. Rank 0, under callgrind with --collect-atstart=no, makes plain calls, or starts a request and
 * waits for it. Collection starts at the call. With `first` it stops at the first thing that the other rank can see:
 * when the library calls send, or at the first store into the memory that this rank shares. With `whole` it stops when
 * the call has returned, or the wait. Each counted call ends with a dump.
 *
 * A count depends neither on time nor on what else the machine does:
 * - Rank 0 calls when rank 1 has started the call (READY) and its part has arrived. Rank 1 waits for it, and starts the
 *   next, when rank 0's call has returned (GO). Thus every counted call finds the other's part of this call, and
 *   nothing else.
 * - The devices' threads are kept in epoll_wait, so they never become responsible for a context. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <gloo_rs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { WARM_UP = 100, COUNTED = 15 };

/* Whether the thread is the one that calls; the device's thread has its own variables. */
static _Thread_local int is_main = 0;
static _Thread_local int until_first = 0;
static int connection = -1;

/* Dumps here, because callgrind resumes collection when a signal handler returns. */
static void dump_first(void) {
  if (until_first) CALLGRIND_DUMP_STATS;
  until_first = 0;
}

/* Replaces the C library's function in the whole program, as do the next two. */
ssize_t send(int fd, const void *bytes, size_t count, int flags) {
  if (until_first) {
    CALLGRIND_TOGGLE_COLLECT;
    dump_first();
    CALLGRIND_TOGGLE_COLLECT;
  }
  if (is_main) connection = fd;
  return sendto(fd, bytes, count, flags, NULL, 0);
}

/* Locked by a device's thread except in epoll_wait, and by the main thread to keep it there. */
static pthread_mutex_t progress = PTHREAD_MUTEX_INITIALIZER;

int epoll_wait(int fd, struct epoll_event *events, int room, int timeout) {
  static _Thread_local int locked = 0;
  int n;
  if (is_main) return epoll_pwait(fd, events, room, timeout, NULL);
  if (locked) pthread_mutex_unlock(&progress);
  n = epoll_pwait(fd, events, room, timeout, NULL);
  pthread_mutex_lock(&progress);
  locked = 1;
  return n;
}

/* Valgrind does not know pidfd_open: to it, a process that does not end. */
long syscall(long number, ...) {
  static long (*next)(long, ...) = NULL;
  long a[6];
  va_list list;
  if (number == SYS_pidfd_open && RUNNING_ON_VALGRIND) return eventfd(0, EFD_CLOEXEC);
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* The memory that this rank shares, if any. */
static struct {
  char *start;
  size_t bytes;
} shared;

/* The largest mapping of memory without a file that this process may write: peers' memory is mapped for reading, and
 * the own header a second time. */
static void find_shared(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long start, end;
    int is_own = strstr(line, " rw-s ") != NULL && strstr(line, "/memfd:") != NULL;
    if (!is_own || sscanf(line, "%lx-%lx", &start, &end) != 2 || end - start <= shared.bytes) continue;
    shared.start = (char *)start;
    shared.bytes = end - start;
  }
  if (maps != NULL) fclose(maps);
}

static void stored(int signal, siginfo_t *info, void *context) {
  (void)context;
  CALLGRIND_TOGGLE_COLLECT;
  dump_first();
  if ((char *)info->si_addr < shared.start || (char *)info->si_addr >= shared.start + shared.bytes ||
      mprotect(shared.start, shared.bytes, PROT_READ | PROT_WRITE) != 0) {
    (void)!write(2, "instructions: access to no memory\n", 34);
    _exit(signal);
  }
}

static void must(gloo_rs_status_t status) {
  if (status == GLOO_RS_OK) return;
  fprintf(stderr, "instructions: %s: %s\n", gloo_rs_status_name(status), gloo_rs_last_error_message());
  exit(1);
}

static void expect(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "instructions: %s\n", what);
  exit(1);
}

static void tell(int fd) {
  char byte = 0;
  expect(write(fd, &byte, 1) == 1, "cannot tell the other rank");
}

static void await(int fd) {
  char byte;
  expect(read(fd, &byte, 1) == 1, "the other rank has ended");
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_sigaction = stored, .sa_flags = SA_SIGINFO};
  gloo_rs_device_options_t device_options;
  gloo_rs_collective_options_t options;
  gloo_rs_device_t *device = NULL;
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = NULL;
  gloo_rs_request_t *request = NULL;
  float cell = 1;
  void *outputs[] = {&cell};
  int rank, by_request, whole, go, ready;
  if (argc != 7) {
    fprintf(stderr, "usage: instructions RANK STORE GO READY plain|request first|whole\n");
    return 2;
  }
  is_main = 1;
  rank = atoi(argv[1]);
  by_request = strcmp(argv[5], "request") == 0;
  whole = strcmp(argv[6], "whole") == 0;
  go = open(argv[3], rank == 0 ? O_WRONLY : O_RDONLY);
  ready = open(argv[4], rank == 0 ? O_RDONLY : O_WRONLY);
  expect(go >= 0 && ready >= 0, "cannot open the pipes");
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
  must(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request));
  find_shared();
  expect(sigaction(SIGSEGV, &action, NULL) == 0, "cannot handle signals");
  for (int i = 0; i < WARM_UP + COUNTED; i++) {
    int counted = rank == 0 && i >= WARM_UP;
    if (i == WARM_UP / 2) pthread_mutex_lock(&progress);
    cell = 1;
    if (rank == 1) {
      must(gloo_rs_start(request));
      tell(ready);
      /* Rank 0's call has returned. */
      await(go);
      must(gloo_rs_wait(request));
      continue;
    }
    await(ready);
    if (i > WARM_UP / 2 && connection >= 0) {
      struct pollfd polled = {.fd = connection, .events = POLLIN};
      expect(poll(&polled, 1, -1) == 1, "cannot poll");
    }
    if (counted) {
      if (!whole && shared.start != NULL)
        expect(mprotect(shared.start, shared.bytes, PROT_READ) == 0, "cannot protect memory");
      until_first = !whole;
      CALLGRIND_TOGGLE_COLLECT;
    }
    if (by_request) {
      must(gloo_rs_start(request));
      must(gloo_rs_wait(request));
    } else {
      must(gloo_rs_allreduce(context, &cell, &cell, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    }
    if (counted) {
      CALLGRIND_TOGGLE_COLLECT;
      if (whole) CALLGRIND_DUMP_STATS;
      expect(!until_first, "a call sent nothing");
      CALLGRIND_ZERO_STATS;
    }
    tell(go);
    expect(cell == 2, "the sum is wrong");
  }
  pthread_mutex_unlock(&progress);
  must(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
  return 0;
}
