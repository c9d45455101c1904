/* The transport ibverbs by options, and the list of ports. What needs a device is done where there is one. */
#include "harness.h"

static bool built(void) {
  return strstr(gloo_rs_built_features(), "ibverbs") != NULL;
}

static gloo_rs_ibverbs_options_t defaults(void) {
  gloo_rs_ibverbs_options_t verbs;
  gloo_rs_ibverbs_options_init(&verbs, sizeof verbs);
  return verbs;
}

static gloo_rs_status_t create(const char *transport, const gloo_rs_ibverbs_options_t *verbs) {
  gloo_rs_device_options_t options;
  gloo_rs_device_t *device;
  gloo_rs_status_t status;
  gloo_rs_device_options_init(&options, sizeof options);
  options.hostname = "127.0.0.1";
  options.transport = transport;
  options.ibverbs = verbs;
  status = gloo_rs_device_create(&options, &device);
  gloo_rs_device_destroy(device);
  return status;
}

static void options(void) {
  gloo_rs_ibverbs_options_t verbs = defaults();
  CHECK_INT(verbs.port, GLOO_RS_IBVERBS_DEFAULT);
  CHECK_INT(verbs.gid_index, GLOO_RS_IBVERBS_DEFAULT);
  CHECK_INT(verbs.traffic_class, GLOO_RS_IBVERBS_DEFAULT);
  CHECK_INT(verbs.timeout, GLOO_RS_IBVERBS_DEFAULT);
  CHECK_INT(verbs.retry_count, GLOO_RS_IBVERBS_DEFAULT);
  CHECK(verbs.hca == NULL);
  CHECK_INVALID(create("tcp", &verbs), "ibverbs is set, but transport is tcp");
  if (!built()) {
    CHECK_FAILS(create(NULL, &verbs), GLOO_RS_ERROR_UNSUPPORTED, "ibverbs");
    CHECK_FAILS(create("ibverbs", NULL), GLOO_RS_ERROR_UNSUPPORTED, "transport is ibverbs");
    return;
  }
  verbs.port = 0;
  CHECK_INVALID(create(NULL, &verbs), "ibverbs->port is 0; it must be 1 to 255");
  verbs = defaults();
  verbs.retry_count = 8;
  CHECK_INVALID(create("ibverbs", &verbs), "ibverbs->retry_count is 8; it must be 0 to 7");
  verbs = defaults();
  verbs.reserved = 1;
  CHECK_INVALID(create(NULL, &verbs), "ibverbs->reserved is 1");
  verbs = defaults();
  verbs.struct_size = 3;
  CHECK_INVALID(create(NULL, &verbs), "gloo_rs_ibverbs_options_t");
}

static void check_gids(const gloo_rs_ibverbs_port_t *port) {
  gloo_rs_ibverbs_gid_t *gids = check_alloc((port->gids + 1) * sizeof *gids);
  size_t count, i;
  bool found = false;
  for (i = 0; i <= port->gids; i++) gloo_rs_ibverbs_gid_init(&gids[i], sizeof *gids);
  CHECK_OK(gloo_rs_ibverbs_gids(port->device, port->port, gids, port->gids + 1, &count));
  CHECK_INT(count, port->gids);
  for (i = 0; i < count; i++) found |= (int32_t)gids[i].index == port->gid_index;
  CHECK(found == (port->gid_index >= 0));
  free(gids);
}

static void ports(void) {
  gloo_rs_ibverbs_port_t *ports;
  size_t count = 77, i;
  gloo_rs_status_t status;
  CHECK_INVALID(gloo_rs_ibverbs_devices(NULL, 0, NULL), "count is NULL");
  status = gloo_rs_ibverbs_devices(NULL, 0, &count);
  if (status != GLOO_RS_OK) {
    /* No device, no library, or not built; the message says which. */
    CHECK_INT(status, GLOO_RS_ERROR_UNSUPPORTED);
    CHECK_INT(count, 77);
    printf("no ports: %s\n", gloo_rs_last_error_message());
    CHECK_FAILS(gloo_rs_ibverbs_gids("mlx5_0", 1, NULL, 0, &count), GLOO_RS_ERROR_UNSUPPORTED, "");
    CHECK_FAILS(create("ibverbs", NULL), GLOO_RS_ERROR_UNSUPPORTED, "");
    return;
  }
  CHECK_FAILS(gloo_rs_ibverbs_gids("none", 1, NULL, 0, &count), GLOO_RS_ERROR_NOT_FOUND, "no port none:1");
  ports = check_alloc((count + 1) * sizeof *ports);
  for (i = 0; i <= count; i++) gloo_rs_ibverbs_port_init(&ports[i], sizeof *ports);
  if (count > 0) CHECK_INVALID(gloo_rs_ibverbs_devices(ports, count - 1, &count), "are needed");
  CHECK_OK(gloo_rs_ibverbs_devices(ports, count + 1, &count));
  for (i = 0; i < count; i++) {
    CHECK(ports[i].struct_size == sizeof *ports && ports[i].device[0] != '\0' && ports[i].port >= 1);
    CHECK(ports[i].mtu >= 256 && ports[i].mtu <= 4096);
    check_gids(&ports[i]);
  }
  free(ports);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"options", 1, options, -1},
      {"ports", 1, ports, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
