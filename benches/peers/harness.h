// Shared by these programs: data, verification, timing, and lines of JSON with the fields of `gloo-rs bench --json`.
//
// An iteration's time is that of the slowest rank, as in `gloo-rs bench`, after a barrier that is not timed; with LOOP
// = 1, calls in a row without a barrier between them are timed too. Results are verified before and after.
//
// The ranks leave an implementation's barrier one after the other, and some in an order that suits the next call: if
// the root of a broadcast leaves first, it has written before its readers' clocks start. So if HARNESS_START names a
// file of zeros, of a page at least, then after that barrier the ranks meet once more, in the same way for all
// implementations, by mapping the file.

#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;

// What the command line says: COLLECTIVE SIZES ITERATIONS SECONDS LOOP. Sizes are those of a rank's larger buffer in
// bytes, separated by commas; each is measured with as many calls as SECONDS allow, at most ITERATIONS.
struct Request {
  std::string collective;
  std::vector<size_t> sizes;
  int iterations;
  double seconds;
  bool loop;

  static constexpr const char *USAGE = "COLLECTIVE SIZES ITERATIONS SECONDS LOOP";
  static constexpr int ARGUMENTS = 5;

  static Request parse(char **arguments) {
    Request request{arguments[0], {}, std::atoi(arguments[2]), std::atof(arguments[3]), std::atoi(arguments[4]) != 0};
    std::stringstream sizes(arguments[1]);
    for (std::string size; std::getline(sizes, size, ',');) request.sizes.push_back(std::strtoull(size.c_str(), nullptr, 10));
    return request;
  }
};

inline float microseconds(Clock::duration time) { return std::chrono::duration<float, std::micro>(time).count(); }

// The smallest time that this percentage of the sorted times does not exceed.
inline float percentile(const std::vector<float> &sorted, size_t percent) {
  return sorted[std::max<size_t>((sorted.size() * percent + 99) / 100, 1) - 1];
}

// `times`: the slowest rank's time of each iteration, in microseconds; `loops`: of a call in each loop, or empty;
// `beside`: what a pattern of patterns.h is compared with, or empty.
inline void report(const std::string &collective, const std::string &algorithm, int ranks, size_t bytes,
                   std::vector<float> times, std::vector<float> loops, std::vector<float> beside = {}) {
  const auto median = [](std::vector<float> &numbers) {
    std::sort(numbers.begin(), numbers.end());
    char text[32] = "null";
    if (!numbers.empty()) std::snprintf(text, sizeof text, "%.4f", percentile(numbers, 50));
    return std::string(text);
  };
  std::sort(times.begin(), times.end());
  std::printf("{\"collective\":\"%s\",\"algorithm\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"iterations\":%zu,"
              "\"min_us\":%.3f,\"p50_us\":%.3f,\"p99_us\":%.3f,\"max_us\":%.3f,\"loop_us\":%s,\"beside_us\":%s}\n",
              collective.c_str(), algorithm.c_str(), ranks, bytes, times.size(), times.front(), percentile(times, 50),
              percentile(times, 99), times.back(), median(loops).c_str(), median(beside).c_str());
  std::fflush(stdout);
}

// Element `i` of a rank's input. Sums of these are exact, over hundreds of ranks.
inline float element(size_t i, int rank) { return static_cast<float>(i % 1000) + static_cast<float>(rank) + 0.5f; }

// Memory aligned to a cache line, all of it written.
class Buffer {
 public:
  explicit Buffer(size_t count)
      : count_(count), data_(static_cast<float *>(std::aligned_alloc(64, (count * sizeof(float) + 64) / 64 * 64))) {
    if (!data_) throw std::runtime_error("no memory");
    fill(std::numeric_limits<float>::quiet_NaN());
  }
  void fill(float value) { std::fill_n(data(), count_, value); }
  float *data() { return data_.get(); }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(void *memory) const { std::free(memory); }
  };
  size_t count_;
  std::unique_ptr<float, Free> data_;
};

// Whether ranks must share cores.
inline bool share_cores(int ranks) { return static_cast<unsigned>(ranks) > std::thread::hardware_concurrency(); }

