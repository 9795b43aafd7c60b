#include "fatbin.hpp"

#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>

namespace standin::cuda {
namespace {
constexpr uint32_t kFatbinMagic = 0xba55ed50;
enum Kind : uint16_t { kPtx = 1, kMachineCode = 2 };
enum Flag : uint64_t { kLz4 = 0x2000, kZstd = 0x8000 };

template <class T>
T read(const char* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}

struct PtxEntry {
  unsigned arch;
  std::string text;
};

std::string decompress(const char* data, size_t stored, size_t size, uint64_t flags, std::string* text) {
  if (!(flags & (kLz4 | kZstd))) {
    text->assign(data, stored);
    return "";
  }
  text->resize(size);
  if (flags & kLz4) {
    int n = LZ4_decompress_safe(data, text->data(), static_cast<int>(stored), static_cast<int>(size));
    if (n < 0) return "bad LZ4 data in a fat binary";
    text->resize(static_cast<size_t>(n));
    return "";
  }
  size_t n = ZSTD_decompress(text->data(), size, data, stored);
  if (ZSTD_isError(n)) return std::string("bad zstd data in a fat binary: ") + ZSTD_getErrorName(n);
  text->resize(n);
  return "";
}

std::string ptx_entries(const char* p, std::vector<PtxEntry>* out, bool* machine_code) {
  if (read<uint32_t>(p) != kFatbinMagic) return "not a fat binary";
  size_t head = read<uint16_t>(p + 6), body = read<uint64_t>(p + 8);
  const char* end = p + head + body;
  p += head;
  while (p + 64 <= end) {
    uint16_t kind = read<uint16_t>(p);
    const char* data = p + read<uint32_t>(p + 4);
    uint64_t padded = read<uint64_t>(p + 8);
    uint32_t compressed = read<uint32_t>(p + 16);
    if (kind == kMachineCode) *machine_code = true;
    if (kind == kPtx) {
      PtxEntry e{read<uint32_t>(p + 28), {}};
      std::string why =
          decompress(data, compressed ? compressed : padded, read<uint64_t>(p + 56), read<uint64_t>(p + 40), &e.text);
      if (!why.empty()) return why;
      e.text.resize(strnlen(e.text.c_str(), e.text.size()));
      out->push_back(std::move(e));
    }
    p = data + padded;
  }
  return "";
}
}  // namespace

std::string unpack_fatbin(const void* fatbin, int cc, std::vector<std::string>* texts) {
  std::vector<PtxEntry> all;
  bool machine_code = false;
  std::string why = ptx_entries(static_cast<const char*>(fatbin), &all, &machine_code);
  if (!why.empty()) return why;
  unsigned best = 0;
  for (auto& e : all)
    if (static_cast<int>(e.arch) <= cc && e.arch > best) best = e.arch;
  size_t before = texts->size();
  for (auto& e : all)
    if (best && e.arch == best) texts->push_back(std::move(e.text));
  if (texts->size() > before) return "";
  if (!all.empty()) return "the fat binary's PTX is for newer devices than STANDIN_CUDA_CC=" + std::to_string(cc);
  return machine_code ? "the fat binary has machine code only, no PTX" : "the fat binary is empty";
}
}  // namespace standin::cuda
