// Measures Gloo's allreduce over TCP on this host: one process per rank.
//
//   gloo_peer RANK SIZE FOLDER ALGORITHM BYTES ITERATIONS
//   gloo_peer list
//
// `list` prints the algorithms of Debian's libgloo, in both modes. Otherwise rank 0 prints one JSON object with the
// fields of `gloo-rs bench --json`. As there, an iteration's time is that of the slowest rank, after a barrier that is not
// timed.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>

#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "report.h"

namespace {

using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;
// Creates a run from the first buffer to the second, or in place in the second.
using Make = std::function<Run(const std::shared_ptr<gloo::Context> &, std::vector<float> &, std::vector<float> &)>;

struct Algorithm {
  Make make;
  bool in_place;
  bool busy;
};

Make options_style(gloo::AllreduceOptions::Algorithm algorithm) {
  return [algorithm](auto &context, auto &in, auto &out) {
    auto options = std::make_shared<gloo::AllreduceOptions>(context);
    options->setInput(in.data(), in.size());
    options->setOutput(out.data(), out.size());
    options->setAlgorithm(algorithm);
    using Function = void (*)(void *, const void *, const void *, size_t);
    options->setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    return Run([options] { gloo::allreduce(*options); });
  };
}

template <class Class>
Make class_style() {
  return [](auto &context, auto &, auto &out) {
    auto algorithm = std::make_shared<Class>(context, std::vector<float *>{out.data()}, static_cast<int>(out.size()));
    return Run([algorithm] { algorithm->run(); });
  };
}

std::map<std::string, Algorithm> algorithms() {
  using Options = gloo::AllreduceOptions::Algorithm;
  // Gloo's unbound buffers, which the options style uses, do not support the synchronous mode.
  std::map<std::string, Algorithm> all = {{"ring", {options_style(Options::RING), false, false}},
                                          {"bcube", {options_style(Options::BCUBE), false, false}}};
  const std::map<std::string, Make> classes = {
      {"class ring", class_style<gloo::AllreduceRing<float>>()},
      {"class bcube", class_style<gloo::AllreduceBcube<float>>()},
      {"halving_doubling", class_style<gloo::AllreduceHalvingDoubling<float>>()},
      {"ring_chunked", class_style<gloo::AllreduceRingChunked<float>>()},
  };
  for (const auto &[name, make] : classes) {
    all[name] = {make, true, false};
    all[name + ", busy-polling"] = {make, true, true};
  }
  return all;
}

// The barrier of the new style needs unbound buffers, which the synchronous mode lacks.
Run make_barrier(const std::shared_ptr<gloo::Context> &context, bool busy) {
  if (busy) {
    auto barrier = std::make_shared<gloo::BarrierAllToAll>(context);
    return [barrier] { barrier->run(); };
  }
  return [context] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
}

// Writes `times` to a file; it appears only when it is complete.
void leave(const std::string &path, const std::vector<float> &times) {
  const std::string part = path + ".part";
  FILE *file = std::fopen(part.c_str(), "wb");
  if (!file || std::fwrite(times.data(), sizeof(float), times.size(), file) != times.size() || std::fclose(file) ||
      std::rename(part.c_str(), path.c_str()))
    throw std::runtime_error("cannot write " + path);
}

// Waits for the file. The parent process ends this one if that takes too long.
FILE *wait_for(const std::string &path) {
  FILE *file;
  while (!(file = std::fopen(path.c_str(), "rb"))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return file;
}

// Replaces each of `times` by the maximum of it and the other rank's.
void take(const std::string &path, std::vector<float> &times) {
  std::vector<float> theirs(times.size());
  FILE *file = wait_for(path);
  if (std::fread(theirs.data(), sizeof(float), theirs.size(), file) != theirs.size())
    throw std::runtime_error("cannot read " + path);
  std::fclose(file);
  for (size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
}

}  // namespace

int main(int argc, char **argv) try {
  const auto known = algorithms();
  if (argc == 2 && std::string(argv[1]) == "list") {
    for (const auto &[name, algorithm] : known) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 7 || !known.count(argv[4])) {
    std::fprintf(stderr, "usage: gloo_peer RANK SIZE FOLDER ALGORITHM BYTES ITERATIONS, or: gloo_peer list\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]), iterations = std::atoi(argv[6]);
  const std::string folder = argv[3];
  const Algorithm &algorithm = known.at(argv[4]);
  const size_t bytes = std::strtoull(argv[5], nullptr, 10), count = bytes / sizeof(float);
  const int warmup = warmup_of(iterations);

  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  if (algorithm.busy)
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) context->getPair(peer)->setSync(true, true);

  std::vector<float> in(count), out(count), times;
  for (size_t i = 0; i < count; ++i) in[i] = out[i] = element(i, rank);
  const Run run = algorithm.make(context, in, out);
  const Run barrier = make_barrier(context, algorithm.busy);
  for (int i = 0; i < iterations + warmup; ++i) {
    if (algorithm.in_place) std::copy(in.begin(), in.end(), out.begin());
    barrier();
    const auto start = Clock::now();
    run();
    const std::chrono::duration<float, std::micro> took = Clock::now() - start;
    if (i >= warmup) times.push_back(took.count());
  }
  if (!is_sum(out, size)) throw std::runtime_error("wrong sums");
  // Through files, since Gloo gives up where a rank leaves while another is still in its last call.
  const auto path = [&](int of) { return folder + "/times-" + std::to_string(of); };
  leave(path(rank), times);
  for (int other = 0; other < size; ++other) take(path(other), times);
  if (rank == 0) report("gloo-tcp", argv[4], size, bytes, times);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
