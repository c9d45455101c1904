/* Devices: addresses, options, log messages. */
#include "harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

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
  options.interface_name = "no-such-interface, l*,10.0.0.0/8";
  CHECK_OK(gloo_rs_device_create(&options, &device));
  CHECK_OK(gloo_rs_device_interface(device, text, sizeof text, NULL));
  CHECK_TEXT(text, "lo");
  gloo_rs_device_destroy(device);
  options.interface_name = "lo,^eth0";
  CHECK_INVALID(gloo_rs_device_create(&options, &device), "\"^eth0\"");
  options.interface_name = "^*";
  CHECK_INVALID(gloo_rs_device_create(&options, &device), "excludes all");
}

/* Without options, a device listens when a context connects: on loopback, since all ranks are on this host. */
static void nothing_named(void) {
  gloo_rs_device_t *device = NULL;
  gloo_rs_context_t *context = NULL;
  gloo_rs_store_t *store = NULL;
  char text[64];
  size_t needed = 0;
  CHECK_INT(unsetenv("GLOO_RS_SOCKET_IFNAME"), 0);
  CHECK_OK(gloo_rs_device_create(NULL, &device));
  CHECK_OK(gloo_rs_device_address(device, text, sizeof text, &needed));
  CHECK_TEXT(text, "");
  CHECK_INT(needed, 1);
  CHECK_OK(gloo_rs_store_create_in_process("device.nothing_named", &store));
  CHECK_OK(gloo_rs_context_create(device, 0, 1, NULL, &context));
  CHECK_OK(gloo_rs_context_connect(context, store));
  CHECK_OK(gloo_rs_device_address(device, text, sizeof text, NULL));
  CHECK_INT(strncmp(text, "127.0.0.1:", 10), 0);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);

  CHECK_INT(setenv("GLOO_RS_SOCKET_IFNAME", "no-such-interface", 1), 0);
  CHECK_INVALID(gloo_rs_device_create(NULL, &device), "GLOO_RS_SOCKET_IFNAME: interface \"no-such-interface\"");
  CHECK_INT(setenv("GLOO_RS_SOCKET_IFNAME", "lo", 1), 0);
  CHECK_OK(gloo_rs_device_create(NULL, &device));
  CHECK_OK(gloo_rs_device_interface(device, text, sizeof text, NULL));
  CHECK_TEXT(text, "lo");
  CHECK_INT(unsetenv("GLOO_RS_SOCKET_IFNAME"), 0);
  gloo_rs_device_destroy(device);
  gloo_rs_store_destroy(store);
}

/* A device takes a free port of a range. */
static void ranges(void) {
  gloo_rs_device_t *device = NULL, *other = NULL;
  gloo_rs_device_options_t options;
  char text[64];
  gloo_rs_device_options_init(&options, sizeof options);
  CHECK(options.port_range == NULL);
  /* An address that no other test uses. */
  options.hostname = "127.83.18.1";
  options.port_range = "23000-";
  CHECK_INVALID(gloo_rs_device_create(&options, &device), "port_range is \"23000-\"");
  options.port_range = "23000-23000";
  options.port = 5;
  CHECK_INVALID(gloo_rs_device_create(&options, &device), "port is 5, and port_range is set");
  options.port = 0;
  CHECK_OK(gloo_rs_device_create(&options, &device));
  CHECK_OK(gloo_rs_device_address(device, text, sizeof text, NULL));
  CHECK_TEXT(text, "127.83.18.1:23000");
  CHECK_FAILS(gloo_rs_device_create(&options, &other), GLOO_RS_ERROR_RESOURCE_EXHAUSTED,
              "no port of port_range=23000-23000 is free; the last one tried was 127.83.18.1:23000");
  options.port_range = NULL;
  CHECK_INT(setenv("GLOO_RS_PORT_RANGE", "0", 1), 0);
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "GLOO_RS_PORT_RANGE is \"0\"");
  CHECK_INT(setenv("GLOO_RS_PORT_RANGE", "23000-23001", 1), 0);
  CHECK_OK(gloo_rs_device_create(&options, &other));
  CHECK_OK(gloo_rs_device_address(other, text, sizeof text, NULL));
  CHECK_TEXT(text, "127.83.18.1:23001");
  CHECK_INT(unsetenv("GLOO_RS_PORT_RANGE"), 0);
  gloo_rs_device_destroy(other);
  gloo_rs_device_destroy(device);
}

