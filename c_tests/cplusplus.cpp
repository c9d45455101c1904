// The header in C++17: types of the standard library, lambdas as callbacks, smart pointers over handles.
#include "harness.h"

#include <complex>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

namespace {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T *handle) const {
    destroy(handle);
  }
};

using Context = std::unique_ptr<gloo_rs_context_t, Destroy<gloo_rs_context_destroy>>;
using Store = std::unique_ptr<gloo_rs_store_t, Destroy<gloo_rs_store_destroy>>;
using Buffer = std::unique_ptr<gloo_rs_unbound_buffer_t, Destroy<gloo_rs_unbound_buffer_destroy>>;

// What the ABI promises of its types.
static_assert(std::is_enum_v<gloo_rs_status_t> && sizeof(gloo_rs_status_t) == sizeof(std::uint32_t));
static_assert(std::is_enum_v<gloo_rs_data_type_t> && sizeof(gloo_rs_data_type_t) == sizeof(std::uint32_t));
static_assert(std::is_enum_v<gloo_rs_op_t> && sizeof(gloo_rs_op_t) == sizeof(std::uint32_t));
static_assert(!std::is_convertible_v<int, gloo_rs_op_t> && !std::is_convertible_v<gloo_rs_data_type_t, gloo_rs_op_t>);
static_assert(std::is_standard_layout_v<gloo_rs_collective_options_t>);
static_assert(std::is_trivially_copyable_v<gloo_rs_collective_options_t>);
static_assert(offsetof(gloo_rs_collective_options_t, struct_size) == 0);

template <class T>
void allreduce(gloo_rs_context_t *context, std::vector<T> &values, gloo_rs_data_type_t type,
               gloo_rs_reduce_fn_t function = nullptr, void *user = nullptr) {
  void *outputs[] = {values.data()};
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = type;
  options.function = function;
  options.user = user;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = values.size();
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
}

void standard_types() {
  Context context(connected_context());
  std::vector<std::complex<float>> complexes(10, {static_cast<float>(test_rank), 1.0f});
  allreduce(context.get(), complexes, GLOO_RS_COMPLEX64);
  const auto sum = static_cast<float>(test_size * (test_size - 1) / 2);
  for (const auto &value : complexes) CHECK((value == std::complex<float>{sum, static_cast<float>(test_size)}));

  int calls = 0;
  std::vector<double> doubles(5, test_rank + 1.0);
  allreduce(
      context.get(), doubles, GLOO_RS_FLOAT64,
      [](void *into, const void *left, const void *right, std::size_t count, void *user) -> std::int32_t {
        ++*static_cast<int *>(user);
        for (std::size_t i = 0; i < count; ++i)
          static_cast<double *>(into)[i] =
              static_cast<const double *>(left)[i] * static_cast<const double *>(right)[i];
        return 0;
      },
      &calls);
  double product = 1;
  for (int rank = 1; rank <= test_size; ++rank) product *= rank;
  for (double value : doubles) CHECK(value == product);
  // With three ranks one of them only hands its elements over.
  std::vector<int> all_calls{calls};
  allreduce(context.get(), all_calls, GLOO_RS_INT32);
  CHECK(all_calls[0] > 0);
}

void handles() {
  Context context(connected_context());
  std::vector<int> sent(100), received(100);
  std::iota(sent.begin(), sent.end(), test_rank * 1000);
  gloo_rs_unbound_buffer_t *made = nullptr;
  CHECK_OK(gloo_rs_unbound_buffer_create(context.get(), sent.data(), sent.size() * sizeof(int), &made));
  Buffer to(made);
  CHECK_OK(gloo_rs_unbound_buffer_create(context.get(), received.data(), received.size() * sizeof(int), &made));
  Buffer from(made);
  const int peer = 1 - test_rank;
  CHECK_OK(gloo_rs_unbound_buffer_recv(from.get(), peer, 1, 0, received.size() * sizeof(int)));
  CHECK_OK(gloo_rs_unbound_buffer_send(to.get(), peer, 1, 0, sent.size() * sizeof(int)));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(to.get(), GLOO_RS_TIMEOUT_DEFAULT, nullptr));
  CHECK_OK(gloo_rs_unbound_buffer_wait_recv(from.get(), GLOO_RS_TIMEOUT_DEFAULT, nullptr, nullptr));
  for (int i = 0; i < 100; ++i) CHECK_INT(received[static_cast<std::size_t>(i)], peer * 1000 + i);
  CHECK_INVALID(gloo_rs_context_connect(context.get(), nullptr), "store is NULL");
  Store store(open_store());
  CHECK_OK(gloo_rs_store_set(store.get(), "key", "value", 5));
}

}  // namespace

int main(int argc, char **argv) {
  static const test tests[] = {
      {"standard_types", 2, standard_types, -1},
      {"standard_types", 3, standard_types, -1},
      {"handles", 2, handles, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
