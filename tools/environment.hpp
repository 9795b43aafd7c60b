// The variables of a process that is looked at: this one's, or another one's (/proc/PID/environ).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradprobe::tool {

class Environment {
 public:
  Environment() = default;
  static Environment of_this_process();
  // "NAME=value" entries, each ended by a zero byte.
  static Environment parse(std::string_view zero_separated);

  // The value, also an empty one.
  const std::string* find(const std::string& name) const;
  // Nothing for an empty value, which the plugin takes for unset.
  std::optional<std::string> value(const std::string& name) const;
  bool has(const std::string& name) const { return value(name).has_value(); }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void remove(const std::string& name) { variables_.erase(name); }
  const std::map<std::string, std::string>& all() const { return variables_; }

  // "NAME=value" strings, for exec.
  std::vector<std::string> entries() const;

 private:
  std::map<std::string, std::string> variables_;
};

// Splits at each `separator`; an empty text has no parts.
std::vector<std::string> split(std::string_view text, char separator);

// The file that a shell would run for `command`: as it is when it has a '/', else the first one on PATH. Empty when
// there is none. `why` says what is wrong: not found, not executable, a folder.
std::string find_executable(const std::string& command, const Environment& environment, std::string* why);

}  // namespace gradprobe::tool
