// The training of main.cpp, by processes that are killed and replaced all the time. One process starts the others, kills one of
// them every so often, starts up to two new ones, and announces in a store who is to go on. The others give their context this
// membership by gloo_rs_context_reconfigure: those that are left keep it, and the weights; new ones join with a context
// without members, and get the weights. A step has the same sum however many ranks share it, so the result is that of one process.
//
//   digits_elastic digits.csv [MILLISECONDS]     between two kills; 1000 by default
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <gloo_rs.hpp>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "data.hpp"
#include "model.hpp"

extern char **environ;

namespace {

constexpr int kEpochs = 40;
constexpr size_t kBatch = 64;  // digits in one step, summed over all ranks
constexpr float kLearningRate = 1.0f;
constexpr double kWantedAccuracy = 0.95;
constexpr size_t kLeast = 2, kMost = 5;              // processes
constexpr int kKills = 20;
constexpr int64_t kTimeout = 10000, kPatience = 60000;  // in ms: for a call, and for who starts the processes
constexpr std::chrono::milliseconds kPause{2};          // in place of the work of a larger network

std::string key(const std::string &what, int64_t round, int64_t process = -1) {
  return what + "/" + std::to_string(round) + (process < 0 ? "" : "/" + std::to_string(process));
}

std::vector<int64_t> numbers_in(const std::string &text) {
  std::istringstream list(text);
  std::vector<int64_t> numbers;
  for (int64_t number; list >> number;) numbers.push_back(number);
  return numbers;
}

class Training {
 public:
  explicit Training(const std::string &path) : digits_(read_digits(path)), order_(digits_.train.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    model_.initialize(1);
  }

  bool is_over() const { return step_ == kEpochs * steps_per_epoch(); }

  // All ranks go on from the weights of those that have made the most steps.
  void meet(gloo_rs::Context &context) {
    int64_t most = static_cast<int64_t>(step_);
    context.allreduce(&most, 1, GLOO_RS_MAX);
    int32_t root = static_cast<int64_t>(step_) == most ? context.rank() : context.size();
    context.allreduce(&root, 1, GLOO_RS_MIN);
    std::vector<float> weights = model_.weights;
    context.broadcast(weights.data(), weights.size(), root);
    model_.weights = weights;
    step_ = static_cast<size_t>(most);
  }

  void step(gloo_rs::Context &context) {
    const size_t start = step_ % steps_per_epoch() * kBatch, batch = std::min(kBatch, order_.size() - start);
    const auto rank = static_cast<size_t>(context.rank()), size = static_cast<size_t>(context.size());
    shuffle_for(step_ / steps_per_epoch());
    std::vector<float> gradient(model_.weights.size());
    for (size_t i = batch * rank / size; i < batch * (rank + 1) / size; ++i) {
      model_.add_gradient(digits_.train[order_[start + i]], gradient);
    }
    std::this_thread::sleep_for(kPause);
    context.allreduce(gradient.data(), gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i) model_.weights[i] -= kLearningRate / static_cast<float>(batch) * gradient[i];
    ++step_;
  }

  // Prints the result of process `own`. Returns whether it is good enough.
  bool report(int64_t own) const {
    double loss = 0, correct = 0;
    for (const Digit &digit : digits_.train) loss += model_.evaluate(digit).loss;
    for (const Digit &digit : digits_.held_out) correct += model_.evaluate(digit).correct;
    const double accuracy = correct / static_cast<double>(digits_.held_out.size());
    std::printf("process %d: held-out accuracy %.1f %%, final loss %.9f\n", static_cast<int>(own), 100 * accuracy,
                loss / static_cast<double>(digits_.train.size()));
    return accuracy > kWantedAccuracy;
  }

 private:
  size_t steps_per_epoch() const { return (order_.size() + kBatch - 1) / kBatch; }

  // The order of an epoch follows from that of the one before it.
  void shuffle_for(size_t epoch) {
    for (; shuffled_ <= epoch; ++shuffled_) {
      for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random_() % (i + 1)]);
    }
  }

  Digits digits_;
  Model model_;
  size_t step_ = 0;
  std::vector<size_t> order_;
  std::mt19937 random_{2};
  size_t shuffled_ = 0;
};

