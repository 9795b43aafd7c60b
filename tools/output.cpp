#include "output.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <gradprobe/ring_format.hpp>

namespace gradprobe::tool {
namespace {
std::FILE* g_output = stdout;
}  // namespace

OutputTo::OutputTo(std::FILE* stream) : before_(std::exchange(g_output, stream)) {}
OutputTo::~OutputTo() {
  g_output = before_;
}

void print_line(std::string_view line) {
  if (std::fwrite(line.data(), 1, line.size(), g_output) != line.size() || std::fputc('\n', g_output) == EOF) {
    throw OutputClosed(errno);
  }
}

void print_json(const Json& object) {
  print_line(object.dump(-1, ' ', true, Json::error_handler_t::replace));
}

const char* output_advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space there";
    case EBADF:
      return "it is closed or only readable: send it to a file, a pipe or a terminal";
    default:
      return "check where it goes";
  }
}

void flush_output() {
  if (std::fflush(g_output) != 0) throw OutputClosed(errno);
}

void print_note(std::string_view text) {
  const std::string line = "gradprobe: " + printable(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string printable(std::string_view text) {
  std::string safe(text);
  for (char& c : safe)
    if (c < 0x20 || c > 0x7e) c = '?';
  return safe;
}

Json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json json_number(const std::optional<double>& value) {
  return value ? json_number(*value) : Json(nullptr);
}

Json json_or_null(std::uint64_t value) {
  return value == kNone ? Json(nullptr) : Json(value);
}

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace gradprobe::tool
