#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
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

bool parse_number(std::string_view text, std::uint64_t low, std::uint64_t high, std::uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= low && *number <= high;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool parse_line(std::string_view key, std::string_view value, ControlSettings* settings) {
  constexpr std::uint64_t kRarest = ControlSettings::kRarest;
  std::uint64_t number = 0;
  if (key == "measure" && (value == "on" || value == "off")) {
    settings->measure = value == "on";
    return true;
  }
  if (key == "every" && parse_number(value, 1, kRarest, &number)) {
    settings->every = number;
    return true;
  }
  if (key == "result_every" && parse_number(value, 0, kRarest, &number)) {
    settings->result_every = number;
    return true;
  }
  return key == "from_step" && parse_number(value, 0, UINT64_MAX, &settings->from_step);
}

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

std::optional<ControlSettings> parse_control_text(std::string_view text, std::string* wrong) {
  ControlSettings settings;
  for (int number = 1; !text.empty(); number++) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos &&
        parse_line(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)), &settings))
      continue;
    *wrong = fmt::format("line {} ('{}') is none of measure=on|off, every=N, result_every=N, from_step=N", number,
                         line.substr(0, 60));
    return std::nullopt;
  }
  return settings;
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
    const auto parsed = text.size() > kLongestFile ? std::nullopt : parse_control_text(text, &wrong);
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
