// Stores of the library, and stores of the program as connectFullMesh uses them.
#include <gtest/gtest.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gloo/barrier.h"
#include "gloo/config.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/rendezvous/prefix_store.h"
#if GLOO_USE_REDIS
#include "gloo/rendezvous/redis_store.h"
#endif
#include "gloo/transport/tcp/device.h"

namespace {

using gloo::rendezvous::Store;
using std::chrono::milliseconds;

std::vector<char> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

/// A new folder that is removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gloo-stores-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    path = name;
  }

  ~Folder() {
    std::filesystem::remove_all(path);
  }

  std::filesystem::path path;
};

/// What holds for every store with v2 support.
void check_store(const std::shared_ptr<Store>& store) {
  store->set("key", bytes("value"));
  store->set("empty", {});
  EXPECT_EQ(store->get("key"), bytes("value"));
  EXPECT_EQ(store->get("empty"), bytes(""));
  store->wait({"key", "empty"});
  store->wait({"key"}, gloo::kNoTimeout);
  EXPECT_EQ(store->wait_get("key", milliseconds(1000)), bytes("value"));
  EXPECT_THROW(store->set("key", bytes("other")), gloo::EnforceNotMet);

  const auto began = std::chrono::steady_clock::now();
  try {
    store->wait({"key", "missing"}, milliseconds(50));
    FAIL() << "a key is missing";
  } catch (const gloo::IoException& exception) {
    EXPECT_NE(std::string(exception.what()).find("missing"), std::string::npos) << exception.what();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(50));

  ASSERT_TRUE(store->has_v2_support());
  store->multi_set({"one", "two"}, {bytes("1"), bytes("2")});
  EXPECT_EQ(store->multi_get({"two", "one"}), (std::vector<std::vector<char>>{bytes("2"), bytes("1")}));
  store->append("list", bytes("ab"));
  store->append("list", bytes("c"));
  EXPECT_EQ(store->get("list"), bytes("abc"));
  EXPECT_EQ(store->add("count", 3), 3);
  EXPECT_EQ(store->add("count", -1), 2);
  EXPECT_THROW(store->multi_set({"three"}, {}), gloo::EnforceNotMet);

  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(30));
    store->set("late", bytes("x"));
  });
  store->wait({"late"}, gloo::kNoTimeout);
  EXPECT_EQ(store->get("late"), bytes("x"));
  setter.join();
}

TEST(HashStore, KeepsValuesOfItsOwn) {
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  check_store(store);
  EXPECT_THROW(gloo::rendezvous::HashStore().wait({"key"}, milliseconds(10)), gloo::IoException);
}

TEST(FileStore, KeepsValuesInADirectory) {
  Folder folder;
  const std::string path = folder.path / "made by the store";
  auto store = std::make_shared<gloo::rendezvous::FileStore>(path);
  check_store(store);
  gloo::rendezvous::FileStore other(path);
  EXPECT_EQ(other.get("key"), bytes("value"));
  EXPECT_TRUE(other.getAllKeyFilePaths().empty());
  other.set("a/key with \"unusual\" letters: \xc3\xa4", bytes("x"));
  for (auto* each : {store.get(), &other}) {
    const auto files = each->getAllKeyFilePaths();
    EXPECT_EQ(files.size(), each == &other ? 1u : 7u);
    for (const auto& file : files) {
      EXPECT_TRUE(std::filesystem::remove(file)) << file;
    }
  }
  EXPECT_THROW(other.wait({"key"}, milliseconds(10)), gloo::IoException);
  EXPECT_THROW(gloo::rendezvous::FileStore("/proc/there/is/none"), gloo::IoException);
}

/// A key that is no file cannot be looked up, which does not mean that it has no value.
TEST(FileStore, SaysWhyAKeyCannotBeLookedUp) {
  Folder folder;
  gloo::rendezvous::FileStore store(folder.path.string());
  store.set("key", bytes("value"));
  for (const auto& file : store.getAllKeyFilePaths()) {
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
  }
  try {
    store.set("key", bytes("other"));
    FAIL() << "nothing was thrown";
  } catch (const gloo::Exception& exception) {
    EXPECT_NE(std::string(exception.what()).find("gloo_rs_store_wait"), std::string::npos) << exception.what();
  }
}

