// Ranks as processes, for tests with GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

/// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/gloo-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

/// In a rank's process: prints what failed and ends with an error.
#define CHECK_HERE(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
      std::_Exit(1);                                                                 \
    }                                                                                \
  } while (false)

/// Runs `body` in a process for each rank, which must end well within a minute. Those in `killed` must end by SIGKILL.
inline void runProcesses(int size, const std::function<void(int)>& body, const std::vector<int>& killed = {}) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; rank++) {
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
      alarm(60);
      try {
        body(rank);
      } catch (const std::exception& failure) {
        std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
        std::_Exit(1);
      }
      std::_Exit(0);
    }
    processes.push_back(process);
  }
  for (int rank = 0; rank < size; rank++) {
    int status = 0;
    ASSERT_EQ(waitpid(processes[static_cast<size_t>(rank)], &status, 0), processes[static_cast<size_t>(rank)]);
    bool isKilled = false;
    for (const int other : killed) {
      isKilled = isKilled || other == rank;
    }
    if (isKilled) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << rank << " ended with status " << status;
    } else {
      EXPECT_EQ(status, 0) << "rank " << rank;
    }
  }
}