// What a process does that trains: it follows the memberships that are announced from `round` on.
int work(const std::string &path, uint16_t port, int64_t own, int64_t round) {
  Training training(path);
  auto store = gloo_rs::Store::create_tcp("127.0.0.1", port, false);
  auto options = gloo_rs::defaults(gloo_rs_context_options_init);
  options.timeout_ms = kTimeout;
  auto context = gloo_rs::Context::create_without_members(gloo_rs::Device::create(), &options);
  for (; !training.is_over(); ++round) {
    std::vector<std::string> handles;
    const std::vector<int64_t> members = numbers_in(store.value(key("members", round), kPatience));
    store.set(key("handle", round, own), context.handle());
    try {
      for (const int64_t member : members) handles.push_back(store.value(key("handle", round, member), kTimeout));
      context.reconfigure(store, round, handles);
      if (context.rank() == 0) store.set(key("formed", round), "");
      training.meet(context);
      while (!training.is_over()) training.step(context);
    } catch (const gloo_rs::Error &error) {
      // One of the others was killed: there will be another membership.
      if (error.status() != GLOO_RS_ERROR_CONNECTION_LOST && error.status() != GLOO_RS_ERROR_TIMEOUT &&
          error.status() != GLOO_RS_ERROR_ABORTED) {
        throw;
      }
    }
  }
  return training.report(own) ? 0 : 1;
}

struct Process {
  int64_t number;
  pid_t id;
};

Process start(char *program, const std::string &path, uint16_t port, int64_t number, int64_t round) {
  std::string texts[] = {path, std::to_string(port), std::to_string(number), std::to_string(round)};
  char *arguments[] = {program, texts[0].data(), texts[1].data(), texts[2].data(), texts[3].data(), nullptr};
  Process process{number, 0};
  if (posix_spawn(&process.id, program, nullptr, nullptr, arguments, environ) != 0) throw std::runtime_error("cannot start a process");
  return process;
}

// Starts the processes, and kills some of them, until all that live have ended. Returns whether all these ended well.
bool lead(char *program, const std::string &path, std::chrono::milliseconds interval) {
  auto store = gloo_rs::Store::create_tcp("127.0.0.1", 0, true);
  std::vector<Process> processes;
  std::mt19937 random(3);
  int64_t started = 0, round = 0;
  int killed = 0;
  bool is_ending = false, good = true;
  const auto add = [&] { processes.push_back(start(program, path, store.port(), started++, round)); };
  for (int i = 0; i < 4; ++i) add();
  for (; !processes.empty(); ++round) {
    std::string members;
    for (const Process &process : processes) members += std::to_string(process.number) + " ";
    store.set(key("members", round), members);
    if (!is_ending) std::printf("round %d: processes %s\n", static_cast<int>(round), members.c_str());
    std::fflush(stdout);
    try {
      (void)store.value(key("formed", round), is_ending ? 100 : kTimeout);
    } catch (const gloo_rs::Error &) {
      // They try again in the next round.
    }
    for (bool goes_on = true; goes_on;) {
      std::this_thread::sleep_for(is_ending ? std::chrono::milliseconds(20) : interval);
      std::vector<Process> living;
      for (const Process &process : processes) {
        int status = 0;
        if (waitpid(process.id, &status, WNOHANG) == 0) {
          living.push_back(process);
        } else {
          is_ending = true;
          good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
      }
      // Those that have not ended yet may need a membership without those that have.
      goes_on = living.size() == processes.size() && (is_ending || killed == kKills);
      processes = living;
    }
    if (is_ending) continue;
    const size_t victim = random() % processes.size();
    kill(processes[victim].id, SIGKILL);
    waitpid(processes[victim].id, nullptr, 0);
    processes.erase(processes.begin() + static_cast<std::ptrdiff_t>(victim));
    ++killed;
    // The new ones wait for the next round.
    const size_t wanted = std::clamp(processes.size() + random() % 3, kLeast, kMost);
    ++round;
    while (processes.size() < wanted) add();
    --round;
  }
  std::printf("%d processes were killed, %d were started\n", killed, static_cast<int>(started));
  return good && killed > 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    if (argc == 5) return work(argv[1], static_cast<uint16_t>(std::stoi(argv[2])), std::stoll(argv[3]), std::stoll(argv[4]));
    if (argc == 2 || argc == 3) return lead(argv[0], argv[1], std::chrono::milliseconds(argc == 3 ? std::stoi(argv[2]) : 1000)) ? 0 : 1;
    std::fprintf(stderr, "usage: digits_elastic FILE.csv [MILLISECONDS]\n");
    return 2;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "digits_elastic: %s\n", error.what());
    return 1;
  }
}
