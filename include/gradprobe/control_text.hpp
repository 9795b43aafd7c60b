// The text of a control file, by which a run's sampling is changed while it goes on: lines "key=value"; empty ones and
// those that begin with # are skipped.
//   measure=on|off    off: nothing is measured
//   every=N           every N-th step, 1 ... kRarest
//   result_every=N    results in every N-th step, 0 ... kRarest; 0: none
//   from_step=N       from that step on, so that all ranks change in the same one; 0: at once (default)
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradprobe {

// What isn't named is as the processes' environment says.
struct ControlText {
  std::optional<bool> measure;
  std::optional<std::uint64_t> every;
  std::optional<std::uint64_t> result_every;
  std::uint64_t from_step = 0;

  static constexpr std::uint64_t kRarest = 1'000'000'000;
};

namespace detail {

inline bool parse_number(std::string_view text, std::uint64_t low, std::uint64_t high, std::uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= low && *number <= high;
}

inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

inline bool parse_control_line(std::string_view key, std::string_view value, ControlText* settings) {
  std::uint64_t number = 0;
  if (key == "measure" && (value == "on" || value == "off")) {
    settings->measure = value == "on";
    return true;
  }
  if (key == "every" && parse_number(value, 1, ControlText::kRarest, &number)) {
    settings->every = number;
    return true;
  }
  if (key == "result_every" && parse_number(value, 0, ControlText::kRarest, &number)) {
    settings->result_every = number;
    return true;
  }
  return key == "from_step" && parse_number(value, 0, UINT64_MAX, &settings->from_step);
}

}  // namespace detail

// None, and one line about the first mistake, when there is one.
inline std::optional<ControlText> parse_control_text(std::string_view text, std::string* wrong) {
  ControlText settings;
  for (int number = 1; !text.empty(); number++) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = detail::trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos &&
        detail::parse_control_line(detail::trimmed(line.substr(0, equals)), detail::trimmed(line.substr(equals + 1)),
                                   &settings))
      continue;
    *wrong = "line " + std::to_string(number) + " ('" + std::string(line.substr(0, 60)) +
             "') is none of measure=on|off, every=N, result_every=N, from_step=N";
    return std::nullopt;
  }
  return settings;
}

}  // namespace gradprobe
