/* TLS by options. GLOO_RS_TEST_TLS is the folder of rank.pem, rank.key and ca.pem. */
#include "harness.h"

static char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];

static gloo_rs_tls_options_t files(void) {
  gloo_rs_tls_options_t tls;
  gloo_rs_tls_options_init(&tls, sizeof tls);
  tls.cert = cert;
  tls.key = key;
  tls.ca_file = ca;
  return tls;
}

static gloo_rs_status_t create(const char *transport, const gloo_rs_tls_options_t *tls, gloo_rs_device_t **device) {
  gloo_rs_device_options_t options;
  gloo_rs_device_options_init(&options, sizeof options);
  options.hostname = "127.0.0.1";
  options.shared_memory = GLOO_RS_SHARED_MEMORY_OFF;
  options.transport = transport;
  options.tls = tls;
  return gloo_rs_device_create(&options, device);
}

static gloo_rs_store_t *store_over_tls(bool serve, uint16_t port) {
  gloo_rs_tls_options_t tls = files();
  gloo_rs_tcp_store_options_t options;
  gloo_rs_store_t *store;
  gloo_rs_tcp_store_options_init(&options, sizeof options);
  options.transport = "tls";
  options.tls = &tls;
  CHECK_OK(gloo_rs_store_create_tcp_with("127.0.0.1", port, serve, test_timeout_ms(), &options, &store));
  return store;
}

/* Rank 0's store over TLS; the other ranks get its port over the parent's store. */
static gloo_rs_store_t *job_store(void) {
  gloo_rs_store_t *parent = open_store(), *store;
  uint16_t port;
  if (test_rank == 0) {
    store = store_over_tls(true, 0);
    CHECK_OK(gloo_rs_store_port(store, &port));
    CHECK_OK(gloo_rs_store_set(parent, "tls/port", &port, sizeof port));
  } else {
    void *value;
    size_t bytes;
    CHECK_OK(gloo_rs_store_get(parent, "tls/port", test_timeout_ms(), &value, &bytes));
    CHECK_INT(bytes, sizeof port);
    memcpy(&port, value, sizeof port);
    gloo_rs_free(value);
    store = store_over_tls(false, port);
  }
  gloo_rs_store_destroy(parent);
  return store;
}

static void job(void) {
  gloo_rs_tls_options_t tls = files();
  gloo_rs_store_t *store = job_store();
  gloo_rs_device_t *device;
  gloo_rs_context_t *context;
  size_t count, i;
  tls.names = "somebody.else,rank.job";
  /* The files imply the transport. */
  CHECK_OK(create(test_rank == 0 ? NULL : "tls", &tls, &device));
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, NULL, &context));
  CHECK_OK(gloo_rs_context_connect(context, store));
  for (count = 1; count <= 1000000; count *= 100) {
    int64_t *data = check_alloc(count * sizeof *data);
    for (i = 0; i < count; i++) data[i] = (int64_t)i + test_rank;
    CHECK_OK(gloo_rs_allreduce(context, data, data, count, GLOO_RS_INT64, GLOO_RS_SUM));
    for (i = 0; i < count; i++) CHECK(data[i] == test_size * (int64_t)i + test_size * (test_size - 1) / 2);
    free(data);
  }
  barrier(context);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
  gloo_rs_store_destroy(store);
}

static void failures(void) {
  gloo_rs_tls_options_t tls = files();
  gloo_rs_device_t *device;
  CHECK_INVALID(create("udp", NULL, &device), "transport is \"udp\"; it must be tcp, uv, tls or ibverbs");
  CHECK_INVALID(create("tcp", &tls, &device), "tls is set, but transport is tcp");
  CHECK_INVALID(create("tls", NULL, &device), "TLS needs a certificate: the option, or GLOO_RS_TLS_CERT");
  tls.key = ca;
  CHECK_INVALID(create("tls", &tls, &device), "there is no private key in it");
  tls = files();
  tls.cert = "/nowhere/rank.pem";
  CHECK_FAILS(create("tls", &tls, &device), GLOO_RS_ERROR_IO, "/nowhere/rank.pem");
  tls = files();
  tls.names = "not a name";
  CHECK_INVALID(create("tls", &tls, &device), "not a name");
  tls = files();
  tls.struct_size = 3;
  CHECK_INVALID(create("tls", &tls, &device), "gloo_rs_tls_options_t");
  CHECK(device == NULL);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"job", 3, job, -1},
      {"failures", 1, failures, -1},
  };
  const char *folder = getenv("GLOO_RS_TEST_TLS");
  CHECK(folder != NULL);
  snprintf(cert, sizeof cert, "%s/rank.pem", folder);
  snprintf(key, sizeof key, "%s/rank.key", folder);
  snprintf(ca, sizeof ca, "%s/ca.pem", folder);
  CHECK_CONTAINS(gloo_rs_built_features(), "tls");
  return RUN_TESTS(argc, argv, tests);
}
