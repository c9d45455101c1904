// What programs do with their calls, measured for any Peer: ranks that compute between calls and come late, different
// calls one after the other, several at once, ranks that only wait. A pattern stands in the place of a collective:
//
//   late-US         an allreduce to which the last rank comes so many microseconds after the others. The time is from
//                   its arrival until the slowest rank has the result; beside: until that last rank has it
//   rotation-N      N allreduces of different lengths, from the size on by an element, one after the other. The time is
//                   a call's; beside: of the same calls, each in a loop of its own
//   rotation-mixed  the same of a barrier, an allreduce of one float32 and a reduce of one float64
//   sequence-WORD   a collective for each letter, the size for each rank: b barrier, a allreduce, r reduce,
//                   c broadcast, g allgather, s reduce_scatter, t alltoall. The time is that of all; beside: the
//                   sum of its parts, each in a loop of its own
//   requests-N      N allreduces that are all started, then waited for in the same order. The time is that of all;
//                   beside: of the same calls one after the other
//   wait-MS         an allreduce for which the last rank lets the others wait so many milliseconds. The time is the
//                   processor time that a waiting rank's process takes; beside: what a process takes that sleeps that
//                   long, without a call
//
// All but the waiting warm up first: one sample for five.

#pragma once

#include <time.h>

#include <deque>
#include <utility>

#include "harness.h"

// A pattern's samples, each the slowest rank's, and what they are compared with, in microseconds.
struct Samples {
  std::vector<float> times, beside;
};

class Patterns {
 public:
  Patterns(Peer &peer, const Request &request) : peer_(peer), request_(request), last_(peer.rank == peer.size - 1) {}

  static bool is_one(const std::string &word) { return word.find('-') != std::string::npos; }

  Samples measure(const std::string &word, size_t bytes) {
    const size_t dash = word.find('-');
    const std::string name = word.substr(0, dash), what = word.substr(dash + 1);
    const int number = std::atoi(what.c_str());
    const size_t count = bytes / sizeof(float);
    if (name == "sequence") return sequence(what, count);
    if (word == "rotation-mixed") return mixed();
    if (name == "late") return late(std::chrono::microseconds(number), count);
    if (name == "wait") return wait(std::chrono::milliseconds(number), count);
    if (name == "rotation" && number > 0) return rotation(static_cast<size_t>(number), count);
    if (name == "requests" && number > 0) return requests(number, count);
    throw std::runtime_error("no " + word);
  }

 private:
  // A loop of passes takes so long at least, that a barrier before it and the clock do not count; it has so many calls
  // at least.
  static constexpr float LOOP_US = 100;
  static constexpr size_t LOOP_CALLS = 10;
  // At most so many calls of a rotation, at equal distances in it, are also measured each in a loop of its own.
  static constexpr size_t PARTS = 8;
  // Samples. One late call differs more from the next.
  static constexpr int MIN_SAMPLES = 5, MIN_LATE_SAMPLES = 30, MAX_SAMPLES = 200;

  // The number of samples of `us` microseconds each that fit into the time, at least `min`.
  int fit(float us, int min = MIN_SAMPLES) const {
    const double number = std::max<double>(request_.seconds * 1e6 / std::max(us, 0.01f), min);
    return static_cast<int>(std::min<double>(number, std::clamp(request_.iterations, min, MAX_SAMPLES)));
  }

  std::vector<float> slowest(std::vector<float> times) {
    peer_.largest(times);
    return times;
  }

  Samples late(std::chrono::microseconds late, size_t count) {
    Call call(peer_, "allreduce", count);
    call.prove();
    // When this rank arrives and when it has the result.
    const auto sample = [&] {
      auto arrival = peer_.together();
      for (const auto until = arrival + late; last_ && arrival < until;) arrival = Clock::now();
      call();
      return std::pair(arrival, Clock::now());
    };
    const auto [arrival, end] = sample();
    const int number = fit(slowest({microseconds(end - arrival)})[0], MIN_LATE_SAMPLES);
    for (int i = 0; i < number / 5; ++i) sample();
    std::vector<Clock::time_point> arrivals, ends;
    std::vector<float> at_last;
    for (int i = 0; i < number; ++i) {
      const auto [arrived, ended] = sample();
      arrivals.push_back(arrived);
      ends.push_back(ended);
      at_last.push_back(last_ ? microseconds(ended - arrived) : 0);
    }
    arrivals = of_last(arrivals);
    std::vector<float> times;
    for (size_t i = 0; i < ends.size(); ++i) times.push_back(microseconds(ends[i] - arrivals[i]));
    call.prove();
    return {slowest(times), slowest(at_last)};
  }