/* Who may trace this process. What the system makes of it is tested where there is Yama: c_tests/rxe. */
static void tracers(void) {
  gloo_rs_device_t *device = NULL;
  gloo_rs_device_options_t options;
  gloo_rs_device_options_init(&options, sizeof options);
  CHECK(options.ptracer == NULL);
  options.ptracer = "-1";
  CHECK_INVALID(gloo_rs_device_create(&options, &device), "ptracer is \"-1\"; it must be the number of a process");
  CHECK_INT(setenv("GLOO_RS_PTRACER", "all", 1), 0);
  CHECK_INVALID(gloo_rs_device_create(NULL, &device), "GLOO_RS_PTRACER is \"all\"");
  options.ptracer = "0";
  CHECK_OK(gloo_rs_device_create(&options, &device));
  gloo_rs_device_destroy(device);
  CHECK_INT(unsetenv("GLOO_RS_PTRACER"), 0);
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

  gloo_rs_device_options_init(&options, sizeof options);
  options.shared_memory = (gloo_rs_shared_memory_t)3;
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "shared_memory is 3");
  options.shared_memory = GLOO_RS_SHARED_MEMORY_OFF;
  options.streams = 17;
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "streams is 17; it must be 1 to 16");
  options.streams = 0;
  options.wait = "often";
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "wait is \"often\"; it must be poll, auto or sleep");
  options.wait = NULL;

  options.hostname = "\xff";
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "hostname is not UTF-8");
  CHECK_INVALID(gloo_rs_device_create(NULL, NULL), "device is NULL");
  options.struct_size = 4;
  CHECK_INVALID(gloo_rs_device_create(&options, &other), "gloo_rs_device_options_t");
  gloo_rs_device_destroy(device);
}

static void statistics(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_connection_statistics_t statistics;
  struct { gloo_rs_connection_statistics_t known; uint64_t later; } longer;
  memset(&statistics, 0xff, sizeof statistics);
  statistics.struct_size = sizeof statistics;
  CHECK_OK(gloo_rs_device_connection_statistics(device, &statistics));
  CHECK_INT(statistics.struct_size, sizeof statistics);
  CHECK_INT(statistics.accepted + statistics.foreign + statistics.incomplete + statistics.crowded_out, 0);
  /* A caller of an older version, and of a newer one. */
  memset(&statistics, 0xff, sizeof statistics);
  statistics.struct_size = 2 * sizeof(size_t);
  CHECK_OK(gloo_rs_device_connection_statistics(device, &statistics));
  CHECK(statistics.accepted == 0 && statistics.foreign == UINT64_MAX);
  memset(&longer, 0xff, sizeof longer);
  longer.known.struct_size = sizeof longer;
  CHECK_OK(gloo_rs_device_connection_statistics(device, &longer.known));
  CHECK(longer.known.crowded_out == 0 && longer.later == 0);
  statistics.struct_size = 3;
  CHECK_INVALID(gloo_rs_device_connection_statistics(device, &statistics), "gloo_rs_connection_statistics_t");
  CHECK_INVALID(gloo_rs_device_connection_statistics(device, NULL), "statistics is NULL");
  gloo_rs_device_destroy(device);
}

/* ---- log messages of a device ---- */

struct log {
  pthread_mutex_t mutex;
  int messages, destroyed;
  gloo_rs_log_level_t level;
  char text[256];
};

