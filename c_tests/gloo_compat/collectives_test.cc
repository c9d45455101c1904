// The collectives of gloo/ that take options: what they compute, for all sizes and forms of inputs and outputs.

#include <chrono>
#include <complex>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gloo/allgather.h"
#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/alltoall.h"
#include "gloo/alltoallv.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/gather.h"
#include "gloo/gatherv.h"
#include "gloo/reduce.h"
#include "gloo/reduce_scatter.h"
#include "gloo/scatter.h"
#include "ranks.h"

namespace {

using gloo::Context;
using Pointer = std::shared_ptr<Context>;
using Function = void (*)(void*, const void*, const void*, size_t);

const std::vector<size_t> kCounts{0, 1, 2, 7, 100, 1000, 50000};

/// The element `i` of input `input` of `rank`: small enough that sums are exact in every type.
template <typename T>
T element(int rank, size_t input, size_t i) {
  return T(static_cast<double>((static_cast<size_t>(rank) * 3 + input + i) % 5));
}

template <typename T>
std::vector<T> elements(int rank, size_t input, size_t count) {
  std::vector<T> list(count);
  for (size_t i = 0; i < count; i++) {
    list[i] = element<T>(rank, input, i);
  }
  return list;
}

/// The sum over the inputs of all ranks.
template <typename T>
std::vector<T> sums(int ranks, size_t inputs, size_t count) {
  std::vector<T> list(count, T(0.0));
  for (int rank = 0; rank < ranks; rank++) {
    for (size_t input = 0; input < inputs; input++) {
      for (size_t i = 0; i < count; i++) {
        list[i] = list[i] + element<T>(rank, input, i);
      }
    }
  }
  return list;
}

void for_sizes(const std::function<void(const Pointer&)>& body, std::vector<int> sizes = {1, 2, 3, 4, 5, 6, 7, 8}) {
  for (int size : sizes) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    run_ranks(size, body);
  }
}

template <typename T>
class AllreduceOfType : public testing::Test {};

using Types = testing::Types<
    int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, long long, unsigned long long, char, float, double,
    gloo::float16, std::complex<float>, std::complex<double>>;
TYPED_TEST_SUITE(AllreduceOfType, Types);

TYPED_TEST(AllreduceOfType, EveryFormOfBuffers) {
  using T = TypeParam;
  for_sizes(
      [](const Pointer& context) {
        for (size_t count : kCounts) {
          for (size_t inputs : {1, 2, 3}) {
            std::vector<std::vector<T>> in, out;
            std::vector<T*> ins, outs;
            const auto fill = [&] {
              in.clear(), out.clear(), ins.clear(), outs.clear();
              for (size_t i = 0; i < inputs; i++) {
                in.push_back(elements<T>(context->rank, i, count));
                out.push_back(elements<T>(context->rank, i, count));
              }
              for (size_t i = 0; i < inputs; i++) {
                ins.push_back(in[i].data());
                outs.push_back(out[i].data());
              }
            };
            const auto check = [&](const std::vector<T*>& pointers, const char* form) {
              const auto expected = sums<T>(context->size, inputs, count);
              for (T* pointer : pointers) {
                ASSERT_TRUE(std::equal(expected.begin(), expected.end(), pointer)) << form << ", elements: " << count;
              }
            };
            const Function sum = &gloo::sum<T>;

            fill();
            {
              gloo::AllreduceOptions opts(context);
              opts.setInputs(ins, count);
              opts.setOutputs(outs, count);
              opts.setReduceFunction(sum);
              gloo::allreduce(opts);
            }
            check(outs, "inputs and outputs");
            for (size_t i = 0; i < inputs; i++) {
              ASSERT_EQ(in[i], elements<T>(context->rank, i, count)) << "an input was changed";
            }

            fill();
            {
              gloo::AllreduceOptions opts(context);
              opts.template setOutputs<T>(outs.data(), outs.size(), count);
              opts.setReduceFunction(sum);
              gloo::allreduce(opts);
            }
            check(outs, "outputs only");

            fill();
            {
              gloo::AllreduceOptions opts(context);
              opts.setInputs(outs, count);
              opts.setOutputs(outs, count);
              opts.setReduceFunction(sum);
              gloo::allreduce(opts);
            }
            check(outs, "inputs that are the outputs");

            fill();
            {
              gloo::AllreduceOptions opts(context);
              opts.setInputs(outs, count);
              opts.setOutput(outs.back(), count);
              opts.setReduceFunction(sum);
              gloo::allreduce(opts);
            }
            check({outs.back()}, "an output that is the last input");

            fill();
            {
              gloo::AllreduceOptions opts(context);
              std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> from, to;
              for (size_t i = 0; i < inputs; i++) {
                from.push_back(context->createUnboundBuffer(ins[i], count * sizeof(T)));
                to.push_back(context->createUnboundBuffer(outs[i], count * sizeof(T)));
              }
              opts.template setInputs<T>(std::move(from));
              opts.template setOutputs<T>(std::move(to));
              opts.setReduceFunction(sum);
              gloo::allreduce(opts);
            }
            check(outs, "unbound buffers");
          }
        }
      },
      {1, 2, 3, 8});
}

