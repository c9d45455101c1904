// Collectives of gloo/ at the same time on one context, and without all ranks.

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gloo/allgather.h"
#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_ring.h"
#include "gloo/alltoall.h"
#include "gloo/alltoallv.h"
#include "gloo/barrier.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/broadcast.h"
#include "gloo/gather.h"
#include "gloo/gatherv.h"
#include "gloo/reduce.h"
#include "gloo/reduce_scatter.h"
#include "gloo/scatter.h"
#include "ranks.h"

namespace {

using Pointer = std::shared_ptr<gloo::Context>;
using Function = void (*)(void*, const void*, const void*, size_t);

void add(void* c, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    static_cast<float*>(c)[i] = static_cast<const float*>(a)[i] + static_cast<const float*>(b)[i];
  }
}

TEST(Concurrency, TwoThreadsReduceWithTagsOfTheirOwn) {
  for (Function function : {Function(&gloo::sum<float>), Function(&add)}) {
    run_ranks(4, [&](const Pointer& context) {
      const auto work = [&](uint32_t thread) {
        for (uint32_t round = 0; round < 100; round++) {
          const size_t count = round % 10 == 0 ? 100000 : 10;
          std::vector<float> data(count, static_cast<float>(context->rank));
          gloo::AllreduceOptions opts(context);
          opts.setOutput(data.data(), count);
          opts.setReduceFunction(function);
          // Each tag once, as process groups do it.
          opts.setTag(2 * round + thread);
          gloo::allreduce(opts);
          ASSERT_EQ(data, std::vector<float>(count, 6.0f));
        }
      };
      std::thread other([&] { work(1); });
      work(0);
      other.join();
    });
  }
}

TEST(Concurrency, FunctionsOfTwoCallsRunAtOneTime) {
  run_ranks(2, [](const Pointer& context) {
    // The function of each call returns only when that of the other call runs, too.
    MeetingPoint both(2);
    std::atomic<int> met{0};
    const auto work = [&](uint32_t tag) {
      bool first = true;
      std::vector<float> data(100000, 1.0f);
      gloo::AllreduceOptions opts(context);
      opts.setOutput(data.data(), data.size());
      opts.setTag(tag);
      opts.setReduceFunction([&](void* c, const void* a, const void* b, size_t n) {
        if (first) {
          first = false;
          both.wait();
          met++;
        }
        add(c, a, b, n);
      });
      gloo::allreduce(opts);
      EXPECT_EQ(data, std::vector<float>(data.size(), 2.0f));
    };
    std::thread other([&] { work(1); });
    work(2);
    other.join();
    EXPECT_EQ(met.load(), 2);
  });
}

TEST(Concurrency, DifferentCollectivesOfOneTag) {
  run_ranks(3, [](const Pointer& context) {
    std::thread other([&] {
      for (int round = 0; round < 100; round++) {
        std::vector<int> data(1000, context->rank == 1 ? round : -1);
        gloo::BroadcastOptions opts(context);
        opts.setRoot(1);
        opts.setTag(7);
        opts.setOutput(data.data(), data.size());
        gloo::broadcast(opts);
        ASSERT_EQ(data, std::vector<int>(1000, round));
      }
    });
    for (int round = 0; round < 100; round++) {
      std::vector<float> data(1000, static_cast<float>(round));
      gloo::AllreduceOptions opts(context);
      opts.setTag(7);
      opts.setOutput(data.data(), data.size());
      opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
      gloo::allreduce(opts);
      ASSERT_EQ(data, std::vector<float>(1000, 3.0f * static_cast<float>(round)));
    }
    other.join();
  });
}

TEST(Concurrency, MessagesDoNotMeetCollectives) {
  run_ranks(2, [](const Pointer& context) {
    // In a slot that Gloo uses for an allreduce of tag 0.
    const uint64_t slot = gloo::Slot::build(gloo::kAllreduceSlotPrefix, 0);
    int sent = context->rank, got = -1;
    auto from = context->createUnboundBuffer(&sent, sizeof(sent));
    auto to = context->createUnboundBuffer(&got, sizeof(got));
    to->recv(1 - context->rank, slot);
    float value = 1;
    gloo::AllreduceOptions opts(context);
    opts.setOutput(&value, 1);
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    gloo::allreduce(opts);
    EXPECT_EQ(value, 2);
    from->send(1 - context->rank, slot);
    to->waitRecv();
    from->waitSend();
    EXPECT_EQ(got, 1 - context->rank);
  });
}