  // The last rank's times, on all ranks; those of one host have the same clock. A float holds this many bits of them.
  std::vector<Clock::time_point> of_last(const std::vector<Clock::time_point> &times) {
    constexpr int BITS = 22, PIECES = 3;
    std::vector<float> pieces;
    for (const auto &time : times)
      for (int piece = 0; piece < PIECES; ++piece) {
        const auto bits = (time.time_since_epoch().count() >> (BITS * piece)) & ((1 << BITS) - 1);
        pieces.push_back(last_ ? static_cast<float>(bits) : 0);
      }
    pieces = slowest(pieces);
    std::vector<Clock::time_point> all;
    for (size_t first = 0; first < pieces.size(); first += PIECES) {
      Clock::rep count = 0;
      for (int piece = 0; piece < PIECES; ++piece) count |= static_cast<Clock::rep>(pieces[first + piece]) << (BITS * piece);
      all.emplace_back(Clock::duration(count));
    }
    return all;
  }

  Samples wait(std::chrono::milliseconds time, size_t count) {
    Call call(peer_, "allreduce", count);
    call.prove();
    const auto processor_time = [] {
      timespec time;
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
    };
    Samples samples;
    for (int i = fit(2e3f * static_cast<float>(time.count())); i > 0; --i) {
      peer_.together();
      double before = processor_time();
      std::this_thread::sleep_for(time);
      samples.beside.push_back(static_cast<float>(processor_time() - before));
      peer_.together();
      before = processor_time();
      if (last_) std::this_thread::sleep_for(time);
      call();
      samples.times.push_back(last_ ? 0 : static_cast<float>(processor_time() - before));
    }
    call.prove();
    return {slowest(samples.times), slowest(samples.beside)};
  }

  Samples rotation(size_t lengths, size_t shortest) {
    // On the same buffers, since it is the calls that differ, not what is in the caches.
    Call longest(peer_, "allreduce", shortest + lengths - 1);
    std::vector<Run> calls;
    for (size_t i = 0; i < lengths; ++i)
      calls.push_back(peer_.prepare("allreduce", longest.in().data(), longest.out().data(), shortest + i));
    const auto prove = [&] {
      for (size_t i = 0; i < lengths; ++i) {
        longest.out().fill(std::numeric_limits<float>::quiet_NaN());
        calls[i]();
        longest.verify(shortest + i);
      }
    };
    prove();
    Samples samples = series(calls);
    prove();
    return per_call(samples, lengths);
  }

  Samples mixed() {
    std::deque<Call> calls;
    calls.emplace_back(peer_, "barrier", 0);
    calls.emplace_back(peer_, "allreduce", 1);
    calls.emplace_back(peer_, "reduce_float64", 1);
    return per_call(proven_series(calls), calls.size());
  }

  Samples sequence(const std::string &letters, size_t count) {
    static const std::pair<char, const char *> NAMES[] = {{'b', "barrier"},   {'a', "allreduce"},      {'r', "reduce"},  {'c', "broadcast"},
                                                          {'g', "allgather"}, {'s', "reduce_scatter"}, {'t', "alltoall"}};
    std::deque<Call> calls;
    for (const char letter : letters) {
      const auto *name = std::find_if(std::begin(NAMES), std::end(NAMES), [&](const auto &known) { return known.first == letter; });
      if (name == std::end(NAMES)) throw std::runtime_error("no collective has the letter " + std::string(1, letter));
      calls.emplace_back(peer_, name->second, letter == 'b' ? 0 : count);
    }
    return proven_series(calls);
  }

