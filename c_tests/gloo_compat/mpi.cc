// Contexts over MPI: `managed` ones, which initialize MPI, and those of a program that has done that.
#include "gloo/mpi/context.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/barrier_all_to_one.h"
#include "gloo/math.h"
#include "gloo/transport/tcp/device.h"

namespace {

/// Reduces the numbers of all ranks, and checks the sum.
void reduce(const std::shared_ptr<gloo::Context>& context) {
  std::vector<int> values(1000, context->rank + 1);
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<int>));
  gloo::allreduce(options);
  GLOO_ENFORCE_EQ(values.front(), context->size * (context->size + 1) / 2);
  GLOO_ENFORCE_EQ(values.back(), values.front());
  gloo::BarrierAllToOne(context).run();
}

std::shared_ptr<gloo::transport::Device> device() {
  return gloo::transport::tcp::CreateDevice("localhost");
}

void managed(int expected) {
  {
    auto context = gloo::mpi::Context::createManaged();
    auto second = gloo::mpi::Context::createManaged();
    GLOO_ENFORCE_EQ(context->size, expected);
    context->setTimeout(std::chrono::seconds(20));
    context->connectFullMesh(device());
    second->connectFullMesh(device());
    GLOO_ENFORCE_EQ(context->getDevice().use_count(), 2);
    reduce(context);
    context.reset();
    int finalized = 0;
    MPI_Finalized(&finalized);
    GLOO_ENFORCE(!finalized, "a context still needs MPI");
    reduce(second);
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  GLOO_ENFORCE(finalized, "the last context has ended MPI");
  bool refused = false;
  try {
    gloo::mpi::Context::createManaged();
  } catch (const gloo::EnforceNotMet&) {
    refused = true;
  }
  GLOO_ENFORCE(refused, "MPI cannot be initialized again");
}

void unmanaged(int expected) {
  GLOO_ENFORCE_EQ(MPI_Init(nullptr, nullptr), MPI_SUCCESS);
  {
    auto world = std::make_shared<gloo::mpi::Context>(MPI_COMM_WORLD);
    GLOO_ENFORCE_EQ(world->size, expected);
    auto shared = device();
    world->connectFullMesh(shared);
    reduce(world);
    // A part of the ranks, on the same device.
    MPI_Comm half;
    GLOO_ENFORCE_EQ(MPI_Comm_split(MPI_COMM_WORLD, world->rank % 2, -world->rank, &half), MPI_SUCCESS);
    auto part = std::make_shared<gloo::mpi::Context>(half);
    MPI_Comm_free(&half);
    part->connectFullMesh(shared);
    reduce(part);
    reduce(world);
  }
  MPI_Finalize();
}

}  // namespace

int main(int argc, char** argv) {
  GLOO_ENFORCE_EQ(argc, 3, "usage: mpi managed|unmanaged RANKS");
  const int expected = std::atoi(argv[2]);
  if (std::strcmp(argv[1], "managed") == 0) {
    managed(expected);
  } else {
    unmanaged(expected);
  }
}
