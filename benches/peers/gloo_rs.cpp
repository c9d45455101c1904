// Measures gloo_rs as the other programs here measure theirs: one process per rank, started by `gloo-rs run`, whose
// plain calls of the C ABI come from the installed package.
//
//   gloo-rs run -n RANKS -- gloo_rs_peer COLLECTIVE SIZES ITERATIONS SECONDS LOOP

#include <gloo_rs.h>

#include "patterns.h"

namespace {

void check(gloo_rs_status_t status) {
  if (status != GLOO_RS_OK) throw std::runtime_error(gloo_rs_last_error_message());
}

// What `gloo-rs run` has started.
struct Job {
  gloo_rs_store_t *store = nullptr;
  gloo_rs_device_t *device = nullptr;
  gloo_rs_context_t *context = nullptr;
  int32_t rank = 0, size = 0;

  Job() {
    check(gloo_rs_launch_from_env(GLOO_RS_TIMEOUT_DEFAULT, &store, &rank, &size));
    check(gloo_rs_device_create(nullptr, &device));
    check(gloo_rs_context_create(device, rank, size, nullptr, &context));
    check(gloo_rs_context_connect(context, store));
  }
  Job(const Job &) = delete;
  Job &operator=(const Job &) = delete;
  ~Job() {
    gloo_rs_context_destroy(context);
    gloo_rs_device_destroy(device);
    gloo_rs_store_destroy(store);
  }
};

class GlooRs : public Peer {
 public:
  explicit GlooRs(const Job &job) : Peer(job.rank, job.size), context_(job.context) {}

  void barrier() override { check(gloo_rs_barrier(context_)); }

  void largest(std::vector<float> &numbers) override {
    check(gloo_rs_allreduce(context_, nullptr, numbers.data(), numbers.size(), GLOO_RS_FLOAT32, GLOO_RS_MAX));
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t n) override {
    const auto context = context_;
    constexpr auto type = GLOO_RS_FLOAT32;
    if (collective == "allreduce") return [=] { check(gloo_rs_allreduce(context, in, out, n, type, GLOO_RS_SUM)); };
    if (collective == "reduce_scatter")
      return [=] { check(gloo_rs_reduce_scatter(context, in, out, n, type, GLOO_RS_SUM)); };
    if (collective == "allgather") return [=] { check(gloo_rs_allgather(context, in, out, n, type)); };
    if (collective == "alltoall") return [=] { check(gloo_rs_alltoall(context, in, out, n, type)); };
    if (collective == "broadcast") return [=] { check(gloo_rs_broadcast(context, out, n, type, 0)); };
    if (collective == "barrier") return [=] { check(gloo_rs_barrier(context)); };
    if (collective == "reduce") return [=] { check(gloo_rs_reduce(context, in, out, n, type, GLOO_RS_SUM, 0)); };
    if (collective == "reduce_float64")
      return [=] { check(gloo_rs_reduce(context, in, out, n, GLOO_RS_FLOAT64, GLOO_RS_SUM, 0)); };
    throw std::runtime_error("no " + collective);
  }

  // A persistent request.
  Nonblocking nonblocking(float *in, float *out, size_t n, int tag) override {
    const void *inputs[] = {in};
    void *outputs[] = {out};
    gloo_rs_collective_options_t options;
    gloo_rs_collective_options_init(&options, sizeof options);
    options.data_type = GLOO_RS_FLOAT32;
    options.inputs = inputs;
    options.outputs = outputs;
    options.num_inputs = options.num_outputs = 1;
    options.count = n;
    options.tag = static_cast<uint64_t>(tag);
    gloo_rs_request_t *made = nullptr;
    check(gloo_rs_collective_prepare(context_, GLOO_RS_ALLREDUCE, &options, &made));
    const std::shared_ptr<gloo_rs_request_t> request(made, gloo_rs_request_free);
    return {[=] { check(gloo_rs_start(request.get())); }, [=] { check(gloo_rs_wait(request.get())); }};
  }

 private:
  gloo_rs_context_t *context_;
};

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 1 + Request::ARGUMENTS) {
    std::fprintf(stderr, "usage: gloo_rs_peer %s\n", Request::USAGE);
    return 2;
  }
  const Job job;
  GlooRs gloo_rs(job);
  measure(gloo_rs, Request::parse(argv + 1), "auto");
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
