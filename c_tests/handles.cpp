// gloo_rs.hpp: what its functions return and throw beside the C functions, and that its handles free what they own.
#include "harness.h"

#include <gloo_rs.hpp>

#include <atomic>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace {

using gloo_rs::Context;
using gloo_rs::Error;
using gloo_rs::Group;
using gloo_rs::Queue;
using gloo_rs::Request;
using gloo_rs::Store;
using gloo_rs::UnboundBuffer;

static_assert(!std::is_copy_constructible_v<Context> && std::is_nothrow_move_constructible_v<Context>);
static_assert(!std::is_copy_assignable_v<Request> && std::is_nothrow_move_assignable_v<Request>);
static_assert(std::is_nothrow_copy_constructible_v<Error>);
static_assert(!std::is_convertible_v<gloo_rs_context_t *, Context>);
static_assert(gloo_rs::data_type<float> == GLOO_RS_FLOAT32 && gloo_rs::data_type<const double> == GLOO_RS_FLOAT64);
static_assert(gloo_rs::data_type<std::int8_t> == GLOO_RS_INT8 && gloo_rs::data_type<std::uint8_t> == GLOO_RS_UINT8);
static_assert(gloo_rs::data_type<std::int16_t> == GLOO_RS_INT16 && gloo_rs::data_type<std::uint16_t> == GLOO_RS_UINT16);
static_assert(gloo_rs::data_type<std::int32_t> == GLOO_RS_INT32 && gloo_rs::data_type<std::uint32_t> == GLOO_RS_UINT32);
static_assert(gloo_rs::data_type<std::int64_t> == GLOO_RS_INT64 && gloo_rs::data_type<std::uint64_t> == GLOO_RS_UINT64);
static_assert(gloo_rs::data_type<long long> == GLOO_RS_INT64 && gloo_rs::data_type<bool> == GLOO_RS_BOOL);

using Integers = std::vector<std::int64_t>;

Context connect() { return Context(connected_context()); }

// `call` must throw what the C function's `status`, which is this thread's last error, says.
template <class Call>
void expect_as(gloo_rs_status_t status, Call call) {
  CHECK(status != GLOO_RS_OK);
  const std::string operation = last_error().operation;
  const std::int32_t rank = last_error().rank;
  try {
    call();
  } catch (const Error &error) {
    CHECK_TEXT(gloo_rs_status_name(error.status()), gloo_rs_status_name(status));
    CHECK_INT(error.rank(), rank);
    CHECK_TEXT(error.operation().c_str(), operation.c_str());
    CHECK_TEXT(error.what(), gloo_rs_last_error_message());
    return;
  }
  check_failed(__FILE__, __LINE__, "nothing was thrown, but %s is expected", gloo_rs_status_name(status));
}

