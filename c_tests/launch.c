/* Rank, size and store from the environment of a launched job. */
#include "harness.h"

static void set(const char *name, const char *value) { CHECK_INT(setenv(name, value, 1), 0); }

static void forget(void) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  unsetenv("GLOO_RS_STORE");
  unsetenv("MASTER_ADDR");
  unsetenv("MASTER_PORT");
  unsetenv("LOCAL_RANK");
  unsetenv("LOCAL_WORLD_SIZE");
}

static void use(const char *rank_text, const char *size_text, int rank, int size) {
  gloo_rs_store_t *store = NULL;
  int32_t found_rank = -1, found_size = -1;
  int64_t sum = 0;
  set("RANK", rank_text);
  set("WORLD_SIZE", size_text);
  CHECK_OK(gloo_rs_launch_from_env(test_timeout_ms(), &store, &found_rank, &found_size));
  CHECK_INT(found_rank, rank);
  CHECK_INT(found_size, size);
  CHECK_OK(gloo_rs_store_add(store, "count", 1, &sum));
  CHECK(sum >= 1 && sum <= size);
  gloo_rs_store_destroy(store);
}

static void alone(void) {
  forget();
  use("0", "1", 0, 1);
}

static void with_a_directory(void) {
  char directory[] = "/tmp/gloo_rs_launch_XXXXXX", url[64], command[64];
  CHECK(mkdtemp(directory) != NULL);
  snprintf(url, sizeof url, "file://%s", directory);
  snprintf(command, sizeof command, "rm -r %s", directory);
  forget();
  set("GLOO_RS_STORE", url);
  use("1", "3", 1, 3);
  CHECK_INT(system(command), 0);
}

/* Rank 1 connects to the store that this test's parent serves. */
static void with_an_address(void) {
  char port[16];
  snprintf(port, sizeof port, "%d", (int)test_port);
  forget();
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", port);
  use("1", "2", 1, 2);
}

static void failures(void) {
  gloo_rs_store_t *store = NULL;
  int32_t rank, size;
  forget();
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, &size), "WORLD_SIZE");
  CHECK(store == NULL);
  set("WORLD_SIZE", "2");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, &size), "RANK");
  set("RANK", "2");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, &size), "RANK");
  set("RANK", "1");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, &size), "GLOO_RS_STORE");
  set("GLOO_RS_STORE", "nonsense");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, &size), "nonsense");
  CHECK_INVALID(gloo_rs_launch_from_env(-2, &store, &rank, &size), "-2");
  CHECK_INVALID(gloo_rs_launch_from_env(0, NULL, &rank, &size), "store is NULL");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, NULL, &size), "rank is NULL");
  CHECK_INVALID(gloo_rs_launch_from_env(0, &store, &rank, NULL), "size is NULL");
}

static void local_rank(void) {
  int32_t rank = 7, size = 7;
  forget();
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  CHECK_OK(gloo_rs_launch_local_rank_from_env(&rank, &size));
  CHECK_INT(rank, -1);
  CHECK_INT(size, -1);
  set("LOCAL_RANK", "1");
  set("LOCAL_WORLD_SIZE", "4");
  CHECK_OK(gloo_rs_launch_local_rank_from_env(&rank, &size));
  CHECK_INT(rank, 1);
  CHECK_INT(size, 4);
  set("LOCAL_RANK", "4");
  CHECK_INVALID(gloo_rs_launch_local_rank_from_env(&rank, &size), "LOCAL_RANK");
  CHECK_INVALID(gloo_rs_launch_local_rank_from_env(NULL, &size), "local_rank is NULL");
  CHECK_INVALID(gloo_rs_launch_local_rank_from_env(&rank, NULL), "local_size is NULL");
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"alone", 1, alone, -1},
      {"with_a_directory", 1, with_a_directory, -1},
      {"with_an_address", 1, with_an_address, -1},
      {"local_rank", 1, local_rank, -1},
      {"failures", 1, failures, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
