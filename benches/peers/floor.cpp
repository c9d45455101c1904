// A lower bound for an allreduce of two ranks over loopback TCP: two processes with one connection, both polling,
// exchange as many bytes in each direction as the allreduce must, without computing.
//
//   floor SEND_BUFFER allreduce SIZES ITERATIONS SECONDS LOOP
//
// SEND_BUFFER: the sockets' SO_SNDBUF in bytes, 0 for the default.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "pair.h"

namespace {

class Floor : public Peer {
 public:
  Floor(int side, int fd) : Peer(side, 2), fd_(fd) {}

  void barrier() override {
    char ready = 1, other;
    exchange(&ready, &other, 1);
  }

  void largest(std::vector<float> &numbers) override {
    std::vector<float> theirs(numbers.size());
    exchange(numbers.data(), theirs.data(), numbers.size() * sizeof(float));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::max(numbers[i], theirs[i]);
  }

  Run prepare(const std::string &collective, float *in, float *out, size_t count) override {
    if (collective != "allreduce") throw std::runtime_error("no " + collective);
    return [=] { exchange(in, out, count * sizeof(float)); };
  }

  float expected(const std::string &, size_t i, size_t) const override { return element(i, !rank); }

 private:
  // Sends `bytes` bytes and receives as many.
  void exchange(const void *from, void *into, size_t bytes) const {
    for (size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
      if (sent < bytes) {
        const ssize_t n = send(fd_, static_cast<const char *>(from) + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) fail("send");
        if (n > 0) sent += n;
      }
      if (received < bytes) {
        const ssize_t n = recv(fd_, static_cast<char *>(into) + received, bytes - received, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) fail("recv");
        if (n > 0) received += n;
      }
    }
  }

  int fd_;
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2 + Request::ARGUMENTS) {
    std::fprintf(stderr, "usage: floor SEND_BUFFER %s\n", Request::USAGE);
    return 2;
  }
  const int send_buffer = std::atoi(argv[1]);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 1) ||
      getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length))
    fail("listen");
  return in_two_processes([&](int side) {
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
    Floor(side, fd).measure(Request::parse(argv + 2), "floor");
  });
}
