// Ranks for tests: threads that find each other through a store in memory.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/transport/tcp/device.h"

/// Calls `body` on `size` threads, each with the connected context of a rank. When all are done, throws the first
/// exception of a rank, if there is one. The contexts exist until all ranks are done.
inline void run_ranks(int size, const std::function<void(const std::shared_ptr<gloo::Context>&)>& body, int base = 2) {
  gloo::transport::tcp::attr attr("localhost");
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::shared_ptr<gloo::Context>> contexts(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] {
      try {
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, size, base);
        context->connectFullMesh(store, device);
        contexts[static_cast<size_t>(rank)] = context;
        body(context);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!first) {
          first = std::current_exception();
        }
        // The others must not wait for this one.
        if (contexts[static_cast<size_t>(rank)]) {
          contexts[static_cast<size_t>(rank)]->closeConnections();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

/// Where ranks meet without the library: a rank that fails in a collective ends calls that the others have not left
/// yet.
class MeetingPoint {
 public:
  explicit MeetingPoint(int size) : missing_(size) {}

  /// Returns when `size` threads have called it; throws after 30 seconds.
  void wait() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    missing_--;
    while (missing_.load() > 0) {
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("a rank did not come to the meeting point");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::atomic<int> missing_;
};
