/* A program for launchers to start: it connects to the other ranks under any launcher, and prints its rank and size.
 * With the argument `fail`, the last rank exits in the middle. */
#include <gloo_rs.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int check(gloo_rs_status_t status) {
  if (status != GLOO_RS_OK) fprintf(stderr, "%s\n", gloo_rs_last_error_message());
  return status == GLOO_RS_OK;
}

static int sum(gloo_rs_context_t *context, int64_t *value) {
  return check(gloo_rs_allreduce(context, value, value, 1, GLOO_RS_INT64, GLOO_RS_SUM));
}

int main(int argc, char **argv) {
  gloo_rs_store_t *store = NULL;
  gloo_rs_device_t *device = NULL;
  gloo_rs_context_t *context = NULL;
  int32_t rank = -1, size = -1, local_rank = -1, local_size = -1;
  int fails = argc > 1 && strcmp(argv[1], "fail") == 0;
  int64_t value;
  int good = check(gloo_rs_launch_from_env(GLOO_RS_TIMEOUT_DEFAULT, &store, &rank, &size)) &&
             check(gloo_rs_launch_local_rank_from_env(&local_rank, &local_size)) &&
             check(gloo_rs_device_create(NULL, &device)) &&
             check(gloo_rs_context_create(device, rank, size, NULL, &context)) &&
             check(gloo_rs_context_connect(context, store));
  value = (int64_t)rank + 1;
  good = good && sum(context, &value);
  if (good && fails && rank == size - 1) return 3;
  if (good)
    printf("rank %" PRId32 " of %" PRId32 ", %" PRId32 " of %" PRId32 " here: %" PRId64 "\n", rank, size, local_rank,
           local_size, value);
  fflush(stdout);
  value = 1;
  good = good && sum(context, &value) && value == size;
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
  gloo_rs_store_destroy(store);
  return good ? 0 : 1;
}
