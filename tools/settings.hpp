// The plugin's environment variables as the tool knows them: names, and which values are usable. A test compares both
// with the plugin, which reads them (plugin/config.cpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "environment.hpp"

namespace gradprobe::tool {

struct Setting {
  std::string_view name;
  std::string_view wanted;  // what its value is, as in "SKETCH=7 is not <wanted>"
  bool (*usable)(std::string_view value);
};

const std::vector<Setting>& all_settings();
const Setting* find_setting(std::string_view name);

// A variable of an environment that the plugin can't use.
struct SettingProblem {
  std::string name, value;
  std::string text;    // what is wrong with it
  std::string advice;  // what to do
};
// Values that can't be used, then names that begin with GRADPROBE_ and that nobody reads.
std::vector<SettingProblem> check_settings(const Environment& environment);

// The known name that `name` was most likely meant to be; empty when none is near.
std::string nearest_setting(std::string_view name);

}  // namespace gradprobe::tool