void collectives() {
  Context context = connect();
  const int size = test_size, rank = test_rank;
  const auto ranks = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  CHECK_INT(context.rank(), rank);
  CHECK_INT(context.size(), size);

  double value = rank;
  context.allreduce(&value, 1);
  CHECK((value == size * (size - 1) / 2.0));
  float largest = 0;
  const float mine = static_cast<float>(rank);
  context.allreduce(&mine, &largest, 1, GLOO_RS_MAX);
  CHECK((largest == static_cast<float>(size - 1)));
  bool any = rank == 1;
  context.allreduce(nullptr, &any, 1, GLOO_RS_OR);
  CHECK(any == (size > 1));
  // 1.0 and 3.0, as bfloat16.
  std::uint16_t half = 0x3f80;
  context.allreduce(&half, 1, GLOO_RS_SUM, GLOO_RS_BFLOAT16);
  CHECK_INT(half, 0x4040);

  Integers block(ranks), out(ranks), all(ranks);
  std::iota(block.begin(), block.end(), 10 * rank);
  context.reduce(&block[0], rank == 2 ? &out[0] : nullptr, 1, GLOO_RS_SUM, 2);
  CHECK_INT(out[0], rank == 2 ? 30 : 0);
  context.reduce_scatter(block.data(), &out[0], 1);
  CHECK_INT(out[0], 30 + 3 * rank);
  context.scan(&block[0], &out[0], 1);
  CHECK_INT(out[0], 5 * rank * (rank + 1));
  context.exscan(&block[0], &out[0], 1);
  CHECK_INT(out[0], rank == 0 ? 0 : 5 * rank * (rank - 1));
  out[0] = rank;
  context.broadcast(&out[0], 1, 1);
  CHECK_INT(out[0], 1);
  context.gather(&block[0], rank == 0 ? all.data() : nullptr, 1, 0);
  context.broadcast(all.data(), ranks, 0);
  CHECK((all == Integers{0, 10, 20}));
  context.scatter(rank == 0 ? all.data() : nullptr, &out[0], 1, 0);
  CHECK_INT(out[0], 10 * rank);
  context.allgather(&rank, std::vector<int>(ranks).data(), 1);
  context.alltoall(block.data(), out.data(), 1);
  CHECK((out == Integers{rank, 10 + rank, 20 + rank}));

  // Rank r has r + 1 elements.
  const std::vector<std::size_t> counts{1, 2, 3};
  const Integers elements(own + 1, rank);
  const Integers expected{0, 1, 1, 2, 2, 2};
  Integers six(6), part(own + 1);
  context.allgatherv(elements.data(), six.data(), counts.data());
  CHECK(six == expected);
  Integers gathered(6);
  context.gatherv(elements.data(), own + 1, rank == 1 ? gathered.data() : nullptr, counts.data(), 1);
  CHECK(rank != 1 || gathered == expected);
  context.scatterv(rank == 1 ? gathered.data() : nullptr, counts.data(), part.data(), own + 1, 1);
  CHECK(part == elements);
  const std::vector<std::size_t> send(ranks, own + 1);
  const Integers copies(ranks * (own + 1), rank);
  context.alltoallv(copies.data(), send.data(), six.data(), counts.data());
  CHECK(six == expected);
  context.barrier();

  gloo_rs::CollectiveOptions options(&mine, &largest, 1);
  options.op = GLOO_RS_PRODUCT;
  options.algorithm = "ring";
  gloo_rs::check(gloo_rs_collective(context.get(), GLOO_RS_ALLREDUCE, &options));
  CHECK((largest == 0));
}

void contexts() {
  Context context = connect();
  gloo_rs::Memory<std::int32_t> memory = context.alloc<std::int32_t>(1000);
  CHECK_INT(memory[999], 0);
  memory[0] = test_rank;
  Context part = context.split(test_rank == 2 ? GLOO_RS_COLOR_UNDEFINED : 7, -test_rank);
  CHECK(static_cast<bool>(part) == (test_rank != 2));
  if (part) {
    CHECK_INT(part.rank(), 1 - test_rank);
    part.allreduce(memory.get(), 1);
    CHECK_INT(memory[0], 1);
  }
  std::uint64_t flags = ~(std::uint64_t{1} << test_rank);
  CHECK(context.agree(flags));
  CHECK(flags == UINT64_MAX << test_size);
  CHECK(context.lost_ranks().empty());
  Context smaller = context.shrink();
  CHECK_INT(smaller.size(), test_size);
  smaller.barrier();
  smaller.abort("it is not needed");
  CHECK(smaller.is_aborted());
  CHECK(!context.broken());
  std::vector<std::string> handles;
  gloo_rs::Store store(open_store());
  store.set("handle/" + std::to_string(test_rank), context.handle());
  for (int rank = 0; rank < test_size; rank++) handles.push_back(store.value("handle/" + std::to_string(rank)));
  context.reconfigure(store, 1, handles);
  CHECK_INT(context.rank(), test_rank);
  Context member = Context::create_without_members(gloo_rs::Device(create_device()));
  CHECK_INT(member.size(), -1);
  member.reconfigure(store, 2 + test_rank, {member.handle()}, false);
  CHECK_INT(member.size(), 1);
  const std::uint64_t slot = context.next_slot(2);
  CHECK_INT(context.next_slot(1), slot + 2);

  Context child = Context::create(gloo_rs::Device(create_device()), test_rank, test_size);
  child.connect_from(context, 1);
  Context moved = std::move(child);
  child = std::move(moved);
  moved = Context(child.release());
  CHECK(!child && moved);
  moved.barrier();
  moved.reset();
  CHECK(!moved);
  context.barrier();
  memory.reset();
  context.close();
  const std::optional<Error> broken = context.broken();
  CHECK(broken.has_value());
  CHECK_INT(broken->status(), GLOO_RS_ERROR_CLOSED);
}