TEST(Allreduce, OperationsAlgorithmsAndSegments) {
  using Algorithm = gloo::detail::AllreduceOptionsImpl::Algorithm;
  for_sizes([](const Pointer& context) {
    for (Algorithm algorithm : {Algorithm::UNSPECIFIED, Algorithm::RING, Algorithm::BCUBE}) {
      for (size_t segment : {size_t{1}, size_t{128}, size_t{1} << 20, size_t{4} << 20}) {
        const size_t count = 1000;
        std::vector<int32_t> data(count);
        gloo::AllreduceOptions opts(context);
        opts.setAlgorithm(algorithm);
        opts.setMaxSegmentSize(segment);
        opts.setOutput(data.data(), count);
        const auto run = [&](Function function) {
          for (size_t i = 0; i < count; i++) {
            data[i] = static_cast<int32_t>(i % 3) + context->rank + 1;
          }
          opts.setReduceFunction(function);
          gloo::allreduce(opts);
        };
        run(&gloo::max<int32_t>);
        for (size_t i = 0; i < count; i++) {
          ASSERT_EQ(data[i], static_cast<int32_t>(i % 3) + context->size);
        }
        run(&gloo::min<int32_t>);
        for (size_t i = 0; i < count; i++) {
          ASSERT_EQ(data[i], static_cast<int32_t>(i % 3) + 1);
        }
        run(&gloo::product<int32_t>);
        for (size_t i = 0; i < count; i++) {
          int32_t expected = 1;
          for (int rank = 0; rank < context->size; rank++) {
            expected *= static_cast<int32_t>(i % 3) + rank + 1;
          }
          ASSERT_EQ(data[i], expected);
        }
      }
    }
  });
}

TEST(Allreduce, RanksMayHaveDifferentNumbersOfBuffers) {
  for_sizes([](const Pointer& context) {
    for (size_t count : kCounts) {
      // Rank r has r + 1 inputs, and an output for each or only one; ranks without other inputs reduce in place.
      const size_t inputs = static_cast<size_t>(context->rank) + 1;
      std::vector<std::vector<double>> in(inputs, std::vector<double>(count, 1.0));
      std::vector<double*> pointers;
      for (auto& input : in) {
        pointers.push_back(input.data());
      }
      std::vector<double> out(count);
      gloo::AllreduceOptions opts(context);
      opts.setInputs(pointers, count);
      if (context->rank % 2 == 0) {
        opts.setOutputs(pointers, count);
      } else {
        opts.setOutput(out.data(), count);
      }
      opts.setReduceFunction(static_cast<Function>(&gloo::sum<double>));
      gloo::allreduce(opts);
      const double expected = context->size * (context->size + 1) / 2.0;
      ASSERT_EQ(context->rank % 2 == 0 ? in.back() : out, std::vector<double>(count, expected));
    }
  });
}