TEST(PrefixStore, IsAPartOfAStore) {
  auto base = std::make_shared<gloo::rendezvous::HashStore>();
  check_store(std::make_shared<gloo::rendezvous::PrefixStore>("by pointer", base));
  check_store(std::make_shared<gloo::rendezvous::PrefixStore>("by reference", *base));
  EXPECT_EQ(base->get("by pointer/key"), bytes("value"));
  EXPECT_EQ(base->get("by reference/key"), bytes("value"));
  EXPECT_THROW(gloo::rendezvous::PrefixStore("none", std::shared_ptr<Store>()), gloo::EnforceNotMet);
}

#if GLOO_USE_REDIS
TEST(RedisStore, FailsWhereThereIsNoServer) {
  EXPECT_THROW(gloo::rendezvous::RedisStore("127.0.0.1", 0), gloo::EnforceNotMet);
  EXPECT_THROW(gloo::rendezvous::RedisStore("127.0.0.1", 65536), gloo::EnforceNotMet);
}

/// A redis-server of its own, at an address of the loopback network that nobody else uses.
class RedisServer {
 public:
  RedisServer() {
    host = "127.99." + std::to_string(getpid() / 250 % 250) + "." + std::to_string(getpid() % 250 + 1);
    process_ = fork();
    if (process_ == 0) {
      if (std::freopen("/dev/null", "w", stdout) != nullptr) {
        execlp("redis-server", "redis-server", "--bind", host.c_str(), "--save", "", "--appendonly", "no", nullptr);
      }
      _exit(127);
    }
  }

  ~RedisServer() {
    if (process_ > 0) {
      kill(process_, SIGTERM);
      waitpid(process_, nullptr, 0);
    }
  }

  std::string host;

 private:
  pid_t process_;
};

TEST(RedisStore, KeepsValuesInAServer) {
  if (std::system("command -v redis-server >/dev/null") != 0) {
    GTEST_SKIP() << "there is no redis-server";
  }
  RedisServer server;
  auto redis = std::make_shared<gloo::rendezvous::RedisStore>(server.host);
  check_store(std::make_shared<gloo::rendezvous::PrefixStore>("gloo", redis));
  EXPECT_TRUE(redis->check({"gloo/key", "gloo/empty"}));
  EXPECT_FALSE(redis->check({"gloo/key", "gloo/missing"}));
  EXPECT_EQ(gloo::rendezvous::RedisStore(server.host).get("gloo/key"), bytes("value"));
}
#endif

/// A store of the program as they were before v2: some keys, and waits.
class FirstStore : public Store {
 public:
  using Store::wait;

  void set(const std::string& key, const std::vector<char>& data) override {
    std::lock_guard<std::mutex> lock(mutex);
    values[key] = data;
    changed.notify_all();
  }

  std::vector<char> get(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex);
    return values.at(key);
  }

  void wait(const std::vector<std::string>& keys) override {
    wait(keys, kDefaultTimeout);
  }

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    std::unique_lock<std::mutex> lock(mutex);
    timeouts.insert(timeout);
    const auto present = [&] {
      for (const auto& key : keys) {
        if (values.count(key) == 0) {
          return false;
        }
      }
      return true;
    };
    if (timeout == gloo::kNoTimeout) {
      changed.wait(lock, present);
    } else if (!changed.wait_for(lock, timeout, present)) {
      waits_in_vain++;
      GLOO_THROW_IO_EXCEPTION("this store has waited for ", gloo::MakeString(keys), " in vain");
    }
  }

  std::map<std::string, std::vector<char>> values;
  std::set<milliseconds> timeouts;
  int waits_in_vain = 0;

 protected:
  std::mutex mutex;
  std::condition_variable changed;
};

/// A store of the program with the functions of v2.
class SecondStore : public FirstStore {
 public:
  bool has_v2_support() override {
    return true;
  }

