// Ranks that are processes: they work together, and notice within their timeout when one is killed, stops or leaves.
#include <gtest/gtest.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/rendezvous/prefix_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ContextPointer = std::shared_ptr<gloo::rendezvous::Context>;

constexpr milliseconds kTimeout{1500};

/// How a rank ends.
constexpr int kDone = 0;
constexpr int kIoException = 10;
constexpr int kOtherException = 11;

/// The processes of a test, which find each other through files.
class Ranks {
 public:
  /// Starts `size` processes, each of which runs `body` with its connected context. Returns when all are connected.
  Ranks(int size, const std::function<void(ContextPointer&)>& body) {
    std::string name = (std::filesystem::temp_directory_path() / "gloo-ranks-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    folder_ = name;
    for (int rank = 0; rank < size; rank++) {
      const pid_t process = fork();
      if (process == 0) {
        _exit(run(rank, size, body));
      }
      processes_.push_back(process);
    }
    // An exception here would leave the processes, as no destructor would end them.
    EXPECT_TRUE(all_are_ready(folder_, size)) << "not all ranks are connected after 30 seconds";
  }

  ~Ranks() {
    for (size_t rank = 0; rank < processes_.size(); rank++) {
      if (processes_[rank] > 0) {
        kill(processes_[rank], SIGKILL);
        waitpid(processes_[rank], nullptr, 0);
      }
    }
    std::filesystem::remove_all(folder_);
  }

  void signal(int rank, int number) {
    ASSERT_EQ(kill(processes_[static_cast<size_t>(rank)], number), 0);
  }

  /// How a rank ends; it is given 20 seconds.
  int status_of(int rank) {
    pid_t& process = processes_[static_cast<size_t>(rank)];
    int status = 0;
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        return -1;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    process = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  /// In a rank: ends it when all ranks are connected; else the others would fail to connect.
  static void die(const ContextPointer& context) {
    if (all_are_ready(std::filesystem::path(folder).parent_path(), context->size)) {
      raise(SIGKILL);
    }
  }

  /// In a rank: where the files are.
  static inline std::string folder;

 private:
  static std::string ready(const std::string& folder, int rank) {
    return folder + "/ready." + std::to_string(rank);
  }

  static bool all_are_ready(const std::string& folder, int size) {
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    for (int rank = 0; rank < size; rank++) {
      while (!std::filesystem::exists(ready(folder, rank))) {
        if (Clock::now() > deadline) {
          return false;
        }
        std::this_thread::sleep_for(milliseconds(2));
      }
    }
    return true;
  }

  int run(int rank, int size, const std::function<void(ContextPointer&)>& body) {
    folder = folder_ + "/store";
    try {
      auto store = std::make_shared<gloo::rendezvous::FileStore>(folder);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
      context->setTimeout(std::chrono::seconds(20));
      context->connectFullMesh(store, gloo::transport::tcp::CreateDevice("localhost"));
      context->setTimeout(kTimeout);
      std::fclose(std::fopen(ready(folder_, rank).c_str(), "w"));
      body(context);
      return kDone;
    } catch (const gloo::IoException&) {
      return kIoException;
    } catch (const std::exception& exception) {
      std::fprintf(stderr, "rank %d: %s\n", rank, exception.what());
      return kOtherException;
    }
  }

  std::string folder_;
  std::vector<pid_t> processes_;
};

void allreduce_for_ever(ContextPointer& context) {
  std::vector<float> values(5000, 1);
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  for (;;) {
    gloo::allreduce(options);
  }
}

void barriers_for_ever(ContextPointer& context) {
  gloo::BarrierAllToAll barrier(context);
  for (;;) {
    barrier.run();
  }
}

/// Each rank writes to the next one's buffer, and waits for the one before.
void bound_buffers_for_ever(ContextPointer& context) {
  float sent = 0;
  float received = 0;
  auto send = context->getPair((context->rank + 1) % context->size)->createSendBuffer(1, &sent, sizeof sent);
  auto recv = context->getPair((context->rank + context->size - 1) % context->size)
                  ->createRecvBuffer(1, &received, sizeof received);
  for (;;) {
    send->send();
    send->waitSend();
    recv->waitRecv();
  }
}

void unbound_buffers_for_ever(ContextPointer& context) {
  int sent = 0;
  int received = 0;
  auto source = context->createUnboundBuffer(&sent, sizeof sent);
  auto target = context->createUnboundBuffer(&received, sizeof received);
  for (;;) {
    source->send((context->rank + 1) % context->size, 0);
    target->recv((context->rank + context->size - 1) % context->size, 0);
    source->waitSend();
    target->waitRecv();
  }
}

void timeouts_of_their_own_for_ever(ContextPointer& context) {
  context->setTimeout(gloo::kNoTimeout);
  int sent = 0;
  int received = 0;
  auto source = context->createUnboundBuffer(&sent, sizeof sent);
  auto target = context->createUnboundBuffer(&received, sizeof received);
  for (;;) {
    source->send((context->rank + 1) % context->size, 0);
    target->recv((context->rank + context->size - 1) % context->size, 0);
    source->waitSend(kTimeout);
    target->waitRecv(Clock::now() + kTimeout);
  }
}

struct Loop {
  const char* name;
  void (*body)(ContextPointer&);
};

class Lost : public testing::TestWithParam<std::tuple<Loop, int>> {};

TEST_P(Lost, KilledRankIsNoticedAtOnce) {
  const auto [loop, size] = GetParam();
  Ranks ranks(size, loop.body);
  std::this_thread::sleep_for(milliseconds(20));
  const auto began = Clock::now();
  ranks.signal(0, SIGKILL);
  EXPECT_EQ(ranks.status_of(0), -SIGKILL);
  for (int rank = 1; rank < size; rank++) {
    EXPECT_EQ(ranks.status_of(rank), kIoException) << "rank " << rank;
  }
  EXPECT_LT(Clock::now() - began, 2 * kTimeout);
}

TEST_P(Lost, StoppedRankIsNoticedAfterTheTimeout) {
  const auto [loop, size] = GetParam();
  Ranks ranks(size, loop.body);
  std::this_thread::sleep_for(milliseconds(20));
  const auto began = Clock::now();
  ranks.signal(0, SIGSTOP);
  for (int rank = 1; rank < size; rank++) {
    EXPECT_EQ(ranks.status_of(rank), kIoException) << "rank " << rank;
  }
  const auto passed = Clock::now() - began;
  EXPECT_GE(passed, kTimeout / 2);
  EXPECT_LT(passed, 8 * kTimeout);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Lost,
    testing::Combine(
        testing::Values(
            Loop{"Allreduce", allreduce_for_ever},
            Loop{"BarrierAllToAll", barriers_for_ever},
            Loop{"BoundBuffers", bound_buffers_for_ever},
            Loop{"UnboundBuffers", unbound_buffers_for_ever},
            Loop{"TimeoutsOfTheirOwn", timeouts_of_their_own_for_ever}),
        testing::Values(2, 4)),
    [](const auto& info) {
      return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
    });

TEST(Processes, ReduceTogether) {
  Ranks ranks(4, [](ContextPointer& context) {
    std::vector<int64_t> values(100000, context->rank + 1);
    gloo::AllreduceOptions options(context);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<int64_t>));
    gloo::allreduce(options);
    GLOO_ENFORCE_EQ(values.front(), 10);
    GLOO_ENFORCE_EQ(values.back(), 10);
    gloo::BarrierOptions barrier(context);
    gloo::barrier(barrier);
  });
  for (int rank = 0; rank < 4; rank++) {
    EXPECT_EQ(ranks.status_of(rank), kDone);
  }
}

