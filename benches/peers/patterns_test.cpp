// The patterns of patterns.h on one rank, whose collectives are copies of its input; test_report.py runs it.
//
//   patterns_test FAULT PATTERNS SIZES ITERATIONS SECONDS LOOP
//
// FAULT is the collective that leaves its result unwritten, `start` for a request, `length N` for allreduces of N
// elements, or `none`.

#include "patterns.h"

namespace {

class Alone : public Peer {
 public:
  explicit Alone(std::string fault) : Peer(0, 1), fault_(std::move(fault)) {}

  void barrier() override {}
  void largest(std::vector<float> &) override {}

  Run prepare(const std::string &collective, float *in, float *out, size_t count) override {
    if (collective == fault_ || "length " + std::to_string(count) == fault_) {
      // The broadcast's is its input.
      const bool in_place = collective == "broadcast";
      return [=] { std::fill_n(out, in_place ? 1 : 0, 0.0f); };
    }
    if (collective == "broadcast" || collective == "barrier") return [] {};
    const size_t floats = collective == "reduce_float64" ? 2 * count : count;
    return [=] { std::copy_n(in, floats, out); };
  }

  Nonblocking nonblocking(float *in, float *out, size_t count, int) override {
    const bool starts = fault_ != "start";
    return {[=] { std::copy_n(in, starts ? count : 0, out); }, [] {}};
  }

 private:
  const std::string fault_;
};

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 2 + Request::ARGUMENTS) {
    std::fprintf(stderr, "usage: patterns_test FAULT %s\n", Request::USAGE);
    return 2;
  }
  Alone alone(argv[1]);
  measure(alone, Request::parse(argv + 2), "copy");
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
