#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include "commands.hpp"
#include "control_file.hpp"
#include "output.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLongestFile = 4096;  // the plugin reads no more

std::string every_in_words(std::uint64_t n) {
  return n == 1 ? std::string("in every step") : fmt::format("in one step of {}", n);
}

int fail(const std::string& path, const std::string& what, const std::string& advice) {
  print_note(fmt::format("{}: {}; {}", path, what, advice));
  return kExitError;
}

// Readers see the old content or the new one, never a part.
int replace(const std::string& folder, const std::string& path, const std::string& text) {
  std::string temporary = folder + "/.control.XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return fail(folder, std::string("can't write: ") + std::strerror(errno), "run as the user who owns it");
  std::size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (n == 0 || errno != EINTR)
      error = n == 0 ? EIO : errno;
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return kExitOk;
  ::unlink(temporary.c_str());
  return fail(path, std::string("can't write: ") + std::strerror(error), output_advice(error));
}

}  // namespace

std::string ControlSettings::text() const {
  std::string all;
  if (measure) all += fmt::format("measure={}\n", *measure ? "on" : "off");
  if (every) all += fmt::format("every={}\n", *every);
  if (result_every) all += fmt::format("result_every={}\n", *result_every);
  if (from_step != 0) all += fmt::format("from_step={}\n", from_step);
  return all;
}

std::string ControlSettings::in_words() const {
  if (empty()) return "as the processes' environment says";
  std::string all;
  const auto add = [&](const std::string& part) { all += (all.empty() ? "" : ", ") + part; };
  if (measure == false) add("nothing is measured");
  if (measure == true) add("measuring is on");
  if (every) add("inputs are measured " + every_in_words(*every));
  if (result_every)
    add(*result_every == 0 ? "results are never measured" : "results are measured " + every_in_words(*result_every));
  add(from_step == 0 ? std::string("at once") : fmt::format("from step {} on", from_step));
  return all;
}

std::optional<ControlSettings> parse_control_settings(std::string_view text, std::string* wrong) {
  const std::optional<ControlText> said = parse_control_text(text, wrong);
  return said ? std::optional(ControlSettings{*said}) : std::nullopt;
}

int control(const ControlOptions& options) {
  std::error_code ec;
  if (!fs::is_directory(options.folder, ec))
    return fail(options.folder, ec ? ec.message() : std::string("is no folder"),
                "give the folder that the plugin's banner names (GRADPROBE_DIR)");
  const std::string path = options.folder + "/" + kControlFile;
  if (options.reset) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return fail(path, std::string("can't remove it: ") + std::strerror(errno), "run as the user who owns it");
    print_line(path + ": removed; sampling is " + ControlSettings().in_words());
    return kExitOk;
  }
  ControlSettings settings;
  if (fs::exists(path, ec)) {
    if (!fs::is_regular_file(path, ec)) return fail(path, "is no regular file", "remove it with --reset");
    std::ifstream in(path, std::ios::binary);
    std::string text(kLongestFile + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in.eof() && !in) return fail(path, "can't be read", "run as the user who owns it");
    text.resize(static_cast<std::size_t>(in.gcount()));
    std::string wrong;
    const auto parsed = text.size() > kLongestFile ? std::nullopt : parse_control_settings(text, &wrong);
    if (!parsed) return fail(path, wrong.empty() ? "is longer than a few lines" : wrong, "remove it with --reset");
    settings = *parsed;
  } else if (options.shows_only()) {
    print_line(fmt::format("{}: not there; sampling is {}", path, settings.in_words()));
    return kExitOk;
  }
  if (options.shows_only()) {
    print_line(path + ": " + settings.in_words());
    return kExitOk;
  }
  if (options.measure) settings.measure = options.measure;
  if (options.every) settings.every = options.every;
  if (options.result_every) settings.result_every = options.result_every;
  settings.from_step = options.from_step.value_or(0);
  const int code = replace(options.folder, path, settings.text());
  if (code == kExitOk) print_line(path + ": " + settings.in_words());
  return code;
}

}  // namespace gradprobe::tool
