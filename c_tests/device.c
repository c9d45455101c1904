/* Devices. */
#include "harness.h"

static void addresses(void) {
  gloo_rs_device_t *device = create_device();
  char text[64], again[64];
  size_t needed = 0;
  CHECK_OK(gloo_rs_device_address(device, NULL, 0, &needed));
  CHECK(needed > strlen("127.0.0.1:") + 1 && needed <= sizeof text);
  memset(text, 'x', sizeof text);
  CHECK_OK(gloo_rs_device_address(device, text, needed, NULL));
  CHECK_INT(strlen(text) + 1, needed);
  CHECK_INT(strncmp(text, "127.0.0.1:", 10), 0);
  CHECK(atoi(text + 10) > 0);
  CHECK_OK(gloo_rs_device_address(device, again, sizeof again, &needed));
  CHECK_TEXT(again, text);
  CHECK_INVALID(gloo_rs_device_address(device, again, needed - 1, NULL), "needed");
  CHECK_INVALID(gloo_rs_device_address(device, NULL, 0, NULL), "NULL");
  CHECK_OK(gloo_rs_device_interface(device, again, sizeof again, &needed));
  CHECK_TEXT(again, "lo");
  CHECK_INVALID(gloo_rs_device_interface(NULL, again, sizeof again, &needed), "device is NULL");
  gloo_rs_device_destroy(device);
}

static void interfaces(void) {
  gloo_rs_device_t *device = NULL;
  gloo_rs_device_options_t options;
  char text[64];
  gloo_rs_device_options_init(&options, sizeof options);
  options.interface_name = "lo";
  CHECK_OK(gloo_rs_device_create(&options, &device));
  CHECK_OK(gloo_rs_device_interface(device, text, sizeof text, NULL));
  CHECK_TEXT(text, "lo");
  gloo_rs_device_destroy(device);
}

static void failures(void) {
  gloo_rs_device_t *device = create_device(), *other = device;
  gloo_rs_device_options_t options;
  char address[64];
  gloo_rs_status_t status;
  gloo_rs_device_options_init(&options, sizeof options);
  options.interface_name = "no-such-interface";
  status = gloo_rs_device_create(&options, &other);
  CHECK(status != GLOO_RS_OK && other == NULL);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "no-such-interface");

  gloo_rs_device_options_init(&options, sizeof options);
  options.hostname = "no-such-host.invalid";
  status = gloo_rs_device_create(&options, &other);
  CHECK(status != GLOO_RS_OK && other == NULL);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "no-such-host.invalid");

  CHECK_OK(gloo_rs_device_address(device, address, sizeof address, NULL));
  options.hostname = "127.0.0.1";
  options.port = (uint16_t)atoi(strchr(address, ':') + 1);
  CHECK_FAILS(gloo_rs_device_create(&options, &other), GLOO_RS_ERROR_IO, strchr(address, ':') + 1);

  options.hostname = "\xff";
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "hostname is not UTF-8");
  CHECK_INVALID(gloo_rs_device_create(NULL, NULL), "device is NULL");
  options.struct_size = 4;
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "gloo_rs_device_options_t");
  gloo_rs_device_destroy(device);
}

/* A caller from the time when options had fewer fields. */
static void shorter_options(void) {
  gloo_rs_device_t *device = NULL;
  size_t bytes = offsetof(gloo_rs_device_options_t, hostname);
  gloo_rs_device_options_t *options = (gloo_rs_device_options_t *)check_alloc(bytes);
  char text[64];
  gloo_rs_device_options_init(options, bytes);
  options->interface_name = "lo";
  CHECK_OK(gloo_rs_device_create(options, &device));
  CHECK_OK(gloo_rs_device_interface(device, text, sizeof text, NULL));
  CHECK_TEXT(text, "lo");
  gloo_rs_device_destroy(device);
  free(options);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"addresses", 1, addresses, -1},
      {"interfaces", 1, interfaces, -1},
      {"failures", 1, failures, -1},
      {"shorter_options", 1, shorter_options, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
