#include "elf_file.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gradprobe::tool {
namespace {

// Far above what real files have; what a damaged header claims beyond is not believed.
constexpr std::size_t kMostDynamic = 4096;
constexpr std::size_t kLongestString = 4096;
constexpr std::uint64_t kMostSymbols = 8'000'000;
constexpr std::size_t kChunk = 1 << 20;
constexpr std::size_t kContext = 128;

// Symbols of other kinds are not kept: a framework's library has hundreds of thousands.
constexpr std::string_view kPrefixes[] = {"nccl", "gradprobe"};

bool is_of_interest(std::string_view name) {
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](auto p) { return name.starts_with(p); });
}

void sort_names(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace

ElfFile::ElfFile(ElfFile&& other) noexcept {
  *this = std::move(other);
}

ElfFile& ElfFile::operator=(ElfFile&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  bytes_ = other.bytes_;
  machine_ = other.machine_;
  has_dynamic_ = other.has_dynamic_;
  truncated_ = other.truncated_;
  soname_ = std::move(other.soname_);
  rpath_ = std::move(other.rpath_);
  runpath_ = std::move(other.runpath_);
  needed_ = std::move(other.needed_);
  defined_ = std::move(other.defined_);
  expected_ = std::move(other.expected_);
  texts_ = std::move(other.texts_);
  return *this;
}

ElfFile::~ElfFile() {
  if (fd_ >= 0) ::close(fd_);
}

ElfFile::Opened ElfFile::open(const std::string& path) {
  Opened opened;
  // Not blocking: a named pipe without a writer would hold the tool up.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    opened.error = std::string("can't open: ") + std::strerror(errno);
    return opened;
  }
  ElfFile file;
  file.fd_ = fd;
  file.path_ = path;
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    opened.error = "is no regular file";
    return opened;
  }
  file.bytes_ = static_cast<std::uint64_t>(status.st_size);
  opened.error = file.parse(&opened.foreign);
  if (opened.error.empty()) opened.file = std::move(file);
  return opened;
}

bool ElfFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return false;
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

std::optional<std::string> ElfFile::string_at(std::uint64_t table, std::uint64_t table_bytes,
                                              std::uint64_t index) const {
  if (index >= table_bytes || table >= bytes_) return std::nullopt;
  const std::uint64_t in_file = bytes_ - table;
  if (index >= in_file) return std::nullopt;
  char text[kLongestString];
  const auto most =
      static_cast<std::size_t>(std::min<std::uint64_t>({kLongestString, table_bytes - index, in_file - index}));
  if (!read(table + index, text, most)) return std::nullopt;
  const auto* end = static_cast<const char*>(std::memchr(text, '\0', most));
  if (end == nullptr) return std::nullopt;
  return std::string(text, static_cast<std::size_t>(end - text));
}

std::string ElfFile::parse(bool* foreign) {
  Elf64_Ehdr header{};
  if (!read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "is no ELF file";
  *foreign = header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB;
  if (*foreign) return "is an ELF file of another kind of machine (not 64-bit little-endian)";
  machine_ = header.e_machine;
  std::vector<Range> loads;
  std::vector<std::uint64_t> addresses;
  Range dynamic{};
  if (header.e_phentsize == sizeof(Elf64_Phdr)) {
    for (std::uint64_t i = 0; i < header.e_phnum; i++) {
      Elf64_Phdr segment{};
      if (!read(header.e_phoff + i * sizeof segment, &segment, sizeof segment)) {
        truncated_ = true;
        break;
      }
      if (segment.p_type == PT_LOAD) {
        loads.push_back({segment.p_offset, segment.p_filesz});
        addresses.push_back(segment.p_vaddr);
        truncated_ |= segment.p_offset > bytes_ || segment.p_filesz > bytes_ - segment.p_offset;
      }
      if (segment.p_type == PT_DYNAMIC) dynamic = {segment.p_offset, segment.p_filesz};
    }
  }
  parse_sections(header.e_shoff, header.e_shentsize, header.e_shnum, header.e_shstrndx);
  if (texts_.empty()) texts_ = loads;
  if (dynamic.size > 0) parse_dynamic(loads, addresses, dynamic);
  sort_names(defined_);
  sort_names(expected_);
  return {};
}

void ElfFile::parse_sections(std::uint64_t offset, std::uint16_t entry_bytes, std::uint16_t count,
                             std::uint16_t names) {
  if (entry_bytes != sizeof(Elf64_Shdr) || count == 0) return;
  std::vector<Elf64_Shdr> sections(count);
  if (!read(offset, sections.data(), count * sizeof(Elf64_Shdr))) return;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_DYNSYM && section.sh_link < count) {
      const Elf64_Shdr& strings = sections[section.sh_link];
      parse_symbols({section.sh_offset, section.sh_size}, {strings.sh_offset, strings.sh_size});
    }
    if (section.sh_type != SHT_PROGBITS || (section.sh_flags & SHF_ALLOC) == 0 ||
        (section.sh_flags & SHF_EXECINSTR) != 0)
      continue;
    const auto name =
        names < count ? string_at(sections[names].sh_offset, sections[names].sh_size, section.sh_name) : std::nullopt;
    if (name && (name->starts_with(".nv_fatbin") || name->starts_with(".nvFatBin") || *name == ".eh_frame")) continue;
    texts_.push_back({section.sh_offset, section.sh_size});
  }
}

