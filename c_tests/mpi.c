/* A program of MPI's, whose ranks find each other by MPI_Allgather: no store, no address, no port. Run by 4 ranks. */
#include <gloo_rs.h>
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>

/* `user` is the communicator. */
static gloo_rs_status_t allgather(const void *input, void *output, size_t bytes, void *user) {
  MPI_Comm communicator = *(MPI_Comm *)user;
  if (bytes > INT_MAX) return GLOO_RS_ERROR_UNSUPPORTED;
  return MPI_Allgather(input, (int)bytes, MPI_BYTE, output, (int)bytes, MPI_BYTE, communicator) == MPI_SUCCESS
             ? GLOO_RS_OK
             : GLOO_RS_ERROR_CALLBACK;
}

static int check(gloo_rs_status_t status) {
  if (status != GLOO_RS_OK) fprintf(stderr, "%s\n", gloo_rs_last_error_message());
  return status == GLOO_RS_OK;
}

/* Whether `context` is what `communicator` is: the same rank and size, and the same sum. */
static int agrees(gloo_rs_context_t *context, MPI_Comm communicator) {
  int rank = -1, size = -1;
  int32_t own_rank = -2, own_size = -2;
  int64_t value, expected;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  value = expected = rank + 1;
  MPI_Allreduce(MPI_IN_PLACE, &expected, 1, MPI_INT64_T, MPI_SUM, communicator);
  return check(gloo_rs_context_rank(context, &own_rank)) && check(gloo_rs_context_size(context, &own_size)) &&
         check(gloo_rs_allreduce(context, &value, &value, 1, GLOO_RS_INT64, GLOO_RS_SUM)) && own_rank == rank &&
         own_size == size && value == expected;
}

int main(int argc, char **argv) {
  MPI_Comm world = MPI_COMM_WORLD, odd;
  gloo_rs_device_t *device = NULL;
  gloo_rs_context_t *context = NULL, *part = NULL;
  int rank = -1, size = -1, good;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  good = size == 4 && check(gloo_rs_device_create(NULL, &device)) &&
         check(gloo_rs_context_create(device, rank, size, NULL, &context)) &&
         check(gloo_rs_context_connect_oob(context, allgather, &world)) && agrees(context, world);
  /* MPI and the library split alike. */
  MPI_Comm_split(world, rank % 2, -rank, &odd);
  good = good && check(gloo_rs_context_split(context, rank % 2, -rank, &part)) && agrees(part, odd);
  if (good) printf("rank %d agrees with MPI\n", rank);
  MPI_Barrier(world);
  gloo_rs_context_destroy(part);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
  MPI_Comm_free(&odd);
  MPI_Finalize();
  return good ? 0 : 1;
}
