// A lower bound for an allreduce of two ranks over loopback TCP: two processes with one connection, both polling, exchange as
// many bytes in each direction as the allreduce must, without computing.
//
//   floor BYTES ITERATIONS SEND_BUFFER
//
// SEND_BUFFER: the sockets' SO_SNDBUF in bytes, 0 for the default. Each side is bound to its own core: otherwise the
// scheduler moves them, and the times vary between several levels. Prints one JSON object. An iteration's time is that of the
// slower side, after an exchange of one byte that is not timed.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "report.h"

namespace {

[[noreturn]] void fail(const char *what) {
  std::perror(what);
  std::_Exit(1);
}

// Binds this process to the core with index `side` among those that it may use.
void bind_to_core(int side) {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof allowed, &allowed)) fail("sched_getaffinity");
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && side-- == 0) CPU_SET(core, &own);
  if (sched_setaffinity(0, sizeof own, &own)) fail("two cores are needed");
}

// Sends `bytes` bytes and receives as many.
void exchange(int fd, const char *from, char *into, size_t bytes) {
  for (size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
    if (sent < bytes) {
      const ssize_t n = send(fd, from + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) fail("send");
      if (n > 0) sent += n;
    }
    if (received < bytes) {
      const ssize_t n = recv(fd, into + received, bytes - received, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) fail("recv");
      if (n > 0) received += n;
    }
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: floor BYTES ITERATIONS SEND_BUFFER\n");
    return 2;
  }
  const size_t bytes = std::strtoull(argv[1], nullptr, 10);
  const int iterations = std::atoi(argv[2]), warmup = warmup_of(iterations), send_buffer = std::atoi(argv[3]);
  auto *times = static_cast<float *>(mmap(nullptr, 2 * iterations * sizeof(float), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (times == MAP_FAILED) fail("mmap");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 1) ||
      getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length))
    fail("listen");
  const pid_t child = fork();
  if (child < 0) fail("fork");
  const int side = child == 0;
  bind_to_core(side);
  int fd;
  if (side) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr *>(&address), length)) fail("connect");
  } else {
    fd = accept(listener, nullptr, nullptr);
    if (fd < 0) fail("accept");
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (send_buffer && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer)) fail("SO_SNDBUF");
  std::vector<float> in(bytes / sizeof(float)), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = element(i, side);
  for (int i = 0; i < iterations + warmup; ++i) {
    char ready = 1, other;
    exchange(fd, &ready, &other, 1);
    const auto start = std::chrono::steady_clock::now();
    exchange(fd, reinterpret_cast<char *>(in.data()), reinterpret_cast<char *>(out.data()), bytes);
    const std::chrono::duration<float, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= warmup) times[side * iterations + i - warmup] = took.count();
  }
  for (size_t i = 0; i < out.size(); i += 97)
    if (out[i] != element(i, !side)) fail("wrong data");
  if (side) std::_Exit(0);
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  std::vector<float> slower(iterations);
  for (int i = 0; i < iterations; ++i) slower[i] = std::max(times[i], times[iterations + i]);
  report("tcp", "floor", 2, bytes, slower);
}
