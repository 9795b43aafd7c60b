#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include "doctor.hpp"
#include "settings.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// As the plugin makes it (GRADPROBE_DIR in README.md).
struct RingFolder {
  std::string path;
  bool is_default = false;
  bool named_by_launcher = false;  // the default's last part is known only when the job runs
};

std::string path_component(std::string name) {
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr("-_.", c) == nullptr) c = '_';
  if (name == "." || name == "..") name = "_";
  return name.substr(0, 63);
}

// The real user and the parent of a process; nothing when it can't be told.
bool owner_and_parent(pid_t pid, unsigned* user, unsigned* parent) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  bool have_user = false, have_parent = false;
  for (std::string line; std::getline(in, line);) {
    const auto field = [&](std::string_view name, unsigned* value) {
      if (!line.starts_with(name)) return false;
      const std::size_t digits = line.find_first_of("0123456789");
      if (digits == std::string::npos) return false;
      return std::from_chars(line.data() + digits, line.data() + line.size(), *value).ec == std::errc();
    };
    have_user |= field("Uid:", user);
    have_parent |= field("PPid:", parent);
  }
  return have_user && have_parent;
}

RingFolder ring_folder(const Patient& patient, const Environment& environment) {
  RingFolder folder;
  if (const auto given = environment.value("GRADPROBE_DIR")) {
    folder.path = *given;
    while (folder.path.size() > 1 && folder.path.ends_with('/')) folder.path.pop_back();
    return folder;
  }
  folder.is_default = true;
  unsigned user = ::getuid(), parent = 0;
  const bool known = patient.pid != 0 && owner_and_parent(patient.pid, &user, &parent);
  folder.path = fmt::format("/dev/shm/gradprobe-{}/", user);
  for (const char* name : {"GRADPROBE_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"}) {
    const auto job = environment.value(name);
    if (!job || *job == "none") continue;
    folder.path += path_component(*job);
    return folder;
  }
  folder.named_by_launcher = !known;
  folder.path += known ? fmt::format("ppid-{}", parent) : std::string("ppid-N");
  return folder;
}

std::string file_system_name(const std::string& path, bool* network) {
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0) return "unknown file system";
  *network = false;
  // man 2 statfs.
  switch (static_cast<std::uint32_t>(status.f_type)) {
    case 0x01021994:
      return "tmpfs";
    case 0xef53:
      return "ext4";
    case 0x58465342:
      return "xfs";
    case 0x9123683e:
      return "btrfs";
    case 0x794c7630:
      return "overlayfs";
    case 0x6969:
      *network = true;
      return "NFS";
    case 0x0bd00bd0:
      *network = true;
      return "Lustre";
    case 0x47504653:
      *network = true;
      return "GPFS";
    case 0x00c36400:
      *network = true;
      return "CephFS";
    case 0xfe534d42:
    case 0xff534d42:
      *network = true;
      return "SMB";
    case 0x65735546:
      return "a FUSE file system";
    default:
      return "another file system";
  }
}

class FolderCheck {
 public:
  FolderCheck(const Environment& environment, RingFolder folder, Diagnosis* diagnosis)
      : environment_(environment), folder_(std::move(folder)), diagnosis_(*diagnosis) {}

  void run() {
    std::error_code ec;
    nearest_ = folder_.path;
    while (!fs::exists(nearest_, ec)) {
      const fs::path parent = nearest_.parent_path();
      if (parent == nearest_ || parent.empty()) break;
      nearest_ = parent;
    }
    if (nearest_.empty() || !fs::exists(nearest_, ec)) nearest_ = ".";
    if (!check_access()) return;
    check_space();
    check_content();
  }

 private:
  void problem(const std::string& text, const std::string& action) {
    diagnosis_.problem("folder", Blocks::folder, text, action);
  }