TEST(Reduce, EveryRootAndForm) {
  for_sizes([](const Pointer& context) {
    for (size_t count : kCounts) {
      for (int root = 0; root < context->size; root++) {
        for (bool inPlace : {false, true}) {
          for (bool buffers : {false, true}) {
            auto in = elements<float>(context->rank, 0, count);
            auto out = inPlace ? in : std::vector<float>(count, -1.0f);
            const auto before = out;
            gloo::ReduceOptions opts(context);
            if (!inPlace) {
              if (buffers) {
                opts.setInput<float>(context->createUnboundBuffer(in.data(), count * sizeof(float)));
              } else {
                opts.setInput(in.data(), count);
              }
            }
            if (buffers) {
              opts.setOutput<float>(context->createUnboundBuffer(out.data(), count * sizeof(float)));
            } else {
              opts.setOutput<float>(out.data(), count);
            }
            opts.setRoot(root);
            opts.setTag(static_cast<uint32_t>(root));
            opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
            opts.setMaxSegmentSize(4096);
            gloo::reduce(opts);
            ASSERT_EQ(in, elements<float>(context->rank, 0, count));
            if (context->rank == root) {
              ASSERT_EQ(out, sums<float>(context->size, 1, count));
            } else {
              ASSERT_EQ(out, before) << "the output of a rank that is not the root was changed";
            }
          }
        }
      }
    }
  });
}

TEST(ReduceScatter, OptionsInAllForms) {
  for_sizes([](const Pointer& context) {
    const size_t size = static_cast<size_t>(context->size);
    const size_t rank = static_cast<size_t>(context->rank);
    for (size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}}) {
      for (size_t inputs : {1, 2}) {
        std::vector<std::vector<float>> in;
        std::vector<float*> pointers;
        for (size_t i = 0; i < inputs; i++) {
          in.push_back(elements<float>(context->rank, i, count * size));
        }
        for (auto& input : in) {
          pointers.push_back(input.data());
        }
        const auto all = sums<float>(context->size, inputs, count * size);
        std::vector<float> out(count, -1.0f);
        gloo::ReduceScatterOptions opts(context);
        opts.setInputs(pointers, count * size);
        opts.setOutput(out.data(), count);
        opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
        gloo::reduce_scatter(opts);
        ASSERT_TRUE(std::equal(out.begin(), out.end(), all.begin() + static_cast<std::ptrdiff_t>(rank * count)));
      }
      // In place, and r elements for rank r.
      std::vector<size_t> counts(size);
      std::iota(counts.begin(), counts.end(), 0);
      const size_t total = size * (size - 1) / 2;
      auto data = elements<float>(context->rank, 0, total);
      const auto all = sums<float>(context->size, 1, total);
      gloo::ReduceScatterOptions opts(context);
      opts.setOutput(data.data(), total);
      opts.setElementsPerRank(counts);
      opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
      gloo::reduce_scatter(opts);
      ASSERT_TRUE(std::equal(
          data.begin(), data.begin() + static_cast<std::ptrdiff_t>(rank),
          all.begin() + static_cast<std::ptrdiff_t>(rank * (rank - 1) / 2)));
    }
  });
}

TEST(Broadcast, EveryRootAndForm) {
  for_sizes([](const Pointer& context) {
    for (size_t count : kCounts) {
      for (int root = 0; root < context->size; root++) {
        for (bool inPlace : {false, true}) {
          for (bool buffers : {false, true}) {
            auto in = elements<uint64_t>(root, 0, count);
            const bool isRoot = context->rank == root;
            auto out = isRoot && inPlace ? in : std::vector<uint64_t>(count, 99);
            gloo::BroadcastOptions opts(context);
            opts.setRoot(root);
            if (isRoot && !inPlace) {
              if (buffers) {
                opts.setInput<uint64_t>(context->createUnboundBuffer(in.data(), count * sizeof(uint64_t)));
              } else {
                opts.setInput(in.data(), count);
              }
            }
            if (buffers) {
              opts.setOutput<uint64_t>(context->createUnboundBuffer(out.data(), count * sizeof(uint64_t)));
            } else {
              opts.setOutput<uint64_t>(out.data(), count);
            }
            gloo::broadcast(opts);
            ASSERT_EQ(out, elements<uint64_t>(root, 0, count));
          }
        }
      }
    }
  });
}

TEST(Broadcast, TypesOfOneSizeMayDifferBetweenRanks) {
  run_ranks(2, [](const Pointer& context) {
    gloo::BroadcastOptions opts(context);
    opts.setRoot(0);
    float sent = 1.5f;
    char got[4] = {};
    if (context->rank == 0) {
      opts.setOutput(&sent, 1);
    } else {
      opts.setOutput(got, 4);
    }
    gloo::broadcast(opts);
    if (context->rank == 1) {
      ASSERT_EQ(std::memcmp(got, &sent, 4), 0);
    }
  });
}

