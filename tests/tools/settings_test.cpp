// The tool's table of the plugin's variables against the plugin itself.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "config.hpp"
#include "control.hpp"
#include "control_file.hpp"
#include "settings.hpp"

namespace gradprobe::test {
namespace {

std::set<std::string> names_in_sources() {
  std::set<std::string> names;
  const std::regex quoted("\"(GRADPROBE(_[A-Z0-9]+)*)\"");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(GRADPROBE_PLUGIN_SOURCES)) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator it(text.begin(), text.end(), quoted), end; it != end; ++it) names.insert((*it)[1]);
  }
  return names;
}

TEST(Settings, AreThoseThatThePluginReads) {
  std::set<std::string> known;
  for (const tool::Setting& setting : tool::all_settings()) known.emplace(setting.name);
  EXPECT_EQ(known, names_in_sources());
}

// Each value is usable for the tool just when the plugin takes it without a warning.
TEST(Settings, AreJudgedAsThePluginDoes) {
  const std::vector<std::string> values = {"0",
                                           "1",
                                           "2",
                                           "-1",
                                           "+1",
                                           " 1",
                                           "1 ",
                                           "01",
                                           "0x1",
                                           "0X10",
                                           "0x",
                                           "1.0",
                                           "1e3",
                                           "x",
                                           "on",
                                           "256",
                                           "512",
                                           "1000",
                                           "1024",
                                           "4096",
                                           "8192",
                                           "65536",
                                           "65537",
                                           "10000",
                                           "10001",
                                           "1000000",
                                           "1000001",
                                           "1048576",
                                           "1048577",
                                           "1000000000",
                                           "1000000001",
                                           "9223372036854775808",
                                           "9223372036854775809",
                                           "18446744073709551615",
                                           "18446744073709551616",
                                           "99999999999999999999",
                                           "auto",
                                           "nccl",
                                           "stderr",
                                           "off",
                                           "AUTO",
                                           "AllReduce",
                                           "allreduce,ReduceScatter",
                                           "all",
                                           "allreduce,",
                                           ",",
                                           "allreduce;reduce",
                                           "broadcast, reduce,allgather",
                                           "alltoall",
                                           "unknown",
                                           "f32",
                                           "bf16,F16",
                                           "f8e4m3,f8e5m2,f64",
                                           "i32,u8",
                                           "float32",
                                           "size=8",
                                           "size!=8",
                                           "size>=8,!size=64",
                                           "size~8",
                                           "size=",
                                           "size=x",
                                           "id=0123abc",
                                           "id=0x1f",
                                           "id=xyz",
                                           "id=",
                                           "name=dp*",
                                           "name=",
                                           "!all",
                                           "!",
                                           "!!all",
                                           "all,auto",
                                           "auto,auto",
                                           "size<8,name=tp?"};
  std::size_t usable = 0, unusable = 0;
  for (const tool::Setting& setting : tool::all_settings()) {
    for (const std::string& value : values) {
      const std::string name(setting.name);
      ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
      const bool taken = read_config().warnings.empty();
      unsetenv(name.c_str());
      EXPECT_EQ(setting.usable(value), taken) << name << "=" << value;
      (taken ? usable : unusable)++;
    }
  }
  EXPECT_GT(usable, 100u);
  EXPECT_GT(unusable, 100u);
}

// What the tool writes, shows or refuses in a control file is what the plugin reads or refuses.
TEST(Settings, ControlFileIsReadAsThePluginDoes) {
  std::size_t good = 0, bad = 0;
  for (const char* text : {"",
                           "\n\n",
                           "# every=0\n",
                           "measure=on",
                           "measure=off\n",
                           " measure = off \r\n",
                           "measure=OFF",
                           "measure=",
                           "measure",
                           "=on",
                           "every=1",
                           "every=10\nevery=20\n",
                           "every=0",
                           "every=-1",
                           "every=+1",
                           "every=1 0",
                           "every=1000000000",
                           "every=1000000001",
                           "every=99999999999999999999",
                           "result_every=0",
                           "result_every=7\nmeasure=off\nevery=3",
                           "result_every=x",
                           "from_step=0",
                           "from_step=18446744073709551615\nevery=2",
                           "from_step=18446744073709551616",
                           "from_step=1.5",
                           "colour=red",
                           "Every=1",
                           "every:1",
                           "every=1 # remark",
                           "\tevery=5\t"}) {
    std::string why;
    const auto ours = tool::parse_control_settings(text, &why);
    const auto plugins = parse_control(text, Sampling(), &why);
    ASSERT_EQ(ours.has_value(), plugins.has_value()) << text;
    (ours ? good : bad)++;
    if (!ours) continue;
    EXPECT_EQ(ours->measure.value_or(true), plugins->measure) << text;
    EXPECT_EQ(ours->every.value_or(1), plugins->every) << text;
    EXPECT_EQ(ours->result_every.value_or(0), plugins->result_every) << text;
    EXPECT_EQ(ours->from_step, plugins->from_step) << text;
    const auto again = parse_control(ours->text(), Sampling(), &why);
    ASSERT_TRUE(again) << ours->text();
    EXPECT_EQ(*again, *plugins) << text;
  }
  EXPECT_GT(good, 10u);
  EXPECT_GT(bad, 10u);
}

TEST(Settings, NearestNameIsTheOneMeant) {
  for (const auto& [wrong, meant] :
       std::vector<std::pair<std::string, std::string>>{{"GRADPROBE_SKTECH", "GRADPROBE_SKETCH"},
                                                        {"GRADPROBE_RINGMB", "GRADPROBE_RING_MB"},
                                                        {"GRADPROBE_COLLECTIVE", "GRADPROBE_COLLECTIVES"},
                                                        {"GRADPROBE_GATE_TIME_OUT", "GRADPROBE_GATE_TIMEOUT"},
                                                        {"GRADPROBE_RESULTS_EVERY", "GRADPROBE_RESULT_EVERY"},
                                                        {"GRADPROBE_DIRS", "GRADPROBE_DIR"},
                                                        {"GRADPROBE_dir", ""},
                                                        {"GRADPROBE_COLOUR_OF_THE_SKY", ""},
                                                        {"GRADPROBE_", "GRADPROBE"},
                                                        {"GRADPROBE_" + std::string(100000, 'X'), ""}})
    EXPECT_EQ(tool::nearest_setting(wrong), meant) << wrong.substr(0, 60);
}

}  // namespace
}  // namespace gradprobe::test
