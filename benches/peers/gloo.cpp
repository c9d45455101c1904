// Measures allreduce through Gloo's API on this host: one process per rank. build.sh compiles it twice, against
// Debian's libgloo (gloo_peer) and against the headers of gloo_rs (gloo_headers_peer), without a difference.
//
//   gloo_peer RANK SIZE FOLDER ALGORITHM allreduce SIZES ITERATIONS SECONDS LOOP
//   gloo_peer list
//
// `list` prints Gloo's algorithms, in both modes. `default` is AllreduceOptions without an algorithm: Gloo's ring, and
// what gloo_rs selects.

#include <map>

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
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include "harness.h"

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;
// Creates a run from the first buffer to the second, or in place in the second.
using Make = std::function<Run(const Context &, float *, float *, size_t)>;

struct Algorithm {
  Make make;
  bool in_place;
  bool busy;
};

Make options_style(gloo::AllreduceOptions::Algorithm algorithm) {
  return [algorithm](const Context &context, float *in, float *out, size_t count) {
    auto options = std::make_shared<gloo::AllreduceOptions>(context);
    options->setInput(in, count);
    options->setOutput(out, count);
    options->setAlgorithm(algorithm);
    using Function = void (*)(void *, const void *, const void *, size_t);
    options->setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    return Run([options] { gloo::allreduce(*options); });
  };
}

template <class Class>
Make class_style() {
  return [](const Context &context, float *, float *out, size_t count) {
    auto algorithm = std::make_shared<Class>(context, std::vector<float *>{out}, static_cast<int>(count));
    return Run([algorithm] { algorithm->run(); });
  };
}

std::map<std::string, Algorithm> algorithms() {
  using Options = gloo::AllreduceOptions::Algorithm;
  // Gloo's unbound buffers, which the options style uses, do not support the synchronous mode.
  std::map<std::string, Algorithm> all = {{"ring", {options_style(Options::RING), false, false}},
                                          {"bcube", {options_style(Options::BCUBE), false, false}},
                                          {"default", {options_style(Options::UNSPECIFIED), false, false}}};
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
Run make_barrier(const Context &context, bool busy) {
  if (busy) {
    auto barrier = std::make_shared<gloo::BarrierAllToAll>(context);
    return [barrier] { barrier->run(); };
  }
  return [context] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
}

class Gloo : public Peer {
 public:
  Gloo(int rank, int size, const std::string &folder, const Algorithm &algorithm)
      : Peer(rank, size), store_(folder), algorithm_(algorithm), context_(connect("measured")), control_(connect("control")) {
    if (algorithm.busy)
      for (int peer = 0; peer < size; ++peer)
        if (peer != rank) context_->getPair(peer)->setSync(true, true);
    barrier_ = make_barrier(context_, algorithm.busy);
  }

  void barrier() override { barrier_(); }

  void largest(std::vector<float> &numbers) override {
    gloo::AllreduceOptions options(control_);
    options.setOutput(numbers.data(), numbers.size());
    using Function = void (*)(void *, const void *, const void *, size_t);
    options.setReduceFunction(static_cast<Function>(&gloo::max<float>));
    gloo::allreduce(options);
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t count) override {
    if (collective != "allreduce") throw std::runtime_error("no " + collective);
    return algorithm_.make(context_, in, out, count);
  }

  bool in_place(const std::string &) const override { return algorithm_.in_place; }

  // Gloo gives up where a rank leaves while another is still in its last call.
  void leave() {
    const auto key = [](int of) { return "done-" + std::to_string(of); };
    store_.set(key(rank), {1});
    for (int other = 0; other < size; ++other) store_.wait({key(other)});
  }

 private:
  Context connect(const std::string &name) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    gloo::rendezvous::PrefixStore store(name, store_);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context->connectFullMesh(store, device);
    return context;
  }

  gloo::rendezvous::FileStore store_;
  const Algorithm &algorithm_;
  // A second context for the harness, since a synchronous one has no unbound buffers.
  Context context_, control_;
  Run barrier_;
};

}  // namespace

int main(int argc, char **argv) try {
  const auto known = algorithms();
  if (argc == 2 && std::string(argv[1]) == "list") {
    for (const auto &[name, algorithm] : known)
      if (name != "default") std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 5 + Request::ARGUMENTS || !known.count(argv[4])) {
    std::fprintf(stderr, "usage: gloo_peer RANK SIZE FOLDER ALGORITHM %s, or: gloo_peer list\n", Request::USAGE);
    return 2;
  }
  Gloo gloo(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], known.at(argv[4]));
  gloo.measure(Request::parse(argv + 5), argv[4]);
  gloo.leave();
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