// Where ranks meet before their clocks start. Without HARNESS_START they do not.
class Start {
 public:
  explicit Start(int ranks) : ranks_(ranks), share_cores_(share_cores(ranks)) {
    const char *path = std::getenv("HARNESS_START");
    if (!path) return;
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void *memory = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) throw std::runtime_error(std::string("cannot map ") + path);
    memory_ = static_cast<Memory *>(memory);
  }
  Start(const Start &) = delete;
  Start &operator=(const Start &) = delete;
  ~Start() {
    if (memory_) munmap(memory_, sizeof(Memory));
  }

  // When this rank's clock starts. If each rank has a core, they leave at a time that the last one sets; else as the
  // system runs them: they meet twice then, so that the order in which they left the implementation's barrier does not
  // matter.
  Clock::time_point wait() {
    if (!memory_) return Clock::now();
    meet();
    if (share_cores_) {
      meet();
      return Clock::now();
    }
    const Clock::time_point start{Clock::duration(memory_->start.load(std::memory_order_relaxed))};
    Clock::time_point now;
    do now = Clock::now();
    while (now < start);
    return now;
  }

 private:
  // More than a cache line takes to all ranks.
  static constexpr auto LEAD = std::chrono::microseconds(1);

  struct Memory {
    alignas(64) std::atomic<unsigned> arrived;
    alignas(64) std::atomic<unsigned> released;
    std::atomic<Clock::rep> start;
  };

  void meet() {
    const unsigned meeting = ++meetings_;
    if (memory_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == meeting * ranks_) {
      memory_->start.store((Clock::now() + LEAD).time_since_epoch().count(), std::memory_order_relaxed);
      memory_->released.store(meeting, std::memory_order_release);
    }
    while (static_cast<int>(memory_->released.load(std::memory_order_acquire) - meeting) < 0)
      if (share_cores_) sched_yield();
  }

  const unsigned ranks_;
  const bool share_cores_;
  Memory *memory_ = nullptr;
  unsigned meetings_ = 0;
};

// A call that runs until it is waited for.
struct Nonblocking {
  Run start, wait;
};

// One rank's use of an implementation.
class Peer {
 public:
  Peer(int rank, int size) : rank(rank), size(size), start_(size) {}
  virtual ~Peer() = default;

  virtual void barrier() = 0;
  // Replaces each number by the maximum over all ranks.
  virtual void largest(std::vector<float> &numbers) = 0;
  // The call to measure. `count` is the number of elements that each rank contributes for each rank (reduce_scatter,
  // allgather, alltoall), or of the whole buffer. A broadcast is in place in `out`, from rank 0; a reduce is to rank 0,
  // and a reduce_float64 has elements of that type. May read `in` and write `out`.
  virtual Run prepare(const std::string &collective, float *in, float *out, size_t count) = 0;
  // An allreduce that runs beside others, each with a tag of its own. All ranks start them in the same order.
  virtual Nonblocking nonblocking(float *, float *, size_t, int) { throw std::runtime_error("no requests"); }
  // Whether the prepared call takes its input from `out`, besides a broadcast: then it is put there before each call.
  virtual bool in_place(const std::string &) const { return false; }
  // Element `i` of the result; `count` as above.
  virtual float expected(const std::string &collective, size_t i, size_t count) const {
    const size_t own = static_cast<size_t>(rank) * count;
    if (collective == "broadcast") return element(i, 0);
    if (collective == "allgather") return element(i % count, static_cast<int>(i / count));
    if (collective == "alltoall") return element(own + i % count, static_cast<int>(i / count));
    float sum = 0;
    for (int from = 0; from < size; ++from) sum += element(collective == "reduce_scatter" ? own + i : i, from);
    return sum;
  }

  void measure(const Request &request, const std::string &algorithm) {
    settle();
    for (size_t bytes : request.sizes) measure(request, algorithm, bytes);
  }

  // Time of a call, as the average of so many in a row after a barrier.
  float time(const Run &run, int calls) {
    const auto start = together();
    for (int call = 0; call < calls; ++call) run();
    return microseconds(Clock::now() - start) / static_cast<float>(calls);
  }

  // When this rank's clock starts, after a barrier.
  Clock::time_point together() {
    barrier();
    return start_.wait();
  }

  // With more ranks than cores, the system needs some tenths of a second of load until it has spread the ranks over the
  // cores.
  void settle() {
    if (!share_cores(size)) return;
    const auto start = Clock::now();
    for (std::vector<float> elapsed{0}; elapsed[0] < 300e3f; largest(elapsed)) {
      for (int call = 0; call < 100; ++call) barrier();
      elapsed[0] = microseconds(Clock::now() - start);
    }
  }

  // Lets one rank after the other arrive late: none may leave before. All clocks start before the late rank sleeps.
  void verify_barrier(const Run &run) {
    constexpr auto LATE = std::chrono::milliseconds(10);
    for (int late = 0; late < size; ++late) {
      const auto start = Clock::now();
      barrier();
      if (rank == late) std::this_thread::sleep_for(LATE);
      run();
      if (Clock::now() - start < LATE) throw std::runtime_error("a barrier that waits for nobody");
    }
  }

  const int rank, size;

