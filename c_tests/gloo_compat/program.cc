// A program for Gloo.
#include <gloo/common/error.h>

#include <gloo_rs.h>

#include <iostream>

int main() {
  try {
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("as expected: ", 1);
  } catch (const gloo::InvalidOperationException& failure) {
    std::cout << failure.what() << " " << gloo_rs_version() << std::endl;
    return 0;
  }
  return 1;
}
