// What the header, the dynamic section and the symbols of an ELF file say, read without loading it. No field is
// trusted: offsets and sizes are checked against the file, strings have a longest length, and the file is read, not
// mapped, so that one which shrinks meanwhile ends a read instead of the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradprobe::tool {

class ElfFile {
 public:
  struct Opened;
  // `path`: a regular file, links followed. Anything else, and what is no 64-bit little-endian ELF file, is an error.
  static Opened open(const std::string& path);

  ElfFile(ElfFile&& other) noexcept;
  ElfFile& operator=(ElfFile&& other) noexcept;
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;
  ~ElfFile();

  const std::string& path() const { return path_; }
  std::uint16_t machine() const { return machine_; }  // EM_X86_64, ...
  const std::string& soname() const { return soname_; }
  const std::vector<std::string>& needed() const { return needed_; }
  const std::string& rpath() const { return rpath_; }
  const std::string& runpath() const { return runpath_; }
  bool truncated() const { return truncated_; }  // a segment ends behind the file's end
  bool has_dynamic_section() const { return has_dynamic_; }

  // Dynamic symbols by name: those that others can link against, and those that this file expects from others.
  bool defines(std::string_view symbol) const;
  bool expects(std::string_view symbol) const;

  // The first occurrence in the file of `begin`, followed by printable characters of which `accept` makes a result.
  // Machine code of devices (.nv_fatbin, often gigabytes) is passed over where the section table tells it apart.
  template <class Accept>
  auto find_text(std::string_view begin, Accept accept) const -> decltype(accept(std::string_view())) {
    decltype(accept(std::string_view())) result{};
    scan(begin, [&](std::string_view text) {
      result = accept(text);
      return result != decltype(result){};
    });
    return result;
  }
  bool contains(std::string_view text) const;

 private:
  struct Range {
    std::uint64_t offset, size;
  };
  ElfFile() = default;

  bool read(std::uint64_t offset, void* to, std::size_t bytes) const;
  std::optional<std::string> string_at(std::uint64_t table, std::uint64_t table_bytes, std::uint64_t index) const;
  std::string parse(bool* foreign);
  void parse_dynamic(const std::vector<Range>& loads, const std::vector<std::uint64_t>& addresses, Range dynamic);
  void parse_sections(std::uint64_t offset, std::uint16_t entry_bytes, std::uint16_t count, std::uint16_t names);
  void parse_symbols(Range symbols, Range strings);

  // Calls `found(text behind and with the pattern, up to 128 bytes)` for each place until it returns true.
  template <class Found>
  void scan(std::string_view begin, Found found) const;
  void scan_ranges(std::string_view begin, bool (*found)(void*, std::string_view), void* user) const;

  std::string path_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  std::uint16_t machine_ = 0;
  bool has_dynamic_ = false, truncated_ = false;
  std::string soname_, rpath_, runpath_;
  std::vector<std::string> needed_;
  std::vector<std::string> defined_, expected_;  // sorted, only names that begin with a prefix of interest
  std::vector<Range> texts_;                     // where find_text() looks
};

struct ElfFile::Opened {
  std::optional<ElfFile> file;
  std::string error;     // "can't open: ...", "is no ELF file", ...
  bool foreign = false;  // an ELF file of another word size or byte order
};

template <class Found>
void ElfFile::scan(std::string_view begin, Found found) const {
  scan_ranges(
      begin, [](void* user, std::string_view text) { return (*static_cast<Found*>(user))(text); }, &found);
}

}  // namespace gradprobe::tool
