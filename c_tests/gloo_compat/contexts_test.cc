// Contexts: states, timeouts, lifetimes, contexts out of contexts, and contexts that programs connect by themselves.
#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/context.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/rendezvous/prefix_store.h"
#include "gloo/transport/tcp/device.h"
#include "ranks.h"

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// The sum of all ranks' numbers plus one.
int sum_of_ranks(const std::shared_ptr<gloo::Context>& context) {
  std::vector<int> values(100, context->rank + 1);
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction([](void* c, const void* a, const void* b, size_t n) {
    for (size_t i = 0; i < n; i++) {
      static_cast<int*>(c)[i] = static_cast<const int*>(a)[i] + static_cast<const int*>(b)[i];
    }
  });
  gloo::allreduce(options);
  return std::count(values.begin(), values.end(), values[0]) == 100 ? values[0] : -1;
}

TEST(Context, ChecksItsArguments) {
  EXPECT_THROW(gloo::rendezvous::Context(-1, 2), gloo::EnforceNotMet);
  EXPECT_THROW(gloo::rendezvous::Context(2, 2), gloo::EnforceNotMet);
  EXPECT_THROW(gloo::rendezvous::Context(0, 0), gloo::EnforceNotMet);
  gloo::rendezvous::Context context(1, 3, 4);
  EXPECT_EQ(context.rank, 1);
  EXPECT_EQ(context.size, 3);
  EXPECT_EQ(context.base, 4);
  EXPECT_EQ(gloo::rendezvous::Context(0, 1).base, 2);
}

TEST(Context, RefusesWhatNeedsAConnection) {
  auto context = std::make_shared<gloo::rendezvous::Context>(0, 2);
  int value = 0;
  EXPECT_THROW(context->getDevice(), gloo::EnforceNotMet);
  EXPECT_THROW(context->getPair(1), gloo::EnforceNotMet);
  EXPECT_THROW(context->createUnboundBuffer(&value, sizeof value), gloo::EnforceNotMet);
  EXPECT_THROW(context->closeConnections(), gloo::EnforceNotMet);
  EXPECT_THROW(context->isIntraNode(), gloo::EnforceNotMet);
  EXPECT_THROW(gloo::rendezvous::ContextFactory{context}, gloo::EnforceNotMet);
  gloo::rendezvous::HashStore store;
  EXPECT_THROW(context->connectFullMesh(store, nullptr), gloo::EnforceNotMet);
}

TEST(Context, ReservesSlotsInOrder) {
  gloo::rendezvous::Context context(0, 1);
  EXPECT_EQ(context.nextSlot(), 0);
  EXPECT_EQ(context.nextSlot(3), 1);
  EXPECT_EQ(context.nextSlot(), 4);
  EXPECT_THROW(context.nextSlot(0), gloo::EnforceNotMet);
}

/// GLOO_RS_TIMEOUT, which is not set any more when this goes, however the test ends.
struct TimeoutOfTheEnvironment {
  explicit TimeoutOfTheEnvironment(const char* seconds) { EXPECT_EQ(setenv("GLOO_RS_TIMEOUT", seconds, 1), 0); }
  ~TimeoutOfTheEnvironment() { EXPECT_EQ(unsetenv("GLOO_RS_TIMEOUT"), 0); }
};

TEST(Context, HasTheTimeoutOfTheEnvironment) {
  const TimeoutOfTheEnvironment long_one("7.5");
  EXPECT_EQ(gloo::rendezvous::Context(0, 1).getTimeout(), milliseconds(7500));
  const TimeoutOfTheEnvironment short_one("0.2");
  gloo::rendezvous::HashStore store;
  EXPECT_THROW(store.get("nothing"), gloo::IoException);
  EXPECT_THROW(store.wait({"nothing"}), gloo::IoException);
  const TimeoutOfTheEnvironment no_number("soon");
  EXPECT_THROW(gloo::rendezvous::Context(0, 1), gloo::EnforceNotMet);
}