/// Rank 1 does not call `call`; rank 0 does, with a short timeout, and must get an IoException that says so.
void times_out(const char* name, const std::function<void(const Pointer&, std::chrono::milliseconds)>& call) {
  SCOPED_TRACE(name);
  run_ranks(2, [&](const Pointer& context) {
    if (context->rank == 1) {
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      call(context, std::chrono::milliseconds(50));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const gloo::IoException& error) {
      EXPECT_NE(std::string(error.what()).find("imed out"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank"), std::string::npos) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

TEST(Timeout, OfEveryCollectiveThatWaits) {
  std::vector<float> a(8), b(8);
  const std::vector<size_t> counts{4, 4};
  times_out("allreduce", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::AllreduceOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    opts.setTimeout(timeout);
    gloo::allreduce(opts);
  });
  times_out("reduce", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::ReduceOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    opts.setRoot(0);
    opts.setTimeout(timeout);
    gloo::reduce(opts);
  });
  times_out("reduce_scatter", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::ReduceScatterOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    opts.setTimeout(timeout);
    gloo::reduce_scatter(opts);
  });
  times_out("broadcast", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::BroadcastOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setRoot(1);
    opts.setTimeout(timeout);
    gloo::broadcast(opts);
  });
  times_out("broadcast at the root", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::BroadcastOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setRoot(0);
    opts.setTimeout(timeout);
    gloo::broadcast(opts);
  });
  times_out("scatter at the root", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::ScatterOptions opts(context);
    opts.setInputs(std::vector<float*>{a.data(), b.data()}, 8);
    std::vector<float> own(8);
    opts.setOutput(own.data(), 8);
    opts.setRoot(0);
    opts.setTimeout(timeout);
    gloo::scatter(opts);
  });
  times_out("gather", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::GatherOptions opts(context);
    opts.setInput(a.data(), 4);
    opts.setOutput(b.data(), 8);
    opts.setRoot(0);
    opts.setTimeout(timeout);
    gloo::gather(opts);
  });
  times_out("gatherv", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::GathervOptions opts(context);
    opts.setInput(a.data(), 4);
    opts.setOutput(b.data(), counts);
    opts.setRoot(0);
    opts.setTimeout(timeout);
    gloo::gatherv(opts);
  });
  times_out("scatter", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::ScatterOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setRoot(1);
    opts.setTimeout(timeout);
    gloo::scatter(opts);
  });
  times_out("allgather", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::AllgatherOptions opts(context);
    opts.setOutput(a.data(), 8);
    opts.setTimeout(timeout);
    gloo::allgather(opts);
  });
  times_out("allgatherv", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::AllgathervOptions opts(context);
    opts.setOutput(a.data(), counts);
    opts.setTimeout(timeout);
    gloo::allgatherv(opts);
  });
  times_out("alltoall", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::AlltoallOptions opts(context);
    opts.setInput(a.data(), 8);
    opts.setOutput(b.data(), 8);
    opts.setTimeout(timeout);
    gloo::alltoall(opts);
  });
  times_out("alltoallv", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::AlltoallvOptions opts(context);
    opts.setInput(a.data(), counts);
    opts.setOutput(b.data(), counts);
    opts.setTimeout(timeout);
    gloo::alltoallv(opts);
  });
  times_out("barrier", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    gloo::BarrierOptions opts(context);
    opts.setTimeout(timeout);
    gloo::barrier(opts);
  });
  times_out("allreduce as an object", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    context->setTimeout(timeout);
    gloo::AllreduceRing<float>(context, {a.data()}, 8).run();
  });
  times_out("barrier with the timeout of the context", [&](const Pointer& context, std::chrono::milliseconds timeout) {
    context->setTimeout(timeout);
    gloo::BarrierOptions opts(context);
    gloo::barrier(opts);
  });
}

TEST(Timeout, OfZeroIsNone) {
  run_ranks(2, [](const Pointer& context) {
    gloo::BarrierOptions opts(context);
    opts.setTimeout(std::chrono::milliseconds(0));
    if (context->rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    gloo::barrier(opts);
    // The context's may be none, too.
    context->setTimeout(std::chrono::milliseconds(0));
    gloo::BarrierAllToAll barrier(context);
    if (context->rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    barrier.run();
  });
}

TEST(Failure, ARankThatLeavesEndsTheCallsOfTheOthers) {
  run_ranks(3, [](const Pointer& context) {
    if (context->rank == 2) {
      context->closeConnections();
      return;
    }
    std::vector<float> data(100000);
    gloo::AllreduceOptions opts(context);
    opts.setOutput(data.data(), data.size());
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    opts.setTimeout(std::chrono::seconds(20));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(gloo::allreduce(opts), gloo::IoException);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

}  // namespace
