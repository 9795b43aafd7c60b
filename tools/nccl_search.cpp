#include "nccl_search.hpp"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "elf_file.hpp"
#include "subprocess.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBanner = "NCCL version ";
constexpr std::size_t kMostObjects = 512;

// Libraries of the system and of CUDA that have no NCCL in them and are read in vain.
bool is_known_without_nccl(const std::string& name) {
  for (const char* prefix : {"libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libstdc++.so",
                             "libgcc_s.so", "ld-linux", "libcuda.so", "libcublas", "libcudnn", "libcufft",
                             "libcusparse", "libcusolver", "libcurand", "libnvrtc", "libnvJitLink"})
    if (name.starts_with(prefix)) return true;
  return false;
}

bool is_nccl_name(const std::string& name) {
  return name.starts_with("libnccl.so");
}

bool is_file(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

NcclVersion banner_in(const ElfFile& file) {
  const std::string text = file.find_text(
      kBanner, [](std::string_view found) { return parse_banner(found).known() ? std::string(found) : std::string(); });
  return parse_banner(text);
}

// For a library whose text doesn't tell: it is loaded in a child process and asked.
NcclVersion ask_for_version(const std::string& path) {
  constexpr std::chrono::seconds kLimit(30);
  const ChildOutcome outcome = in_child(kLimit, [&]() -> std::string {
    void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return {};
    const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
    int code = 0;
    return get != nullptr && get(&code) == 0 ? std::to_string(code) : std::string();
  });
  int code = 0;
  NcclVersion version;
  const std::string& text = outcome.output;
  if (!outcome.ok() || std::from_chars(text.data(), text.data() + text.size(), code).ec != std::errc()) return version;
  // 2.8 and older: 2804; since 2.9: 22809.
  const int thousand = code < 10000 ? 1000 : 10000;
  version.major = code / thousand;
  version.minor = code % thousand / 100;
  version.patch = code % 100;
  version.text = fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
  return version;
}

NcclVersion version_of(const ElfFile& file) {
  NcclVersion version = banner_in(file);
  if (!version.known() && file.defines("ncclGetVersion")) version = ask_for_version(fs::absolute(file.path()).string());
  return version;
}

void fill_from_library(const FoundLibrary& found, Nccl* nccl) {
  nccl->path = found.path;
  nccl->how = found.how;
  nccl->broken = found.broken;
  if (!found.broken.empty()) return;
  if (const ElfFile::Opened opened = ElfFile::open(found.path); opened.file) nccl->version = version_of(*opened.file);
}

std::optional<Nccl> preloaded_nccl(const Environment& environment, const LibrarySearch& libraries) {
  for (const std::string& entry : split(environment.value("LD_PRELOAD").value_or(""), ' ')) {
    for (const std::string& name : split(entry, ':')) {
      const FoundLibrary found = libraries.find(name, nullptr);
      if (found.path.empty() || !found.broken.empty()) continue;
      const ElfFile::Opened opened = ElfFile::open(found.path);
      if (!opened.file || !is_nccl_name(opened.file->soname())) continue;
      Nccl nccl;
      nccl.linkage = Linkage::preloaded;
      nccl.user = "LD_PRELOAD";
      fill_from_library(found, &nccl);
      return nccl;
    }
  }
  return std::nullopt;
}

// The object itself and what it needs, nearest first.
std::vector<std::string> objects_of(const std::string& executable, const LibrarySearch& libraries) {
  std::vector<std::string> objects = {executable};
  std::set<std::string> seen = {executable};
  for (std::size_t i = 0; i < objects.size() && objects.size() < kMostObjects; i++) {
    const ElfFile::Opened opened = ElfFile::open(objects[i]);
    if (!opened.file) continue;
    for (const std::string& name : opened.file->needed()) {
      if (is_known_without_nccl(name) || is_nccl_name(name)) continue;
      const FoundLibrary found = libraries.find(name, &*opened.file);
      if (!found.path.empty() && found.broken.empty() && seen.insert(real_path(found.path)).second)
        objects.push_back(found.path);
    }
  }
  return objects;
}

NcclSearch find_in_native(const std::string& executable, const LibrarySearch& libraries) {
  NcclSearch search;
  std::optional<Nccl> opened;
  for (const std::string& object : objects_of(executable, libraries)) {
    Nccl nccl = inspect_object(object, libraries);
    if (nccl.linkage == Linkage::none) continue;
    if (nccl.linkage != Linkage::opened) {
      search.nccl = std::move(nccl);
      return search;
    }
    if (!opened) opened = std::move(nccl);
  }
  if (opened) search.nccl = std::move(*opened);
  return search;
}

// Where Python's frameworks keep the object that talks to NCCL, relative to a folder of sys.path.
constexpr const char* kFrameworkObjects[] = {
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_cuda_cpp.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "tensorflow/libtensorflow_cc.so.2",
    "tensorflow/python/_pywrap_tensorflow_internal.so",
};
constexpr const char* kWheelLibrary = "nvidia/nccl/lib/libnccl.so.2";

// PyTorch and JAX load NCCL's wheel by its path where the linker doesn't find it.
void take_wheel(const std::vector<std::string>& paths, Nccl* nccl) {
  if (!nccl->path.empty()) return;
  for (const std::string& folder : paths) {
    const std::string wheel = folder + "/" + kWheelLibrary;
    if (!is_file(wheel)) continue;
    fill_from_library({wheel, "the framework, which loads NCCL's wheel by its path", {}}, nccl);
    nccl->missing.clear();
    return;
  }
}

NcclSearch find_in_python(const PythonPaths& python, const LibrarySearch& libraries) {
  NcclSearch search;
  for (const std::string& folder : python.paths) {
    for (const char* relative : kFrameworkObjects) {
      const std::string object = folder + "/" + relative;
      if (!is_file(object)) continue;
      Nccl nccl = inspect_object(object, libraries);
      if (nccl.linkage == Linkage::none) continue;
      if (nccl.linkage == Linkage::dynamic || nccl.linkage == Linkage::opened) take_wheel(python.paths, &nccl);
      if (search.nccl.linkage == Linkage::none)
        search.nccl = std::move(nccl);
      else if (nccl.path != search.nccl.path)
        search.notes.push_back(fmt::format("{} uses another NCCL: {} ({})", object,
                                           nccl.path.empty() ? nccl.missing : nccl.path,
                                           nccl.version.known() ? nccl.version.text : "version unknown"));
    }
    if (search.nccl.linkage == Linkage::none && is_file(folder + "/torch/lib/libtorch_cpu.so") &&
        !is_file(folder + "/torch/lib/libtorch_cuda.so"))
      search.cpu_only_torch = true;
  }
  if (search.nccl.linkage != Linkage::none) return search;
  search.nccl.linkage = Linkage::opened;
  search.nccl.user = "a Python package";
  take_wheel(python.paths, &search.nccl);
  if (search.nccl.path.empty()) search.nccl = Nccl();
  return search;
}

}  // namespace

