/* Stores of every kind, and their errors. */
#include "harness.h"

static void check_value(gloo_rs_store_t *store, const char *key, const char *expected) {
  void *value = NULL;
  size_t bytes = 0;
  CHECK_OK(gloo_rs_store_get(store, key, test_timeout_ms(), &value, &bytes));
  CHECK(value != NULL);
  CHECK_INT(bytes, strlen(expected));
  CHECK(memcmp(value, expected, bytes) == 0);
  gloo_rs_free(value);
}

/* The operations of every kind of store. */
static void exercise(gloo_rs_store_t *store) {
  static const char *const keys[] = {"one", "two", "none"};
  static const void *const values[] = {"1", "", NULL};
  static const size_t lengths[] = {1, 0, 0};
  void *got[2];
  size_t bytes[2];
  int64_t sum = 0;
  bool existed = true;
  void *value = &sum;

  CHECK_OK(gloo_rs_store_set(store, "key", "value", 5));
  check_value(store, "key", "value");
  CHECK_OK(gloo_rs_store_set(store, "key", NULL, 0));
  check_value(store, "key", "");
  CHECK_OK(gloo_rs_store_append(store, "key", "ab", 2));
  CHECK_OK(gloo_rs_store_append(store, "key", "cd", 2));
  check_value(store, "key", "abcd");
  CHECK_OK(gloo_rs_store_add(store, "count", 5, &sum));
  CHECK_INT(sum, 5);
  CHECK_OK(gloo_rs_store_add(store, "count", -7, &sum));
  CHECK_INT(sum, -2);
  check_value(store, "count", "-2");

  CHECK_OK(gloo_rs_store_multi_set(store, keys, values, lengths, 2));
  CHECK_OK(gloo_rs_store_wait(store, keys, 2, 0));
  CHECK_OK(gloo_rs_store_multi_get(store, keys, 2, 0, got, bytes));
  CHECK_INT(bytes[0], 1);
  CHECK_INT(*(char *)got[0], '1');
  CHECK_INT(bytes[1], 0);
  CHECK(got[1] != NULL);
  gloo_rs_free(got[0]);
  gloo_rs_free(got[1]);

  CHECK_FAILS(gloo_rs_store_wait(store, keys, 3, 30), GLOO_RS_ERROR_TIMEOUT, "none");
  CHECK_FAILS(gloo_rs_store_get(store, "none", 0, &value, bytes), GLOO_RS_ERROR_TIMEOUT, "none");
  CHECK(value == NULL);
  got[0] = got[1] = &sum;
  CHECK_FAILS(gloo_rs_store_multi_get(store, keys + 1, 2, 30, got, bytes), GLOO_RS_ERROR_TIMEOUT, "none");
  CHECK(got[0] == NULL && got[1] == NULL);

  CHECK_OK(gloo_rs_store_delete(store, "one", &existed));
  CHECK(existed);
  CHECK_OK(gloo_rs_store_delete(store, "one", &existed));
  CHECK(!existed);
  CHECK_OK(gloo_rs_store_delete(store, "two", NULL));
}

static void tcp(void) {
  gloo_rs_store_t *store = NULL, *client = open_store();
  uint16_t port = 0;
  exercise(client);
  CHECK_OK(gloo_rs_store_port(client, &port));
  CHECK_INT(port, test_port);
  gloo_rs_store_destroy(client);

  CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", 0, true, GLOO_RS_TIMEOUT_DEFAULT, &store));
  CHECK_OK(gloo_rs_store_port(store, &port));
  CHECK(port != 0 && port != test_port);
  exercise(store);
  CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", port, false, 1000, &client));
  check_value(client, "key", "abcd");
  gloo_rs_store_destroy(client);
  gloo_rs_store_destroy(store);
  CHECK_FAILS(gloo_rs_store_create_tcp("127.0.0.1", port, false, 50, &client), GLOO_RS_ERROR_TIMEOUT, "127.0.0.1");
  CHECK(client == NULL);
}

