#include "environment.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace gradprobe::tool {

Environment Environment::of_this_process() {
  Environment e;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    e.variables_.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return e;
}

Environment Environment::parse(std::string_view zero_separated) {
  Environment e;
  for (const std::string& entry : split(zero_separated, '\0')) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) e.variables_.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return e;
}

const std::string* Environment::find(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

std::optional<std::string> Environment::value(const std::string& name) const {
  const std::string* text = find(name);
  if (text == nullptr || text->empty()) return std::nullopt;
  return *text;
}

std::vector<std::string> Environment::entries() const {
  std::vector<std::string> all;
  for (const auto& [name, text] : variables_) all.push_back(fmt::format("{}={}", name, text));
  return all;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string find_executable(const std::string& command, const Environment& environment, std::string* why) {
  const auto usable = [&](const std::string& path, bool say) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return false;
    if (S_ISDIR(status.st_mode)) {
      if (say) *why = path + " is a folder";
      return false;
    }
    if (::access(path.c_str(), X_OK) == 0) return true;
    *why = path + " is not executable";
    return false;
  };
  why->clear();
  if (command.find('/') != std::string::npos) {
    if (usable(command, true)) return command;
    if (why->empty()) *why = command + ": no such file";
    return {};
  }
  const std::string* path = environment.find("PATH");
  if (!command.empty()) {
    for (const std::string& folder : split(path != nullptr ? *path : std::string("/bin:/usr/bin"), ':')) {
      std::string candidate = (folder.empty() ? std::string(".") : folder) + "/" + command;
      if (usable(candidate, false)) {
        why->clear();
        return candidate;
      }
    }
  }
  if (why->empty()) *why = command + ": no such command on PATH";
  return {};
}

}  // namespace gradprobe::tool
