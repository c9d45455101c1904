// Measures oneCCL's collectives over Intel MPI: one process per rank, started by its launcher with
// CCL_ATL_TRANSPORT=mpi.
//
//   mpiexec -n RANKS oneccl_peer COLLECTIVE SIZES ITERATIONS SECONDS LOOP

#include <mpi.h>
#include <oneapi/ccl.hpp>

#include "patterns.h"

namespace {

class OneCcl : public Peer {
 public:
  OneCcl(int rank, int size, ccl::shared_ptr_class<ccl::kvs> store)
      : Peer(rank, size), communicator_(ccl::create_communicator(size, rank, store)) {}

  // MPI's, which is faster than that of oneCCL, so that ranks start at the same time.
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  void largest(std::vector<float> &numbers) override {
    MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t n) override {
    const auto type = ccl::datatype::float32;
    const auto sum = ccl::reduction::sum;
    const ccl::communicator &all = communicator_;
    if (collective == "allreduce") return [=, &all] { ccl::allreduce(in, out, n, type, sum, all).wait(); };
    if (collective == "reduce_scatter") return [=, &all] { ccl::reduce_scatter(in, out, n, type, sum, all).wait(); };
    if (collective == "allgather") return [=, &all] { ccl::allgather(in, out, n, type, all).wait(); };
    if (collective == "alltoall") return [=, &all] { ccl::alltoall(in, out, n, type, all).wait(); };
    if (collective == "broadcast") return [=, &all] { ccl::broadcast(out, n, type, 0, all).wait(); };
    if (collective == "barrier") return [&all] { ccl::barrier(all).wait(); };
    if (collective == "reduce") return [=, &all] { ccl::reduce(in, out, n, type, sum, 0, all).wait(); };
    if (collective == "reduce_float64")
      return [=, &all] { ccl::reduce(in, out, n, ccl::datatype::float64, sum, 0, all).wait(); };
    throw std::runtime_error("no " + collective);
  }

  // All on one communicator: their order tells them apart, so that none needs its tag.
  Nonblocking nonblocking(float *in, float *out, size_t n, int) override {
    const auto event = std::make_shared<ccl::event>();
    const ccl::communicator &all = communicator_;
    return {[=, &all] { *event = ccl::allreduce(in, out, n, ccl::datatype::float32, ccl::reduction::sum, all); },
            [=] { event->wait(); }};
  }

 private:
  ccl::communicator communicator_;
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 1 + Request::ARGUMENTS) {
    std::fprintf(stderr, "usage: oneccl_peer %s\n", Request::USAGE);
    return 2;
  }
  ccl::init();
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> store;
    if (rank == 0) {
      store = ccl::create_main_kvs();
      address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    OneCcl oneccl(rank, size, store);
    measure(oneccl, Request::parse(argv + 1), "oneccl");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