static void tokens(void) {
  gloo_rs_store_t *store = NULL, *client = NULL, *prefix = NULL;
  gloo_rs_tcp_store_options_t options;
  gloo_rs_connection_statistics_t statistics;
  uint16_t port = 0;
  gloo_rs_tcp_store_options_init(&options, sizeof options);
  CHECK(options.token == NULL && options.log == NULL);
  options.token = "sword\xff" "fish"; /* any bytes */
  CHECK_OK(gloo_rs_store_create_tcp_with("127.0.0.1", 0, true, 0, &options, &store));
  CHECK_OK(gloo_rs_store_port(store, &port));
  CHECK_OK(gloo_rs_store_create_tcp_with("127.0.0.1", port, false, 1000, &options, &client));
  exercise(client);
  gloo_rs_connection_statistics_init(&statistics, sizeof statistics);
  CHECK_FAILS(gloo_rs_store_connection_statistics(client, &statistics), GLOO_RS_ERROR_INVALID_OPERATION, "another process");
  gloo_rs_store_destroy(client);
  options.token = "herring";
  CHECK_FAILS(gloo_rs_store_create_tcp_with("127.0.0.1", port, false, 1000, &options, &client), GLOO_RS_ERROR_MISMATCH,
              "GLOO_RS_TOKEN");
  options.token = "";
  CHECK_FAILS(gloo_rs_store_create_tcp_with("127.0.0.1", port, false, 1000, &options, &client), GLOO_RS_ERROR_MISMATCH,
              "it has a job token and this process has none");
  /* A refused client returns before the store has noticed that it disconnected. */
  for (int i = 0; i < 1000; ++i) {
    CHECK_OK(gloo_rs_store_connection_statistics(store, &statistics));
    if (statistics.unproven == 2) break;
    sleep_ms(10);
  }
  CHECK_INT(statistics.unproven, 2);
  CHECK_OK(gloo_rs_store_create_prefix("p", store, &prefix));
  CHECK_FAILS(gloo_rs_store_connection_statistics(prefix, &statistics), GLOO_RS_ERROR_INVALID_OPERATION, "create_tcp");
  gloo_rs_store_destroy(prefix);
  gloo_rs_store_destroy(store);
  options.struct_size = 1;
  CHECK_INVALID(gloo_rs_store_create_tcp_with("127.0.0.1", 0, true, 0, &options, &store), "gloo_rs_tcp_store_options_t");
}

static void file(void) {
  char directory[] = "/tmp/gloo_rs_store_XXXXXX", url[64], command[64];
  gloo_rs_store_t *store = NULL, *other = NULL;
  CHECK(mkdtemp(directory) != NULL);
  CHECK_OK(gloo_rs_store_create_file(directory, &store));
  exercise(store);
  snprintf(url, sizeof url, "file://%s", directory);
  CHECK_OK(gloo_rs_store_create_url(url, 3, 0, &other));
  check_value(other, "key", "abcd");
  gloo_rs_store_destroy(store);
  check_value(other, "key", "abcd");
  gloo_rs_store_destroy(other);
  snprintf(command, sizeof command, "rm -r %s", directory);
  CHECK_INT(system(command), 0);
  CHECK(gloo_rs_store_create_file("/dev/null/directory", &store) != GLOO_RS_OK);
  CHECK(store == NULL);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "/dev/null/directory");
}

static void in_process(void) {
  gloo_rs_store_t *store = NULL, *other = NULL;
  uint16_t port;
  CHECK_OK(gloo_rs_store_create_in_process("here", &store));
  exercise(store);
  CHECK_OK(gloo_rs_store_create_url("inproc://here", 0, 0, &other));
  check_value(other, "key", "abcd");
  CHECK_FAILS(gloo_rs_store_port(store, &port), GLOO_RS_ERROR_INVALID_OPERATION, "gloo_rs_store_create_tcp");
  gloo_rs_store_destroy(other);
  gloo_rs_store_destroy(store);
}

