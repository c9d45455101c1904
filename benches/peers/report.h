// Shared by these programs: the data, and a line of JSON with the fields of `gloo-rs bench --json`.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

inline int warmup_of(int iterations) { return iterations / 5 + 2; }

// Element `i` of a rank's input. Sums of these are exact.
inline float element(size_t i, int rank) { return static_cast<float>(i % 1000) + static_cast<float>(rank) + 0.5f; }

// Whether `out` holds the sums over `size` ranks; checks every 97th element.
inline bool is_sum(const std::vector<float> &out, int size) {
  for (size_t i = 0; i < out.size(); i += 97) {
    float expected = 0;
    for (int rank = 0; rank < size; ++rank) expected += element(i, rank);
    if (out[i] != expected) return false;
  }
  return true;
}

// `times`: the slowest rank's time of each iteration, in microseconds.
inline void report(const char *transport, const std::string &algorithm, int ranks, size_t bytes, std::vector<float> times) {
  std::sort(times.begin(), times.end());
  // The percentile: the smallest time that this percentage of the times does not exceed.
  const auto percentile = [&](size_t percent) {
    return times[std::max<size_t>((times.size() * percent + 99) / 100, 1) - 1];
  };
  std::printf("{\"collective\":\"allreduce\",\"algorithm\":\"%s\",\"transport\":\"%s\",\"ranks\":%d,\"bytes\":%zu,"
              "\"iterations\":%zu,\"min_us\":%.2f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"max_us\":%.2f}\n",
              algorithm.c_str(), transport, ranks, bytes, times.size(), times.front(), percentile(50),
              percentile(99), times.back());
  std::fflush(stdout);
}
