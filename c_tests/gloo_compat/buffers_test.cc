// Bound and unbound buffers, remote keys, and how pairs wait.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gloo/allgather.h"
#include "gloo/barrier.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "ranks.h"

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

void barrier(const std::shared_ptr<gloo::Context>& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

TEST(Buffer, WritesIntoThePeersBufferOfItsSlot) {
  run_ranks(3, [](const std::shared_ptr<gloo::Context>& context) {
    // Each rank writes its own place in the buffers of all others.
    std::array<int, 3> values{-1, -1, -1};
    values[static_cast<size_t>(context->rank)] = 1000 + context->rank;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> sends;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> receives;
    for (int rank = 0; rank < 3; rank++) {
      if (rank != context->rank) {
        auto& pair = context->getPair(rank);
        sends.push_back(pair->createSendBuffer(8, values.data(), sizeof values));
        receives.push_back(pair->createRecvBuffer(8, values.data(), sizeof values));
      }
    }
    const size_t offset = static_cast<size_t>(context->rank) * sizeof(int);
    for (auto& buffer : sends) {
      buffer->setDebug(true);
      buffer->send(offset, sizeof(int), offset);
    }
    for (auto& buffer : receives) {
      buffer->waitRecv();
    }
    for (auto& buffer : sends) {
      buffer->waitSend();
    }
    EXPECT_EQ(values, (std::array<int, 3>{1000, 1001, 1002}));
    barrier(context);
  });
}

TEST(Buffer, SendsTheWholeBufferInBothDirectionsOfOneSlot) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    const int peer = 1 - context->rank;
    for (const int slot : {0, 1, -5, 1 << 30}) {
      std::vector<char> sent(70000, static_cast<char>('a' + context->rank));
      std::vector<char> received(70000);
      auto& pair = context->getPair(peer);
      auto recv = pair->createRecvBuffer(slot, received.data(), received.size());
      auto send = pair->createSendBuffer(slot, sent.data(), sent.size());
      send->send();
      send->waitSend();
      recv->waitRecv();
      EXPECT_EQ(received, std::vector<char>(70000, static_cast<char>('a' + peer)));
    }
    barrier(context);
  });
}

TEST(Buffer, ChecksItsBounds) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    std::array<char, 16> memory{};
    auto& pair = context->getPair(1 - context->rank);
    auto buffer = pair->createSendBuffer(1, memory.data(), memory.size());
    EXPECT_THROW(buffer->send(0, 17), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(17, 0), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(SIZE_MAX, 2), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(2, SIZE_MAX), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->waitSend(), gloo::EnforceNotMet);
    EXPECT_NO_THROW(pair->createSendBuffer(2, nullptr, 0));
    EXPECT_NO_THROW(pair->createRecvBuffer(2, nullptr, 0));
  });
}

TEST(Buffer, BreaksThePairIfAWriteDoesNotFitThePeersBuffer) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    std::vector<char> memory(64);
    auto& pair = context->getPair(1 - context->rank);
    if (context->rank == 0) {
      auto buffer = pair->createSendBuffer(1, memory.data(), 64);
      buffer->send(0, 64, SIZE_MAX - 31);
      EXPECT_THROW(
          {
            buffer->waitSend();
            auto answer = pair->createRecvBuffer(2, memory.data(), 1);
            answer->waitRecv();
          },
          gloo::Exception);
    } else {
      auto buffer = pair->createRecvBuffer(1, memory.data(), 32);
      EXPECT_THROW(buffer->waitRecv(), gloo::Exception);
    }
  });
}

TEST(Buffer, TimesOut) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    context->setTimeout(milliseconds(100));
    int value = 0;
    auto buffer = context->getPair(1 - context->rank)->createRecvBuffer(1, &value, sizeof value);
    EXPECT_THROW(buffer->waitRecv(), gloo::IoException);
  });
}

TEST(Pair, TakesEachModeOfWaiting) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    const int peer = 1 - context->rank;
    int sent = 0;
    int received = 0;
    auto& pair = context->getPair(peer);
    auto send = pair->createSendBuffer(1, &sent, sizeof sent);
    auto recv = pair->createRecvBuffer(1, &received, sizeof received);
    const std::pair<bool, bool> modes[] = {{true, false}, {true, true}, {false, true}, {false, false}};
    for (const auto& [sync, busy_poll] : modes) {
      pair->setSync(sync, busy_poll);
      for (int i = 0; i < 20; i++) {
        sent = i;
        send->send();
        send->waitSend();
        recv->waitRecv();
        EXPECT_EQ(received, i);
        barrier(context);
      }
    }
  });
}