static void write_log(gloo_rs_log_level_t level, const char *message, void *user) {
  struct log *log = (struct log *)user;
  pthread_mutex_lock(&log->mutex);
  if (log->messages++ == 0) {
    log->level = level;
    snprintf(log->text, sizeof log->text, "%s", message);
  }
  pthread_mutex_unlock(&log->mutex);
}

static void destroy_log(void *user) {
  struct log *log = (struct log *)user;
  pthread_mutex_lock(&log->mutex);
  log->destroyed++;
  pthread_mutex_unlock(&log->mutex);
}

/* A connection from another program is dropped with a log message, and does no harm. */
static void stray_connections(void) {
  struct log log = {PTHREAD_MUTEX_INITIALIZER, 0, 0, GLOO_RS_LOG_WARNING, ""};
  gloo_rs_device_options_t options;
  gloo_rs_device_t *device = NULL;
  gloo_rs_context_t *context = NULL;
  struct sockaddr_in address;
  char text[64], byte;
  int messages = 0, stray = socket(AF_INET, SOCK_STREAM, 0);
  int64_t deadline = now_ms() + test_timeout_ms();
  gloo_rs_device_options_init(&options, sizeof options);
  options.hostname = "127.0.0.1";
  options.log = write_log;
  options.log_user = &log;
  options.log_destroy = destroy_log;
  options.interface_name = "no such interface";
  CHECK_FAILS(gloo_rs_device_create(&options, &device), GLOO_RS_ERROR_INVALID_ARGUMENT, "no such interface");
  CHECK_INT(log.destroyed, 0);
  options.interface_name = NULL;
  CHECK_OK(gloo_rs_device_create(&options, &device));
  CHECK_OK(gloo_rs_context_create(device, 0, 1, NULL, &context));
  CHECK_OK(gloo_rs_device_address(device, text, sizeof text, NULL));
  /* With some transports there are messages about what the device uses. */
  pthread_mutex_lock(&log.mutex);
  log.messages = 0;
  pthread_mutex_unlock(&log.mutex);
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(strchr(text, ':') + 1));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_INT(connect(stray, (struct sockaddr *)&address, sizeof address), 0);
  CHECK_INT(send(stray, "GET / HTTP/1.1\r\nHost: somebody else entirely\r\n\r\n", 49, MSG_NOSIGNAL), 49);
  /* The device closes the connection after it has logged why. */
  while (recv(stray, &byte, 1, 0) > 0) {
  }
  close(stray);
  while (messages == 0 && now_ms() < deadline) {
    sleep_ms(1);
    pthread_mutex_lock(&log.mutex);
    messages = log.messages;
    pthread_mutex_unlock(&log.mutex);
  }
  CHECK(messages > 0);
  CHECK(log.level >= GLOO_RS_LOG_WARNING && log.level <= GLOO_RS_LOG_DETAIL);
  CHECK_CONTAINS(log.text, "127.0.0.1");
  gloo_rs_device_destroy(device);
  CHECK_INT(log.destroyed, 0);
  gloo_rs_context_destroy(context);
  /* The device's own thread may be the last that has it. */
  for (messages = 0; messages == 0 && now_ms() < deadline; sleep_ms(1)) {
    pthread_mutex_lock(&log.mutex);
    messages = log.destroyed;
    pthread_mutex_unlock(&log.mutex);
  }
  CHECK_INT(messages, 1);
}

/* ---- messages on stderr, where the environment asks for them ---- */

