// A group of ranks: the part of gloo_rs that this example needs.
#pragma once

#include <gloo_rs.hpp>

#include <vector>

class Group {
 public:
  // Joins the job that the environment describes: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Returns once the ranks
  // are connected. `interface` is the network interface on which to listen, such as "eth0"; without one, the library
  // chooses: loopback if all ranks are on one host, else the interface that reaches the store or other ranks.
  explicit Group(const char *interface = nullptr) : job_(gloo_rs::launch_from_env()) {
    auto options = gloo_rs::defaults(gloo_rs_device_options_init);
    options.interface_name = interface;
    context_ = gloo_rs::Context::create(gloo_rs::Device::create(&options), rank(), size());
    context_.connect(job_.store);
  }

  int rank() const { return job_.rank; }
  int size() const { return job_.size; }

  // Replaces `values` on every rank by the sums over all ranks.
  template <class T>
  void sum(std::vector<T> &values) { context_.allreduce(values.data(), values.size()); }

  // Replaces `values` on every rank by those of rank `root`.
  void broadcast(std::vector<float> &values, int root) { context_.broadcast(values.data(), values.size(), root); }

 private:
  gloo_rs::Launch job_;  // rank 0 serves the store to the others
  gloo_rs::Context context_;
};