/// The text of what `wait` throws.
template <typename Wait>
std::string why(Wait&& wait) {
  try {
    wait();
  } catch (const gloo::IoException& exception) {
    return exception.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool names_variable(const std::string& text) { return text.find("GLOO_RS_TIMEOUT") != std::string::npos; }

TEST(Context, NamesWhatSetsTheTimeoutThatTheProgramHasNotSet) {
  // Enough to connect in an emulated machine.
  const TimeoutOfTheEnvironment seconds("5");
  std::vector<std::shared_ptr<gloo::Context>> made(2);
  run_ranks(2, [&](const std::shared_ptr<gloo::Context>& context) {
    const auto next = gloo::rendezvous::ContextFactory(context).makeContext(context->getDevice());
    EXPECT_EQ(next->getTimeout(), milliseconds(5000));
    made[static_cast<size_t>(context->rank)] = next;
    if (context->rank == 1) {
      return;
    }
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(1, 5);
    gloo::BarrierOptions options(context);
    gloo::BarrierAllToAll barrier(next);
    // At once, since each waits for its whole timeout.
    std::thread receives([&] { EXPECT_TRUE(names_variable(why([&] { buffer->waitRecv(); }))); });
    std::thread meets([&] { EXPECT_TRUE(names_variable(why([&] { gloo::barrier(options); }))); });
    EXPECT_TRUE(names_variable(why([&] { barrier.run(); })));
    receives.join();
    meets.join();
  });
}

TEST(Context, DoesNotNameTheVariableWhereTheProgramHasSetTheTimeout) {
  const TimeoutOfTheEnvironment seconds("20");
  std::vector<std::shared_ptr<gloo::Context>> made(2);
  run_ranks(2, [&](const std::shared_ptr<gloo::Context>& context) {
    context->setTimeout(milliseconds(15000));
    const auto next = gloo::rendezvous::ContextFactory(context).makeContext(context->getDevice());
    EXPECT_EQ(next->getTimeout(), milliseconds(15000));
    made[static_cast<size_t>(context->rank)] = next;
    if (context->rank == 1) {
      return;
    }
    context->setTimeout(milliseconds(100));
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(1, 5);
    EXPECT_FALSE(names_variable(why([&] { buffer->waitRecv(); })));
    gloo::BarrierOptions options(context);
    EXPECT_FALSE(names_variable(why([&] { gloo::barrier(options); })));
    next->setTimeout(milliseconds(100));
    gloo::BarrierAllToAll barrier(next);
    EXPECT_FALSE(names_variable(why([&] { barrier.run(); })));
  });
}

TEST(Context, NamesTheVariableWhereNoRankOrValueComes) {
  const TimeoutOfTheEnvironment seconds("0.2");
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  gloo::transport::tcp::attr attr("localhost");
  const auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::Context alone(0, 2);
  EXPECT_TRUE(names_variable(why([&] { alone.connectFullMesh(store, device); })));
  EXPECT_TRUE(names_variable(why([&] { store->wait({"nothing"}); })));
  gloo::rendezvous::PrefixStore prefix("prefix", store);
  EXPECT_TRUE(names_variable(why([&] { prefix.wait({"nothing"}); })));
}

TEST(Context, HasATimeout) {
  gloo::rendezvous::Context context(0, 1);
  EXPECT_EQ(context.getTimeout(), milliseconds(30000));
  context.setTimeout(std::chrono::seconds(2));
  EXPECT_EQ(context.getTimeout(), milliseconds(2000));
  context.setTimeout(gloo::kNoTimeout);
  EXPECT_EQ(context.getTimeout(), milliseconds(0));
  EXPECT_THROW(context.setTimeout(milliseconds(-1)), gloo::EnforceNotMet);
}

TEST(Context, WaitsAsLongAsItsTimeoutSays) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    context->setTimeout(milliseconds(150));
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(1 - context->rank, 5);
    const auto began = Clock::now();
    EXPECT_THROW(buffer->waitRecv(), gloo::IoException);
    EXPECT_GE(Clock::now() - began, milliseconds(150));
    EXPECT_LT(Clock::now() - began, milliseconds(5000));
  });
}