TEST(Pair, SendsAndReceivesUnboundBuffers) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    std::array<int, 2> sent{7, 8};
    std::array<int, 2> received{};
    auto source = context->createUnboundBuffer(sent.data(), sizeof sent);
    auto target = context->createUnboundBuffer(received.data(), sizeof received);
    auto& pair = context->getPair(1 - context->rank);
    pair->send(source.get(), 3, sizeof(int), sizeof(int));
    pair->recv(target.get(), 3, 0, sizeof(int));
    source->waitSend();
    target->waitRecv();
    EXPECT_EQ(received, (std::array<int, 2>{8, 0}));
    auto key = target->getRemoteKey();
    EXPECT_EQ(key->rank, context->rank);
    barrier(context);
  });
}

TEST(UnboundBuffer, SendsPartsAndTellsThePeer) {
  run_ranks(4, [](const std::shared_ptr<gloo::Context>& context) {
    const int right = (context->rank + 1) % 4;
    const int left = (context->rank + 3) % 4;
    std::array<int, 4> sent{context->rank, context->rank + 10, context->rank + 20, context->rank + 30};
    std::array<int, 4> received{};
    auto source = context->createUnboundBuffer(sent.data(), sizeof sent);
    auto target = context->createUnboundBuffer(received.data(), sizeof received);
    EXPECT_EQ(source->ptr, sent.data());
    EXPECT_EQ(source->size, sizeof sent);
    // All; from an offset on; a part; nothing. The highest bits of slots belong to the program, too.
    for (const uint64_t slot : {uint64_t{0}, uint64_t{1} << 33, ~uint64_t{0}}) {
      int to = -1;
      int from = -1;
      received = {};
      source->send(right, slot);
      target->recv(left, slot);
      EXPECT_TRUE(source->waitSend(&to));
      EXPECT_TRUE(target->waitRecv(&from));
      EXPECT_EQ(to, right);
      EXPECT_EQ(from, left);
      EXPECT_EQ(received, (std::array<int, 4>{left, left + 10, left + 20, left + 30}));

      source->send(right, slot, 2 * sizeof(int));
      target->recv(left, slot, 2 * sizeof(int));
      EXPECT_TRUE(source->waitSend(milliseconds(10000)));
      EXPECT_TRUE(target->waitRecv(milliseconds(10000)));
      EXPECT_EQ(received[2], left + 20);

      source->send(right, slot, sizeof(int), sizeof(int));
      target->recv(left, slot, 3 * sizeof(int), sizeof(int));
      EXPECT_TRUE(source->waitSend(&to, gloo::kNoTimeout));
      EXPECT_TRUE(target->waitRecv(&from, gloo::kNoTimeout));
      EXPECT_EQ(received[3], left + 10);

      source->send(right, slot, sizeof sent);
      target->recv(left, slot, 0, 0);
      EXPECT_TRUE(source->waitSend(Clock::now() + std::chrono::seconds(10)));
      EXPECT_TRUE(target->waitRecv(std::chrono::system_clock::now() + std::chrono::seconds(10)));
    }
    barrier(context);
  });
}

TEST(UnboundBuffer, ChecksItsBounds) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    const int peer = 1 - context->rank;
    std::array<char, 8> memory{};
    auto buffer = context->createUnboundBuffer(memory.data(), memory.size());
    EXPECT_THROW(buffer->send(peer, 1, 9), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(peer, 1, 4, 5), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(peer, 1, SIZE_MAX, 2), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->recv(peer, 1, 9), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->recv(peer, 1, 4, 5), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->recv(std::vector<int>{peer}, 1, 9), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(2, 1), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->send(-1, 1), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->recv(2, 1), gloo::EnforceNotMet);
    EXPECT_THROW(buffer->recv(std::vector<int>{peer, 2}, 1), gloo::EnforceNotMet);
    auto empty = context->createUnboundBuffer(nullptr, 0);
    EXPECT_EQ(empty->ptr, nullptr);
    empty->send(peer, 1);
    empty->recv(peer, 1);
    EXPECT_TRUE(empty->waitSend());
    EXPECT_TRUE(empty->waitRecv());
  });
}