TEST(Gather, EveryRootAndForm) {
  for_sizes([](const Pointer& context) {
    const size_t size = static_cast<size_t>(context->size);
    for (size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}}) {
      for (int root = 0; root < context->size; root++) {
        auto in = elements<int16_t>(context->rank, 0, count);
        std::vector<int16_t> out(context->rank == root ? count * size : 0);
        gloo::GatherOptions opts(context);
        opts.setRoot(root);
        opts.setInput(in.data(), count);
        if (context->rank == root) {
          opts.setOutput(out.data(), count * size);
        }
        gloo::gather(opts);
        if (context->rank == root) {
          for (int rank = 0; rank < context->size; rank++) {
            const auto expected = elements<int16_t>(rank, 0, count);
            ASSERT_TRUE(std::equal(
                expected.begin(), expected.end(), out.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(rank) * count)));
          }
        }
      }
    }
  });
}

/// The number of elements of each rank: rank r has `r * factor`.
std::vector<size_t> growing(int size, size_t factor) {
  std::vector<size_t> counts;
  for (int rank = 0; rank < size; rank++) {
    counts.push_back(static_cast<size_t>(rank) * factor);
  }
  return counts;
}

/// The elements of all ranks, with the numbers of `growing`.
template <typename T>
std::vector<T> concatenated(const std::vector<size_t>& counts) {
  std::vector<T> all;
  for (size_t rank = 0; rank < counts.size(); rank++) {
    const auto list = elements<T>(static_cast<int>(rank), 0, counts[rank]);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

TEST(Gatherv, CountsOnAllRanksOrOnTheRootOnly) {
  for_sizes([](const Pointer& context) {
    for (size_t factor : {0, 1, 1000}) {
      for (int root = 0; root < context->size; root++) {
        for (bool everywhere : {false, true}) {
          const auto counts = growing(context->size, factor);
          const auto expected = concatenated<double>(counts);
          auto in = elements<double>(context->rank, 0, counts[static_cast<size_t>(context->rank)]);
          std::vector<double> out(expected.size());
          gloo::GathervOptions opts(context);
          opts.setRoot(root);
          opts.setInput(in.data(), in.size());
          if (everywhere || context->rank == root) {
            opts.setOutput(out.data(), counts);
          }
          gloo::gatherv(opts);
          if (context->rank == root) {
            ASSERT_EQ(out, expected);
          }
        }
      }
    }
  });
}

TEST(Scatter, EveryRootAndForm) {
  for_sizes([](const Pointer& context) {
    const size_t size = static_cast<size_t>(context->size);
    for (size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}}) {
      for (int root = 0; root < context->size; root++) {
        for (int form : {0, 1, 2}) {
          std::vector<std::vector<uint8_t>> in;
          for (size_t i = 0; i < size; i++) {
            in.push_back(elements<uint8_t>(root, i, count));
          }
          std::vector<uint8_t*> pointers;
          std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
          for (auto& input : in) {
            pointers.push_back(input.data());
            buffers.push_back(context->createUnboundBuffer(input.data(), count));
          }
          std::vector<uint8_t> out(count, 99);
          gloo::ScatterOptions opts(context);
          opts.setRoot(root);
          opts.setOutput(out.data(), count);
          if (context->rank == root) {
            if (form == 0) {
              opts.setInputs(pointers, count);
            } else if (form == 1) {
              opts.setInputs<uint8_t>(std::move(buffers));
            } else {
              // The root's part stays where it is.
              opts.setInputs(pointers, count);
              opts.setOutput(pointers[static_cast<size_t>(root)], count);
            }
          }
          gloo::scatter(opts);
          const auto& got = form == 2 && context->rank == root ? in[static_cast<size_t>(root)] : out;
          ASSERT_EQ(got, elements<uint8_t>(root, static_cast<size_t>(context->rank), count));
        }
      }
    }
  });
}

