/* Functions that need no peer: version, names, sizes, messages, options. */
#include "harness.h"

static void version_and_features(void) {
  int major = -1, minor = -1, patch = -1;
  CHECK_INT(sscanf(gloo_rs_version(), "%d.%d.%d", &major, &minor, &patch), 3);
  CHECK_INT(major, GLOO_RS_VERSION_MAJOR);
  CHECK_INT(minor, GLOO_RS_VERSION_MINOR);
  CHECK_INT(patch, GLOO_RS_VERSION_PATCH);
  CHECK_INT(gloo_rs_version_number(), GLOO_RS_VERSION_NUMBER);
  CHECK_INT(GLOO_RS_VERSION_NUMBER, major * 10000 + minor * 100 + patch);
  CHECK_CONTAINS(gloo_rs_built_features(), "tcp");
}

static void names_and_sizes(void) {
  static const size_t sizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1};
  gloo_rs_data_type_t type;
  CHECK_TEXT(gloo_rs_status_name(GLOO_RS_OK), "GLOO_RS_OK");
  CHECK_TEXT(gloo_rs_status_name(GLOO_RS_ERROR_TIMEOUT), "GLOO_RS_ERROR_TIMEOUT");
  CHECK_TEXT(gloo_rs_status_name(GLOO_RS_ERROR_INTERNAL), "GLOO_RS_ERROR_INTERNAL");
  CHECK_TEXT(gloo_rs_status_name(4711), "unknown status");
  for (type = GLOO_RS_DATA_TYPE_UNSET; type <= GLOO_RS_BOOL; type++) CHECK_INT(gloo_rs_data_type_size(type), sizes[type]);
  CHECK_INT(gloo_rs_data_type_size(GLOO_RS_BOOL + 1), 0);
}

static void *fail_elsewhere(void *unused) {
  (void)unused;
  CHECK_TEXT(gloo_rs_last_error_message(), "");
  CHECK_INVALID(gloo_rs_pair_close(NULL), "gloo_rs_pair_close: pair is NULL");
  return NULL;
}

static void messages(void) {
  CHECK_TEXT(gloo_rs_last_error_message(), "");
  CHECK_INVALID(gloo_rs_context_close(NULL), "gloo_rs_context_close: context is NULL");
  join_thread(start_thread(fail_elsewhere, NULL));
  CHECK_CONTAINS(gloo_rs_last_error_message(), "gloo_rs_context_close: context is NULL");
}

static void nothing_to_destroy(void) {
  gloo_rs_free(NULL);
  gloo_rs_device_destroy(NULL);
  gloo_rs_store_destroy(NULL);
  gloo_rs_context_destroy(NULL);
  gloo_rs_pair_destroy(NULL);
  gloo_rs_buffer_destroy(NULL);
  gloo_rs_unbound_buffer_destroy(NULL);
  CHECK_TEXT(gloo_rs_last_error_message(), "");
}

/* Every struct: its size, its default timeout, and nothing written beyond the caller's size. */
#define CHECK_INIT(name) \
  do { \
    struct { \
      gloo_rs_##name##_options_t options; \
      unsigned char guard[16]; \
    } space; \
    size_t i_; \
    memset(&space, 0xaa, sizeof space); \
    gloo_rs_##name##_options_init(&space.options, sizeof space.options); \
    CHECK_INT(space.options.struct_size, sizeof space.options); \
    CHECK_INT(space.options.timeout_ms, GLOO_RS_TIMEOUT_DEFAULT); \
    CHECK_INT(space.options.max_segment_bytes, 0); \
    for (i_ = 0; i_ < sizeof space.guard; i_++) CHECK_INT(space.guard[i_], 0xaa); \
  } while (0)

static void options(void) {
  gloo_rs_device_options_t device;
  gloo_rs_collective_options_t collective;
  gloo_rs_store_callbacks_t callbacks;
  gloo_rs_connection_statistics_t statistics;
  CHECK_INIT(context);
  CHECK_INIT(collective);
  memset(&device, 0xaa, sizeof device);
  gloo_rs_device_options_init(&device, sizeof device);
  CHECK_INT(device.struct_size, sizeof device);
  CHECK(device.interface_name == NULL && device.hostname == NULL && device.log == NULL);
  CHECK_INT(device.port, 0);
  gloo_rs_collective_options_init(&collective, sizeof collective);
  CHECK_INT(collective.data_type, GLOO_RS_DATA_TYPE_UNSET);
  gloo_rs_collective_options_init(NULL, sizeof collective);
  memset(&callbacks, 0xaa, sizeof callbacks);
  gloo_rs_store_callbacks_init(&callbacks, sizeof callbacks);
  CHECK_INT(callbacks.struct_size, sizeof callbacks);
  CHECK(callbacks.user == NULL && callbacks.set == NULL && callbacks.destroy == NULL);
  memset(&statistics, 0xaa, sizeof statistics);
  gloo_rs_connection_statistics_init(&statistics, sizeof statistics);
  CHECK_INT(statistics.struct_size, sizeof statistics);
  CHECK_INT(statistics.accepted + statistics.crowded_out, 0);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"version_and_features", 1, version_and_features, -1},
      {"names_and_sizes", 1, names_and_sizes, -1},
      {"messages", 1, messages, -1},
      {"nothing_to_destroy", 1, nothing_to_destroy, -1},
      {"options", 1, options, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
