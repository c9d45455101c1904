// Two processes on this host, each bound to its own core: otherwise the scheduler moves them, and the times vary between
// several levels.

#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

[[noreturn]] inline void fail(const char *what) {
  std::perror(what);
  std::_Exit(1);
}

// Binds this process to the core with index `side` among those that it may use.
inline void bind_to_core(int side) {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof allowed, &allowed)) fail("sched_getaffinity");
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && side-- == 0) CPU_SET(core, &own);
  if (sched_setaffinity(0, sizeof own, &own)) fail("two cores are needed");
}

// Memory of both processes, zeroed.
inline void *shared_memory(size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  return memory;
}

// Calls `work` with 0 in this process and with 1 in a child; returns the exit status.
template <class Work>
int in_two_processes(const Work &work) {
  const pid_t child = fork();
  if (child < 0) fail("fork");
  const int side = child == 0;
  bind_to_core(side);
  try {
    work(side);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  if (side) std::_Exit(0);
  int status;
  return waitpid(child, &status, 0) != child || status != 0;
}
