// The file by which a run's sampling is changed while it goes on: "key=value" lines in the ring folder, which running
// processes look at about once a second.
#pragma once

#include <gradprobe/control_text.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace gradprobe::tool {

inline constexpr const char* kControlFile = "control";

struct ControlSettings : ControlText {
  bool empty() const { return !measure && !every && !result_every; }
  std::string text() const;
  std::string in_words() const;
};

// None, and one line about the first mistake, when there is one.
std::optional<ControlSettings> parse_control_settings(std::string_view text, std::string* wrong);

}  // namespace gradprobe::tool