TEST(UnboundBuffer, ReceivesFromWhicheverRankSends) {
  run_ranks(4, [](const std::shared_ptr<gloo::Context>& context) {
    constexpr int kMessages = 10;
    int value = context->rank;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    if (context->rank == 0) {
      std::map<int, int> messages;
      for (int i = 0; i < 3 * kMessages; i++) {
        int from = -1;
        // With the own rank, and repeats.
        buffer->recv(std::vector<int>{0, 1, 2, 3, 2, 1, 0}, 77);
        ASSERT_TRUE(buffer->waitRecv(&from));
        EXPECT_EQ(value, from);
        messages[from]++;
      }
      EXPECT_EQ(messages, (std::map<int, int>{{1, kMessages}, {2, kMessages}, {3, kMessages}}));
    } else {
      for (int i = 0; i < kMessages; i++) {
        buffer->send(0, 77);
        ASSERT_TRUE(buffer->waitSend());
      }
    }
    barrier(context);
  });
}

TEST(UnboundBuffer, ReceivesFromAnyAndThenFromThatRank) {
  run_ranks(3, [](const std::shared_ptr<gloo::Context>& context) {
    int rank = context->rank;
    int text = 0;
    auto header = context->createUnboundBuffer(&rank, sizeof rank);
    auto body = context->createUnboundBuffer(&text, sizeof text);
    for (int i = 0; i < 20; i++) {
      if (context->rank == 0) {
        for (int n = 0; n < 2; n++) {
          int from = -1;
          header->recv(std::vector<int>{1, 2}, 5);
          header->waitRecv(&from);
          body->recv(from, 5);
          body->waitRecv();
          EXPECT_EQ(rank, from);
          EXPECT_EQ(text, from * 100 + i);
        }
      } else {
        text = context->rank * 100 + i;
        header->send(0, 5);
        body->send(0, 5);
        header->waitSend();
        body->waitSend();
      }
      barrier(context);
    }
  });
}

TEST(UnboundBuffer, SendsToItsOwnRank) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    int sent = 5;
    int received = 0;
    auto source = context->createUnboundBuffer(&sent, sizeof sent);
    auto target = context->createUnboundBuffer(&received, sizeof received);
    target->recv(std::vector<int>{0, 1}, 9);
    source->send(context->rank, 9);
    int from = -1;
    EXPECT_TRUE(source->waitSend());
    EXPECT_TRUE(target->waitRecv(&from));
    EXPECT_EQ(from, context->rank);
    EXPECT_EQ(received, 5);
  });
}

TEST(UnboundBuffer, ReturnsFalseFromAWaitThatIsAborted) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    const int peer = 1 - context->rank;
    int value = context->rank;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(peer, 1);
    bool completed = true;
    std::thread receiver([&] { completed = buffer->waitRecv(); });
    std::this_thread::sleep_for(milliseconds(20));
    buffer->abortWaitRecv();
    receiver.join();
    EXPECT_FALSE(completed);
    // The next wait, if there is none now.
    buffer->abortWaitRecv();
    EXPECT_FALSE(buffer->waitRecv());
    buffer->abortWaitSend();
    EXPECT_FALSE(buffer->waitSend(milliseconds(10000)));
    barrier(context);
    // The receive has stayed posted.
    int other = 10 + context->rank;
    auto source = context->createUnboundBuffer(&other, sizeof other);
    source->send(peer, 1);
    EXPECT_TRUE(source->waitSend());
    EXPECT_TRUE(buffer->waitRecv());
    EXPECT_EQ(value, 10 + peer);
  });
}

