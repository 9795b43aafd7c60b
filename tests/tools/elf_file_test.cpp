// ELF files read without loading them: what is there is found, and no bytes, however mangled, do harm.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "elf_file.hpp"
#include "nccl_search.hpp"
#include "run_tool.hpp"

namespace gradprobe::test {
namespace {

using tool::ElfFile;

const std::string kFiles = GRADPROBE_DOCTOR_FILES;
const std::string kNccl = kFiles + "/nccl-2.28.9/libnccl.so.2";

std::string banner_of(const ElfFile& file) {
  return file.find_text("NCCL version ", [](std::string_view text) { return std::string(text); });
}

TEST(ElfFile, TellsNamesNeedsAndSymbols) {
  const ElfFile::Opened nccl = ElfFile::open(kNccl);
  ASSERT_TRUE(nccl.file) << nccl.error;
  EXPECT_EQ(nccl.file->soname(), "libnccl.so.2");
  EXPECT_TRUE(nccl.file->defines("ncclAllReduce"));
  EXPECT_FALSE(nccl.file->expects("ncclAllReduce"));
  EXPECT_EQ(banner_of(*nccl.file), "NCCL version 2.28.9+cuda12.9");
  EXPECT_FALSE(nccl.file->truncated());

  const ElfFile::Opened torch = ElfFile::open(kFiles + "/torch-dynamic/libtorch_cuda.so");
  ASSERT_TRUE(torch.file) << torch.error;
  EXPECT_TRUE(torch.file->expects("ncclAllReduce"));
  EXPECT_FALSE(torch.file->defines("ncclAllReduce"));
  EXPECT_EQ(torch.file->runpath(), "$ORIGIN/../../nvidia/nccl/lib");
  EXPECT_NE(std::find(torch.file->needed().begin(), torch.file->needed().end(), "libnccl.so.2"),
            torch.file->needed().end());
  EXPECT_EQ(banner_of(*torch.file), "");
}

TEST(ElfFile, RefusesWhatIsNone) {
  TemporaryFolder folder;
  std::ofstream(folder / "text") << "hello";
  std::ofstream(folder / "empty");
  std::ofstream(folder / "begin") << "\x7f"
                                     "ELF";
  std::filesystem::create_symlink("loop", folder / "loop");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "text", folder / "empty", folder / "begin", folder / "loop", folder / "pipe",
                                  folder / "missing", folder.path(), std::string("/dev/zero")}) {
    const ElfFile::Opened opened = ElfFile::open(path);
    EXPECT_FALSE(opened.file) << path;
    EXPECT_FALSE(opened.error.empty()) << path;
  }
}

TEST(ElfFile, FindsTextAcrossChunks) {
  // A file of one segment without sections; the text straddles each place that a reader in blocks might cut at.
  TemporaryFolder folder;
  for (const std::size_t at : {std::size_t{200}, (std::size_t{1} << 20) - 5, std::size_t{1} << 20,
                               (std::size_t{1} << 21) + 64, (std::size_t{3} << 20) - 28}) {
    std::string bytes(std::size_t{3} << 20, '\0');
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = PT_LOAD;
    segment.p_filesz = bytes.size();
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, &segment, sizeof segment);
    const std::string text = "NCCL version 2.28.9+cuda13.0";
    bytes.replace(at, text.size(), text);
    std::ofstream(folder / "file", std::ios::binary) << bytes;
    const ElfFile::Opened opened = ElfFile::open(folder / "file");
    ASSERT_TRUE(opened.file);
    EXPECT_EQ(banner_of(*opened.file), text) << at;
  }
}

TEST(ElfFile, SurvivesAnyBytes) {
  TemporaryFolder folder;
  std::mt19937_64 random(20260601);
  std::size_t read = 0, refused = 0;
  for (const std::string& source : {kNccl, kFiles + "/torch-dynamic/libtorch_cuda.so", kFiles + "/bin/needs"}) {
    const std::string good = contents(source);
    ASSERT_GT(good.size(), sizeof(Elf64_Ehdr));
    for (int round = 0; round < 700; round++) {
      std::string bytes = good;
      if (round % 5 == 0) bytes.resize(random() % bytes.size());
      const auto changes = static_cast<int>(random() % 8);
      for (int i = 0; i < changes && !bytes.empty(); i++) {
        // Mostly where structure is: the header, the program headers, the sections at the end.
        const std::size_t range = random() % 3 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 1024);
        const std::size_t at = random() % 2 == 0 ? random() % range : bytes.size() - 1 - random() % range;
        const std::uint64_t value = random() % 4 == 0 ? ~std::uint64_t{0} >> (random() % 64) : random();
        std::memcpy(&bytes[at], &value, std::min<std::size_t>({sizeof value, bytes.size() - at, 1 + random() % 8}));
      }
      std::ofstream(folder / "file", std::ios::binary | std::ios::trunc) << bytes;
      const ElfFile::Opened opened = ElfFile::open(folder / "file");
      (opened.file ? read : refused)++;
      if (!opened.file) {
        EXPECT_FALSE(opened.error.empty());
        continue;
      }
      opened.file->defines("ncclAllReduce");
      banner_of(*opened.file);
      for (const std::string& name : opened.file->needed()) EXPECT_LT(name.size(), 4096u);
    }
  }
  // The mutations must reach the parts behind the header.
  EXPECT_GT(read, 1000u);
  EXPECT_GT(refused, 10u);
}

TEST(Banner, IsToldFromOtherTexts) {
  EXPECT_EQ(tool::parse_banner("NCCL version 2.28.9+cuda13.0").text, "2.28.9+cuda13.0");
  const tool::NcclVersion suffix = tool::parse_banner("NCCL version 2.30.7rc1+cuda13.1 and more");
  EXPECT_EQ(suffix.text, "2.30.7rc1+cuda13.1");
  EXPECT_EQ(suffix.minor, 30);
  for (const char* text : {"NCCL version mismatch with remote peer", "NCCL version 2.14 or newer is needed",
                           "NCCL version 2.14.3 is required", "NCCL version %d.%d", "NCCL version ",
                           "NCCL version +cuda1", "NCCL version -1.2.3+cuda12.0", "NCCL version 99999999999.1.1+cuda1"})
    EXPECT_FALSE(tool::parse_banner(text).known()) << text;
}

}  // namespace
}  // namespace gradprobe::test