static void prefix(void) {
  gloo_rs_store_t *base = NULL, *a = NULL, *b = NULL;
  CHECK_OK(gloo_rs_store_create_in_process("prefixes", &base));
  CHECK_OK(gloo_rs_store_create_prefix("a", base, &a));
  CHECK_OK(gloo_rs_store_create_prefix("b", a, &b));
  exercise(a);
  check_value(base, "a/key", "abcd");
  CHECK_OK(gloo_rs_store_set(b, "key", "deep", 4));
  check_value(base, "a/b/key", "deep");
  gloo_rs_store_destroy(base);
  gloo_rs_store_destroy(a);
  check_value(b, "key", "deep");
  gloo_rs_store_destroy(b);
}

/* ---- a store implemented by callbacks of this test ---- */

struct entry {
  char key[32];
  char value[32];
  size_t bytes;
  int used;
};

struct own_store {
  struct entry entries[16];
  int destroyed;
  gloo_rs_status_t answer;
  /* Calls of own_multi_get and own_multi_set, and how many values the former returns more than it should. */
  int multi_gets, multi_sets, surplus;
};

static struct entry *find(struct own_store *store, const char *key, int make) {
  size_t i, spare = 16;
  for (i = 0; i < 16; i++) {
    if (store->entries[i].used && strcmp(store->entries[i].key, key) == 0) return &store->entries[i];
    if (!store->entries[i].used) spare = i;
  }
  if (!make) return NULL;
  CHECK(spare < 16 && strlen(key) < 32);
  strcpy(store->entries[spare].key, key);
  store->entries[spare].bytes = 0;
  store->entries[spare].used = 1;
  return &store->entries[spare];
}

static uint32_t own_set(const char *key, const void *value, size_t bytes, void *user) {
  struct own_store *store = (struct own_store *)user;
  struct entry *entry;
  if (store->answer != GLOO_RS_OK) return store->answer;
  entry = find(store, key, 1);
  CHECK(bytes <= sizeof entry->value);
  memcpy(entry->value, value, bytes);
  entry->bytes = bytes;
  return GLOO_RS_OK;
}

static uint32_t own_get(const char *key, int64_t timeout_ms, void *sink, void *user) {
  struct entry *entry = find((struct own_store *)user, key, 0);
  CHECK(timeout_ms >= 0);
  if (entry == NULL) return GLOO_RS_ERROR_TIMEOUT;
  CHECK_INVALID(gloo_rs_store_return_value(NULL, entry->value, entry->bytes), "sink");
  CHECK_INVALID(gloo_rs_store_return_value(sink, NULL, 1), "1 bytes");
  return gloo_rs_store_return_value(sink, entry->value, entry->bytes);
}

static uint32_t own_wait(const char *const *keys, size_t count, int64_t timeout_ms, void *user) {
  size_t i;
  (void)timeout_ms;
  for (i = 0; i < count; i++)
    if (find((struct own_store *)user, keys[i], 0) == NULL) return GLOO_RS_ERROR_TIMEOUT;
  return GLOO_RS_OK;
}

static gloo_rs_status_t own_multi_get(const char *const *keys, size_t count, int64_t timeout_ms, void *sink, void *user) {
  struct own_store *store = (struct own_store *)user;
  gloo_rs_status_t status = GLOO_RS_OK;
  size_t i;
  int surplus;
  CHECK(timeout_ms > 0);
  store->multi_gets++;
  for (i = 0; i < count; i++)
    if (find(store, keys[i], 0) == NULL) return GLOO_RS_ERROR_TIMEOUT;
  for (i = store->surplus < 0 ? 1 : 0; i < count && status == GLOO_RS_OK; i++)
    status = gloo_rs_store_return_value(sink, find(store, keys[i], 0)->value, find(store, keys[i], 0)->bytes);
  for (surplus = 0; surplus < store->surplus; surplus++)
    CHECK_FAILS(gloo_rs_store_return_value(sink, "x", 1), GLOO_RS_ERROR_INVALID_OPERATION, "more than once");
  return status;
}

