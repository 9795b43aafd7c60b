// Standard output that ends quietly when nobody reads it any more, and text made safe to print.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gradprobe::tool {

using Json = nlohmann::ordered_json;

// A write to stdout failed: the reader is gone (quiet) or the disk is full.
class OutputClosed {
 public:
  explicit OutputClosed(int error) : error_(error) {}
  int error() const { return error_; }

 private:
  int error_;
};

// While it lives, print_line() and print_json() write to another stream than stdout.
class OutputTo {
 public:
  explicit OutputTo(std::FILE* stream);
  ~OutputTo();
  OutputTo(const OutputTo&) = delete;
  OutputTo& operator=(const OutputTo&) = delete;

 private:
  std::FILE* before_;
};

// One line to stdout. Throws OutputClosed.
void print_line(std::string_view line);
// Not ASCII is escaped, which no terminal obeys.
void print_json(const Json& object);
void flush_output();
// What to do about OutputClosed's error.
const char* output_advice(int error);

// One printable line to stderr. When stderr is closed or full there is nobody left to tell: the exit code has to do.
void print_note(std::string_view text);

// Control characters and bytes that are not ASCII as '?': files name hosts and communicators, terminals obey them.
std::string printable(std::string_view text);

// Finite numbers as numbers; JSON has no others, so "NaN", "Infinity" and "-Infinity" are strings.
Json json_number(double value);
Json json_number(const std::optional<double>& value);  // null without a value
Json json_or_null(std::uint64_t value);                // null for kNone

std::string hex(std::uint64_t value);  // 16 digits

}  // namespace gradprobe::tool
