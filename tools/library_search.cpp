#include "library_search.hpp"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "elf_file.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
constexpr std::int32_t kCacheFlags = 0x0303;
constexpr const char* kPlatformFolders[] = {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"};
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
constexpr std::int32_t kCacheFlags = 0x0a03;
constexpr const char* kPlatformFolders[] = {"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"};
#else
#error "gradprobe doctor knows the library cache's flags of x86-64 and AArch64 only"
#endif

// The layout of glibc's cache file, as documented in its dl-cache.h: a header, the entries, then the strings.
constexpr char kCacheMagic[] = "glibc-ld.so.cache1.1";
struct CacheHeader {
  char magic[20];
  std::uint32_t count, string_bytes;
  std::uint8_t flags, padding[3];
  std::uint32_t extension_offset, unused[3];
};
static_assert(sizeof(CacheHeader) == 48);
struct CacheEntry {
  std::int32_t flags;
  std::uint32_t key, value, os_version;
  std::uint64_t hwcap;
};
static_assert(sizeof(CacheEntry) == 24);

bool is_file(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

// What the linker makes of a file: it passes over those of other machines and of other word sizes, and gives up at one
// that is damaged.
enum class Fit { passed_over, loadable, broken };
Fit fit_of(const std::string& path, std::string* broken) {
  if (!is_file(path)) return Fit::passed_over;
  const ElfFile::Opened opened = ElfFile::open(path);
  if (!opened.file) {
    if (opened.foreign) return Fit::passed_over;
    *broken = opened.error;
    return Fit::broken;
  }
  if (opened.file->machine() != kMachine) return Fit::passed_over;
  if (opened.file->truncated()) {
    *broken = "is cut off: shorter than its header says";
    return Fit::broken;
  }
  return Fit::loadable;
}

void replace_all(std::string& text, std::string_view token, const std::string& with) {
  for (std::size_t at = 0; (at = text.find(token, at)) != std::string::npos; at += with.size())
    text.replace(at, token.size(), with);
}

std::string expand(std::string folder, const std::string& origin) {
  for (const char* token : {"${ORIGIN}", "$ORIGIN"}) replace_all(folder, token, origin);
  for (const char* token : {"${LIB}", "$LIB"}) replace_all(folder, token, "lib64");
  return folder;
}

bool take(const std::string& candidate, const std::string& how, FoundLibrary* found) {
  std::string broken;
  if (fit_of(candidate, &broken) == Fit::passed_over) return false;
  *found = {candidate, how, broken};
  return true;
}

bool search(const std::vector<std::string>& folders, const std::string& name, const std::string& how,
            FoundLibrary* found) {
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return take((folder.empty() ? std::string(".") : folder) + "/" + name, how, found);
  });
}

std::vector<std::string> folders_of(const std::string& list, const std::string& object) {
  const std::string origin = fs::path(real_path(object)).parent_path().string();
  std::vector<std::string> folders = split(list, ':');
  for (std::string& folder : folders) folder = expand(folder, origin);
  return folders;
}

}  // namespace

std::string real_path(const std::string& path) {
  std::error_code ec;
  const fs::path real = fs::canonical(path, ec);
  return ec ? path : real.string();
}

std::vector<std::pair<std::string, std::string>> read_ld_cache(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> entries;
  if (!is_file(path)) return entries;
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  // Older files begin with a table in an older format.
  const std::size_t start = bytes.find(kCacheMagic);
  if (start == std::string::npos || bytes.size() - start < sizeof(CacheHeader)) return entries;
  bytes.erase(0, start);
  CacheHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto text_at = [&](std::uint32_t offset) -> std::string {
    if (offset >= bytes.size()) return {};
    const std::size_t end = bytes.find('\0', offset);
    return end == std::string::npos ? std::string() : bytes.substr(offset, end - offset);
  };
  for (std::uint32_t i = 0; i < header.count; i++) {
    const std::size_t at = sizeof header + std::size_t{i} * sizeof(CacheEntry);
    if (at + sizeof(CacheEntry) > bytes.size()) break;
    CacheEntry entry;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    if (entry.flags != kCacheFlags || entry.hwcap != 0) continue;
    std::string key = text_at(entry.key), value = text_at(entry.value);
    if (!key.empty() && !value.empty()) entries.emplace_back(std::move(key), std::move(value));
  }
  return entries;
}

LibrarySearch::LibrarySearch(const Environment& environment, const std::string& cache) : cache_(read_ld_cache(cache)) {
  if (const std::string* list = environment.find("LD_LIBRARY_PATH"); list != nullptr) {
    // Both separators are allowed.
    for (const std::string& part : split(*list, ':'))
      for (const std::string& folder : part.empty() ? std::vector<std::string>{""} : split(part, ';'))
        library_path_.push_back(folder);
  }
  for (const std::string& folder : library_path_) {
    std::error_code ec;
    if (!folder.empty() && !fs::is_directory(folder, ec)) missing_.push_back(folder);
  }
}

FoundLibrary LibrarySearch::find(const std::string& name, const ElfFile* asking) const {
  FoundLibrary found;
  if (name.empty()) return found;
  if (name.find('/') != std::string::npos) {
    take(name, "path", &found);
    return found;
  }
  if (asking != nullptr && asking->runpath().empty() && !asking->rpath().empty() &&
      search(folders_of(asking->rpath(), asking->path()), name, "RPATH of " + asking->path(), &found))
    return found;
  if (search(library_path_, name, "LD_LIBRARY_PATH", &found)) return found;
  if (asking != nullptr && !asking->runpath().empty() &&
      search(folders_of(asking->runpath(), asking->path()), name, "RUNPATH of " + asking->path(), &found))
    return found;
  for (const auto& [key, path] : cache_)
    if (key == name && take(path, "ld.so.cache", &found)) return found;
  std::vector<std::string> system(std::begin(kPlatformFolders), std::end(kPlatformFolders));
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) system.emplace_back(folder);
  search(system, name, "the system's folders", &found);
  return found;
}

}  // namespace gradprobe::tool
