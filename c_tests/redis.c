/* The store in a Redis server; with_redis.sh starts one. */
#include "harness.h"

static const char *host(void) {
  const char *host = getenv("GLOO_RS_TEST_REDIS_HOST");
  if (host == NULL) check_failed(__FILE__, __LINE__, "run this under with_redis.sh");
  return host;
}

static gloo_rs_redis_options_t options_of(const char *prefix) {
  gloo_rs_redis_options_t options;
  gloo_rs_redis_options_init(&options, sizeof options);
  CHECK_INT(options.struct_size, sizeof options);
  CHECK_INT(options.ttl_s, 86400);
  options.password = "secret";
  options.prefix = prefix;
  return options;
}

static void values(void) {
  gloo_rs_redis_options_t options = options_of("values/");
  gloo_rs_store_t *store = NULL, *same = NULL, *other = NULL;
  char url[256];
  void *value = NULL;
  size_t bytes = 0;
  int64_t sum = 0;
  bool existed = false;
  uint16_t port = 0;

  CHECK_OK(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store));
  CHECK_OK(gloo_rs_store_set(store, "key", "value", 5));
  CHECK_OK(gloo_rs_store_append(store, "key", "s", 1));
  CHECK_OK(gloo_rs_store_add(store, "count", -3, &sum));
  CHECK_INT(sum, -3);
  CHECK_FAILS(gloo_rs_store_get(store, "none", 30, &value, &bytes), GLOO_RS_ERROR_TIMEOUT, "\"none\"");
  CHECK_FAILS(gloo_rs_store_port(store, &port), GLOO_RS_ERROR_INVALID_OPERATION, "redis://");

  snprintf(url, sizeof url, "redis://:%%73ecret@%s/0?prefix=values/&ttl=60", host());
  CHECK_OK(gloo_rs_store_create_url(url, 1, test_timeout_ms(), &same));
  CHECK_OK(gloo_rs_store_get(same, "key", test_timeout_ms(), &value, &bytes));
  CHECK_INT(bytes, 6);
  CHECK(memcmp(value, "values", 6) == 0);
  gloo_rs_free(value);
  CHECK_OK(gloo_rs_store_delete(same, "key", &existed));
  CHECK(existed);
  gloo_rs_store_destroy(same);

  options.database = 1;
  CHECK_OK(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &other));
  CHECK_FAILS(gloo_rs_store_get(other, "count", 0, &value, &bytes), GLOO_RS_ERROR_TIMEOUT, "\"count\"");
  gloo_rs_store_destroy(other);
  gloo_rs_store_destroy(store);
}

static void errors(void) {
  gloo_rs_redis_options_t options = options_of(NULL);
  gloo_rs_store_t *store = NULL;
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, NULL, test_timeout_ms(), &store), "wants a password");
  CHECK(store == NULL);
  options.password = "wrong";
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store), "WRONGPASS");
  CHECK(strstr(gloo_rs_last_error_message(), "wrong ") == NULL);
  options.password = "\xff";
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store), "password is not UTF-8");
  options = options_of(NULL);
  options.database = 1000;
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store), "database 1000");
  options = options_of(NULL);
  options.tls = 1;
  options.ca_file = "/nonexistent.pem";
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store), "/nonexistent.pem");
  options = options_of(NULL);
  CHECK_FAILS(gloo_rs_store_create_redis(host(), 6380, &options, 50, &store), GLOO_RS_ERROR_TIMEOUT, "refused");
  CHECK_INVALID(gloo_rs_store_create_redis(NULL, 6379, &options, 50, &store), "host");
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, 50, NULL), "store");
  CHECK_INVALID(gloo_rs_store_create_redis("", 6379, &options, 50, &store), "host");
  options.struct_size = 3;
  CHECK_INVALID(gloo_rs_store_create_redis(host(), 6379, &options, 50, &store), "struct_size");
}

/* Four processes find each other. */
static void bootstrap(void) {
  gloo_rs_redis_options_t options = options_of("bootstrap/");
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = create_context();
  CHECK_OK(gloo_rs_store_create_redis(host(), 6379, &options, test_timeout_ms(), &store));
  connect_context(context, store, "context");
  gloo_rs_store_destroy(store);
  barrier(context);
  gloo_rs_context_destroy(context);
}

static void left_out(void) {
  gloo_rs_store_t *store = NULL;
  CHECK_FAILS(gloo_rs_store_create_redis("host", 6379, NULL, 0, &store), GLOO_RS_ERROR_UNSUPPORTED, "feature redis");
  CHECK_FAILS(gloo_rs_store_create_url("redis://host", 0, 0, &store), GLOO_RS_ERROR_UNSUPPORTED, "feature redis");
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"values", 1, values, -1},
      {"errors", 1, errors, -1},
      {"bootstrap", 4, bootstrap, -1},
  };
  static const struct test without[] = {{"left_out", 1, left_out, -1}};
  if (strstr(gloo_rs_built_features(), "redis") == NULL) return RUN_TESTS(argc, argv, without);
  return RUN_TESTS(argc, argv, tests);
}
