#include "control.hpp"

#include <gradprobe/control_text.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gradprobe {
namespace {

constexpr std::size_t kLongestFile = 4096;

// Content of a small file; none, and what is wrong, when it can't be read.
std::optional<std::string> read_file(const std::string& path, std::string* wrong) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    *wrong = std::strerror(errno);
    return std::nullopt;
  }
  std::string text(kLongestFile, '\0');
  std::size_t length = 0;
  ssize_t n = 0;
  while (length < text.size() && (n = ::read(fd, text.data() + length, text.size() - length)) > 0)
    length += static_cast<std::size_t>(n);
  if (n < 0) *wrong = std::strerror(errno);
  ::close(fd);
  if (n < 0) return std::nullopt;
  if (length == text.size()) {
    *wrong = "longer than a few lines";
    return std::nullopt;
  }
  text.resize(length);
  return text;
}

}  // namespace

std::optional<Sampling> parse_control(std::string_view text, const Sampling& standard, std::string* wrong) {
  const std::optional<ControlText> said = parse_control_text(text, wrong);
  if (!said) return std::nullopt;
  Sampling settings = standard;
  settings.measure = said->measure.value_or(standard.measure);
  settings.every = static_cast<std::uint32_t>(said->every.value_or(standard.every));
  settings.result_every = static_cast<std::uint32_t>(said->result_every.value_or(standard.result_every));
  settings.from_step = said->from_step;
  return settings;
}

void Control::configure(const Sampling& standard, const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!path_.empty() && path_ == path && standard_ == standard) return;
  path_ = path;
  standard_ = settings_ = standard;
  seen_ = {};
  version_.fetch_add(1, std::memory_order_release);
}

bool Control::try_get(Sampling* settings, std::uint32_t* version) const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  *settings = settings_;
  *version = version_.load(std::memory_order_relaxed);
  return true;
}

bool Control::look(std::string* message, bool* warn) {
  std::string path;
  Sampling settings;
  Seen before;
  {
    const std::lock_guard lock(mutex_);
    path = path_;
    settings = standard_;
    before = seen_;
  }
  if (path.empty()) return false;
  Seen now;
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode))
    now = {true, status.st_ino, status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec,
           status.st_size};
  if (now == before) return false;
  std::string wrong;
  if (now.exists) {
    const std::optional<std::string> text = read_file(path, &wrong);
    const std::optional<Sampling> parsed = text ? parse_control(*text, settings, &wrong) : std::nullopt;
    if (parsed) settings = *parsed;
  }
  const std::lock_guard lock(mutex_);
  if (path != path_) return false;
  seen_ = now;
  *warn = !wrong.empty();
  if (*warn) {
    *message = path + ": " + wrong + ": the settings stay as they are";
    return true;
  }
  if (settings == settings_) return false;
  settings_ = settings;
  version_.fetch_add(1, std::memory_order_release);
  *message = path + (now.exists ? ": " : " is gone: ") +
             (settings.measure ? "measuring in every " + std::to_string(settings.every) + ". step" : "not measuring") +
             (settings.result_every != 0 ? ", results in every " + std::to_string(settings.result_every) + ". step"
                                         : ", no results") +
             (settings.from_step != 0 ? ", from step " + std::to_string(settings.from_step) + " on" : "");
  return true;
}

}  // namespace gradprobe
