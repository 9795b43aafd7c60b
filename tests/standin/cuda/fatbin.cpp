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
  const char* data;
  size_t stored, size;
  uint64_t flags;
};

std::string ptx_entries(const char* p, std::vector<PtxEntry>* out, bool* machine_code) {
  if (read<uint32_t>(p) != kFatbinMagic) return "not a fat binary";
  size_t head = read<uint16_t>(p + 6), body = read<uint64_t>(p + 8);
  const char* end = p + head + body;
  p += head;
  while (p + 64 <= end) {
    uint16_t kind = read<uint16_t>(p);
    const char* data = p + read<uint32_t>(p + 4);
    uint64_t padded = read<uint64_t>(p + 8);
    uint32_t packed = read<uint32_t>(p + 16);
    if (kind == kMachineCode) *machine_code = true;
    if (kind == kPtx)
      out->push_back({read<uint32_t>(p + 28), data, packed ? packed : padded, read<uint64_t>(p + 56),
                      read<uint64_t>(p + 40)});
    p = data + padded;
  }
  return "";
}
}  // namespace

std::string find_texts(const void* fatbin, int cc, std::vector<PackedText>* texts) {
  std::vector<PtxEntry> all;
  bool machine_code = false;
  std::string why = ptx_entries(static_cast<const char*>(fatbin), &all, &machine_code);
  if (!why.empty()) return why;
  unsigned best = 0;
  for (auto& e : all)
    if (static_cast<int>(e.arch) <= cc && e.arch > best) best = e.arch;
  size_t before = texts->size();
  for (auto& e : all)
    if (best && e.arch == best) texts->push_back({{e.data, e.data + e.stored}, e.size, e.flags});
  if (texts->size() > before) return "";
  if (!all.empty()) return "the fat binary's PTX is for newer devices than STANDIN_CUDA_CC=" + std::to_string(cc);
  return machine_code ? "the fat binary has machine code only, no PTX" : "the fat binary is empty";
}

std::string unpack(const PackedText& packed, std::string* text) {
  if (packed.flags & kLz4) {
    text->resize(packed.size);
    int n = LZ4_decompress_safe(packed.bytes.data(), text->data(), static_cast<int>(packed.bytes.size()),
                                static_cast<int>(packed.size));
    if (n < 0) return "bad LZ4 data in a fat binary";
    text->resize(static_cast<size_t>(n));
  } else if (packed.flags & kZstd) {
    text->resize(packed.size);
    size_t n = ZSTD_decompress(text->data(), packed.size, packed.bytes.data(), packed.bytes.size());
    if (ZSTD_isError(n)) return std::string("bad zstd data in a fat binary: ") + ZSTD_getErrorName(n);
    text->resize(n);
  } else {
    text->assign(packed.bytes.data(), packed.bytes.size());
  }
  text->resize(strnlen(text->c_str(), text->size()));
  return "";
}
}  // namespace standin::cuda
