// An ELF file, mapped to read its symbols.
#pragma once
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace standin::audit {

class ObjectFile {
 public:
  explicit ObjectFile(const char* path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat st = {};
    if (fstat(fd, &st) == 0 && st.st_size > static_cast<off_t>(sizeof(Elf64_Ehdr))) {
      size_ = static_cast<size_t>(st.st_size);
      void* m = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (m != MAP_FAILED) data_ = static_cast<const char*>(m);
    }
    close(fd);
    if (data_ && !readable()) unmap();
  }
  ~ObjectFile() { unmap(); }
  ObjectFile(const ObjectFile&) = delete;
  ObjectFile& operator=(const ObjectFile&) = delete;

  // Calls f(symbol, name) for each function that the table of this type (SHT_SYMTAB, SHT_DYNSYM) defines; false when
  // there is no such table.
  template <class F>
  bool functions(unsigned type, F f) const {
    const Elf64_Shdr* table = section(type, nullptr);
    if (!table || table->sh_link >= head()->e_shnum) return false;
    const Elf64_Shdr& names = sections()[table->sh_link];
    if (!inside(*table) || !inside(names)) return false;
    auto* symbols = reinterpret_cast<const Elf64_Sym*>(data_ + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
      const Elf64_Sym& s = symbols[i];
      if (s.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(s.st_info) == STT_FUNC && s.st_name < names.sh_size)
        f(s, data_ + names.sh_offset + s.st_name);
    }
    return true;
  }
  bool has_section(const char* name) const { return section(SHT_NULL, name) != nullptr; }
  bool exports(const char* function) const {
    bool found = false;
    functions(SHT_DYNSYM, [&](const Elf64_Sym&, const char* name) { found = found || !strcmp(name, function); });
    return found;
  }
  // Whether the dynamic symbols name a function that others must bring.
  bool imports(const char* prefix) const {
    const Elf64_Shdr* table = section(SHT_DYNSYM, nullptr);
    if (!table || table->sh_link >= head()->e_shnum) return false;
    const Elf64_Shdr& names = sections()[table->sh_link];
    if (!inside(*table) || !inside(names)) return false;
    auto* symbols = reinterpret_cast<const Elf64_Sym*>(data_ + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++)
      if (symbols[i].st_shndx == SHN_UNDEF && symbols[i].st_name < names.sh_size &&
          !strncmp(data_ + names.sh_offset + symbols[i].st_name, prefix, strlen(prefix)))
        return true;
    return false;
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  bool readable() const {
    return !memcmp(data_, ELFMAG, SELFMAG) && data_[EI_CLASS] == ELFCLASS64 && head()->e_shoff &&
           head()->e_shoff + size_t{head()->e_shnum} * sizeof(Elf64_Shdr) <= size_ &&
           head()->e_shstrndx < head()->e_shnum;
  }
  const Elf64_Ehdr* head() const { return reinterpret_cast<const Elf64_Ehdr*>(data_); }
  const Elf64_Shdr* sections() const { return reinterpret_cast<const Elf64_Shdr*>(data_ + head()->e_shoff); }
  bool inside(const Elf64_Shdr& s) const { return s.sh_offset <= size_ && s.sh_size <= size_ - s.sh_offset; }
  // The first section of a type, or of a name when there is one.
  const Elf64_Shdr* section(unsigned type, const char* name) const {
    const Elf64_Shdr& names = sections()[head()->e_shstrndx];
    for (int i = 0; i < head()->e_shnum; i++) {
      const Elf64_Shdr& s = sections()[i];
      if (!name && s.sh_type == type) return &s;
      if (name && inside(names) && s.sh_name < names.sh_size && !strcmp(data_ + names.sh_offset + s.sh_name, name))
        return &s;
    }
    return nullptr;
  }
  void unmap() {
    if (data_) munmap(const_cast<char*>(data_), size_);
    data_ = nullptr;
  }

  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace standin::audit