  Samples requests(int number, size_t count) {
    std::deque<Call> calls;
    std::vector<Nonblocking> started;
    for (int tag = 0; tag < number; ++tag) {
      Call &call = calls.emplace_back(peer_, "allreduce", count);
      started.push_back(peer_.nonblocking(call.in().data(), call.out().data(), count, tag));
    }
    const Run in_turn = [&] {
      for (const Call &call : calls) call();
    };
    const Run at_once = [&] {
      for (const Nonblocking &one : started) one.start();
      for (const Nonblocking &one : started) one.wait();
    };
    const auto prove = [&] {
      for (const Run &run : {in_turn, at_once}) {
        for (Call &call : calls) call.out().fill(std::numeric_limits<float>::quiet_NaN());
        run();
        for (Call &call : calls) call.verify();
      }
    };
    prove();
    const int samples = fit(slowest({peer_.time(in_turn, 1) + peer_.time(at_once, 1)})[0]);
    std::vector<float> times, beside;
    for (int i = -samples / 5; i < samples; ++i) {
      // In turns, so that what else the machine does comes to both.
      const float plain = peer_.time(in_turn, 1), own = peer_.time(at_once, 1);
      if (i < 0) continue;
      times.push_back(own);
      beside.push_back(plain);
    }
    prove();
    return {slowest(times), slowest(beside)};
  }

  Samples proven_series(std::deque<Call> &calls) {
    std::vector<Run> runs;
    for (Call &call : calls) {
      call.prove();
      runs.push_back(call.run());
    }
    Samples samples = series(runs);
    for (Call &call : calls) call.prove();
    return samples;
  }

  // The times of passes over the calls, and beside them the sum of the calls' times, each measured in a loop of its
  // own.
  Samples series(const std::vector<Run> &calls) {
    Samples samples{passes(calls, 1), {}};
    const size_t parts = std::min(calls.size(), PARTS);
    float sum = 0;
    for (size_t part = 0; part < parts; ++part) {
      std::vector<float> times = passes({calls[part * calls.size() / parts]}, static_cast<double>(parts));
      std::sort(times.begin(), times.end());
      sum += percentile(times, 50);
    }
    samples.beside = {sum * static_cast<float>(calls.size()) / static_cast<float>(parts)};
    return samples;
  }

  // Times of a pass, each the mean of a loop, in this part of the time.
  std::vector<float> passes(const std::vector<Run> &calls, double part) {
    const Run pass = [&] {
      for (const Run &call : calls) call();
    };
    peer_.time(pass, 1);
    const float once = slowest({std::min(peer_.time(pass, 1), peer_.time(pass, 1))})[0];
    const auto enough = static_cast<size_t>(LOOP_US / std::max(once, 0.01f)) + 1;
    const int loop = static_cast<int>(std::max(enough, (LOOP_CALLS + calls.size() - 1) / calls.size()));
    const int number = std::max(static_cast<int>(fit(once * static_cast<float>(loop)) / part), MIN_SAMPLES);
    for (int i = 0; i < (number + 4) / 5; ++i) peer_.time(pass, loop);
    std::vector<float> times;
    for (int i = 0; i < number; ++i) times.push_back(peer_.time(pass, loop));
    return slowest(times);
  }

  static Samples per_call(Samples samples, size_t calls) {
    for (auto *times : {&samples.times, &samples.beside})
      for (float &time : *times) time /= static_cast<float>(calls);
    return samples;
  }

  Peer &peer_;
  const Request &request_;
  const bool last_;
};

// Measures a collective; or patterns, whose names commas separate, each with each size.
inline void measure(Peer &peer, const Request &request, const std::string &algorithm) {
  if (!Patterns::is_one(request.collective)) return peer.measure(request, algorithm);
  peer.settle();
  std::stringstream words(request.collective);
  for (std::string word; std::getline(words, word, ',');)
    for (size_t bytes : request.sizes) {
      const Samples samples = Patterns(peer, request).measure(word, bytes);
      if (peer.rank == 0) report(word, algorithm, peer.size, bytes, samples.times, {}, samples.beside);
    }
}