static void stderr_is_asked_for_by_the_environment(void) {
  static const struct { const char *level; int notices; } cases[] = {
      {NULL, 0}, {"", 0}, {"warning", 0}, {"notice", 1}, {"detail", 1}};
  size_t i;
  for (i = 0; i < sizeof cases / sizeof *cases; i++) {
    gloo_rs_device_options_t options;
    gloo_rs_device_t *device = NULL;
    char text[4096];
    int pipes[2], stderr_before = dup(2);
    ssize_t bytes;
    CHECK_INT(pipe(pipes), 0);
    if (cases[i].level != NULL) CHECK_INT(setenv("GLOO_RS_LOG", cases[i].level, 1), 0);
    gloo_rs_device_options_init(&options, sizeof options);
    options.hostname = "127.0.0.1";
    fflush(stderr);
    CHECK(dup2(pipes[1], 2) == 2);
    if (gloo_rs_device_create(&options, &device) == GLOO_RS_OK) gloo_rs_device_destroy(device);
    CHECK(dup2(stderr_before, 2) == 2);
    close(pipes[1]);
    close(stderr_before);
    bytes = read(pipes[0], text, sizeof text - 1);
    close(pipes[0]);
    CHECK(device != NULL && bytes >= 0);
    text[bytes] = '\0';
    if (cases[i].notices > 0) {
      struct tm time;
      char name[256], host[256];
      int milliseconds = -1, process = 0, at = 0;
      memset(&time, 0, sizeof time);
      CHECK_INT(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %255[^[][%d] gloo_rs: notice: %n", &time.tm_year, &time.tm_mon,
                       &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec, &milliseconds, name, &process, &at),
                9);
      CHECK(at > 0 && time.tm_year >= 2026 && milliseconds >= 0);
      CHECK_INT(process, getpid());
      CHECK_INT(gethostname(host, sizeof host), 0);
      CHECK_TEXT(name, host);
      CHECK_CONTAINS(text, "127.0.0.1");
    } else {
      CHECK_TEXT(text, "");
    }
  }
  {
    gloo_rs_device_t *device = NULL;
    CHECK_INT(setenv("GLOO_RS_LOG", "loud", 1), 0);
    CHECK_INVALID(gloo_rs_device_create(NULL, &device), "GLOO_RS_LOG is loud; it must be one of warning, notice, detail");
    CHECK_INT(unsetenv("GLOO_RS_LOG"), 0);
  }
}

/* How threads wait: as the context's options say, else the device's, else the environment. */
static void waits(void) {
  static const char *const in_context[] = {"sleep", NULL, NULL}, *const in_device[] = {NULL, "poll", NULL};
  size_t i;
  CHECK_INT(setenv("GLOO_RS_WAIT", "often", 1), 0);
  for (i = 0; i < 3; i++) {
    gloo_rs_device_options_t of_device;
    gloo_rs_context_options_t options;
    gloo_rs_device_t *device = NULL;
    gloo_rs_context_t *context = NULL;
    gloo_rs_device_options_init(&of_device, sizeof of_device);
    of_device.wait = in_device[i];
    CHECK_OK(gloo_rs_device_create(&of_device, &device));
    gloo_rs_context_options_init(&options, sizeof options);
    CHECK(options.wait == NULL);
    options.wait = in_context[i];
    if (i < 2) {
      CHECK_OK(gloo_rs_context_create(device, 0, 1, &options, &context));
      gloo_rs_context_destroy(context);
    } else {
      CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "GLOO_RS_WAIT is \"often\"; it must be poll, auto or sleep");
      CHECK_INT(setenv("GLOO_RS_WAIT", "auto", 1), 0);
      CHECK_OK(gloo_rs_context_create(device, 0, 1, &options, &context));
      gloo_rs_context_destroy(context);
      options.wait = "always";
      CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "wait is \"always\"; it must be poll, auto or sleep");
    }
    gloo_rs_device_destroy(device);
  }
  CHECK_INT(unsetenv("GLOO_RS_WAIT"), 0);
}

/* A caller of an older version, whose options had fewer fields. */
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
      {"nothing_named", 1, nothing_named, -1},
      {"ranges", 1, ranges, -1},
      {"tracers", 1, tracers, -1},
      {"failures", 1, failures, -1},
      {"statistics", 1, statistics, -1},
      {"stray_connections", 1, stray_connections, -1},
      {"stderr_is_asked_for_by_the_environment", 1, stderr_is_asked_for_by_the_environment, -1},
      {"waits", 1, waits, -1},
      {"shorter_options", 1, shorter_options, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
