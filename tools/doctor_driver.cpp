#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "command_line.hpp"
#include "doctor.hpp"
#include "library_search.hpp"
#include "subprocess.hpp"

namespace gradprobe::tool {
namespace {

constexpr std::chrono::seconds kLimit(30);

// Runs in a child process: a line "key value" for each thing learnt, in the order in which it was learnt, so that what
// was known before a crash is kept.
std::string ask_driver(const std::string& path, const Environment& environment) {
  ::clearenv();
  for (const auto& [name, value] : environment.all()) ::setenv(name.c_str(), value.c_str(), 1);
  std::string answer;
  void* driver = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    const char* why = dlerror();
    return std::string("unloadable ") + (why != nullptr ? why : "unknown reason") + "\n";
  }
  link_map* map = nullptr;
  if (dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) answer += fmt::format("path {}\n", map->l_name);
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_of = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get_device = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  const auto error_name = reinterpret_cast<int (*)(int, const char**)>(dlsym(driver, "cuGetErrorName"));
  if (get_version == nullptr || init == nullptr || count_of == nullptr || get_device == nullptr || name_of == nullptr ||
      attribute == nullptr)
    return answer + "unloadable it has not the functions of a CUDA driver\n";
  int version = 0;
  if (get_version(&version) == 0) answer += fmt::format("version {}.{}\n", version / 1000, version % 1000 / 10);
  if (const int error = init(0); error != 0) {
    const char* text = nullptr;
    if (error_name == nullptr || error_name(error, &text) != 0 || text == nullptr) text = "unknown";
    return answer + fmt::format("error {} {}\n", error, text);
  }
  int count = 0;
  if (count_of(&count) != 0) count = 0;
  answer += fmt::format("devices {}\n", count);
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  for (int i = 0; i < count; i++) {
    int device = 0, major = 0, minor = 0;
    char name[128] = {};
    if (get_device(&device, i) != 0 || name_of(name, sizeof name - 1, device) != 0) continue;
    attribute(&major, kMajor, device);
    attribute(&minor, kMinor, device);
    answer += fmt::format("device {}.{} {}\n", major, minor, name);
  }
  return answer;
}

std::string advice_for(int error) {
  switch (error) {
    case 34:  // CUDA_ERROR_STUB_LIBRARY
      return "take the toolkit's stubs folder off LD_LIBRARY_PATH";
    case 100:  // CUDA_ERROR_NO_DEVICE
      return "check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all";
    case 802:  // CUDA_ERROR_SYSTEM_NOT_READY
      return "start the fabric manager: systemctl start nvidia-fabricmanager";
    case 803:  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
      return "the kernel module and libcuda.so.1 are of different releases: reboot after a driver update";
    case 804:  // CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
      return "take CUDA's compat folder off LD_LIBRARY_PATH, or update the driver";
    default:
      return "check that nvidia-smi works for this user";
  }
}

struct Answer {
  std::map<std::string, std::string> values;
  std::vector<std::string> devices;
};

Answer parse(const std::string& text) {
  Answer answer;
  for (const std::string& line : split(text, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    if (line.starts_with("device "))
      answer.devices.push_back(line.substr(blank + 1));
    else
      answer.values[line.substr(0, blank)] = line.substr(blank + 1);
  }
  return answer;
}

void check_devices(const Answer& answer, const Environment& environment, Diagnosis* diagnosis) {
  if (answer.devices.empty()) {
    const std::string* visible = environment.find("CUDA_VISIBLE_DEVICES");
    diagnosis->problem("driver", Blocks::driver,
                       visible != nullptr ? fmt::format("CUDA_VISIBLE_DEVICES='{}' leaves no device", *visible)
                                          : std::string("the driver shows no device"),
                       visible != nullptr ? "unset CUDA_VISIBLE_DEVICES" : advice_for(100));
    return;
  }
  std::map<std::string, int> kinds;
  for (const std::string& device : answer.devices) kinds[device]++;
  std::string text;
  for (const auto& [kind, count] : kinds) {
    const std::size_t blank = kind.find(' ');
    const std::string capability = kind.substr(0, blank), name = kind.substr(blank + 1);
    text += fmt::format("{}{} x {} (compute capability {})", text.empty() ? "" : ", ", count, name, capability);
    const std::string major = capability.substr(0, capability.find('.'));
    if (major.size() == 1 && (major < "7" || capability < "7.5"))
      diagnosis->problem("driver", Blocks::driver,
                         fmt::format("{} has compute capability {}; the kernels need 7.5", name, capability),
                         "train on Turing or newer devices");
  }
  diagnosis->ok("devices", text);
}

}  // namespace

void check_driver(const Environment& environment, Diagnosis* diagnosis) {
  const LibrarySearch libraries(environment);
  const FoundLibrary found = libraries.find("libcuda.so.1", nullptr);
  const std::string path = found.path.empty() ? "libcuda.so.1" : found.path;
  if (!found.broken.empty()) {
    diagnosis->problem("driver", Blocks::driver, fmt::format("{} ({}) {}", path, found.how, found.broken),
                       "reinstall the NVIDIA driver, or take that file's folder off the search path");
    return;
  }
  const ChildOutcome outcome = in_child(kLimit, [&] { return ask_driver(path, environment); });
  if (!outcome.ok()) {
    diagnosis->problem("driver", Blocks::driver,
                       fmt::format("{}, loaded and initialised, {}", path, describe(outcome, kLimit)),
                       "check that nvidia-smi works; update or reload the NVIDIA driver");
    return;
  }
  Answer answer = parse(outcome.output);
  if (const auto why = answer.values.find("unloadable"); why != answer.values.end()) {
    diagnosis->problem("driver", Blocks::driver, "libcuda.so.1 can't be used: " + why->second,
                       "install the NVIDIA driver; in a container: docker run --gpus all; "
                       "elsewhere: add the folder of libcuda.so.1 to LD_LIBRARY_PATH");
    return;
  }
  const std::string text = fmt::format("{}, CUDA {}", answer.values["path"], answer.values["version"]);
  if (const auto error = answer.values.find("error"); error != answer.values.end()) {
    diagnosis->problem("driver", Blocks::driver, fmt::format("{}: cuInit fails with error {}", text, error->second),
                       advice_for(std::atoi(error->second.c_str())));
    return;
  }
  diagnosis->ok("driver", text);
  check_devices(answer, environment, diagnosis);
}

}  // namespace gradprobe::tool
