// The file by which a run's sampling is changed while it goes on: "key=value" lines in the ring folder, which running
// processes look at about once a second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradprobe::tool {

inline constexpr const char* kControlFile = "control";

// What isn't named is as the processes' environment says.
struct ControlSettings {
  std::optional<bool> measure;
  std::optional<std::uint64_t> every;         // 1 ... kRarest
  std::optional<std::uint64_t> result_every;  // 0 ... kRarest; 0: never
  std::uint64_t from_step = 0;                // 0: at once

  static constexpr std::uint64_t kRarest = 1'000'000'000;
  bool empty() const { return !measure && !every && !result_every; }
  std::string text() const;
  std::string in_words() const;
};

// None, and one line about the first mistake, when there is one.
std::optional<ControlSettings> parse_control_text(std::string_view text, std::string* wrong);

}  // namespace gradprobe::tool
