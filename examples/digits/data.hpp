// The handwritten digits of the UCI repository as scikit-learn distributes them: 1,797 images of 8 by 8 pixels, 0 to 16
// each.
#pragma once

#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

constexpr size_t kPixels = 64;
constexpr size_t kClasses = 10;

struct Digit {
  std::array<float, kPixels> pixels;  // 0 to 1
  size_t label;
};

struct Digits {
  std::vector<Digit> train;
  std::vector<Digit> held_out;  // every fifth line of the file
};

// Reads lines of 64 pixels and the label, comma-separated.
inline Digits read_digits(const std::string &path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  Digits digits;
  std::string line;
  for (size_t number = 0; std::getline(file, line); ++number) {
    std::istringstream fields(line);
    Digit digit{};
    char comma = ',';
    for (float &pixel : digit.pixels) {
      fields >> pixel >> comma;
      pixel /= 16;
    }
    fields >> digit.label;
    if (!fields || comma != ',' || digit.label >= kClasses) {
      throw std::runtime_error(path + ":" + std::to_string(number + 1) + ": not 64 pixels and a label");
    }
    (number % 5 == 4 ? digits.held_out : digits.train).push_back(digit);
  }
  if (digits.held_out.empty()) throw std::runtime_error(path + " holds fewer than five digits");
  return digits;
}
