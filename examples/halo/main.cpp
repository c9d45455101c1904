// A stencil: every rank has a part of a ring of cells, and each step needs the last cell of the left neighbour and the
// first one of the right. They travel as messages of unbound buffers, while the rank computes the cells that need none
// of them.
//
//   gloo-rs run -n 4 -- halo
//
// The program needs two ranks or more. A message is matched by its sender and its slot: those to the right have another
// slot than those to the left, since with two ranks both neighbours are the same one. The program compares its cells
// with those that it computes alone.
#include <gloo_rs.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <vector>

namespace {

constexpr size_t kCells = 200;  // of one rank
constexpr int kSteps = 300;

double initial(size_t cell) { return static_cast<double>(cell * cell % 101); }
double step(double left, double middle, double right) { return 0.25 * left + 0.5 * middle + 0.25 * right; }

// The whole ring after all steps.
std::vector<double> alone(size_t cells) {
  std::vector<double> now(cells), next(cells);
  for (size_t i = 0; i < cells; ++i) now[i] = initial(i);
  for (int count = 0; count < kSteps; ++count) {
    for (size_t i = 0; i < cells; ++i) next[i] = step(now[(i + cells - 1) % cells], now[i], now[(i + 1) % cells]);
    now.swap(next);
  }
  return now;
}

int run() {
  auto [store, rank, size] = gloo_rs::launch_from_env();
  if (size < 2) throw std::runtime_error("a ring needs two ranks or more");
  auto device = gloo_rs::Device::create();
  auto context = gloo_rs::Context::create(device, rank, size);
  context.connect(store);

  // Cells 1 to kCells are this rank's, 0 and kCells + 1 are copies of the neighbours'.
  std::vector<double> cells(kCells + 2), next(kCells + 2);
  const size_t first = static_cast<size_t>(rank) * kCells;
  for (size_t i = 1; i <= kCells; ++i) cells[i] = initial(first + i - 1);

  auto halo = gloo_rs::UnboundBuffer::create(context, cells.data(), cells.size() * sizeof(double));
  const int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
  const uint64_t slots = context.next_slot(2), leftward = slots, rightward = slots + 1;
  const auto offset = [](size_t cell) { return cell * sizeof(double); };

  for (int count = 0; count < kSteps; ++count) {
    halo.recv(left, rightward, offset(0), sizeof(double));
    halo.recv(right, leftward, offset(kCells + 1), sizeof(double));
    halo.send(left, leftward, offset(1), sizeof(double));
    halo.send(right, rightward, offset(kCells), sizeof(double));
    for (size_t i = 2; i < kCells; ++i) next[i] = step(cells[i - 1], cells[i], cells[i + 1]);
    for (int wait = 0; wait < 2; ++wait) halo.wait_recv();
    next[1] = step(cells[0], cells[1], cells[2]);
    next[kCells] = step(cells[kCells - 1], cells[kCells], cells[kCells + 1]);
    // The cells may be changed once they have been sent.
    for (int wait = 0; wait < 2; ++wait) halo.wait_send();
    std::copy(next.begin() + 1, next.end() - 1, cells.begin() + 1);
  }

  const std::vector<double> expected = alone(kCells * static_cast<size_t>(size));
  for (size_t i = 0; i < kCells; ++i) {
    if (cells[i + 1] != expected[first + i]) {
      std::fprintf(stderr, "rank %d: cell %zu is %.17g, not %.17g\n", rank, first + i, cells[i + 1], expected[first + i]);
      return 1;
    }
  }
  std::printf("rank %d of %d: cells %zu to %zu after %d steps\n", rank, size, first, first + kCells - 1, kSteps);
  return 0;
}

}  // namespace

int main() try {
  return run();
} catch (const std::exception &error) {
  std::fprintf(stderr, "halo: %s\n", error.what());
  return 1;
}