NcclVersion parse_banner(std::string_view text) {
  NcclVersion version;
  if (!text.starts_with(kBanner)) return version;
  text.remove_prefix(kBanner.size());
  const std::size_t plus = text.find("+cuda");
  if (plus > 32) return version;  // also where there is none
  int numbers[3] = {};
  const char* at = text.data();
  const char* const end = text.data() + plus;
  for (int i = 0; i < 3; i++) {
    if (i > 0 && (at == end || *at++ != '.')) return version;
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc() || numbers[i] < 0) return version;
    at = stop;
  }
  std::size_t length = plus + std::string_view("+cuda").size();
  while (length < text.size() && (text[length] == '.' || (text[length] >= '0' && text[length] <= '9'))) length++;
  version.major = numbers[0];
  version.minor = numbers[1];
  version.patch = numbers[2];
  version.text = text.substr(0, length);
  return version;
}

Nccl inspect_object(const std::string& path, const LibrarySearch& libraries) {
  Nccl nccl;
  const ElfFile::Opened opened = ElfFile::open(path);
  if (!opened.file) return nccl;
  const ElfFile& file = *opened.file;
  nccl.user = path;
  for (const std::string& name : file.needed()) {
    if (!is_nccl_name(base_name(name))) continue;
    nccl.linkage = Linkage::dynamic;
    const FoundLibrary found = libraries.find(name, &file);
    if (found.path.empty())
      nccl.missing = name;
    else
      fill_from_library(found, &nccl);
    return nccl;
  }
  nccl.version = banner_in(file);
  if (nccl.version.known()) {
    nccl.linkage = Linkage::static_inside;
    nccl.path = path;
    return nccl;
  }
  if (file.contains("libnccl.so")) {
    nccl.linkage = Linkage::opened;
    const FoundLibrary found = libraries.find("libnccl.so.2", &file);
    if (found.path.empty())
      nccl.missing = "libnccl.so.2";
    else
      fill_from_library(found, &nccl);
  }
  return nccl;
}

NcclSearch find_nccl(const Program& program, const PythonPaths& python, const Environment& environment,
                     const LibrarySearch& libraries) {
  NcclSearch search;
  if (program.python) {
    search = find_in_python(python, libraries);
  } else if (!program.executable.empty() && !program.shell_script) {
    search = find_in_native(program.executable, libraries);
  } else {
    const FoundLibrary found = libraries.find("libnccl.so.2", nullptr);
    if (!found.path.empty()) {
      search.nccl.linkage = Linkage::on_path;
      fill_from_library(found, &search.nccl);
    }
  }
  if (search.nccl.linkage == Linkage::static_inside) return search;
  if (std::optional<Nccl> preloaded = preloaded_nccl(environment, libraries)) {
    if (!search.nccl.path.empty() && search.nccl.path != preloaded->path)
      search.notes.push_back(fmt::format("without LD_PRELOAD it would be {}", search.nccl.path));
    search.nccl = std::move(*preloaded);
  }
  return search;
}

