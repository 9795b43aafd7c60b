#include "ring_files.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <tuple>

#include <fmt/format.h>

#include "control_file.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

// The collector updates the heartbeat every second; a busy host may delay it.
constexpr std::uint64_t kStaleNs = 10'000'000'000;

std::uint64_t realtime_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

std::string this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string this_host() {
  char host[sizeof(FileHeader::host)] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return host;
}

std::uint64_t this_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Whether the writer's process number means the same process here.
bool shares_processes(const FileHeader& header) {
  static const std::string boot = this_boot(), host = this_host();
  static const std::uint64_t pid_namespace = this_pid_namespace();
  return !boot.empty() && field_text(header.boot_id) == boot && field_text(header.host) == host &&
         (header.pid_namespace == 0 || header.pid_namespace == pid_namespace);
}

bool heartbeat_is_fresh(const LiveCounters& counters) {
  const std::uint64_t now = realtime_ns(), beat = counters.heartbeat_ns;
  return beat <= now ? now - beat < kStaleNs : beat - now <= kStaleNs;
}

std::string span_text(std::uint64_t ns) {
  const std::uint64_t seconds = ns / 1'000'000'000, hours = seconds / 3600;
  if (hours == 0) return fmt::format("{} s", seconds);
  return hours < 48 ? fmt::format("{} h", hours) : fmt::format("{} days", hours / 24);
}

void open_folder(const std::string& path, RingFiles& found) {
  std::error_code ec;
  std::vector<fs::path> rings;
  std::size_t others = 0;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) continue;
    if (it->path().extension() == ".ring")
      rings.push_back(it->path());
    else if (it->path().filename() != kControlFile)
      others++;
  }
  if (ec) {
    found.error = fmt::format("{}: can't list the folder: {}; {}", path, ec.message(), open_advice(ec.value()));
    return;
  }
  if (rings.empty()) {
    found.error =
        fmt::format("{}: no ring files (*.ring); give the folder that the plugin's banner names (GRADPROBE_DIR)", path);
    return;
  }
  if (others > 0) found.notes.push_back(fmt::format("{}: {} other file(s) skipped (not *.ring)", path, others));
  std::string first_error;
  for (const fs::path& ring : rings) {
    RingReader::Opened opened = RingReader::open(ring.string());
    if (opened.reader) {
      found.readers.push_back(std::move(*opened.reader));
      continue;
    }
    if (first_error.empty()) first_error = opened.error;
    found.notes.push_back("skipped " + opened.error);
  }
  if (found.readers.empty()) {
    found.error = first_error;
    found.notes.clear();
  }
}

}  // namespace

RingFiles open_rings(const std::string& path) {
  RingFiles found;
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    open_folder(path, found);
  } else {
    RingReader::Opened opened = RingReader::open(path);
    if (opened.reader)
      found.readers.push_back(std::move(*opened.reader));
    else
      found.error = opened.error;
  }
  std::sort(found.readers.begin(), found.readers.end(), [](const RingReader& a, const RingReader& b) {
    const auto key = [](const RingReader& r) {
      const FileHeader& h = r.header();
      return std::tuple(h.comm_id, h.rank, h.start_time_ns, r.name());
    };
    return key(a) < key(b);
  });
  return found;
}

Writer writer_of(const RingReader& reader, const LiveCounters& counters) {
  if (counters.state == static_cast<std::uint64_t>(RingState::finalized)) return Writer::finalized;
  if (counters.state == static_cast<std::uint64_t>(RingState::exited)) return Writer::exited;
  const bool fresh = heartbeat_is_fresh(counters);
  const FileHeader& header = reader.header();
  if (!shares_processes(header)) return fresh ? Writer::alive_elsewhere : Writer::unseen;
  const auto pid = static_cast<pid_t>(header.pid);
  const bool exists = pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
  if (!exists) return Writer::dead;
  return fresh ? Writer::alive : Writer::stalled;
}

bool is_running(Writer writer) {
  return writer == Writer::alive || writer == Writer::alive_elsewhere;
}

std::string heartbeat_in_words(const LiveCounters& counters) {
  const std::uint64_t now = realtime_ns(), beat = counters.heartbeat_ns;
  if (beat == 0) return "no heartbeat yet";
  if (heartbeat_is_fresh(counters)) return fmt::format("heartbeat {} ago", span_text(beat < now ? now - beat : 0));
  if (beat > now) return fmt::format("a heartbeat {} ahead of this clock", span_text(beat - now));
  return fmt::format("no heartbeat for {}", span_text(now - beat));
}

}  // namespace gradprobe::tool
