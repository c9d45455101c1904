// Measures an MPI's collectives: one process per rank, started by that MPI's launcher, whose settings select the
// transport.
//
//   mpiexec -n RANKS mpi_peer COLLECTIVE SIZES ITERATIONS SECONDS LOOP

#include <mpi.h>

#include "patterns.h"

namespace {

class Mpi : public Peer {
 public:
  using Peer::Peer;

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  void largest(std::vector<float> &numbers) override {
    MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t elements) override {
    const int n = static_cast<int>(elements);
    if (collective == "allreduce") return [=] { MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    if (collective == "reduce_scatter")
      return [=] { MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    if (collective == "allgather")
      return [=] { MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); };
    if (collective == "alltoall") return [=] { MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); };
    if (collective == "broadcast") return [=] { MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD); };
    if (collective == "barrier") return [] { MPI_Barrier(MPI_COMM_WORLD); };
    if (collective == "reduce") return [=] { MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); };
    if (collective == "reduce_float64") return [=] { MPI_Reduce(in, out, n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD); };
    throw std::runtime_error("no " + collective);
  }

  // All on one communicator: their order tells them apart, so that none needs its tag.
  Nonblocking nonblocking(float *in, float *out, size_t elements, int) override {
    const int n = static_cast<int>(elements);
    const auto request = std::make_shared<MPI_Request>(MPI_REQUEST_NULL);
    return {[=] { MPI_Iallreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, request.get()); },
            [=] { MPI_Wait(request.get(), MPI_STATUS_IGNORE); }};
  }
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 1 + Request::ARGUMENTS) {
    std::fprintf(stderr, "usage: mpi_peer %s\n", Request::USAGE);
    return 2;
  }
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    Mpi mpi(rank, size);
    measure(mpi, Request::parse(argv + 1), "mpi");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
