// What two processes on two cores can reach through memory that they share.
//
//   bare allreduce SIZES ITERATIONS SECONDS LOOP
//   bare line
//   bare bandwidth
//   bare switch
//
// `allreduce`: each copies its numbers into its half of a double buffer, with a sequence number behind them, waits for
// the other's, and adds. `line` prints the time in which a cache line gets from one core to the other, in microseconds:
// half of a round trip. `bandwidth` prints how many bytes per second both together read and write in memory, adding
// arrays beyond every cache. `switch` prints the time in which one of two processes on one core gives it to the other
// by sched_yield, in microseconds.

#include <atomic>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "pair.h"

namespace {

constexpr size_t LINE = 64;

struct alignas(LINE) Sequence {
  std::atomic<unsigned> number;
};

void await(const Sequence &sequence, unsigned number) {
  while (static_cast<int>(sequence.number.load(std::memory_order_acquire) - number) < 0) {
#ifdef __x86_64__
    _mm_pause();
#endif
  }
}

class Bare : public Peer {
 public:
  static constexpr size_t LARGEST = 64 << 10;
  static constexpr size_t MEMORY = 4 * (sizeof(Sequence) + LARGEST);

  Bare(int side, void *memory) : Peer(side, 2), memory_(static_cast<char *>(memory)) {}

  void barrier() override {
    float own = 0, sum;
    exchange(&own, &sum, 1);
  }

  void largest(std::vector<float> &numbers) override {
    for (float &number : numbers) {
      float sum;
      exchange(&number, &sum, 1);
      number = std::max(number, sum - number);
    }
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t count) override {
    if (collective != "allreduce" || count * sizeof(float) > LARGEST) throw std::runtime_error("only small allreduces");
    return [=] { exchange(in, out, count); };
  }

 private:
  // The sequence number and small numbers share a cache line; the numbers of larger exchanges begin at the next one.
  void exchange(const float *in, float *out, size_t count) {
    const unsigned number = ++calls_;
    const bool large = count > (LINE - sizeof(unsigned)) / sizeof(float);
    const auto at = [&](int side) { return memory_ + (2 * (number % 2) + side) * (LINE + LARGEST); };
    const auto numbers = [&](int side) { return reinterpret_cast<float *>(at(side) + (large ? LINE : sizeof(unsigned))); };
    float *mine = numbers(rank);
    const float *theirs = numbers(!rank);
    std::memcpy(mine, in, count * sizeof(float));
    reinterpret_cast<Sequence *>(at(rank))->number.store(number, std::memory_order_release);
    await(*reinterpret_cast<Sequence *>(at(!rank)), number);
    for (size_t i = 0; i < count; ++i) out[i] = in[i] + theirs[i];
  }

  char *memory_;
  unsigned calls_ = 0;
};

// Half of a round trip: the fastest of many short rounds, since it characterises the machine, not what else runs there.
float line(int side, Sequence *sequences) {
  constexpr unsigned TRIPS = 1000, ROUNDS = 200;
  float fastest = std::numeric_limits<float>::max();
  unsigned number = 0;
  for (unsigned round = 0; round < ROUNDS; ++round) {
    const auto start = Clock::now();
    for (unsigned trip = 0; trip < TRIPS; ++trip) {
      ++number;
      if (side) await(sequences[0], number);
      sequences[side].number.store(number, std::memory_order_release);
      if (!side) await(sequences[1], number);
    }
    fastest = std::min(fastest, microseconds(Clock::now() - start) / (2 * TRIPS));
  }
  return fastest;
}

// out = a + b; where the compiler can say so, past the caches, so that nothing is read to be overwritten.
void add(float *out, const float *a, const float *b, size_t count) {
#ifdef __x86_64__
  for (size_t i = 0; i < count; i += 4) _mm_stream_ps(out + i, _mm_add_ps(_mm_load_ps(a + i), _mm_load_ps(b + i)));
  _mm_sfence();
#else
  for (size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
#endif
}

// Bytes per second of both sides together: the best of a few rounds.
double bandwidth(int side, Sequence *sequences) {
  constexpr size_t COUNT = 16 << 20, ROUNDS = 5;
  Buffer a(COUNT), b(COUNT), out(COUNT);
  a.fill(1);
  b.fill(2);
  double best = 0;
  for (unsigned round = 1; round <= ROUNDS; ++round) {
    sequences[side].number.store(2 * round - 1, std::memory_order_release);
    await(sequences[!side], 2 * round - 1);
    const auto start = Clock::now();
    add(out.data(), a.data(), b.data(), COUNT);
    sequences[side].number.store(2 * round, std::memory_order_release);
    await(sequences[!side], 2 * round);
    best = std::max(best, 2 * 3 * COUNT * sizeof(float) / (microseconds(Clock::now() - start) * 1e-6));
  }
  if (out.data()[COUNT / 3] != 3) throw std::runtime_error("wrong sums");
  return best;
}

// From one process to the other, on the same core.
float switches(int side, Sequence *sequences) {
  constexpr unsigned TRIPS = 20000;
  const auto await_turn = [&](unsigned number) {
    while (static_cast<int>(sequences[!side].number.load(std::memory_order_acquire) - number) < 0) sched_yield();
  };
  const auto start = Clock::now();
  for (unsigned trip = 1; trip <= TRIPS; ++trip) {
    if (side) await_turn(trip);
    sequences[side].number.store(trip, std::memory_order_release);
    if (!side) await_turn(trip);
  }
  return microseconds(Clock::now() - start) / (2 * TRIPS);
}

}  // namespace

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (argc != 1 + Request::ARGUMENTS && !(argc == 2 && (what == "line" || what == "bandwidth" || what == "switch"))) {
    std::fprintf(stderr, "usage: bare %s, or: bare line|bandwidth|switch\n", Request::USAGE);
    return 2;
  }
  void *memory = shared_memory(Bare::MEMORY);
  const auto value = [&](int side) -> double {
    auto *sequences = static_cast<Sequence *>(memory);
    if (what == "switch") return switches(side, sequences);
    return what == "line" ? line(side, sequences) : bandwidth(side, sequences);
  };
  const auto work = [&](int side) {
    if (argc > 2) return Bare(side, memory).measure(Request::parse(argv + 1), "bare");
    if (const double own = value(side); side == 0) {
      std::printf("{\"%s\":%.4g}\n", what.c_str(), own);
      std::fflush(stdout);
    }
  };
  return in_two_processes(work, what == "switch");
}
