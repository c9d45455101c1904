// A program of MPI's that uses gloo_rs beside it. The ranks find each other by MPI_Allgather: there is no store, and no
// address or port to configure. Number and order of the ranks are those of the communicator.
//
//   mpirun -n 4 mpi
//
// The program compares an allreduce of gloo_rs with MPI's.
#include <gloo_rs.hpp>
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <exception>
#include <vector>

namespace {

// The allgather by which the context connects; `user` is the communicator. It must not throw.
gloo_rs_status_t allgather(const void *input, void *output, size_t bytes, void *user) {
  if (bytes > INT_MAX) return GLOO_RS_ERROR_UNSUPPORTED;
  const int count = static_cast<int>(bytes);
  const int error = MPI_Allgather(input, count, MPI_BYTE, output, count, MPI_BYTE, *static_cast<MPI_Comm *>(user));
  return error == MPI_SUCCESS ? GLOO_RS_OK : GLOO_RS_ERROR_CALLBACK;
}

int run(MPI_Comm communicator) {
  int rank = 0, size = 1;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);

  auto device = gloo_rs::Device::create();
  auto context = gloo_rs::Context::create(device, rank, size);
  context.connect_oob(allgather, &communicator);

  std::vector<long long> values(1000), expected(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<long long>(i) * (rank + 1);
  MPI_Allreduce(values.data(), expected.data(), static_cast<int>(values.size()), MPI_LONG_LONG, MPI_SUM, communicator);
  context.allreduce(values.data(), values.size());
  if (values != expected) {
    std::fprintf(stderr, "rank %d: the sums are not MPI's\n", rank);
    return 1;
  }
  std::printf("rank %d of %d: the same sums as MPI's\n", rank, size);
  // A rank that ends early would end the connections of those that are still in the call.
  context.barrier();
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int failed = 1;
  try {
    failed = run(MPI_COMM_WORLD);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "mpi: %s\n", error.what());
  }
  // The others wait for this rank in MPI_Finalize, unless it ends the job.
  if (failed != 0) MPI_Abort(MPI_COMM_WORLD, failed);
  MPI_Finalize();
  return failed;
}