TEST(Context, KnowsTheRanksOfItsHost) {
  run_ranks(3, [](const std::shared_ptr<gloo::Context>& context) {
    EXPECT_TRUE(context->isIntraNode());
    for (int rank = 0; rank < context->size; rank++) {
      auto& pair = context->getPair(rank);
      if (rank == context->rank) {
        EXPECT_FALSE(pair);
        continue;
      }
      ASSERT_TRUE(pair);
      EXPECT_EQ(&pair, &context->getPair(rank));
      EXPECT_EQ(pair->getPeerRank(), rank);
      EXPECT_EQ(pair->peerDescription(), "rank " + std::to_string(rank));
      EXPECT_EQ(pair->getLocalRank(), context->rank);
      EXPECT_TRUE(pair->isConnected());
      EXPECT_FALSE(pair->address().str().empty());
      EXPECT_LE(pair->address().bytes().size(), size_t{gloo::transport::Address::kMaxByteSize});
      pair->setLocalRank(7);
      EXPECT_EQ(pair->getLocalRank(), 7);
      EXPECT_THROW(pair->setLocalRank(-1), gloo::EnforceNotMet);
    }
    EXPECT_THROW(context->getPair(-1), gloo::EnforceNotMet);
    EXPECT_THROW(context->getPair(3), gloo::EnforceNotMet);
  });
}