TEST(Processes, NameTheRankThatIsLost) {
  Ranks ranks(3, [](ContextPointer& context) {
    if (context->rank == 1) {
      Ranks::die(context);
    }
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(1, 0);
    try {
      buffer->waitRecv();
    } catch (const gloo::IoException& exception) {
      GLOO_ENFORCE_NE(std::string(exception.what()).find("rank 1"), std::string::npos, exception.what());
      throw;
    }
  });
  EXPECT_EQ(ranks.status_of(0), kIoException);
  EXPECT_EQ(ranks.status_of(1), -SIGKILL);
  EXPECT_EQ(ranks.status_of(2), kIoException);
}

TEST(Processes, GoOnWithoutTheRankThatIsLost) {
  Ranks ranks(3, [](ContextPointer& context) {
    const int rank = context->rank;
    if (rank == 2) {
      Ranks::die(context);
    }
    try {
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
      GLOO_ENFORCE(false, "the barrier was passed without rank 2");
    } catch (const gloo::IoException&) {
    }
    // A smaller group, over the same device and files.
    auto device = context->getDevice();
    context.reset();
    gloo::rendezvous::FileStore files(Ranks::folder);
    gloo::rendezvous::PrefixStore store("after", files);
    auto smaller = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    smaller->connectFullMesh(store, device);
    std::vector<float> values(1000, 1);
    gloo::AllreduceOptions options(smaller);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
    GLOO_ENFORCE_EQ(values[999], 2);
    gloo::BarrierOptions barrier(smaller);
    gloo::barrier(barrier);
  });
  EXPECT_EQ(ranks.status_of(0), kDone);
  EXPECT_EQ(ranks.status_of(1), kDone);
}

TEST(Processes, FinishWhatTheyHaveSentBeforeTheyEnd) {
  for (int round = 0; round < 5; round++) {
    Ranks ranks(2, [](ContextPointer& context) {
      int value = context->rank;
      auto buffer = context->createUnboundBuffer(&value, sizeof value);
      if (context->rank == 0) {
        buffer->send(1, 1);
        buffer->waitSend();
      } else {
        std::this_thread::sleep_for(milliseconds(30));
        buffer->recv(0, 1);
        buffer->waitRecv();
        GLOO_ENFORCE_EQ(value, 0);
      }
    });
    EXPECT_EQ(ranks.status_of(0), kDone);
    EXPECT_EQ(ranks.status_of(1), kDone);
  }
}

}  // namespace