TEST(Allgather, WithAndWithoutInput) {
  for_sizes([](const Pointer& context) {
    const size_t size = static_cast<size_t>(context->size);
    for (size_t count : kCounts) {
      for (bool inPlace : {false, true}) {
        const auto expected = concatenated<int32_t>(std::vector<size_t>(size, count));
        auto in = elements<int32_t>(context->rank, 0, count);
        std::vector<int32_t> out(count * size, -1);
        gloo::AllgatherOptions opts(context);
        if (inPlace) {
          std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(context->rank) * count));
          opts.setOutput<int32_t>(context->createUnboundBuffer(out.data(), out.size() * sizeof(int32_t)));
        } else {
          opts.setInput(in.data(), count);
          opts.setOutput(out.data(), out.size());
        }
        gloo::allgather(opts);
        ASSERT_EQ(out, expected);
      }
    }
  });
}

TEST(Allgatherv, WithAndWithoutInput) {
  for_sizes([](const Pointer& context) {
    for (size_t factor : {0, 1, 1000}) {
      for (bool inPlace : {false, true}) {
        const auto counts = growing(context->size, factor);
        const auto expected = concatenated<int64_t>(counts);
        const size_t rank = static_cast<size_t>(context->rank);
        auto in = elements<int64_t>(context->rank, 0, counts[rank]);
        std::vector<int64_t> out(expected.size(), -1);
        gloo::AllgathervOptions opts(context);
        if (inPlace) {
          std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(factor * rank * (rank - 1) / 2));
        } else {
          opts.setInput<int64_t>(in.data(), in.size());
        }
        opts.setOutput<int64_t>(out.data(), counts);
        gloo::allgatherv(opts);
        ASSERT_EQ(out, expected);
      }
    }
  });
}

TEST(Alltoall, EveryCount) {
  for_sizes([](const Pointer& context) {
    const size_t size = static_cast<size_t>(context->size);
    for (size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}}) {
      std::vector<float> in, expected;
      for (size_t peer = 0; peer < size; peer++) {
        const auto sent = elements<float>(context->rank, peer, count);
        in.insert(in.end(), sent.begin(), sent.end());
        const auto got = elements<float>(static_cast<int>(peer), static_cast<size_t>(context->rank), count);
        expected.insert(expected.end(), got.begin(), got.end());
      }
      std::vector<float> out(in.size(), -1.0f);
      gloo::AlltoallOptions opts(context);
      opts.setInput(in.data(), in.size());
      opts.setOutput(out.data(), out.size());
      gloo::alltoall(opts);
      ASSERT_EQ(out, expected);
    }
  });
}

template <typename N>
void alltoallv_with_counts_of() {
  for_sizes([](const Pointer& context) {
    for (size_t factor : {0, 1, 500}) {
      std::vector<float> in, expected;
      std::vector<N> sent, got;
      const auto length = [&](int from, int to) { return static_cast<size_t>(from + 2 * to) * factor; };
      for (int peer = 0; peer < context->size; peer++) {
        const auto to = elements<float>(context->rank, static_cast<size_t>(peer), length(context->rank, peer));
        in.insert(in.end(), to.begin(), to.end());
        sent.push_back(static_cast<N>(to.size()));
        const auto from = elements<float>(peer, static_cast<size_t>(context->rank), length(peer, context->rank));
        expected.insert(expected.end(), from.begin(), from.end());
        got.push_back(static_cast<N>(from.size()));
      }
      std::vector<float> out(expected.size(), -1.0f);
      gloo::AlltoallvOptions opts(context);
      opts.setInput(in.data(), sent);
      opts.setOutput<float>(context->createUnboundBuffer(out.data(), out.size() * sizeof(float)), got);
      opts.setTimeout(std::chrono::seconds(20));
      gloo::alltoallv(opts);
      ASSERT_EQ(out, expected);
    }
  });
}

TEST(Alltoallv, SignedCounts) {
  alltoallv_with_counts_of<int64_t>();
}

TEST(Alltoallv, UnsignedCounts) {
  alltoallv_with_counts_of<size_t>();
}

TEST(Barrier, NoRankLeavesBeforeAllHaveArrived) {
  for (int size = 1; size <= 8; size++) {
    std::atomic<int> arrived{0};
    run_ranks(size, [&](const Pointer& context) {
      gloo::BarrierOptions opts(context);
      for (int round = 1; round <= 20; round++) {
        arrived++;
        gloo::barrier(opts);
        ASSERT_GE(arrived.load(), round * size);
        gloo::barrier(opts);
      }
    });
  }
}

