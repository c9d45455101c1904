// A rank dies, and the others go on with a replacement. Each rank is a process that does the work and one that starts
// it again if it is killed, as the agents of launchers do. The others get an error that names the lost rank, destroy
// the context, and connect a new one, over the same store under a new prefix, with the replacement. It gets the state
// from a rank that has it.
//
//   gloo-rs run -n 4 -- elastic
//
// docs/recovery.md says more about lost ranks, and goes on with fewer. The store must outlive every rank but those that
// die: that of `gloo-rs run` does if rank 0 lives. The last rank kills itself in the middle. Every rank checks its
// state at the end.
#include <gloo_rs.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

constexpr int64_t kSteps = 1000, kFatalStep = 500;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

struct State {
  int64_t step;
  double value;
};

// A collective may have succeeded on some ranks and failed on others. Since a step needs all ranks, they are at most
// one step apart: each keeps the state before its last step, and all take the earliest one.
struct States {
  State now{kNone, 0}, before{kNone, 0};

  void agree(gloo_rs::Context &context, int32_t rank, int32_t size) {
    int64_t earliest = now.step;
    context.allreduce(&earliest, 1, GLOO_RS_MIN);
    if (earliest == kNone) now = {0, 0};  // the job begins
    else if (now.step != kNone && now.step > earliest) now = before;
    // The replacement takes the state of the first rank that has one.
    int32_t root = now.step != kNone ? rank : size;
    context.allreduce(&root, 1, GLOO_RS_MIN);
    context.broadcast(&now.step, 1, root);
    context.broadcast(&now.value, 1, root);
    before = now;
  }

  void step(gloo_rs::Context &context, int32_t rank) {
    double sum = static_cast<double>(rank + 1) * static_cast<double>(now.step);
    context.allreduce(&sum, 1);
    before = now;
    now = {now.step + 1, now.value + sum};
  }
};

std::string variable(const char *name) {
  const char *value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: start this by gloo-rs run");
  return value;
}

int work() {
  // The store is not that of launch_from_env, which lets every rank start once.
  const int32_t rank = std::stoi(variable("RANK")), size = std::stoi(variable("WORLD_SIZE"));
  auto store = gloo_rs::Store::create_url(variable("GLOO_RS_STORE"), rank);
  auto device = gloo_rs::Device::create();

  // The attempt that all ranks take part in is the last that a replacement has announced.
  const bool is_replacement = store.add("starts/" + std::to_string(rank), 1) > 1;
  int64_t attempt = is_replacement ? store.add("attempt", 1) : 0;
  if (is_replacement) store.set("announced/" + std::to_string(attempt), "");

  States states;
  while (states.now.step == kNone || states.now.step < kSteps) {
    auto context = gloo_rs::Context::create(device, rank, size);
    try {
      context.connect(gloo_rs::Store::create_prefix("attempt/" + std::to_string(attempt), store));
      states.agree(context, rank, size);
      while (states.now.step < kSteps) {
        if (rank == size - 1 && states.now.step == kFatalStep && !is_replacement) std::raise(SIGKILL);
        states.step(context, rank);
      }
      context.barrier();  // nobody leaves while another is in its last step
    } catch (const gloo_rs::Error &error) {
      if (error.rank() < 0 || error.rank() == rank) throw;
      std::printf("rank %d: lost rank %d in %s\n", rank, error.rank(), error.operation().c_str());
      context.reset();  // its memory and descriptors, before the next one
      ++attempt;
      (void)store.value("announced/" + std::to_string(attempt));
    }
  }

  const double sum_of_ranks = size * (size + 1) / 2, expected = sum_of_ranks * static_cast<double>(kSteps * (kSteps - 1) / 2);
  std::printf("rank %d of %d: %g after %d steps%s\n", rank, size, states.now.value, static_cast<int>(states.now.step),
              is_replacement ? ", as a replacement" : "");
  return states.now.value == expected && attempt == 1 ? 0 : 1;
}

// A process that does the work; how it ended.
int start() {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    int status = 1;
    try {
      status = work();
    } catch (const std::exception &error) {
      std::fprintf(stderr, "elastic: %s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main() try {
  int status = start();
  if (WIFSIGNALED(status)) status = start();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "elastic: %s\n", error.what());
  return 1;
}
