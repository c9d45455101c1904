// The collectives of gloo/ that are objects.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gloo/allgather_ring.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_bcube.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_local.h"
#include "gloo/allreduce_ring.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/barrier_all_to_one.h"
#include "gloo/broadcast_one_to_all.h"
#include "gloo/pairwise_exchange.h"
#include "gloo/reduce_scatter.h"
#include "ranks.h"

namespace {

using gloo::Context;
using Pointer = std::shared_ptr<Context>;

/// `inputs` lists of `count` elements of a rank. Their sums are exact in every type.
template <typename T>
struct Data {
  Data(const Pointer& context, size_t inputs, size_t count) : ranks(context->size), rank(context->rank), lists(inputs) {
    for (auto& list : lists) {
      list.resize(count);
    }
    fill();
  }

  static T element(int rank, size_t input, size_t i) {
    return T(static_cast<double>((static_cast<size_t>(rank) + input + i) % 4));
  }

  void fill() {
    for (size_t input = 0; input < lists.size(); input++) {
      for (size_t i = 0; i < lists[input].size(); i++) {
        lists[input][i] = element(rank, input, i);
      }
    }
  }

  std::vector<T*> pointers() {
    std::vector<T*> all;
    for (auto& list : lists) {
      all.push_back(list.data());
    }
    return all;
  }

  T sum(size_t i) const {
    T total = T(0.0);
    for (int r = 0; r < ranks; r++) {
      for (size_t input = 0; input < lists.size(); input++) {
        total = total + element(r, input, i);
      }
    }
    return total;
  }

  const int ranks;
  const int rank;
  std::vector<std::vector<T>> lists;
};

template <typename Algorithm, typename T>
void check_allreduce(const std::vector<int>& sizes, int base = 2) {
  for (int size : sizes) {
    run_ranks(
        size,
        [](const Pointer& context) {
          for (size_t count : {0, 1, 4, 100, 10000}) {
            for (size_t inputs : {1, 2, 4}) {
              Data<T> data(context, inputs, count);
              Algorithm algorithm(context, data.pointers(), static_cast<int>(count));
              for (int round = 0; round < 3; round++) {
                data.fill();
                algorithm.run();
                for (const auto& list : data.lists) {
                  for (size_t i = 0; i < count; i++) {
                    ASSERT_EQ(list[i], data.sum(i)) << "ranks: " << context->size << ", elements: " << count << ", at " << i;
                  }
                }
              }
            }
          }
        },
        base);
  }
}

const std::vector<int> kSizes{1, 2, 3, 4, 5, 6, 7, 8, 13};

TEST(Allreduce, Ring) {
  check_allreduce<gloo::AllreduceRing<float>, float>(kSizes);
}

TEST(Allreduce, RingChunked) {
  check_allreduce<gloo::AllreduceRingChunked<float>, float>(kSizes);
}

TEST(Allreduce, HalvingDoubling) {
  check_allreduce<gloo::AllreduceHalvingDoubling<float>, float>(kSizes);
}

TEST(Allreduce, Bcube) {
  check_allreduce<gloo::AllreduceBcube<float>, float>({1, 2, 3, 4, 6, 8});
  check_allreduce<gloo::AllreduceBcube<float>, float>({1, 3, 9}, 3);
}

TEST(Allreduce, OtherTypes) {
  check_allreduce<gloo::AllreduceRing<gloo::float16>, gloo::float16>({4});
  check_allreduce<gloo::AllreduceHalvingDoubling<gloo::float16>, gloo::float16>({4});
  check_allreduce<gloo::AllreduceRingChunked<int64_t>, int64_t>({3});
  check_allreduce<gloo::AllreduceBcube<long long>, long long>({4});
  check_allreduce<gloo::AllreduceHalvingDoubling<std::complex<double>>, std::complex<double>>({3});
}

TEST(Allreduce, ConstructedFromABraceList) {
  run_ranks(2, [](const Pointer& context) {
    float value = 2;
    gloo::AllreduceRing<float> ring(context, {&value}, 1);
    ring.run();
    EXPECT_EQ(value, 4);
    std::vector<float*> pointers{&value};
    gloo::AllreduceRingChunked<float> product(context, pointers, static_cast<int>(pointers.size()), gloo::ReductionFunction<float>::product);
    product.run();
    EXPECT_EQ(value, 16);
    gloo::AllreduceHalvingDoubling<float> max(context, pointers, 1, gloo::ReductionFunction<float>::max);
    value = static_cast<float>(context->rank);
    max.run();
    EXPECT_EQ(value, 1);
    gloo::AllreduceBcube<float> min(context, pointers, 1, gloo::ReductionFunction<float>::min);
    value = static_cast<float>(context->rank);
    min.run();
    EXPECT_EQ(value, 0);
  });
}

TEST(Allreduce, Local) {
  run_ranks(1, [](const Pointer& context) {
    for (int count : {0, 1, 1000}) {
      Data<int32_t> data(context, 5, static_cast<size_t>(count));
      gloo::AllreduceLocal<int32_t> algorithm(context, data.pointers(), count);
      algorithm.run();
      for (const auto& list : data.lists) {
        for (size_t i = 0; i < list.size(); i++) {
          ASSERT_EQ(list[i], data.sum(i));
        }
      }
    }
  });
}

/// A type without kernels: the larger of two pairs by its first number.
struct Best {
  float value;
  int32_t owner;
  int32_t unused;
};

void best(Best* x, const Best* y, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (y[i].value > x[i].value) {
      x[i] = y[i];
    }
  }
}