void stores() {
  Store base(open_store());
  CHECK_INT(base.port(), test_port);
  Store store = Store::create_prefix("stores", base);
  store.set("key", std::string_view("a\0b", 3));
  store.append("key", "c");
  CHECK((store.value("key") == std::string("a\0bc", 4)));
  CHECK_INT(store.add("number", 2), 2);
  CHECK_INT(store.add("number", -5), -3);
  Store own = Store::create_in_process("own");
  own.set("key", "");
  CHECK(Store::create_url("inproc://own", 0).value("key").empty());
}

void requests() {
  Context context = connect();
  std::vector<double> values(1000);
  {
    Request request = Request::create(context, GLOO_RS_ALLREDUCE, gloo_rs::CollectiveOptions(values.data(), values.size()));
    for (int step = 0; step < 3; ++step) {
      values.assign(values.size(), test_rank + step);
      request.start();
      if (step == 1) {
        while (!request.test()) sleep_ms(1);
      } else {
        request.wait();
      }
      for (double value : values) CHECK((value == 1 + 2 * step));
    }
    expect_as(gloo_rs_wait(request.get()), [&] { request.wait(); });
    values.assign(values.size(), 5);
    if (test_rank == 1) sleep_ms(50);
    request.start();
    expect_as(gloo_rs_start(request.get()), [&] { request.start(); });
  }
  // The destructor has waited and freed it: the result is there, and another call can run with its tag.
  for (double value : values) CHECK((value == 10));
  context.allreduce(values.data(), values.size());
  CHECK((values[0] == 20));

  // On an end of the scope by an exception, too. Nobody comes: the wait ends since the context is closed.
  try {
    Request request = Request::create(context, GLOO_RS_BARRIER, gloo_rs::CollectiveOptions());
    if (test_rank == 0) request.start();
    if (test_rank == 0) context.close();
    throw std::runtime_error("stop");
  } catch (const std::runtime_error &error) {
    CHECK_TEXT(error.what(), "stop");
  }
}

void queues() {
  Context context = connect();
  std::vector<double> values(1000, test_rank);
  {
    Queue queue = Queue::create();
    CHECK(queue.fd() >= 0);
    {
      Request request = Request::started(context, GLOO_RS_ALLREDUCE, gloo_rs::CollectiveOptions(values.data(), values.size()));
      queue.attach(request, 4);
      const gloo_rs::Entry entry = queue.wait();
      gloo_rs::check(entry.status);
      CHECK_INT(entry.user, 4);
      CHECK((values[0] == 1));
      expect_as(gloo_rs_queue_attach(queue.get(), request.get(), 0), [&] { queue.attach(request, 0); });
    }
    // Its destructor leaves it to the queue, whose destructor waits.
    if (test_rank == 1) sleep_ms(50);
    queue.attach(Request::started(context, GLOO_RS_ALLREDUCE, gloo_rs::CollectiveOptions(values.data(), values.size())), 5);
  }
  CHECK((values[0] == 2));
  {
    int cell = test_rank;
    UnboundBuffer buffer = UnboundBuffer::create(context, &cell, sizeof cell);
    Queue queue = Queue::create();
    queue.attach(buffer, 6);
    if (test_rank == 0) buffer.send(1, 9, 0, sizeof cell);
    if (test_rank == 1) buffer.recv(0, 9, 0, sizeof cell);
    const gloo_rs_queue_entry_t entry = queue.wait_entry();
    CHECK_INT(entry.user, 6);
    CHECK_INT(entry.rank, 1 - test_rank);
    CHECK_INT(entry.bytes, sizeof cell);
    CHECK_INT(cell, 0);
  }
  Queue closed = Queue::create();
  closed.close();
  try {
    (void)closed.wait();
    CHECK(false);
  } catch (const gloo_rs::Error &error) {
    CHECK_CONTAINS(error.what(), "the queue is closed");
  }
}