static gloo_rs_status_t own_multi_set(const char *const *keys, const void *const *values, const size_t *bytes,
                                      size_t count, void *user) {
  size_t i;
  ((struct own_store *)user)->multi_sets++;
  for (i = 0; i < count; i++) CHECK_INT(own_set(keys[i], values[i], bytes[i], user), GLOO_RS_OK);
  return GLOO_RS_OK;
}

static uint32_t own_add(const char *key, int64_t amount, int64_t *sum, void *user) {
  struct entry *entry = find((struct own_store *)user, key, 1);
  char text[33] = {0};
  memcpy(text, entry->value, entry->bytes);
  *sum = (entry->bytes > 0 ? atoll(text) : 0) + amount;
  entry->bytes = (size_t)snprintf(entry->value, sizeof entry->value, "%lld", (long long)*sum);
  return GLOO_RS_OK;
}

static uint32_t own_append(const char *key, const void *value, size_t bytes, void *user) {
  struct entry *entry = find((struct own_store *)user, key, 1);
  CHECK(entry->bytes + bytes <= sizeof entry->value);
  memcpy(entry->value + entry->bytes, value, bytes);
  entry->bytes += bytes;
  return GLOO_RS_OK;
}

static uint32_t own_remove(const char *key, bool *existed, void *user) {
  struct entry *entry = find((struct own_store *)user, key, 0);
  *existed = entry != NULL;
  if (entry != NULL) entry->used = 0;
  return GLOO_RS_OK;
}

static void own_destroy(void *user) { ((struct own_store *)user)->destroyed++; }

static void callbacks(void) {
  struct own_store own;
  gloo_rs_store_callbacks_t functions;
  gloo_rs_store_t *store = NULL, *part = NULL;
  int64_t sum;
  memset(&own, 0, sizeof own);
  gloo_rs_store_callbacks_init(&functions, sizeof functions);
  functions.user = &own;
  functions.get = own_get;
  functions.destroy = own_destroy;
  CHECK_INVALID(gloo_rs_store_create_callbacks(&functions, &store), "set");
  CHECK_INVALID(gloo_rs_store_create_callbacks(NULL, &store), "callbacks is NULL");
  functions.set = own_set;
  functions.struct_size = 8;
  CHECK_INVALID(gloo_rs_store_create_callbacks(&functions, &store), "struct_size");
  CHECK_INT(own.destroyed, 0);

  functions.struct_size = sizeof functions;
  functions.wait = own_wait;
  functions.add = own_add;
  functions.append = own_append;
  functions.remove = own_remove;
  CHECK_OK(gloo_rs_store_create_callbacks(&functions, &store));
  memset(&functions, 0xaa, sizeof functions);
  exercise(store);
  own.answer = 4711;
  CHECK_FAILS(gloo_rs_store_set(store, "key", "v", 1), GLOO_RS_ERROR_CALLBACK, "4711");
  own.answer = GLOO_RS_ERROR_IO;
  CHECK_FAILS(gloo_rs_store_set(store, "key", "v", 1), GLOO_RS_ERROR_IO, "key");
  own.answer = GLOO_RS_OK;
  CHECK_OK(gloo_rs_store_create_prefix("part", store, &part));
  gloo_rs_store_destroy(store);
  CHECK_INT(own.destroyed, 0);
  CHECK_OK(gloo_rs_store_set(part, "key", "v", 1));
  gloo_rs_store_destroy(part);
  CHECK_INT(own.destroyed, 1);

  /* Only the required callbacks. */
  gloo_rs_store_callbacks_init(&functions, sizeof functions);
  functions.user = &own;
  functions.set = own_set;
  functions.get = own_get;
  CHECK_OK(gloo_rs_store_create_callbacks(&functions, &store));
  CHECK_OK(gloo_rs_store_set(store, "least", "v", 1));
  check_value(store, "least", "v");
  CHECK_FAILS(gloo_rs_store_add(store, "least", 1, &sum), GLOO_RS_ERROR_UNSUPPORTED, "add");
  gloo_rs_store_destroy(store);
  CHECK_INT(own.destroyed, 1);
}