 private:
  static constexpr int MIN_CALLS = 5, LOOPS = 10;

  void measure(const Request &request, const std::string &algorithm, size_t bytes);

  Start start_;
};

// A collective's call on buffers of its own.
class Call {
 public:
  // `count` as in Peer::prepare.
  Call(Peer &peer, const std::string &collective, size_t count)
      : peer_(peer), collective_(collective), count_(count), in_(inputs()), out_(outputs()) {
    const bool broadcast = collective == "broadcast";
    Buffer &input = broadcast ? out_ : in_;
    for (size_t i = 0; i < (broadcast && peer.rank != 0 ? 0 : input.size()); ++i) input.data()[i] = element(i, peer.rank);
    if (wide())
      for (size_t i = 0; i < count; ++i) reinterpret_cast<double *>(input.data())[i] = element(i, peer.rank);
    run_ = peer.prepare(collective, in_.data(), out_.data(), count);
  }

  void operator()() const { run_(); }
  const Run &run() const { return run_; }
  Buffer &in() { return in_; }
  Buffer &out() { return out_; }
  // The length of the larger of both buffers.
  size_t bytes() const { return std::max(in_.size(), out_.size()) * sizeof(float); }

  // Runs it so that what it leaves unwritten is seen, and checks the result.
  void prove() {
    if (collective_ == "barrier") return peer_.verify_barrier(run_);
    if (collective_ != "broadcast" || peer_.rank != 0) out_.fill(std::numeric_limits<float>::quiet_NaN());
    if (peer_.in_place(collective_)) std::copy_n(in_.data(), in_.size(), out_.data());
    run_();
    verify();
  }

  // Checks every 97th element, and the last; of the first so many, if that is given.
  void verify(size_t first = std::numeric_limits<size_t>::max()) {
    const size_t length = std::min(out_.size() / (wide() ? 2 : 1), first);
    if (!has_result()) return;
    for (size_t i = 0; i < length; i = i + 97 < length || i + 1 == length ? i + 97 : length - 1)
      if ((wide() ? reinterpret_cast<double *>(out_.data())[i] : out_.data()[i]) != peer_.expected(collective_, i, count_))
        throw std::runtime_error("wrong result of " + collective_ + " at element " + std::to_string(i) + " on rank " +
                                 std::to_string(peer_.rank));
  }

 private:
  bool wide() const { return collective_ == "reduce_float64"; }
  bool has_result() const { return collective_.rfind("reduce", 0) != 0 || collective_ == "reduce_scatter" || peer_.rank == 0; }
  // Elements of a buffer that has one block for each rank, where the collective has such, else of a whole one.
  size_t whole() const {
    const bool blocks = collective_ == "reduce_scatter" || collective_ == "allgather" || collective_ == "alltoall";
    return blocks ? count_ * static_cast<size_t>(peer_.size) : wide() ? 2 * count_ : count_;
  }
  size_t inputs() const { return collective_ == "allgather" ? count_ : collective_ == "broadcast" ? 0 : whole(); }
  size_t outputs() const { return collective_ == "reduce_scatter" ? count_ : whole(); }

  Peer &peer_;
  const std::string collective_;
  const size_t count_;
  Buffer in_, out_;
  Run run_;
};

inline void Peer::measure(const Request &request, const std::string &algorithm, size_t bytes) {
  const std::string &collective = request.collective;
  const bool blocks = collective == "reduce_scatter" || collective == "allgather" || collective == "alltoall";
  const size_t elements = bytes / sizeof(float);
  const size_t count = collective == "barrier" ? 0 : std::max<size_t>(blocks ? elements / static_cast<size_t>(size) : elements, 1);
  Call call(*this, collective, count);
  const auto timed = [&] {
    if (in_place(collective)) std::copy_n(call.in().data(), call.in().size(), call.out().data());
    return time(call.run(), 1);
  };

  call.prove();
  std::vector<float> fastest{std::min(timed(), timed())};
  largest(fastest);
  const double fit = std::max<double>(request.seconds * 1e6 / std::max(fastest[0], 0.01f), MIN_CALLS);
  const int iterations = static_cast<int>(std::min<double>(fit, request.iterations));
  for (int i = 0; i < iterations / 5; ++i) timed();
  std::vector<float> times, loops;
  for (int i = 0; i < iterations; ++i) times.push_back(timed());
  largest(times);
  if (request.loop && !in_place(collective)) {
    for (int i = 0; i < LOOPS; ++i) loops.push_back(time(call.run(), (iterations + LOOPS - 1) / LOOPS));
    largest(loops);
  }
  call.verify();
  if (rank == 0) report(collective, algorithm, size, call.bytes(), times, loops);
}