// What a callback refers to lives as long as the callback, which lives as long as it may be called.
void callbacks() {
  Context context = connect();
  std::vector<double> values(1000, test_rank);
  std::atomic<int> ended{0}, sent{0};
  const auto kept = std::make_shared<int>(0);
  const auto await = [](std::atomic<int> &count, int expected) {
    for (const int64_t until = now_ms() + test_timeout_ms(); count < expected; sleep_ms(1)) CHECK(now_ms() < until);
  };
  {
    Request request = Request::create(context, GLOO_RS_ALLREDUCE, gloo_rs::CollectiveOptions(values.data(), values.size()));
    request.set_callback([&ended, kept](const gloo_rs_queue_entry_t &entry) {
      gloo_rs::check(entry.status);
      ++ended;
    });
    CHECK_INT(kept.use_count(), 2);
    expect_as(gloo_rs_request_set_callback(request.get(), [](const gloo_rs_queue_entry_t *, void *) {}, nullptr, nullptr),
              [&] { request.set_callback([kept](const gloo_rs_queue_entry_t &) {}); });
    request.start();
    await(ended, 1);
    CHECK((values[0] == 1));
    request.start();
    // The destructor leaves it to its callback.
  }
  await(ended, 2);
  CHECK((values[0] == 2));
  for (const int64_t until = now_ms() + test_timeout_ms(); kept.use_count() > 1; sleep_ms(1)) CHECK(now_ms() < until);
  int cell = test_rank;
  UnboundBuffer buffer = UnboundBuffer::create(context, &cell, sizeof cell);
  buffer.set_callback([&sent](const gloo_rs_queue_entry_t &entry) {
    gloo_rs::check(entry.status);
    CHECK_INT(entry.rank, 1 - test_rank);
    ++sent;
  });
  if (test_rank == 0) buffer.send(1, 9, 0, sizeof cell);
  if (test_rank == 1) buffer.recv(0, 9, 0, sizeof cell);
  await(sent, 1);
  CHECK_INT(cell, 0);
}

void groups() {
  Context context = connect();
  std::vector<double> values(1000, test_rank), others(1000, 3);
  int cells[] = {test_rank, -1};
  const int peer = 1 - test_rank;
  UnboundBuffer buffer = UnboundBuffer::create(context, cells, sizeof cells);
  const auto sum = [](std::vector<double> &data) { return gloo_rs::CollectiveOptions(data.data(), data.size()); };
  Group group = Group::begin(context);
  Request request = group.start(GLOO_RS_ALLREDUCE, sum(values));
  Request second = group.start(GLOO_RS_ALLREDUCE, sum(others));
  group.recv(buffer, peer, 7, sizeof(int), sizeof(int));
  group.send(buffer, peer, 7, 0, sizeof(int));
  group.end();
  CHECK(!group);
  request.wait();
  second.wait();
  buffer.wait_send();
  CHECK_INT(buffer.wait_recv().rank, peer);
  CHECK((values[0] == 1 && others[999] == 6 && cells[1] == peer));
  // Those that are given up, with a request that outlives them or not, begin nothing.
  { Group::begin(context).start(request); }
  {
    Group given_up = Group::begin(context);
    Request unused = given_up.start(GLOO_RS_ALLREDUCE, sum(values));
  }
  group = Group::begin(context);
  group.start(request);
  group.end();
  request.wait();
  CHECK((values[0] == 2));
  context.progress(0);
  expect_as(gloo_rs_progress(context.get(), -7), [&] { context.progress(-7); });
  group = Group::begin(context);
  expect_as(gloo_rs_group_send(group.get(), buffer.get(), 2, 0, 0, 1), [&] { group.send(buffer, 2, 0, 0, 1); });
  try {
    group.end();
    CHECK(false);
  } catch (const gloo_rs::Error &error) {
    CHECK_CONTAINS(error.what(), "a start of this group was refused");
  }
  CHECK(!group);
}

