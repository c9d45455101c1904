/* Shows that a machine's verbs work: two processes with a queue pair each (RC) write into each other's memory by turns,
 * by RDMA WRITE with immediate, and check every byte, the immediate data and the completions. They sleep until a
 * completion's event comes.
 *
 *   verbs_smoke local DEVICE DEVICE BYTES ROUNDS             both processes here
 *   verbs_smoke listen DEVICE PORT BYTES ROUNDS              one of them; the other one is told where to connect by TCP
 *   verbs_smoke connect DEVICE ADDRESS PORT BYTES ROUNDS
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define IMMEDIATE 0x5eed0000u
#define MAX_GIDS 64

static const char *side = "";

static void fail(const char *format, ...) {
  int error = errno;
  char reason[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  /* At once, since the other process may fail at the same time. */
  fprintf(stderr, "verbs_smoke: %s: %s (%s)\n", side, reason, strerror(error));
  exit(1);
}

#define CHECK(condition) \
  do { \
    errno = 0; \
    if (!(condition)) fail("line %d: not so: %s", __LINE__, #condition); \
  } while (0)

/* Checks a function that returns the number of the error. */
#define CHECK_ZERO(call) \
  do { \
    int error_ = (call); \
    errno = error_ < 0 ? errno : error_; \
    if (error_ != 0) fail("line %d: %s", __LINE__, #call); \
  } while (0)

/* What the two tell each other by the socket. */
struct coordinates {
  uint64_t address;
  uint32_t key, queue_pair, sequence;
  union ibv_gid gid;
};

struct end {
  struct ibv_context *device;
  struct ibv_comp_channel *channel;
  struct ibv_cq *completions;
  struct ibv_qp *queue_pair;
  struct ibv_mr *region;
  struct coordinates peer;
  /* Half of it is written by the peer, the other half is sent. */
  unsigned char *memory;
  size_t bytes;
  unsigned sent, received;
};

static void send_all(int socket, const void *data, size_t bytes) { CHECK(send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes); }

static void receive_all(int socket, void *data, size_t bytes) { CHECK(recv(socket, data, bytes, MSG_WAITALL) == (ssize_t)bytes); }

static struct ibv_context *open_device(const char *name) {
  int count = 0, i;
  struct ibv_device **devices = ibv_get_device_list(&count);
  struct ibv_context *context = NULL;
  CHECK(devices != NULL);
  for (i = 0; i < count; i++) {
    if (strcmp(ibv_get_device_name(devices[i]), name) == 0) CHECK((context = ibv_open_device(devices[i])) != NULL);
  }
  if (context == NULL) fail("no device %s among %d", name, count);
  ibv_free_device_list(devices);
  return context;
}

/* The entry that is of RoCE v2 and an IPv4 address. */
static struct ibv_gid_entry find_gid(struct ibv_context *device) {
  static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  struct ibv_gid_entry entries[MAX_GIDS];
  ssize_t count = ibv_query_gid_table(device, entries, MAX_GIDS, 0), i;
  CHECK(count >= 0);
  for (i = 0; i < count; i++) {
    if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 && memcmp(entries[i].gid.raw, mapped, sizeof mapped) == 0) return entries[i];
  }
  fail("none of %zd GIDs is of RoCE v2 and an IPv4 address", count);
  exit(1);
}

/* One receive is taken by each write with immediate; it has no memory of its own. */
static void post_receive(struct end *end) {
  struct ibv_recv_wr request, *bad = NULL;
  memset(&request, 0, sizeof request);
  CHECK_ZERO(ibv_post_recv(end->queue_pair, &request, &bad));
}

static void connect_ends(struct end *end, const char *device, int socket) {
  struct ibv_qp_init_attr create;
  struct ibv_qp_attr attr;
  struct ibv_port_attr port;
  struct ibv_gid_entry gid;
  struct ibv_pd *domain;
  struct coordinates own;
  char ready = 1;

  end->device = open_device(device);
  gid = find_gid(end->device);
  CHECK_ZERO(ibv_query_port(end->device, 1, &port));
  if (port.state != IBV_PORT_ACTIVE) fail("port 1 of %s is not active", device);
  CHECK((domain = ibv_alloc_pd(end->device)) != NULL);
  CHECK((end->channel = ibv_create_comp_channel(end->device)) != NULL);
  CHECK((end->completions = ibv_create_cq(end->device, 16, NULL, end->channel, 0)) != NULL);
  CHECK((end->memory = calloc(2, end->bytes)) != NULL);
  CHECK((end->region = ibv_reg_mr(domain, end->memory, 2 * end->bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);

  memset(&create, 0, sizeof create);
  create.send_cq = create.recv_cq = end->completions;
  create.qp_type = IBV_QPT_RC;
  create.cap.max_send_wr = create.cap.max_recv_wr = 4;
  create.cap.max_send_sge = create.cap.max_recv_sge = 1;
  CHECK((end->queue_pair = ibv_create_qp(domain, &create)) != NULL);
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  CHECK_ZERO(ibv_modify_qp(end->queue_pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  post_receive(end);

  memset(&own, 0, sizeof own);
  own.address = (uintptr_t)end->memory;
  own.key = end->region->rkey;
  own.queue_pair = end->queue_pair->qp_num;
  own.sequence = 0x1000 + own.queue_pair;
  own.gid = gid.gid;
  send_all(socket, &own, sizeof own);
  receive_all(socket, &end->peer, sizeof end->peer);

  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = port.active_mtu;
  attr.dest_qp_num = end->peer.queue_pair;
  attr.rq_psn = end->peer.sequence;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = end->peer.gid;
  attr.ah_attr.grh.sgid_index = (uint8_t)gid.gid_index;
  attr.ah_attr.grh.hop_limit = 64;
  CHECK_ZERO(ibv_modify_qp(end->queue_pair, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.sq_psn = own.sequence;
  CHECK_ZERO(ibv_modify_qp(end->queue_pair, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                               IBV_QP_MAX_QP_RD_ATOMIC));
  /* Nobody writes to a queue pair that does not receive yet. */
  send_all(socket, &ready, 1);
  receive_all(socket, &ready, 1);
}

static unsigned char pattern(unsigned round, size_t i) { return (unsigned char)(round * 13 + i * 7 + (i >> 8)); }

static void take(struct end *end, const struct ibv_wc *completion) {
  size_t i;
  if (completion->status != IBV_WC_SUCCESS) fail("a completion says: %s", ibv_wc_status_str(completion->status));
  if (completion->opcode == IBV_WC_RDMA_WRITE) {
    end->sent++;
    return;
  }
  CHECK(completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(completion->wc_flags & IBV_WC_WITH_IMM);
  CHECK(ntohl(completion->imm_data) == IMMEDIATE + end->received);
  CHECK(completion->byte_len == end->bytes);
  for (i = 0; i < end->bytes; i++) {
    if (end->memory[i] != pattern(end->received, i)) fail("byte %zu of round %u is wrong", i, end->received);
  }
  end->received++;
  post_receive(end);
}

/* Until as many have been sent and received. */
static void wait_for(struct end *end, unsigned sent, unsigned received) {
  struct ibv_wc completion;
  struct ibv_cq *which;
  void *context;
  int count, armed = 0;
  while (end->sent < sent || end->received < received) {
    CHECK((count = ibv_poll_cq(end->completions, 1, &completion)) >= 0);
    if (count > 0) {
      take(end, &completion);
    } else if (!armed) {
      /* What comes before this makes no event, so look once more. */
      CHECK_ZERO(ibv_req_notify_cq(end->completions, 0));
      armed = 1;
    } else {
      CHECK_ZERO(ibv_get_cq_event(end->channel, &which, &context));
      ibv_ack_cq_events(which, 1);
      armed = 0;
    }
  }
}

static void write_round(struct end *end, unsigned round) {
  struct ibv_send_wr request, *bad = NULL;
  struct ibv_sge part;
  unsigned char *own = end->memory + end->bytes;
  size_t i;
  for (i = 0; i < end->bytes; i++) own[i] = pattern(round, i);
  part.addr = (uintptr_t)own;
  part.length = (uint32_t)end->bytes;
  part.lkey = end->region->lkey;
  memset(&request, 0, sizeof request);
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(IMMEDIATE + round);
  request.wr.rdma.remote_addr = end->peer.address;
  request.wr.rdma.rkey = end->peer.key;
  CHECK_ZERO(ibv_post_send(end->queue_pair, &request, &bad));
}

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void run(const char *device, int socket, int first, size_t bytes, unsigned rounds) {
  struct end end;
  unsigned round;
  int64_t began;
  char done = 1;
  memset(&end, 0, sizeof end);
  end.bytes = bytes;
  connect_ends(&end, device, socket);
  began = now_us();
  for (round = 0; round < rounds; round++) {
    if (!first) wait_for(&end, round, round + 1);
    write_round(&end, round);
    wait_for(&end, round + 1, first ? round + 1 : round);
  }
  if (first) {
    double each = (double)(now_us() - began) / rounds;
    printf("%s: %u rounds of %zu bytes there and back, %.0f us each\n", device, rounds, bytes, each);
  }
  /* A queue pair that is gone does not acknowledge. */
  send_all(socket, &done, 1);
  receive_all(socket, &done, 1);
}

static int connect_by_tcp(const char *host, const char *port, int listens) {
  struct sockaddr_in address;
  int peer, one = 1, tries, listener = socket(AF_INET, SOCK_STREAM, 0);
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(port));
  CHECK(listener >= 0);
  CHECK(inet_pton(AF_INET, host, &address.sin_addr) == 1);
  if (listens) {
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 1) == 0);
    CHECK((peer = accept(listener, NULL, NULL)) >= 0);
    close(listener);
    return peer;
  }
  /* The other one may start later. */
  for (tries = 0; connect(listener, (struct sockaddr *)&address, sizeof address) != 0; tries++) {
    struct timespec pause = {0, 100 * 1000 * 1000};
    if (tries == 300) fail("cannot connect to %s:%s", host, port);
    close(listener);
    nanosleep(&pause, NULL);
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
  }
  return listener;
}

static int run_local(const char *one, const char *other, size_t bytes, unsigned rounds) {
  int sockets[2], status;
  pid_t child;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  CHECK((child = fork()) >= 0);
  side = child == 0 ? "the second" : "the first";
  /* Only its own end, so that the other's end closes with its process. */
  close(sockets[child == 0 ? 0 : 1]);
  run(child == 0 ? other : one, sockets[child == 0 ? 1 : 0], child != 0, bytes, rounds);
  if (child == 0) exit(0);
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "local") == 0 && argc == 6) {
    return run_local(argv[2], argv[3], strtoul(argv[4], NULL, 0), (unsigned)atoi(argv[5]));
  }
  side = mode;
  if (strcmp(mode, "listen") == 0 && argc == 6) {
    run(argv[2], connect_by_tcp("0.0.0.0", argv[3], 1), 0, strtoul(argv[4], NULL, 0), (unsigned)atoi(argv[5]));
  } else if (strcmp(mode, "connect") == 0 && argc == 7) {
    run(argv[2], connect_by_tcp(argv[3], argv[4], 0), 1, strtoul(argv[5], NULL, 0), (unsigned)atoi(argv[6]));
  } else {
    fprintf(stderr, "usage: verbs_smoke local DEVICE DEVICE BYTES ROUNDS | listen DEVICE PORT BYTES ROUNDS | "
                    "connect DEVICE ADDRESS PORT BYTES ROUNDS\n");
    return 2;
  }
  return 0;
}
