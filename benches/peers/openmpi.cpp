// Measures MPI's allreduce: one process per rank. The launcher selects the transport:
//
//   mpirun -n RANKS --mca pml ob1 --mca btl tcp,self openmpi_peer BYTES ITERATIONS
//
// Rank 0 prints one JSON object. As in `gloo-rs bench`, an iteration's time is that of its slowest rank, after a barrier that
// is not timed.

#include <mpi.h>

#include <chrono>

#include "report.h"

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: openmpi_peer BYTES ITERATIONS\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const size_t bytes = std::strtoull(argv[1], nullptr, 10), count = bytes / sizeof(float);
  const int iterations = std::atoi(argv[2]), warmup = warmup_of(iterations);
  std::vector<float> in(count), out(count), times, slowest(iterations);
  for (size_t i = 0; i < count; ++i) in[i] = element(i, rank);
  for (int i = 0; i < iterations + warmup; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = std::chrono::steady_clock::now();
    MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const std::chrono::duration<float, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= warmup) times.push_back(took.count());
  }
  if (!is_sum(out, size)) {
    std::fprintf(stderr, "wrong sums\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Reduce(times.data(), slowest.data(), iterations, MPI_FLOAT, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) report("openmpi-tcp", "openmpi", size, bytes, slowest);
  MPI_Finalize();
}