  std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) override {
    calls++;
    std::vector<std::vector<char>> found;
    for (const auto& key : keys) {
      found.push_back(get(key));
    }
    return found;
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& list) override {
    calls++;
    for (size_t i = 0; i < keys.size(); i++) {
      set(keys[i], list[i]);
    }
  }

  void append(const std::string& key, const std::vector<char>& data) override {
    calls++;
    std::lock_guard<std::mutex> lock(mutex);
    values[key].insert(values[key].end(), data.begin(), data.end());
    changed.notify_all();
  }

  int64_t add(const std::string& key, int64_t value) override {
    calls++;
    std::lock_guard<std::mutex> lock(mutex);
    auto& now = values[key];
    const int64_t sum = (now.empty() ? 0 : std::stoll(std::string(now.begin(), now.end()))) + value;
    now = bytes(std::to_string(sum));
    changed.notify_all();
    return sum;
  }

  std::atomic<int> calls{0};
};

/// Connects ranks, on threads, by `connect`, and has them meet in a barrier.
template <typename Connect>
void connect_ranks(int size, milliseconds timeout, Connect connect) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("localhost");
  for (int rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] {
      try {
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
        context->setTimeout(timeout);
        connect(*context, device);
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

TEST(FileStore, TellsEachRankItsFiles) {
  Folder folder;
  std::vector<std::vector<std::string>> files(3);
  connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) {
    gloo::rendezvous::FileStore store(folder.path);
    gloo::rendezvous::PrefixStore part("part", store);
    context.connectFullMesh(part, device);
    files[static_cast<size_t>(context.rank)] = store.getAllKeyFilePaths();
  });
  size_t count = 0;
  for (const auto& list : files) {
    EXPECT_FALSE(list.empty());
    for (const auto& file : list) {
      EXPECT_TRUE(std::filesystem::remove(file)) << file;
      count++;
    }
  }
  EXPECT_GE(count, 6u);
  for (const auto& left : std::filesystem::directory_iterator(folder.path)) {
    EXPECT_EQ(left.path().filename(), "gloo_rs.lock");
  }
}

TEST(Rendezvous, TakesStoresByPointerAndByReference) {
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) { context.connectFullMesh(store, device); });
  gloo::rendezvous::HashStore other;
  connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) { context.connectFullMesh(other, device); });
  for (int i = 0; i < 3; i++) {
    auto prefix = std::make_shared<gloo::rendezvous::PrefixStore>("prefix " + std::to_string(i), store);
    connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) { context.connectFullMesh(prefix, device); });
  }
  Folder folder;
  connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) {
    gloo::rendezvous::FileStore files(folder.path);
    gloo::rendezvous::PrefixStore part("part", files);
    context.connectFullMesh(part, device);
  });
}

TEST(Rendezvous, WaitsOnceForAKeyOfAStoreOfTheProgram) {
  // A timeout of zero means for ever. A store is never asked to wait for ever unless the context is.
  FirstStore store;
  connect_ranks(4, milliseconds(20000), [&](auto& context, auto& device) {
    std::this_thread::sleep_for(milliseconds(300 * context.rank));
    context.connectFullMesh(store, device);
  });
  EXPECT_EQ(store.waits_in_vain, 0);
  EXPECT_FALSE(store.timeouts.empty());
  EXPECT_EQ(store.timeouts.count(gloo::kNoTimeout), 0u);
  EXPECT_GT(*store.timeouts.begin(), milliseconds(10000));
  EXPECT_LE(*store.timeouts.rbegin(), milliseconds(20000));
  for (const auto& [key, value] : store.values) {
    EXPECT_EQ(key.find_first_of("/ %?#"), std::string::npos) << key;
  }

  FirstStore patient;
  connect_ranks(2, gloo::kNoTimeout, [&](auto& context, auto& device) { context.connectFullMesh(patient, device); });
  EXPECT_EQ(patient.timeouts, std::set<milliseconds>{gloo::kNoTimeout});
}

