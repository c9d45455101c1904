// A mixture of experts: every rank has one expert, and every token goes to the expert that a router selects, and back.
// The ranks exchange the numbers of tokens by alltoall, then the tokens by alltoallv; the results return by alltoallv
// with the numbers exchanged.
//
//   gloo-rs run -n 4 -- alltoallv
//
// The counts of alltoallv are in elements, and the blocks lie one after the other in the order of ranks. The program
// checks every token.
#include <gloo_rs.hpp>

#include <cstdio>
#include <exception>
#include <numeric>
#include <vector>

namespace {

constexpr size_t kTokens = 1000;
constexpr size_t kWidth = 64;  // floats of a token

// Some experts get more than others.
size_t expert_of(int32_t rank, size_t token, size_t experts) { return token * token * static_cast<size_t>(rank + 1) % experts; }

// What expert `expert` makes of a token's element.
float evaluate(size_t expert, float value) { return value * static_cast<float>(expert + 2); }

std::vector<size_t> elements_of(std::vector<size_t> tokens) {
  for (size_t &count : tokens) count *= kWidth;
  return tokens;
}

int run() {
  auto [store, rank, size] = gloo_rs::launch_from_env();
  auto device = gloo_rs::Device::create();
  auto context = gloo_rs::Context::create(device, rank, size);
  context.connect(store);
  const auto experts = static_cast<size_t>(size);

  std::vector<float> tokens(kTokens * kWidth);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<float>(rank) * 1000 + static_cast<float>(i % 997);

  // Sort the tokens by expert: token t is in row place[t].
  std::vector<size_t> send_tokens(experts), next(experts), place(kTokens);
  for (size_t t = 0; t < kTokens; ++t) ++send_tokens[expert_of(rank, t, experts)];
  std::exclusive_scan(send_tokens.begin(), send_tokens.end(), next.begin(), size_t{0});
  std::vector<float> sent(tokens.size());
  for (size_t t = 0; t < kTokens; ++t) {
    place[t] = next[expert_of(rank, t, experts)]++;
    for (size_t i = 0; i < kWidth; ++i) sent[place[t] * kWidth + i] = tokens[t * kWidth + i];
  }

  // How many tokens come from each rank, and then the tokens.
  std::vector<size_t> recv_tokens(experts);
  context.alltoall(send_tokens.data(), recv_tokens.data(), 1);
  const std::vector<size_t> send_counts = elements_of(send_tokens), recv_counts = elements_of(recv_tokens);
  std::vector<float> received(std::accumulate(recv_counts.begin(), recv_counts.end(), size_t{0}));
  context.alltoallv(sent.data(), send_counts.data(), received.data(), recv_counts.data());

  for (float &value : received) value = evaluate(static_cast<size_t>(rank), value);

  // Back: what was received is sent, and what was sent comes back to where it was.
  context.alltoallv(received.data(), recv_counts.data(), sent.data(), send_counts.data());

  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kWidth; ++i) {
      const float result = sent[place[t] * kWidth + i], expected = evaluate(expert_of(rank, t, experts), tokens[t * kWidth + i]);
      if (result != expected) {
        std::fprintf(stderr, "rank %d: element %zu of token %zu is %g, not %g\n", rank, i, t, result, expected);
        return 1;
      }
    }
  }
  std::printf("rank %d of %d: its expert had %zu tokens\n", rank, size, received.size() / kWidth);
  return 0;
}

}  // namespace

int main() try {
  return run();
} catch (const std::exception &error) {
  std::fprintf(stderr, "alltoallv: %s\n", error.what());
  return 1;
}