NcclSearch find_mapped_nccl(const std::vector<std::string>& files) {
  NcclSearch search;
  const auto take = [&](const std::string& path, Linkage linkage, const NcclVersion& version) {
    search.nccl.linkage = linkage;
    search.nccl.path = search.nccl.user = path;
    search.nccl.how = "mapped into the process";
    search.nccl.version = version;
  };
  for (const std::string& path : files) {
    const ElfFile::Opened opened = ElfFile::open(path);
    if (!opened.file || !is_nccl_name(opened.file->soname())) continue;
    take(path, Linkage::opened, version_of(*opened.file));
    return search;
  }
  for (const std::string& path : files) {
    if (is_known_without_nccl(base_name(path))) continue;
    const ElfFile::Opened opened = ElfFile::open(path);
    if (!opened.file) continue;
    if (const NcclVersion version = banner_in(*opened.file); version.known()) {
      take(path, Linkage::static_inside, version);
      return search;
    }
  }
  return search;
}

NcclVariable nccl_variable(const std::string& name, const Environment& environment) {
  NcclVariable variable;
  if (const std::string* value = environment.find(name); value != nullptr) {
    variable.set = true;
    variable.value = *value;
    return variable;
  }
  std::vector<std::string> files;
  if (const auto file = environment.value("NCCL_CONF_FILE"))
    files.push_back(*file);
  else if (const auto home = environment.value("HOME"))
    files.push_back(*home + "/.nccl.conf");
  files.emplace_back("/etc/nccl.conf");
  for (const std::string& file : files) {
    if (!is_file(file)) continue;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      while (line.ends_with('\r')) line.pop_back();
      if (!line.starts_with(name + "=")) continue;
      variable.set = true;
      variable.value = line.substr(name.size() + 1);
      variable.file = file;
      return variable;
    }
  }
  return variable;
}

int newest_profiler_struct(const NcclVersion& version) {
  if (version.at_least(2, 31)) return 7;
  if (version.at_least(2, 29)) return 6;
  if (version.major < 2 || version.minor < 23) return 0;
  constexpr int kStructs[] = {1, 2, 2, 3, 4, 5};  // 2.23 to 2.28
  return kStructs[version.minor - 23];
}

PluginChoice resolve_plugin(const NcclVariable& setting, const NcclVersion& told, const LibrarySearch& libraries,
                            const std::string& nccl_object) {
  PluginChoice choice;
  NcclVersion version = told;
  if (!version.known()) {
    version.major = 2;
    version.minor = 28;
  }
  const std::string& value = setting.value;
  const bool named = !value.empty();
  // 2.28 and later say "none"; before it is a file that isn't there.
  if (strcasecmp(value.c_str(), "none") == 0) {
    choice.disabled = true;
    return choice;
  }
  choice.tried.push_back(named ? value : "libnccl-profiler.so");
  constexpr std::string_view kBuiltIn = "STATIC_PLUGIN";
  choice.built_in =
      named && value.size() <= kBuiltIn.size() && strncasecmp(value.c_str(), kBuiltIn.data(), value.size()) == 0;
  if (choice.built_in) return choice;
  const bool is_path = value.find('/') != std::string::npos;
  const bool is_library = value.starts_with("lib") && value.ends_with(".so");
  // 2.23 to 2.25 take the name as it is; 2.26 completes all names, which does no harm to paths.
  if (named && version.at_least(2, 26) && !is_path && !is_library)
    choice.tried.push_back("libnccl-profiler-" + value + ".so");
  // 2.26 and later keep the name in 255 bytes, its end included.
  constexpr std::size_t kLongest = 254;
  choice.too_long = version.at_least(2, 26) && choice.tried.back().size() > kLongest;
  if (choice.too_long) return choice;
  std::optional<ElfFile> asking;
  if (!nccl_object.empty()) {
    ElfFile::Opened opened = ElfFile::open(nccl_object);
    if (opened.file) asking = std::move(opened.file);
  }
  for (const std::string& name : choice.tried) {
    const FoundLibrary found = libraries.find(name, asking ? &*asking : nullptr);
    if (found.path.empty()) continue;
    choice.path = found.path;
    choice.how = found.how;
    choice.broken = found.broken;
    // A file that can't be loaded doesn't end NCCL's search.
    if (found.broken.empty()) break;
  }
  return choice;
}

}  // namespace gradprobe::tool