void messages() {
  Context context = connect();
  std::vector<int> cells{test_rank, -1, -1};
  UnboundBuffer buffer = UnboundBuffer::create(context, cells.data(), sizeof(int) * cells.size());
  const int peer = 1 - test_rank;
  buffer.recv(peer, 3, sizeof(int), 2 * sizeof(int));
  buffer.send(peer, 3, 0, sizeof(int));
  CHECK_INT(buffer.wait_send(), peer);
  const gloo_rs::Received received = buffer.wait_recv();
  CHECK_INT(received.rank, peer);
  CHECK_INT(received.bytes, sizeof(int));
  CHECK_INT(cells[1], peer);
  CHECK_INT(cells[2], -1);
  auto pair = gloo_rs::make<gloo_rs::Pair>(gloo_rs_context_pair, context.get(), peer);
  auto bound = gloo_rs::make<gloo_rs::Buffer>(gloo_rs_pair_create_send_buffer, pair.get(), std::uint64_t{9}, cells.data(), sizeof(int));
  CHECK(bound && pair);
  context.barrier();
}

void errors() {
  Context context = connect(), nothing;
  int value = 1;
  void *no_output = nullptr;
  gloo_rs_store_t *no_store = nullptr;
  expect_as(gloo_rs_broadcast(context.get(), &value, 1, GLOO_RS_INT32, 9), [&] { context.broadcast(&value, 1, 9); });
  expect_as(gloo_rs_allreduce(context.get(), &value, no_output, 1, GLOO_RS_INT32, GLOO_RS_SUM),
            [&] { context.allreduce(static_cast<int *>(no_output), 1); });
  expect_as(gloo_rs_allreduce(nullptr, &value, &value, 1, GLOO_RS_INT32, GLOO_RS_SUM), [&] { nothing.allreduce(&value, 1); });
  expect_as(gloo_rs_store_create_url("ftp://host", 0, 1000, &no_store), [] { (void)Store::create_url("ftp://host", 0, 1000); });
  Store store(open_store());
  void *bytes = nullptr;
  std::size_t length = 0;
  expect_as(gloo_rs_store_get(store.get(), "absent", 0, &bytes, &length), [&] { (void)store.value("absent", 0); });
  expect_as(gloo_rs_alloc(context.get(), SIZE_MAX, &bytes), [&] { (void)context.alloc<double>(SIZE_MAX / 4); });
  // A status that is not of this thread's last call.
  try {
    gloo_rs::check(GLOO_RS_ERROR_CALLBACK);
    CHECK(false);
  } catch (const Error &error) {
    CHECK_INT(error.status(), GLOO_RS_ERROR_CALLBACK);
    CHECK_TEXT(error.what(), "GLOO_RS_ERROR_CALLBACK");
    CHECK_INT(error.rank(), -1);
  }
  context.barrier();
}

void lost() {
  Context context = connect();
  meet(context.get());
  if (test_rank == 1) raise(SIGKILL);
  int value = 0;
  try {
    context.allreduce(&value, 1);
    CHECK(false);
  } catch (const Error &error) {
    CHECK_INT(error.status(), GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_INT(error.rank(), 1);
    CHECK_TEXT(error.operation().c_str(), "allreduce");
    const std::optional<Error> broken = context.broken();
    CHECK(broken.has_value());
    CHECK_INT(broken->rank(), 1);
  }
}

}  // namespace

int main(int argc, char **argv) {
  static const test tests[] = {
      {"collectives", 3, collectives, -1}, {"contexts", 3, contexts, -1}, {"stores", 1, stores, -1}, {"requests", 2, requests, -1}, {"queues", 2, queues, -1}, {"callbacks", 2, callbacks, -1}, {"groups", 2, groups, -1},
      {"messages", 2, messages, -1},       {"errors", 2, errors, -1},     {"lost", 2, lost, 1},
  };
  return RUN_TESTS(argc, argv, tests);
}