/* Several keys at once, by functions for that, of a store whose waits block. */
static void several_keys_by_callbacks(void) {
  static const char *const keys[] = {"one", "two"};
  static const void *const values[] = {"1", "22"};
  static const size_t lengths[] = {1, 2};
  struct own_store own;
  gloo_rs_store_callbacks_t functions;
  gloo_rs_store_t *store = NULL;
  void *got[2];
  size_t bytes[2];
  memset(&own, 0, sizeof own);
  gloo_rs_store_callbacks_init(&functions, sizeof functions);
  functions.user = &own;
  functions.set = own_set;
  functions.get = own_get;
  functions.multi_get = own_multi_get;
  functions.multi_set = own_multi_set;
  functions.waits_block = true;
  CHECK_OK(gloo_rs_store_create_callbacks(&functions, &store));
  CHECK_OK(gloo_rs_store_multi_set(store, keys, values, lengths, 2));
  CHECK_OK(gloo_rs_store_multi_get(store, keys, 2, 1000, got, bytes));
  CHECK_INT(bytes[0], 1);
  CHECK_INT(bytes[1], 2);
  CHECK(memcmp(got[0], "1", 1) == 0 && memcmp(got[1], "22", 2) == 0);
  gloo_rs_free(got[0]);
  gloo_rs_free(got[1]);
  CHECK_OK(gloo_rs_store_wait(store, keys, 2, 1000));
  CHECK_INT(own.multi_gets, 2);
  CHECK_INT(own.multi_sets, 1);
  own.surplus = 1;
  CHECK_FAILS(gloo_rs_store_multi_get(store, keys, 2, 1000, got, bytes), GLOO_RS_ERROR_CALLBACK, "3 values for 2 keys");
  CHECK(got[0] == NULL && got[1] == NULL);
  own.surplus = -1;
  CHECK_FAILS(gloo_rs_store_multi_get(store, keys, 2, 1000, got, bytes), GLOO_RS_ERROR_CALLBACK, "1 values for 2 keys");
  CHECK_INT(own.multi_gets, 4);
  /* A timeout of 0 asks once, which this store cannot: its waits block. */
  CHECK_FAILS(gloo_rs_store_multi_get(store, keys, 2, 0, got, bytes), GLOO_RS_ERROR_UNSUPPORTED, "waits block");
  CHECK_FAILS(gloo_rs_store_wait(store, keys, 2, 0), GLOO_RS_ERROR_UNSUPPORTED, "waits block");
  CHECK_INT(own.multi_gets, 4);
  gloo_rs_store_destroy(store);
}

static void *set_late(void *argument) {
  sleep_ms(20);
  CHECK_OK(gloo_rs_store_set((gloo_rs_store_t *)argument, "late", "come", 4));
  return NULL;
}

static void waits(void) {
  gloo_rs_store_t *store = open_store();
  static const char *const key = "late";
  pthread_t thread = start_thread(set_late, store);
  CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  check_value(store, "late", "come");
  join_thread(thread);
  gloo_rs_store_destroy(store);
}

/* Ranks in processes of their own. */
static void between_processes(void) {
  gloo_rs_store_t *store = open_store();
  int64_t sum;
  char key[16];
  int i;
  snprintf(key, sizeof key, "rank%d", test_rank);
  CHECK_OK(gloo_rs_store_set(store, key, key, strlen(key)));
  for (i = 0; i < test_size; i++) {
    snprintf(key, sizeof key, "rank%d", i);
    check_value(store, key, key);
  }
  CHECK_OK(gloo_rs_store_add(store, "sum", test_rank + 1, &sum));
  CHECK(sum >= test_rank + 1 && sum <= 6);
  gloo_rs_store_destroy(store);
}