TEST(Allreduce, FunctionOfTheCaller) {
  static_assert(sizeof(Best) == 12, "a type whose size is no power of two");
  run_ranks(5, [](const Pointer& context) {
    const gloo::ReductionFunction<Best> function(gloo::CUSTOM, &best);
    std::vector<Best> data(1000), second(1000);
    for (size_t i = 0; i < data.size(); i++) {
      data[i] = {static_cast<float>((i + static_cast<size_t>(context->rank)) % 5), context->rank, 0};
      second[i] = {-1.0f, -1, 0};
    }
    gloo::AllreduceRing<Best> algorithm(context, {second.data(), data.data()}, static_cast<int>(data.size()), &function);
    algorithm.run();
    for (size_t i = 0; i < data.size(); i++) {
      ASSERT_EQ(data[i].value, 4.0f);
      ASSERT_EQ(static_cast<size_t>(data[i].owner), (4 + 5 - i % 5) % 5);
      ASSERT_EQ(second[i].owner, data[i].owner);
    }
  });
}

TEST(Algorithms, SeveralOnOneContextRunInAnyOrder) {
  run_ranks(4, [](const Pointer& context) {
    float a = 1, b = 10;
    gloo::AllreduceRing<float> first(context, {&a}, 1);
    gloo::AllreduceRing<float> second(context, {&b}, 1);
    gloo::BarrierAllToAll barrier(context);
    // The ranks run them in different orders, on two threads each.
    std::thread other([&] { context->rank % 2 == 0 ? second.run() : first.run(); });
    context->rank % 2 == 0 ? first.run() : second.run();
    other.join();
    barrier.run();
    EXPECT_EQ(a, 4);
    EXPECT_EQ(b, 40);
  });
}

TEST(Algorithms, DoNotMeetOptionsOfTheSameTag) {
  run_ranks(2, [](const Pointer& context) {
    float a = 1, b = 10;
    gloo::AllreduceRing<float> algorithm(context, {&a}, 1);
    gloo::AllreduceOptions opts(context);
    opts.setOutput(&b, 1);
    opts.setTag(0);
    opts.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    if (context->rank == 0) {
      std::thread other([&] { gloo::allreduce(opts); });
      algorithm.run();
      other.join();
    } else {
      gloo::allreduce(opts);
      algorithm.run();
    }
    EXPECT_EQ(a, 2);
    EXPECT_EQ(b, 20);
  });
}