TEST(Rendezvous, PutsAPrefixBeforeKeysOfAStoreOfTheProgram) {
  auto store = std::make_shared<FirstStore>();
  for (const std::string name : {"one", "two"}) {
    connect_ranks(2, milliseconds(20000), [&](auto& context, auto& device) {
      context.connectFullMesh(std::make_shared<gloo::rendezvous::PrefixStore>(name, store), device);
    });
  }
  for (const auto& [key, value] : store->values) {
    EXPECT_TRUE(key.rfind("one/", 0) == 0 || key.rfind("two/", 0) == 0) << key;
  }
}

TEST(Rendezvous, UsesWhatAStoreOfTheSecondKindOffers) {
  auto store = std::make_shared<SecondStore>();
  connect_ranks(3, milliseconds(20000), [&](auto& context, auto& device) { context.connectFullMesh(store, device); });
  EXPECT_GT(store->calls, 0);
  EXPECT_EQ(store->waits_in_vain, 0);
}

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Rendezvous, PassesExceptionsOfAStoreOnUnchanged) {
  class Refusing : public FirstStore {
   public:
    void wait(const std::vector<std::string>&, const milliseconds&) override {
      throw Refusal("this store does not wait");
    }
  };
  Refusing store;
  gloo::rendezvous::Context context(1, 2);
  auto device = gloo::transport::tcp::CreateDevice("localhost");
  try {
    context.connectFullMesh(store, device);
    FAIL() << "the store has refused";
  } catch (const Refusal& refusal) {
    EXPECT_STREQ(refusal.what(), "this store does not wait");
  }
  EXPECT_THROW(context.getDevice(), gloo::EnforceNotMet);

  class Unsettable : public FirstStore {
   public:
    void set(const std::string&, const std::vector<char>&) override {
      throw 17;
    }
  };
  Unsettable other;
  EXPECT_THROW(context.connectFullMesh(other, device), int);

  // The next failure is not mistaken for the store's.
  gloo::rendezvous::HashStore third;
  context.setTimeout(milliseconds(100));
  EXPECT_THROW(context.connectFullMesh(third, device), gloo::IoException);
}

TEST(Rendezvous, NamesMissingRanksWhenTimeIsUp) {
  gloo::rendezvous::Context context(0, 3);
  context.setTimeout(milliseconds(300));
  auto device = gloo::transport::tcp::CreateDevice("localhost");
  gloo::rendezvous::HashStore store;
  const auto began = std::chrono::steady_clock::now();
  try {
    context.connectFullMesh(store, device);
    FAIL() << "two ranks are missing";
  } catch (const gloo::IoException& exception) {
    EXPECT_NE(std::string(exception.what()).find("1, 2"), std::string::npos) << exception.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(3000));

  FirstStore mine;
  context.setTimeout(milliseconds(200));
  try {
    context.connectFullMesh(mine, device);
    FAIL() << "two ranks are missing";
  } catch (const gloo::IoException& exception) {
    EXPECT_NE(std::string(exception.what()).find("in vain"), std::string::npos) << exception.what();
  }
  EXPECT_EQ(mine.waits_in_vain, 1);
}

TEST(Rendezvous, CallsFunctionsThatAClassOverrides) {
  class Counting : public gloo::rendezvous::HashStore {
   public:
    void set(const std::string& key, const std::vector<char>& data) override {
      sets++;
      HashStore::set(key, data);
    }

    std::atomic<int> sets{0};
  };
  Counting store;
  connect_ranks(2, milliseconds(20000), [&](auto& context, auto& device) { context.connectFullMesh(store, device); });
  EXPECT_GT(store.sets, 0);
}

TEST(Rendezvous, ConnectsOneRankAlone) {
  class Nothing : public Store {
   public:
    void set(const std::string& key, const std::vector<char>& data) override {
      values[key] = data;
    }
    std::vector<char> get(const std::string& key) override {
      return values[key];
    }
    void wait(const std::vector<std::string>&) override {}

    std::map<std::string, std::vector<char>> values;
  };
  Nothing store;
  connect_ranks(1, milliseconds(5000), [&](auto& context, auto& device) { context.connectFullMesh(store, device); });
}

}  // namespace