// Options that are wrong throw EnforceNotMet on the rank that has them, and nothing is sent: the context stays usable.
template <typename Body>
void refused(const char* what, Body body) {
  EXPECT_THROW(body(), gloo::EnforceNotMet) << what;
}

TEST(Options, ThatAreWrongAreRefused) {
  run_ranks(2, [](const Pointer& context) {
    std::vector<float> a(8), b(8);
    const Function sum = &gloo::sum<float>;
    refused("allreduce without output", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setInput(a.data(), 8);
      opts.setReduceFunction(sum);
      gloo::allreduce(opts);
    });
    refused("allreduce without function", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setOutput(a.data(), 8);
      gloo::allreduce(opts);
    });
    refused("allreduce of different lengths", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setInput(b.data(), 4);
      opts.setOutput(a.data(), 8);
      opts.setReduceFunction(sum);
      gloo::allreduce(opts);
    });
    refused("allreduce of a buffer that is no multiple of the element", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setOutput<float>(context->createUnboundBuffer(a.data(), 7));
      opts.setReduceFunction(sum);
      gloo::allreduce(opts);
    });
    refused("an algorithm that does not exist", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setOutput(a.data(), 8);
      opts.setReduceFunction(sum);
      opts.setAlgorithm(static_cast<gloo::AllreduceOptions::Algorithm>(3));
      gloo::allreduce(opts);
    });
    for (int root : {-1, 2}) {
      refused("reduce to a root that does not exist", [&] {
        gloo::ReduceOptions opts(context);
        opts.setOutput(a.data(), 8);
        opts.setReduceFunction(sum);
        opts.setRoot(root);
        gloo::reduce(opts);
      });
      refused("broadcast from a root that does not exist", [&] {
        gloo::BroadcastOptions opts(context);
        opts.setOutput(a.data(), 8);
        opts.setRoot(root);
        gloo::broadcast(opts);
      });
      refused("scatter from a root that does not exist", [&] {
        gloo::ScatterOptions opts(context);
        opts.setOutput(a.data(), 8);
        opts.setRoot(root);
        gloo::scatter(opts);
      });
    }
    refused("reduce without root", [&] {
      gloo::ReduceOptions opts(context);
      opts.setOutput(a.data(), 8);
      opts.setReduceFunction(sum);
      gloo::reduce(opts);
    });
    refused("broadcast without output", [&] {
      gloo::BroadcastOptions opts(context);
      opts.setRoot(0);
      gloo::broadcast(opts);
    });
    refused("broadcast of different lengths, or with an input on a rank that is not the root", [&] {
      gloo::BroadcastOptions opts(context);
      opts.setRoot(0);
      opts.setInput(a.data(), 4);
      opts.setOutput(b.data(), 8);
      gloo::broadcast(opts);
    });
    refused("gather without input", [&] {
      gloo::GatherOptions opts(context);
      opts.setRoot(0);
      opts.setOutput(a.data(), 8);
      gloo::gather(opts);
    });
    refused("gather of a wrong length", [&] {
      gloo::GatherOptions opts(context);
      opts.setRoot(context->rank);
      opts.setInput(a.data(), 3);
      opts.setOutput(b.data(), 8);
      gloo::gather(opts);
    });
    refused("gatherv with too few counts", [&] {
      gloo::GathervOptions opts(context);
      opts.setOutput(a.data(), std::vector<size_t>{8});
    });
    refused("gatherv of elements of different sizes", [&] {
      gloo::GathervOptions opts(context);
      opts.setInput(a.data(), 4);
      char bytes[8];
      opts.setOutput(bytes, std::vector<size_t>{4, 4});
    });
    refused("gatherv of a wrong length", [&] {
      gloo::GathervOptions opts(context);
      opts.setRoot(context->rank);
      opts.setInput(a.data(), 3);
      opts.setOutput(b.data(), std::vector<size_t>{4, 4});
      gloo::gatherv(opts);
    });
    refused("scatter with too few inputs", [&] {
      gloo::ScatterOptions opts(context);
      opts.setRoot(context->rank);
      opts.setInputs(std::vector<float*>{a.data()}, 4);
      opts.setOutput(b.data(), 4);
      gloo::scatter(opts);
    });
    refused("allgather of a wrong length", [&] {
      gloo::AllgatherOptions opts(context);
      opts.setInput(a.data(), 3);
      opts.setOutput(b.data(), 8);
      gloo::allgather(opts);
    });
    refused("allgather of a length that does not divide", [&] {
      gloo::AllgatherOptions opts(context);
      opts.setOutput(reinterpret_cast<char*>(b.data()), 7);
      gloo::allgather(opts);
    });
    refused("allgatherv of a buffer of a wrong length", [&] {
      gloo::AllgathervOptions opts(context);
      opts.setOutput<float>(context->createUnboundBuffer(a.data(), 4), std::vector<size_t>{4, 4});
    });
    refused("alltoall without output", [&] {
      gloo::AlltoallOptions opts(context);
      opts.setInput(a.data(), 8);
      gloo::alltoall(opts);
    });
    refused("alltoall of a length that does not divide", [&] {
      gloo::AlltoallOptions opts(context);
      opts.setInput(reinterpret_cast<char*>(a.data()), 7);
      opts.setOutput(reinterpret_cast<char*>(b.data()), 7);
      gloo::alltoall(opts);
    });
    refused("alltoallv with too few counts", [&] {
      gloo::AlltoallvOptions opts(context);
      opts.setInput(a.data(), {8});
    });
    refused("alltoallv with a negative count", [&] {
      gloo::AlltoallvOptions opts(context);
      opts.setInput(a.data(), {9, -1});
    });
    refused("a timeout of zero for alltoall", [&] {
      gloo::AlltoallOptions opts(context);
      opts.setTimeout(std::chrono::milliseconds(0));
    });
    refused("reduce_scatter of a length that does not divide", [&] {
      gloo::ReduceScatterOptions opts(context);
      opts.setInput(a.data(), 7);
      opts.setOutput(b.data(), 3);
      opts.setReduceFunction(sum);
      gloo::reduce_scatter(opts);
    });
    refused("allreduce with an output that is NULL", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setInputs(std::vector<float*>{a.data(), b.data()}, 8);
      opts.setOutputs(std::vector<float*>{nullptr, b.data()}, 8);
    });
    refused("allreduce with a list that is NULL", [&] {
      gloo::AllreduceOptions opts(context);
      opts.setOutputs(static_cast<float**>(nullptr), 2, 8);
    });
    // The number of bytes would wrap to 4.
    refused("more elements than the address space has", [&] {
      gloo::GatherOptions opts(context);
      opts.setInput(a.data(), SIZE_MAX / sizeof(float) + 2);
    });
    refused("more elements of a rank than the address space has", [&] {
      gloo::AllgathervOptions opts(context);
      opts.setOutput(a.data(), std::vector<size_t>{SIZE_MAX / sizeof(float) + 2, 1});
    });
    refused("more elements of all ranks than the address space has", [&] {
      gloo::AllgathervOptions opts(context);
      opts.setOutput(reinterpret_cast<char*>(a.data()), std::vector<size_t>{SIZE_MAX, 2});
    });
    gloo::AllreduceOptions opts(context);
    float one = 1;
    opts.setOutput(&one, 1);
    opts.setReduceFunction(sum);
    gloo::allreduce(opts);
    EXPECT_EQ(one, 2);
  });
}

TEST(Options, MayBeUsedAgain) {
  run_ranks(3, [](const Pointer& context) {
    std::vector<float> data(10);
    gloo::AllreduceOptions opts(context);
    opts.setOutput(data.data(), data.size());
    opts.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    for (int round = 0; round < 10; round++) {
      std::fill(data.begin(), data.end(), static_cast<float>(context->rank));
      gloo::allreduce(opts);
      ASSERT_EQ(data, std::vector<float>(10, 3.0f));
    }
    // The new output takes the place of the old one.
    std::vector<float> other(5, 1.0f);
    opts.setOutput(other.data(), other.size());
    gloo::allreduce(opts);
    ASSERT_EQ(other, std::vector<float>(5, 3.0f));
    ASSERT_EQ(data, std::vector<float>(10, 3.0f));
  });
}

}  // namespace
