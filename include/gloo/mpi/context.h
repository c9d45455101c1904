/*
 * Contexts whose ranks find each other through the MPI that the program uses.
 */
#pragma once

// Open MPI's bindings for C++ cast between types of functions.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wcast-function-type"
#endif
#include <mpi.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <climits>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "gloo/common/enforce.h"
#include "gloo/common/error.h"
#include "gloo/context.h"
#include "gloo/detail/c_api.h"
#include "gloo/detail/transport.h"
#include "gloo/transport/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace mpi {

/// MPI between MPI_Init and MPI_Finalize.
class MPIScope {
 public:
  MPIScope() {
    GLOO_ENFORCE_EQ(MPI_Init(nullptr, nullptr), MPI_SUCCESS);
  }

  ~MPIScope() {
    MPI_Finalize();
  }

  MPIScope(const MPIScope&) = delete;
  MPIScope& operator=(const MPIScope&) = delete;
};

class Context : public ::gloo::Context {
 public:
  /// A context of all ranks that calls MPI_Init, and MPI_Finalize when the last such context is destroyed. MPI cannot
  /// be initialized again after that: throws EnforceNotMet.
  static std::shared_ptr<Context> createManaged() {
    auto scope = managedScope();
    auto context = std::make_shared<Context>(MPI_COMM_WORLD);
    context->mpiScope_ = std::move(scope);
    return context;
  }

  /// A context of the ranks of `comm`, which is duplicated. The program calls MPI_Init before, and MPI_Finalize after
  /// the context is destroyed.
  explicit Context(const MPI_Comm& comm) : ::gloo::Context(rankIn(comm), sizeOf(comm)) {
    const int error = MPI_Comm_dup(comm, &comm_);
    GLOO_ENFORCE(error == MPI_SUCCESS, "MPI_Comm_dup: ", error);
  }

  virtual ~Context() {
    MPI_Comm_free(&comm_);
  }

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Connects to all ranks. Every rank calls it.
  void connectFullMesh(const std::shared_ptr<transport::Device>& dev) {
    GLOO_ENFORCE(dev != nullptr, "there is no device");
    auto transportContext = dev->createContext(rank, size);
    ::gloo::detail::pass_timeout(*this, *transportContext);
    ::gloo::detail::connect(*transportContext, [&](gloo_rs_context_t* handle) {
      return gloo_rs_context_connect_oob(handle, allgather, &comm_);
    });
    device_ = dev;
    transportContext_ = std::move(transportContext);
  }

 protected:
  /// Destroyed after the communicator.
  std::shared_ptr<MPIScope> mpiScope_;

  MPI_Comm comm_;

 private:
  static int rankIn(const MPI_Comm& comm) {
    int rank = 0;
    const int error = MPI_Comm_rank(comm, &rank);
    GLOO_ENFORCE(error == MPI_SUCCESS, "MPI_Comm_rank: ", error);
    return rank;
  }

  static int sizeOf(const MPI_Comm& comm) {
    int size = 0;
    const int error = MPI_Comm_size(comm, &size);
    GLOO_ENFORCE(error == MPI_SUCCESS, "MPI_Comm_size: ", error);
    return size;
  }

  static std::shared_ptr<MPIScope> managedScope() {
    static std::mutex mutex;
    static std::weak_ptr<MPIScope> current;
    static bool initialized = false;
    std::lock_guard<std::mutex> lock(mutex);
    auto scope = current.lock();
    if (!scope) {
      GLOO_ENFORCE(!initialized, "Cannot create MPI context after MPI_Finalize()");
      scope = std::make_shared<MPIScope>();
      current = scope;
      initialized = true;
    }
    return scope;
  }

  static gloo_rs_status_t allgather(const void* input, void* output, size_t bytes, void* comm) {
    return ::gloo::detail::keep_exceptions([&] {
      GLOO_ENFORCE_LE(bytes, INT_MAX);
      const int count = static_cast<int>(bytes);
      const int error = MPI_Allgather(input, count, MPI_BYTE, output, count, MPI_BYTE, *static_cast<MPI_Comm*>(comm));
      if (error != MPI_SUCCESS) {
        GLOO_THROW_IO_EXCEPTION("MPI_Allgather: ", error);
      }
      return GLOO_RS_OK;
    });
  }
};

}  // namespace mpi
}  // namespace gloo_rs_api
}  // namespace gloo
