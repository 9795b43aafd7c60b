// The control file: what it may say, and that a run notices it.
#include "control.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gradprobe {
namespace {

TEST(ParseControl, WhatItNamesOverridesTheRest) {
  const Sampling standard{.measure = true, .every = 10, .result_every = 100, .from_step = 0};
  std::string wrong;
  EXPECT_EQ(parse_control("", standard, &wrong), standard);
  EXPECT_EQ(parse_control("# all\n\n every = 3 \r\n", standard, &wrong),
            (Sampling{.measure = true, .every = 3, .result_every = 100, .from_step = 0}));
  EXPECT_EQ(parse_control("measure=off\nresult_every=0\nfrom_step=1200", standard, &wrong),
            (Sampling{.measure = false, .every = 10, .result_every = 0, .from_step = 1200}));
}

TEST(ParseControl, MistakesAreNamedWithTheirLine) {
  for (const char* text : {"every=0", "every=", "every=-1", "every=1.5", "every", "measure=yes", "result_every=x",
                           "from_step=99999999999999999999", "evry=2", "every=2 3", "=", "every=2147483648000"}) {
    std::string wrong;
    EXPECT_FALSE(parse_control("# one\n" + std::string(text) + "\nevery=5", {}, &wrong)) << text;
    EXPECT_NE(wrong.find("line 2"), std::string::npos) << wrong;
    EXPECT_NE(wrong.find(text), std::string::npos) << wrong;
  }
}

class ControlFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "gradprobe-control-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    control_.configure({.measure = true, .every = 2, .result_every = 0, .from_step = 0}, path());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/control"; }
  // As the tool writes it: renamed into place.
  void write(const std::string& text) {
    std::ofstream(folder_ + "/new") << text;
    std::filesystem::rename(folder_ + "/new", path());
  }
  bool look() {
    message_.clear();
    return control_.look(&message_, &warn_);
  }
  Sampling get() {
    Sampling s;
    std::uint32_t version = 0;
    EXPECT_TRUE(control_.try_get(&s, &version));
    EXPECT_EQ(version, control_.version());
    return s;
  }
  std::string folder_, message_;
  bool warn_ = false;
  Control control_;
};

TEST_F(ControlFile, IsFollowedWhileItExists) {
  EXPECT_FALSE(look());
  EXPECT_EQ(get().every, 2u);
  const std::uint32_t before = control_.version();
  write("every=7\n");
  EXPECT_TRUE(look());
  EXPECT_FALSE(warn_);
  EXPECT_NE(message_.find(path()), std::string::npos);
  EXPECT_NE(control_.version(), before);
  EXPECT_EQ(get().every, 7u);
  EXPECT_FALSE(look());  // said once
  std::filesystem::remove(path());
  EXPECT_TRUE(look());
  EXPECT_EQ(get().every, 2u);
}

TEST_F(ControlFile, MistakesChangeNothingAndAreSaidOnce) {
  write("every=7\n");
  EXPECT_TRUE(look());
  write("every=never\n");
  const std::uint32_t before = control_.version();
  EXPECT_TRUE(look());
  EXPECT_TRUE(warn_);
  EXPECT_NE(message_.find("every=never"), std::string::npos);
  EXPECT_EQ(control_.version(), before);
  EXPECT_EQ(get().every, 7u);
  EXPECT_FALSE(look());
  write(std::string(100'000, 'x'));
  EXPECT_TRUE(look());
  EXPECT_TRUE(warn_);
}

TEST_F(ControlFile, WhatIsNoFileIsNoSetting) {
  std::filesystem::create_directory(path());
  EXPECT_FALSE(look());
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(look());  // and doesn't wait for a writer
  EXPECT_EQ(get().every, 2u);
}

TEST_F(ControlFile, OtherSettingsOfALaterCommunicatorCount) {
  write("result_every=5\n");
  EXPECT_TRUE(look());
  control_.configure({.measure = true, .every = 2, .result_every = 0, .from_step = 0}, path());
  EXPECT_EQ(get().result_every, 5u);  // the same: nothing is reset
  control_.configure({.measure = true, .every = 3, .result_every = 0, .from_step = 0}, path());
  EXPECT_TRUE(look());
  EXPECT_EQ(get(), (Sampling{.measure = true, .every = 3, .result_every = 5, .from_step = 0}));
}

}  // namespace
}  // namespace gradprobe
