// Settings that can change while a run goes on: GRADPROBE_EVERY, GRADPROBE_RESULT_EVERY, and the control file that
// overrides them. The collector reads the file; callbacks only notice that a version number has changed.
//
// Its lines: gradprobe/control_text.hpp. What the file doesn't name is as the environment says; without a file all is.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace gradprobe {

struct Sampling {
  bool measure = true;
  std::uint32_t every = 1;
  std::uint32_t result_every = 0;
  std::uint64_t from_step = 0;

  bool operator==(const Sampling&) const = default;
  // Of a step whose number is known.
  bool takes(std::uint64_t step) const { return measure && step % every == 0; }
  bool takes_result(std::uint64_t step) const { return result_every != 0 && step % result_every == 0; }
};

// `standard` with what the text says. None, and one line about the first mistake, when there is one.
std::optional<Sampling> parse_control(std::string_view text, const Sampling& standard, std::string* wrong);

// One for the process.
class Control {
 public:
  // Sets the environment's settings and the file, unless that was done before; from any thread.
  void configure(const Sampling& standard, const std::string& path);

  // Changes whenever the settings do; starts at 1.
  std::uint32_t version() const { return version_.load(std::memory_order_acquire); }
  // The settings, unless they are being changed at this moment: then they come with a later version. Never waits.
  bool try_get(Sampling* settings, std::uint32_t* version) const;

  // Reads the file if it has changed. True when there is something to tell: `*warn` says whether it is bad.
  // By the collector only: makes system calls.
  bool look(std::string* message, bool* warn);

 private:
  struct Seen {
    bool exists = false;
    ino_t inode = 0;
    std::int64_t mtime_ns = 0;
    off_t size = 0;
    bool operator==(const Seen&) const = default;
  };
  mutable std::mutex mutex_;  // all but version_
  Sampling settings_, standard_;
  std::string path_;
  std::atomic<std::uint32_t> version_{1};
  Seen seen_;
};

}  // namespace gradprobe