static void bad_arguments(void) {
  gloo_rs_store_t *store = NULL, *made = NULL;
  gloo_rs_device_t *device = create_device();
  const char *keys[2] = {"a", NULL};
  const void *values[2] = {"a", NULL};
  size_t lengths[2] = {1, 1}, bytes;
  void *value;
  int64_t sum;
  CHECK_OK(gloo_rs_store_create_in_process("bad", &store));
  CHECK_INVALID(gloo_rs_store_set(NULL, "a", "", 0), "store is NULL");
  CHECK_INVALID(gloo_rs_store_set((gloo_rs_store_t *)device, "a", "", 0), "not a live gloo_rs_store_t");
  CHECK_INVALID(gloo_rs_store_set(store, NULL, "", 0), "key is NULL");
  CHECK_INVALID(gloo_rs_store_set(store, "", "", 0), "");
  CHECK_INVALID(gloo_rs_store_set(store, "\xff", "", 0), "UTF-8");
  CHECK_INVALID(gloo_rs_store_set(store, "a", NULL, 1), "value is NULL");
  CHECK_INVALID(gloo_rs_store_set(store, "a", "", SIZE_MAX), "value");
  CHECK_INVALID(gloo_rs_store_get(store, "a", -2, &value, &bytes), "timeout_ms is -2");
  CHECK_INVALID(gloo_rs_store_get(store, "a", 0, NULL, &bytes), "value is NULL");
  CHECK_INVALID(gloo_rs_store_get(store, "a", 0, &value, NULL), "bytes is NULL");
  CHECK_INVALID(gloo_rs_store_wait(store, keys, 2, 0), "keys[1] is NULL");
  CHECK_INVALID(gloo_rs_store_wait(store, NULL, 1, 0), "keys is NULL");
  CHECK_INVALID(gloo_rs_store_wait(store, keys, SIZE_MAX, 0), "keys");
  CHECK_INVALID(gloo_rs_store_add(store, "a", 1, NULL), "sum is NULL");
  keys[1] = "b";
  CHECK_INVALID(gloo_rs_store_multi_set(store, keys, values, lengths, 2), "a value is NULL");
  CHECK_INVALID(gloo_rs_store_multi_get(store, keys, 2, 0, NULL, lengths), "values is NULL");
  CHECK_OK(gloo_rs_store_set(store, "text", "x", 1));
  CHECK(gloo_rs_store_add(store, "text", 1, &sum) != GLOO_RS_OK);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "text");
  made = store;
  CHECK_INVALID(gloo_rs_store_create_tcp(NULL, 1, false, 0, &made), "host is NULL");
  CHECK(made == NULL);
  CHECK_INVALID(gloo_rs_store_create_tcp("localhost", 0, false, 0, &made), "port");
  CHECK_INVALID(gloo_rs_store_create_file(NULL, &made), "path is NULL");
  CHECK_INVALID(gloo_rs_store_create_in_process("", &made), "");
  CHECK_INVALID(gloo_rs_store_create_in_process("x", NULL), "store is NULL");
  CHECK_INVALID(gloo_rs_store_create_prefix(NULL, store, &made), "prefix is NULL");
  CHECK_INVALID(gloo_rs_store_create_prefix("p", NULL, &made), "base is NULL");
  CHECK_INVALID(gloo_rs_store_create_url("ftp://x", 0, 0, &made), "ftp://x");
  CHECK_INVALID(gloo_rs_store_create_url("inproc://x", -1, 0, &made), "-1");
  gloo_rs_store_destroy(store);
  gloo_rs_store_destroy((gloo_rs_store_t *)device);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "not a live gloo_rs_store_t");
  gloo_rs_device_destroy(device);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"tcp", 1, tcp, -1},
      {"tokens", 1, tokens, -1},
      {"file", 1, file, -1},
      {"in_process", 1, in_process, -1},
      {"prefix", 1, prefix, -1},
      {"callbacks", 1, callbacks, -1},
      {"several_keys_by_callbacks", 1, several_keys_by_callbacks, -1},
      {"waits", 1, waits, -1},
      {"between_processes", 3, between_processes, -1},
      {"bad_arguments", 1, bad_arguments, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
