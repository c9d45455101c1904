/*
 * References to an object that do not own it, and become invalid when it is destroyed, also by another thread.
 */
#pragma once

#ifndef _WIN32
#include <unistd.h>
#endif

#include <memory>
#include <thread>

namespace gloo {
inline namespace gloo_rs_api {

template <typename T>
class ShareableNonOwningPtr;

template <typename T>
class NonOwningPtr;

/// A reference that does not keep the object alive, nor its destructor waiting.
template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;

  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& root) : pointer_(root.pointer_) {}

  /// Whether this was made from an object, which may not exist any more.
  explicit operator bool() const noexcept {
    const std::weak_ptr<T> empty;
    return pointer_.owner_before(empty) || empty.owner_before(pointer_);
  }

 private:
  std::weak_ptr<T> pointer_;

  friend class NonOwningPtr<T>;
};

/// A reference for a short use: it is empty if the object does not exist any more; otherwise the destructor waits for
/// its end.
template <typename T>
class NonOwningPtr final {
 public:
  NonOwningPtr() = default;

  explicit NonOwningPtr(const WeakNonOwningPtr<T>& weak) : pointer_(weak.pointer_.lock()) {}

  T* operator->() const noexcept {
    return pointer_.get();
  }

  explicit operator bool() const noexcept {
    return pointer_ != nullptr;
  }

 private:
  std::shared_ptr<T> pointer_;
};

/// A member of the object to which references are given out. Its destructor waits until nobody uses the object.
template <typename T>
class ShareableNonOwningPtr final {
 public:
  explicit ShareableNonOwningPtr(T* object) : pointer_(object, [](T*) {}) {}

  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ShareableNonOwningPtr& operator=(const ShareableNonOwningPtr&) = delete;

  ~ShareableNonOwningPtr() {
    const std::weak_ptr<T> users = pointer_;
    pointer_.reset();
    while (!users.expired()) {
      std::this_thread::yield();
    }
  }

 private:
  std::shared_ptr<T> pointer_;

  friend class WeakNonOwningPtr<T>;
};

}  // namespace gloo_rs_api
}  // namespace gloo
