// A group of ranks: wraps the part of gloo_rs that this example needs in a C++ class.
#pragma once

#include <gloo_rs.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// Every call returns a status. The thread's last error message says what failed, and on which rank.
inline void check(gloo_rs_status_t status) {
  if (status != GLOO_RS_OK) {
    throw std::runtime_error(std::string(gloo_rs_status_name(status)) + ": " + gloo_rs_last_error_message());
  }
}

template <auto destroy>
struct Destroy {
  template <class Handle>
  void operator()(Handle *handle) const {
    destroy(handle);
  }
};

class Group {
 public:
  // Joins the job that the environment describes: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
  // Returns once the ranks are connected. `interface` is the network interface on which to listen, such as "eth0"; without
  // one, the library chooses: loopback if all ranks are on one host, else the interface that reaches the store or other ranks.
  explicit Group(const char *interface = nullptr) {
    gloo_rs_store_t *store = nullptr;
    check(gloo_rs_launch_from_env(GLOO_RS_TIMEOUT_DEFAULT, &store, &rank_, &size_));
    store_.reset(store);

    gloo_rs_device_options_t options;
    gloo_rs_device_options_init(&options, sizeof options);
    options.interface_name = interface;
    gloo_rs_device_t *device = nullptr;
    check(gloo_rs_device_create(&options, &device));
    device_.reset(device);

    gloo_rs_context_t *context = nullptr;
    check(gloo_rs_context_create(device_.get(), rank_, size_, nullptr, &context));
    context_.reset(context);
    check(gloo_rs_context_connect(context_.get(), store_.get()));
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Replaces `values` on every rank by the sums over all ranks.
  void sum(std::vector<float> &values) { allreduce(values.data(), values.size(), GLOO_RS_FLOAT32); }
  void sum(std::vector<double> &values) { allreduce(values.data(), values.size(), GLOO_RS_FLOAT64); }

  // Replaces `values` on every rank by those of rank `root`.
  void broadcast(std::vector<float> &values, int root) {
    check(gloo_rs_broadcast(context_.get(), values.data(), values.size(), GLOO_RS_FLOAT32, root));
  }

 private:
  void allreduce(void *values, size_t count, gloo_rs_data_type_t data_type) {
    check(gloo_rs_allreduce(context_.get(), values, values, count, data_type, GLOO_RS_SUM));
  }

  int32_t rank_ = 0;
  int32_t size_ = 1;
  std::unique_ptr<gloo_rs_store_t, Destroy<gloo_rs_store_destroy>> store_;
  std::unique_ptr<gloo_rs_device_t, Destroy<gloo_rs_device_destroy>> device_;
  std::unique_ptr<gloo_rs_context_t, Destroy<gloo_rs_context_destroy>> context_;
};