TEST(Allgather, Ring) {
  for (int size : kSizes) {
    run_ranks(size, [](const Pointer& context) {
      for (size_t count : {0, 1, 4, 100, 10000}) {
        for (size_t inputs : {1, 2, 3}) {
          for (bool inPlace : {false, true}) {
            const size_t block = count * inputs;
            const size_t own = static_cast<size_t>(context->rank) * block;
            std::vector<int32_t> out(block * static_cast<size_t>(context->size), -1);
            Data<int32_t> data(context, inputs, count);
            std::vector<const int32_t*> pointers;
            for (size_t i = 0; i < inputs; i++) {
              if (inPlace) {
                std::copy(data.lists[i].begin(), data.lists[i].end(), out.begin() + static_cast<std::ptrdiff_t>(own + i * count));
                pointers.push_back(out.data() + own + i * count);
              } else {
                pointers.push_back(data.lists[i].data());
              }
            }
            gloo::AllgatherRing<int32_t> algorithm(context, pointers, out.data(), static_cast<int>(count));
            algorithm.run();
            for (size_t i = 0; i < out.size(); i++) {
              ASSERT_EQ(out[i], (Data<int32_t>::element(static_cast<int>(i / block), i % block / count, i % count)));
            }
          }
        }
      }
    });
  }
}

TEST(Broadcast, OneToAll) {
  for (int size : kSizes) {
    run_ranks(size, [](const Pointer& context) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{100000}}) {
        for (int root = 0; root < context->size; root++) {
          for (int pointer = 0; pointer < 3; pointer++) {
            Data<double> data(context, 3, count);
            gloo::BroadcastOneToAll<double> algorithm(context, data.pointers(), count, root, pointer);
            algorithm.run();
            for (const auto& list : data.lists) {
              for (size_t i = 0; i < count; i++) {
                ASSERT_EQ(list[i], Data<double>::element(root, static_cast<size_t>(pointer), i));
              }
            }
          }
        }
      }
      float value = 0;
      EXPECT_THROW(gloo::BroadcastOneToAll<float>(context, {&value}, 1, context->size), gloo::EnforceNotMet);
      EXPECT_THROW(gloo::BroadcastOneToAll<float>(context, {&value}, 1, 0, 1), gloo::EnforceNotMet);
    });
  }
}

template <typename T>
void check_reduce_scatter(int size) {
  run_ranks(size, [](const Pointer& context) {
    for (size_t count : {1, 4, 100, 1000, 10000}) {
      for (size_t inputs : {1, 2}) {
        Data<T> data(context, inputs, count);
        // The first ranks get as much as possible: the last may get nothing.
        const size_t size = static_cast<size_t>(context->size);
        std::vector<int> counts;
        size_t before = 0, assigned = 0;
        for (size_t rank = 0; rank < size; rank++) {
          const size_t own = std::min((count + size - 1) / size, count - assigned);
          before = rank == static_cast<size_t>(context->rank) ? assigned : before;
          assigned += own;
          counts.push_back(static_cast<int>(own));
        }
        gloo::ReduceScatterHalvingDoubling<T> algorithm(context, data.pointers(), static_cast<int>(count), counts);
        for (int round = 0; round < 2; round++) {
          data.fill();
          algorithm.run();
          for (const auto& list : data.lists) {
            for (size_t i = 0; i < static_cast<size_t>(counts[static_cast<size_t>(context->rank)]); i++) {
              ASSERT_EQ(list[i], data.sum(before + i));
            }
          }
        }
      }
    }
  });
}

TEST(ReduceScatter, HalvingDoubling) {
  for (int size : kSizes) {
    check_reduce_scatter<float>(size);
  }
  check_reduce_scatter<gloo::float16>(4);
  check_reduce_scatter<std::complex<float>>(4);
}

TEST(ReduceScatter, CountsThatAreWrongAreRefused) {
  run_ranks(2, [](const Pointer& context) {
    std::vector<float> data(4);
    using Algorithm = gloo::ReduceScatterHalvingDoubling<float>;
    EXPECT_THROW(Algorithm(context, {data.data()}, 4, {4}), gloo::EnforceNotMet);
    EXPECT_THROW(Algorithm(context, {data.data()}, 4, {4, 1}), gloo::EnforceNotMet);
    EXPECT_THROW(Algorithm(context, {data.data()}, 4, {5, -1}), gloo::EnforceNotMet);
    EXPECT_THROW(Algorithm(context, {data.data()}, -1, {0, 0}), gloo::EnforceNotMet);
  });
}