TEST(UnboundBuffer, TimesOutAndNamesThePeer) {
  run_ranks(2, [](const std::shared_ptr<gloo::Context>& context) {
    const int peer = 1 - context->rank;
    int value = 0;
    auto buffer = context->createUnboundBuffer(&value, sizeof value);
    buffer->recv(peer, 1);
    const auto began = Clock::now();
    try {
      buffer->waitRecv(milliseconds(100));
      ADD_FAILURE() << "nothing was sent";
    } catch (const gloo::IoException& exception) {
      EXPECT_NE(std::string(exception.what()).find("from rank " + std::to_string(peer)), std::string::npos)
          << exception.what();
    }
    EXPECT_GE(Clock::now() - began, milliseconds(100));
    // A deadline that has passed does not mean for ever.
    EXPECT_THROW(buffer->waitRecv(Clock::now() - std::chrono::seconds(1)), gloo::IoException);
    EXPECT_THROW(buffer->waitRecv(Clock::now()), gloo::IoException);
    EXPECT_THROW(buffer->waitRecv(milliseconds(-7)), gloo::IoException);
    EXPECT_LT(Clock::now() - began, milliseconds(5000));
    barrier(context);
  });
}

std::vector<std::unique_ptr<gloo::transport::RemoteKey>> exchange_keys(
    const std::shared_ptr<gloo::Context>& context, const gloo::transport::RemoteKey& key) {
  // Users exchange the text of a key like this, with a NUL byte at the end.
  std::array<char, 128> own{};
  const std::string text = key.serialize();
  EXPECT_EQ(text.find('\0'), std::string::npos);
  EXPECT_LT(text.size(), own.size());
  text.copy(own.data(), own.size() - 1);
  std::vector<char> all(own.size() * static_cast<size_t>(context->size));
  gloo::AllgatherOptions options(context);
  options.setInput(own.data(), own.size());
  options.setOutput(all.data(), all.size());
  gloo::allgather(options);
  std::vector<std::unique_ptr<gloo::transport::RemoteKey>> keys;
  for (size_t i = 0; i < all.size(); i += own.size()) {
    keys.push_back(context->deserializeRemoteKey(std::string(&all[i])));
  }
  return keys;
}

TEST(RemoteKey, LetsOtherRanksReadAndWrite) {
  for (const size_t size : {size_t{16}, size_t{1000000}}) {
    run_ranks(3, [&](const std::shared_ptr<gloo::Context>& context) {
      const int right = (context->rank + 1) % 3;
      std::vector<char> shared(size, static_cast<char>('A' + context->rank));
      std::vector<char> local(size, 'x');
      auto exported = context->createUnboundBuffer(shared.data(), size);
      auto buffer = context->createUnboundBuffer(local.data(), size);
      auto keys = exchange_keys(context, *exported->getRemoteKey());
      const auto& key = *keys[static_cast<size_t>(right)];
      EXPECT_EQ(key.rank, right);
      EXPECT_EQ(key.size, size);

      int peer = -1;
      buffer->get(key, static_cast<uint64_t>(context->nextSlot()), 0, 0, size);
      EXPECT_TRUE(buffer->waitSend(&peer));
      EXPECT_EQ(peer, right);
      EXPECT_EQ(local, std::vector<char>(size, static_cast<char>('A' + right)));
      barrier(context);

      local.assign(size, static_cast<char>('a' + context->rank));
      buffer->put(key, static_cast<uint64_t>(context->nextSlot()), 4, 8, 8);
      EXPECT_TRUE(buffer->waitSend());
      barrier(context);
      std::vector<char> expected(size, static_cast<char>('A' + context->rank));
      std::fill_n(expected.begin() + 8, 8, static_cast<char>('a' + (context->rank + 2) % 3));
      EXPECT_EQ(shared, expected);

      const auto refused = [&](size_t offset, size_t remote, size_t bytes) {
        EXPECT_THROW(buffer->put(key, 1, offset, remote, bytes), gloo::EnforceNotMet);
        EXPECT_THROW(buffer->get(key, 1, offset, remote, bytes), gloo::EnforceNotMet);
      };
      refused(size, 0, 1);
      refused(0, size, 1);
      refused(0, 0, size + 1);
      refused(SIZE_MAX, 0, 2);
      refused(0, SIZE_MAX, 2);
      barrier(context);
    });
  }
}

TEST(RemoteKey, IsNotMadeOfAnyText) {
  run_ranks(1, [](const std::shared_ptr<gloo::Context>& context) {
    for (const char* text : {"", "key", "1:2:3", "\n"}) {
      EXPECT_THROW(context->deserializeRemoteKey(text), gloo::EnforceNotMet) << text;
    }
  });
}

}  // namespace
