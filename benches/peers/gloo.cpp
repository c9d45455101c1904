// Times Gloo's allreduce over TCP on this host: one process is one rank.
//
//   gloo_peer RANK SIZE FOLDER BYTES[,BYTES...] ITERATIONS
//
// Every algorithm and mode that Debian's libgloo has runs in turn. Rank 0 prints one JSON object a line, with the names and
// the measure of `gloo-rs bench --json`: an iteration's time is that of the slowest rank, after a barrier that is not timed.
// The synchronous busy-polling mode has no barrier, which is in its favour.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

namespace {

using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;
// Makes a run over `count` elements, in place where the algorithm is.
using Make = std::function<Run(const std::shared_ptr<gloo::Context> &, std::vector<float> &, std::vector<float> &)>;

Run options_style(const std::shared_ptr<gloo::Context> &context, std::vector<float> &in, std::vector<float> &out,
                  gloo::AllreduceOptions::Algorithm algorithm) {
  auto options = std::make_shared<gloo::AllreduceOptions>(context);
  options->setInput(in.data(), in.size());
  options->setOutput(out.data(), out.size());
  options->setAlgorithm(algorithm);
  using Function = void (*)(void *, const void *, const void *, size_t);
  options->setReduceFunction(static_cast<Function>(&gloo::sum<float>));
  return [options] { gloo::allreduce(*options); };
}

template <class Algorithm>
Run class_style(const std::shared_ptr<gloo::Context> &context, std::vector<float> &, std::vector<float> &out) {
  auto algorithm = std::make_shared<Algorithm>(context, std::vector<float *>{out.data()}, static_cast<int>(out.size()));
  return [algorithm] { algorithm->run(); };
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 6) {
    std::cerr << "usage: gloo_peer RANK SIZE FOLDER BYTES[,BYTES...] ITERATIONS\n";
    return 2;
  }
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]), iterations = std::atoi(argv[5]);
  std::vector<size_t> sizes;
  std::stringstream list(argv[4]);
  for (std::string item; std::getline(list, item, ',');) sizes.push_back(std::strtoull(item.c_str(), nullptr, 10));

  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);

  using Options = gloo::AllreduceOptions::Algorithm;
  const std::vector<std::pair<std::string, Make>> algorithms = {
      {"ring", [](auto &c, auto &in, auto &out) { return options_style(c, in, out, Options::RING); }},
      {"bcube", [](auto &c, auto &in, auto &out) { return options_style(c, in, out, Options::BCUBE); }},
      {"halving_doubling", class_style<gloo::AllreduceHalvingDoubling<float>>},
      {"ring_chunked", class_style<gloo::AllreduceRingChunked<float>>},
  };
  std::vector<std::shared_ptr<gloo::rendezvous::Context>> contexts;
  for (const bool busy : {false, true}) {
    auto context = contexts.emplace_back(std::make_shared<gloo::rendezvous::Context>(rank, size));
    gloo::rendezvous::PrefixStore prefix(busy ? "busy" : "async", store);
    context->connectFullMesh(prefix, device);
    for (const auto &[name, make] : algorithms) {
      const bool by_pairs = name == "halving_doubling" || name == "ring_chunked";
      // Gloo's unbound buffers, which the options style uses, refuse the synchronous mode.
      if (busy != by_pairs && busy) continue;
      if (busy)
        for (int peer = 0; peer < size; ++peer)
          if (peer != rank) context->getPair(peer)->setSync(true, true);
      for (const size_t bytes : sizes) {
        // In the synchronous mode both sides write before they read: what exceeds the sockets' buffers ends in a timeout.
        if (busy && bytes > (size_t{8} << 20)) continue;
        const size_t count = bytes / sizeof(float);
        std::vector<float> in(count), out(count);
        for (size_t i = 0; i < count; ++i) in[i] = out[i] = static_cast<float>(i % 1000) + static_cast<float>(rank) + 0.5f;
        auto run = make(context, in, out);
        const int warmup = iterations / 5 + 2;
        std::vector<float> times;
        for (int i = 0; i < iterations + warmup; ++i) {
          if (by_pairs) std::copy(in.begin(), in.end(), out.begin());
          // Gloo's barrier needs unbound buffers, which the synchronous mode lacks: there the ranks run back to back.
          if (!busy) {
            gloo::BarrierOptions barrier(context);
            gloo::barrier(barrier);
          }
          const auto start = Clock::now();
          run();
          const std::chrono::duration<float, std::micro> took = Clock::now() - start;
          if (i >= warmup) times.push_back(took.count());
        }
        for (size_t i = 0; i < count; i += 97) {
          float expected = 0;
          for (int r = 0; r < size; ++r) expected += static_cast<float>(i % 1000) + static_cast<float>(r) + 0.5f;
          if (out[i] != expected) {
            std::cerr << name << ": element " << i << " is " << out[i] << ", not " << expected << '\n';
            return 1;
          }
        }
        // The slowest rank's time of each iteration, by the files that the ranks leave.
        const std::string base = std::string(argv[3]) + "/times-" + (busy ? "busy-" : "async-") + name + "-" +
                                 std::to_string(bytes) + "-";
        if (FILE *file = std::fopen((base + std::to_string(rank)).c_str(), "wb")) {
          std::fwrite(times.data(), sizeof(float), times.size(), file);
          std::fclose(file);
        }
        run();  // everyone has written
        if (rank != 0) continue;
        for (int r = 1; r < size; ++r) {
          std::vector<float> theirs(times.size());
          FILE *file = std::fopen((base + std::to_string(r)).c_str(), "rb");
          if (!file || std::fread(theirs.data(), sizeof(float), theirs.size(), file) != theirs.size()) return 1;
          std::fclose(file);
          for (size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
        }
        std::sort(times.begin(), times.end());
        std::printf("{\"collective\":\"allreduce\",\"algorithm\":\"%s%s\",\"transport\":\"gloo-tcp\",\"ranks\":%d,"
                    "\"bytes\":%zu,\"iterations\":%d,\"min_us\":%.2f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"max_us\":%.2f}\n",
                    name.c_str(), busy ? " (busy-polling)" : "", size, bytes, iterations, times.front(),
                    times[times.size() / 2], times[times.size() * 99 / 100], times.back());
        std::fflush(stdout);
      }
    }
  }
  // Nobody leaves while others still read.
  gloo::BarrierOptions last(contexts.front());
  gloo::barrier(last);
} catch (const std::exception &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