TEST(Context, SharesItsDeviceWithTheTransportContextOnly) {
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  std::vector<std::thread> threads;
  MeetingPoint done(2);
  for (int rank = 0; rank < 2; rank++) {
    threads.emplace_back([&, rank] {
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
      {
        auto device = gloo::transport::tcp::CreateDevice("localhost");
        context->connectFullMesh(store, device);
      }
      std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
      int value = 0;
      for (int i = 0; i < 3; i++) {
        buffers.push_back(context->createUnboundBuffer(&value, sizeof value));
      }
      context->getPair(1 - rank);
      auto device = context->getDevice();
      EXPECT_EQ(device.use_count(), 3);
      done.wait();
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

/// Runs `body` for two ranks on threads, which own their contexts.
void two_owners(const std::function<void(std::shared_ptr<gloo::rendezvous::Context>)>& body) {
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; rank++) {
    threads.emplace_back([&, rank] {
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
      context->connectFullMesh(store, gloo::transport::tcp::CreateDevice("localhost"));
      body(std::move(context));
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST(Context, IsOutlivedByItsBuffers) {
  two_owners([](std::shared_ptr<gloo::rendezvous::Context> context) {
    const int peer = 1 - context->rank;
    int sent = context->rank + 40;
    int received = -1;
    auto source = context->createUnboundBuffer(&sent, sizeof sent);
    auto target = context->createUnboundBuffer(&received, sizeof received);
    context.reset();
    for (uint64_t slot = 0; slot < 10; slot++) {
      source->send(peer, slot);
      target->recv(peer, slot);
      EXPECT_TRUE(source->waitSend());
      EXPECT_TRUE(target->waitRecv());
      EXPECT_EQ(received, peer + 40);
    }
  });
}

TEST(Context, IsOutlivedByAThreadThatWaitsInABuffer) {
  two_owners([](std::shared_ptr<gloo::rendezvous::Context> context) {
    const int peer = 1 - context->rank;
    int sent = 1;
    int received = 0;
    auto source = context->createUnboundBuffer(&sent, sizeof sent);
    auto target = context->createUnboundBuffer(&received, sizeof received);
    target->recv(peer, 1);
    std::thread waiter([&] { EXPECT_TRUE(target->waitRecv()); });
    std::this_thread::sleep_for(milliseconds(30));
    context.reset();
    source->send(peer, 1);
    EXPECT_TRUE(source->waitSend());
    waiter.join();
    EXPECT_EQ(received, 1);
  });
}

TEST(Context, ClosesInAnyOrder) {
  for (const bool buffers_first : {true, false}) {
    two_owners([&](std::shared_ptr<gloo::rendezvous::Context> context) {
      const int peer = 1 - context->rank;
      int value = 0;
      auto unbound = context->createUnboundBuffer(&value, sizeof value);
      auto send = context->getPair(peer)->createSendBuffer(3, &value, sizeof value);
      auto recv = context->getPair(peer)->createRecvBuffer(3, &value, sizeof value);
      // After one of them has closed its context, the other could not make its buffers.
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
      if (context->rank == 0) {
        context->closeConnections();
        context->closeConnections();
      }
      if (buffers_first) {
        unbound.reset();
        send.reset();
        recv.reset();
      }
      context.reset();
      send.reset();
      unbound.reset();
      recv.reset();
    });
  }
}

TEST(Context, EndsWaitsWhenItIsClosed) {
  two_owners([](std::shared_ptr<gloo::rendezvous::Context> context) {
    const int peer = 1 - context->rank;
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    auto bound = context->getPair(peer)->createRecvBuffer(1, &value, sizeof value);
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
    buffer->recv(peer, 1);
    std::thread waiter([&] { EXPECT_THROW(buffer->waitRecv(), gloo::IoException); });
    std::thread other([&] { EXPECT_THROW(bound->waitRecv(), gloo::IoException); });
    std::this_thread::sleep_for(milliseconds(30));
    context->closeConnections();
    waiter.join();
    other.join();
    EXPECT_FALSE(context->getPair(peer)->isConnected());
    EXPECT_THROW(gloo::barrier(options), gloo::IoException);
  });
}

TEST(Context, ClosesOnePair) {
  run_ranks(3, [](const std::shared_ptr<gloo::Context>& context) {
    if (context->rank == 2) {
      return;
    }
    const int peer = 1 - context->rank;
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(peer, 1);
    if (context->rank == 0) {
      context->getPair(peer)->close();
      context->getPair(peer)->close();
    }
    EXPECT_THROW(buffer->waitRecv(milliseconds(10000)), gloo::IoException);
    EXPECT_TRUE(context->getPair(2)->isConnected());
  });
}

TEST(ContextFactory, MakesContextsOutOfAContext) {
  run_ranks(3, [](const std::shared_ptr<gloo::Context>& context) {
    context->setTimeout(milliseconds(9000));
    gloo::rendezvous::ContextFactory factory(context);
    gloo::rendezvous::ContextFactory other(context);
    std::vector<std::shared_ptr<gloo::Context>> made;
    for (int i = 0; i < 5; i++) {
      auto device = gloo::transport::tcp::CreateDevice("localhost");
      made.push_back(i % 2 == 0 ? factory.makeContext(device) : other.makeContext(device));
      EXPECT_EQ(made.back()->rank, context->rank);
      EXPECT_EQ(made.back()->size, context->size);
      EXPECT_EQ(made.back()->getTimeout(), milliseconds(9000));
      gloo::BarrierAllToAll(made.back()).run();
    }
    for (const auto& one : made) {
      EXPECT_EQ(sum_of_ranks(one), 6);
    }
    EXPECT_EQ(sum_of_ranks(context), 6);
    // Nobody destroys a context that another rank still uses.
    gloo::BarrierAllToAll(context).run();
  });
}

/// A context of a program with a rendezvous of its own: one exchange of the bytes of all addresses.
class OwnContext : public gloo::Context {
 public:
  OwnContext(int rank, int size) : gloo::Context(rank, size) {}

  /// `exchange` gets this rank's addresses, one after the other, and returns those of all ranks.
  template <typename Exchange>
  void connect(std::shared_ptr<gloo::transport::Device> device, Exchange exchange) {
    auto transport = device->createContext(rank, size);
    transport->setTimeout(getTimeout());
    std::vector<char> own;
    for (int i = 0; i < size; i++) {
      if (i != rank) {
        const auto bytes = transport->createPair(i)->address().bytes();
        own.insert(own.end(), bytes.begin(), bytes.end());
      }
    }
    const std::vector<std::vector<char>> all = exchange(own);
    for (int i = 0; i < size; i++) {
      if (i != rank) {
        const auto& addresses = all[static_cast<size_t>(i)];
        const auto length = static_cast<ptrdiff_t>(addresses.size()) / (size - 1);
        const auto first = addresses.begin() + length * (rank > i ? rank - 1 : rank);
        transport->getPair(i)->connect(std::vector<char>(first, first + length));
      }
    }
    device_ = device;
    transportContext_ = std::move(transport);
    slot_ = 100;
  }

  milliseconds timeout() const {
    return timeout_;
  }
};

TEST(DerivedContext, ConnectsThroughTheBytesOfAddresses) {
  for (const int size : {1, 2, 3, 5}) {
    auto store = std::make_shared<gloo::rendezvous::HashStore>();
    std::vector<std::thread> threads;
    MeetingPoint done(size);
    for (int rank = 0; rank < size; rank++) {
      threads.emplace_back([&, rank] {
        auto context = std::make_shared<OwnContext>(rank, size);
        context->setTimeout(milliseconds(15000));
        context->connect(gloo::transport::tcp::CreateDevice("localhost"), [&](const std::vector<char>& own) {
          store->set(std::to_string(rank), own);
          std::vector<std::vector<char>> all;
          for (int i = 0; i < size; i++) {
            all.push_back(store->wait_get(std::to_string(i), milliseconds(15000)));
          }
          return all;
        });
        EXPECT_EQ(context->timeout(), milliseconds(15000));
        EXPECT_EQ(context->nextSlot(), 100);
        EXPECT_EQ(context->getDevice().use_count(), 2);
        EXPECT_EQ(sum_of_ranks(context), size * (size + 1) / 2);
        gloo::BarrierAllToAll(context).run();
        int sent = rank;
        int received = -1;
        auto source = context->createUnboundBuffer(&sent, sizeof sent);
        auto target = context->createUnboundBuffer(&received, sizeof received);
        if (size > 1) {
          source->send((rank + 1) % size, 9);
          target->recv((rank + size - 1) % size, 9);
          source->waitSend();
          target->waitRecv();
          EXPECT_EQ(received, (rank + size - 1) % size);
        }
        done.wait();
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  }
}

TEST(DerivedContext, RefusesPairsThatCannotBe) {
  auto device = gloo::transport::tcp::CreateDevice("localhost");
  auto context = device->createContext(0, 2);
  context->setTimeout(milliseconds(200));
  EXPECT_THROW(device->createContext(2, 2), gloo::EnforceNotMet);
  EXPECT_THROW(context->createPair(2), gloo::EnforceNotMet);
  auto& self = context->createPair(0);
  auto& pair = context->createPair(1);
  EXPECT_EQ(self->address().bytes().size(), pair->address().bytes().size());
  EXPECT_THROW(self->connect(pair->address().bytes()), gloo::InvalidOperationException);
  EXPECT_FALSE(self->isConnected());
  EXPECT_THROW(pair->connect({}), gloo::EnforceNotMet);
  EXPECT_THROW(pair->connect(std::vector<char>(7)), gloo::EnforceNotMet);
  self->close();
}

TEST(DerivedContext, TimesOutIfThePeerDoesNotConnect) {
  auto device = gloo::transport::tcp::CreateDevice("localhost");
  const std::vector<char> address = device->createContext(1, 2)->createPair(0)->address().bytes();
  auto context = device->createContext(0, 2);
  context->setTimeout(milliseconds(200));
  const auto began = Clock::now();
  EXPECT_THROW(context->createPair(1)->connect(address), gloo::IoException);
  EXPECT_LT(Clock::now() - began, milliseconds(5000));
}

}  // namespace
