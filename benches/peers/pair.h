// Two processes on this host that are bound to cores: otherwise the scheduler moves them, and the times vary between
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

// Binds this process to the core with index `side` among those of `allowed`.
inline void bind_to_core(const cpu_set_t &allowed, int side) {
  cpu_set_t own;
  CPU_ZERO(&own);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && side-- == 0) CPU_SET(core, &own);
  if (sched_setaffinity(0, sizeof own, &own)) fail("two cores are needed");
}

// The cores that this process may use.
inline cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) fail("sched_getaffinity");
  return allowed;
}

// Memory of both processes, zeroed.
inline void *shared_memory(size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  return memory;
}

// Calls `work` with 0 in this process and with 1 in a child, on a core each or on the same one; returns the exit
// status.
template <class Work>
int in_two_processes(const Work &work, bool share_core = false) {
  const cpu_set_t allowed = allowed_cores();
  const pid_t child = fork();
  if (child < 0) fail("fork");
  const int side = child == 0;
  bind_to_core(allowed, share_core ? 0 : side);
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