TEST(Algorithms, RefusePointersAndFunctionsThatAreNone) {
  run_ranks(1, [](const Pointer& context) {
    std::vector<float> data(4);
    const std::vector<float*> with_none{data.data(), nullptr};
    EXPECT_THROW(gloo::AllreduceLocal<float>(context, with_none, 4), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::AllreduceRing<float>(context, with_none, 4), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::BroadcastOneToAll<float>(context, with_none, 4), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::BroadcastOneToAll<float>(context, {data.data()}, SIZE_MAX / 2), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::AllreduceLocal<float>(context, {data.data()}, 4, nullptr), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::AllreduceRing<float>(context, {data.data()}, 4, nullptr), gloo::EnforceNotMet);
    gloo::AllreduceLocal<float>(context, with_none, 0).run();
  });
}

TEST(ReduceScatter, HonoursTheTimeout) {
  run_ranks(2, [](const Pointer& context) {
    if (context->rank == 1) {
      return;
    }
    context->setTimeout(std::chrono::milliseconds(100));
    std::vector<float> data(4);
    gloo::ReduceScatterHalvingDoubling<float> algorithm(context, {data.data()}, 4, {2, 2});
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(algorithm.run(), gloo::IoException);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

template <typename Algorithm>
void check_barrier() {
  for (int size : kSizes) {
    std::atomic<int> arrived{0};
    run_ranks(size, [&](const Pointer& context) {
      Algorithm barrier(context);
      for (int round = 1; round <= 10; round++) {
        arrived++;
        barrier.run();
        ASSERT_GE(arrived.load(), round * size);
        barrier.run();
      }
    });
  }
}

TEST(Barrier, AllToAll) {
  check_barrier<gloo::BarrierAllToAll>();
}

TEST(Barrier, AllToOne) {
  check_barrier<gloo::BarrierAllToOne>();
  run_ranks(3, [](const Pointer& context) {
    gloo::BarrierAllToOne(context, 2).run();
    EXPECT_THROW(gloo::BarrierAllToOne(context, 3), gloo::EnforceNotMet);
    EXPECT_THROW(gloo::BarrierAllToOne(context, -1), gloo::EnforceNotMet);
  });
}

TEST(PairwiseExchange, EveryNumberOfDestinations) {
  for (int size : {2, 4, 8}) {
    run_ranks(size, [](const Pointer& context) {
      for (int destinations = 1; 1 << destinations <= context->size; destinations++) {
        gloo::PairwiseExchange algorithm(context, 1000, destinations);
        algorithm.run();
        algorithm.run();
      }
      EXPECT_THROW(gloo::PairwiseExchange(context, 1000, 0), gloo::EnforceNotMet);
      EXPECT_THROW(gloo::PairwiseExchange(context, 1000, 4), gloo::EnforceNotMet);
      EXPECT_THROW(gloo::PairwiseExchange(context, 0, 1), gloo::EnforceNotMet);
    });
  }
  run_ranks(3, [](const Pointer& context) {
    EXPECT_THROW(gloo::PairwiseExchange(context, 1000, 1), gloo::EnforceNotMet);
  });
}

/// An algorithm of a program: a token goes around the ring, over the pairs.
class Token : public gloo::Algorithm {
 public:
  explicit Token(const Pointer& context) : Algorithm(context) {
    const auto slot = context_->nextSlot();
    send_ = getRightPair()->createSendBuffer(slot, &token_, sizeof(token_));
    recv_ = getLeftPair()->createRecvBuffer(slot, &token_, sizeof(token_));
  }

  void run() override {
    if (contextRank_ == 0) {
      token_ = 1;
      send_->send();
      recv_->waitRecv();
    } else {
      recv_->waitRecv();
      token_++;
      send_->send();
    }
    send_->waitSend();
  }

  int token_ = 0;

 private:
  std::unique_ptr<gloo::transport::Buffer> send_;
  std::unique_ptr<gloo::transport::Buffer> recv_;
};

TEST(Algorithms, OfTheProgram) {
  run_ranks(4, [](const Pointer& context) {
    Token token(context);
    gloo::BarrierAllToAll barrier(context);
    barrier.run();
    token.run();
    EXPECT_EQ(token.token_, context->rank == 0 ? 4 : context->rank + 1);
    barrier.run();
  });
}

}  // namespace