void ElfFile::parse_symbols(Range symbols, Range strings) {
  if (strings.offset > bytes_ || symbols.offset > bytes_) return;
  // One read of each: a string at a time would be a system call for each symbol.
  const auto string_bytes =
      static_cast<std::size_t>(std::min({strings.size, bytes_ - strings.offset, std::uint64_t{1} << 30}));
  const std::uint64_t count = std::min({symbols.size, bytes_ - symbols.offset}) / sizeof(Elf64_Sym);
  if (count > kMostSymbols || string_bytes == 0) return;
  std::vector<char> text(string_bytes);
  if (!read(strings.offset, text.data(), string_bytes)) return;
  std::vector<Elf64_Sym> table(static_cast<std::size_t>(count));
  if (!read(symbols.offset, table.data(), table.size() * sizeof(Elf64_Sym))) return;
  for (const Elf64_Sym& symbol : table) {
    if (symbol.st_name >= string_bytes) continue;
    const char* begin = text.data() + symbol.st_name;
    const std::size_t most = std::min(string_bytes - symbol.st_name, kLongestString);
    const auto* end = static_cast<const char*>(std::memchr(begin, '\0', most));
    if (end == nullptr) continue;
    const std::string_view name(begin, static_cast<std::size_t>(end - begin));
    if (!is_of_interest(name)) continue;
    const bool local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
    if (symbol.st_shndx == SHN_UNDEF)
      expected_.emplace_back(name);
    else if (!local)
      defined_.emplace_back(name);
  }
}

void ElfFile::parse_dynamic(const std::vector<Range>& loads, const std::vector<std::uint64_t>& addresses,
                            Range dynamic) {
  std::vector<Elf64_Dyn> entries;
  for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.size && entries.size() < kMostDynamic;
       at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry{};
    if (!read(dynamic.offset + at, &entry, sizeof entry)) break;
    if (entry.d_tag == DT_NULL) break;
    entries.push_back(entry);
  }
  has_dynamic_ = !entries.empty();
  std::uint64_t table_address = 0, table_bytes = 0;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) table_address = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) table_bytes = entry.d_un.d_val;
  }
  std::optional<std::uint64_t> table;
  for (std::size_t i = 0; i < loads.size(); i++) {
    if (table_address < addresses[i] || table_address - addresses[i] >= loads[i].size) continue;
    table = loads[i].offset + (table_address - addresses[i]);
    break;
  }
  if (!table) return;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME && entry.d_tag != DT_RPATH && entry.d_tag != DT_RUNPATH)
      continue;
    auto text = string_at(*table, table_bytes, entry.d_un.d_val);
    if (!text) continue;
    if (entry.d_tag == DT_NEEDED) needed_.push_back(std::move(*text));
    if (entry.d_tag == DT_SONAME) soname_ = std::move(*text);
    if (entry.d_tag == DT_RPATH) rpath_ = std::move(*text);
    if (entry.d_tag == DT_RUNPATH) runpath_ = std::move(*text);
  }
}

bool ElfFile::defines(std::string_view symbol) const {
  return std::binary_search(defined_.begin(), defined_.end(), symbol);
}

bool ElfFile::expects(std::string_view symbol) const {
  return std::binary_search(expected_.begin(), expected_.end(), symbol);
}

bool ElfFile::contains(std::string_view text) const {
  return find_text(text, [](std::string_view) { return true; });
}

void ElfFile::scan_ranges(std::string_view begin, bool (*found)(void*, std::string_view), void* user) const {
  std::vector<char> chunk(kChunk + kContext);
  for (const Range& range : texts_) {
    if (range.offset >= bytes_) continue;
    const std::uint64_t size = std::min(range.size, bytes_ - range.offset);
    // Chunks overlap by the context, so that no occurrence is cut.
    for (std::uint64_t at = 0; at < size; at += kChunk) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk + kContext, size - at));
      if (!read(range.offset + at, chunk.data(), n)) break;
      const char* const end = chunk.data() + n;
      for (const char* from = chunk.data(); from < end;) {
        const auto* place =
            static_cast<const char*>(::memmem(from, static_cast<std::size_t>(end - from), begin.data(), begin.size()));
        if (place == nullptr || place - chunk.data() >= static_cast<std::ptrdiff_t>(kChunk)) break;
        const char* stop = place;
        const char* const last = std::min(end, place + kContext);
        while (stop < last && *stop >= ' ' && *stop <= '~') stop++;
        if (found(user, {place, static_cast<std::size_t>(stop - place)})) return;
        from = place + 1;
      }
    }
  }
}

}  // namespace gradprobe::tool