  bool check_access() {
    std::error_code ec;
    const std::string at = nearest_.string();
    if (!fs::is_directory(nearest_, ec)) {
      problem(fmt::format("{}: {} is no folder", shown(), at), "export GRADPROBE_DIR=FOLDER with another folder");
      return false;
    }
    struct stat status {};
    if (::lstat(at.c_str(), &status) != 0) return true;
    const bool ours = status.st_uid == ::geteuid();
    const bool below_default = folder_.is_default && at.starts_with("/dev/shm/gradprobe-");
    if (below_default && (!ours || S_ISLNK(status.st_mode) || (status.st_mode & 022) != 0)) {
      problem(fmt::format("{}: {} is {}", shown(), at,
                          !ours                     ? "somebody else's"
                          : S_ISLNK(status.st_mode) ? "a link"
                                                    : "writable for others"),
              ours ? fmt::format("remove it, or export GRADPROBE_DIR=FOLDER with a folder of yours")
                   : std::string("export GRADPROBE_DIR=FOLDER with a folder of yours"));
      return false;
    }
    if (::access(at.c_str(), W_OK | X_OK) != 0) {
      problem(fmt::format("{}: {} is not writable for this user: {}", shown(), at, std::strerror(errno)),
              "export GRADPROBE_DIR=FOLDER with a folder that you can write");
      return false;
    }
    const bool exists = fs::path(folder_.path) == nearest_;
    diagnosis_.ok("folder", fmt::format("{}: {}{}", shown(), exists ? "exists" : "can be created",
                                        exists ? fmt::format(", mode {:04o}", status.st_mode & 07777) : ""));
    if (exists && (status.st_mode & 077) != 0)
      diagnosis_.note("folder", "others may list it; ring files themselves are created with mode 0600");
    return true;
  }

  std::string shown() const {
    if (!folder_.is_default) return "GRADPROBE_DIR=" + folder_.path;
    return folder_.path +
           (folder_.named_by_launcher ? " (the default; N: the launcher's process number)" : " (the default)");
  }

  void check_space() {
    bool network = false;
    const std::string kind = file_system_name(nearest_.string(), &network);
    struct statvfs status {};
    if (::statvfs(nearest_.c_str(), &status) != 0) return;
    const std::uint64_t free = std::uint64_t{status.f_bavail} * status.f_frsize / kMiB;
    const std::uint64_t total = std::uint64_t{status.f_blocks} * status.f_frsize / kMiB;
    std::uint64_t ring = 32;
    const auto given = environment_.value("GRADPROBE_RING_MB");
    const Setting* setting = find_setting("GRADPROBE_RING_MB");
    const bool set = given && setting->usable(*given);
    if (set) std::from_chars(given->data(), given->data() + given->size(), ring);
    const bool memory = kind == "tmpfs" && nearest_.string().starts_with("/dev/shm");
    const std::string advice =
        memory ? fmt::format(
                     "free space there, in a container start it with --shm-size=8g, or export "
                     "GRADPROBE_DIR=FOLDER on a larger file system")
               : std::string("free space there, or export GRADPROBE_DIR=FOLDER on a larger file system");
    const std::string space = fmt::format("{} MiB free of {} ({})", free, total, kind);
    if (free < (set ? ring : 1)) {
      problem(
          fmt::format("{}: no room for a ring file of {} MiB", space, set ? ring : 1),
          advice + (set ? fmt::format(", or export GRADPROBE_RING_MB={}", std::max<std::uint64_t>(1, free / 2)) : ""));
      return;
    }
    diagnosis_.ok("space",
                  fmt::format("{}: room for {} ring files of {} MiB, one for each communicator and rank on this "
                              "host",
                              space, free / ring, ring));
    if (!set && free / 32 < ring)
      diagnosis_.note("space", fmt::format("ring files will be of {} MiB instead of 32, so that they fit; "
                                           "with less history",
                                           std::max<std::uint64_t>(1, free / 32)));
    if (memory && total <= 64)
      diagnosis_.note("space",
                      "/dev/shm has 64 MiB, the default of containers; NCCL needs it too: start the container "
                      "with --shm-size=8g");
    if (network)
      diagnosis_.note("space",
                      kind +
                          ": records travel over the network; a local folder costs less, and ring files can be "
                          "copied into one folder afterwards");
  }

  void check_content() {
    std::error_code ec;
    std::size_t rings = 0;
    for (fs::directory_iterator it(folder_.path, ec), end; !ec && it != end; it.increment(ec))
      if (it->path().extension() == ".ring") rings++;
    if (rings > 0)
      diagnosis_.note("folder",
                      fmt::format("it holds {} ring file(s) of earlier runs, which gradprobe compare will read "
                                  "with the new ones",
                                  rings));
  }

  const Environment& environment_;
  RingFolder folder_;
  Diagnosis& diagnosis_;
  fs::path nearest_;
};

}  // namespace

void check_folder(const Patient& patient, const Environment& environment, Diagnosis* diagnosis) {
  FolderCheck(environment, ring_folder(patient, environment), diagnosis).run();
}

}  // namespace gradprobe::tool
