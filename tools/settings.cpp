#include "settings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <numeric>

#include <fmt/format.h>
#include <gradprobe/ring_format.hpp>

namespace gradprobe::tool {
namespace {

bool number(std::string_view text, std::uint64_t* value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return error == std::errc() && end == text.data() + text.size();
}

template <std::uint64_t Low, std::uint64_t High>
bool integer(std::string_view text) {
  std::uint64_t value = 0;
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (!number(hexadecimal ? text.substr(2) : text, &value, hexadecimal ? 16 : 10)) return false;
  return value >= Low && value <= High;
}

bool sketch_size(std::string_view text) {
  constexpr std::string_view kSizes[] = {"0", "256", "512", "1024", "2048", "4096"};
  return std::find(std::begin(kSizes), std::end(kSizes), text) != std::end(kSizes);
}

bool log_target(std::string_view text) {
  return text == "auto" || text == "nccl" || text == "stderr" || text == "off";
}

bool anything(std::string_view) {
  return true;
}

// Words between commas, without blanks around them and without empty ones.
std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  for (std::string word : split(text, ',')) {
    while (!word.empty() && word.front() == ' ') word.erase(0, 1);
    while (!word.empty() && word.back() == ' ') word.pop_back();
    if (!word.empty()) all.push_back(std::move(word));
  }
  return all;
}

bool equal_in_any_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

template <class Value, std::size_t N>
bool names_of(std::string_view text, const Value (&values)[N]) {
  const std::vector<std::string> list = words(text);
  return !list.empty() && std::all_of(list.begin(), list.end(), [&](const std::string& word) {
    return std::any_of(std::begin(values), std::end(values),
                       [&](Value value) { return equal_in_any_case(word, name(value)); });
  });
}

bool functions(std::string_view text) {
  constexpr Function kFunctions[] = {Function::all_reduce, Function::reduce_scatter, Function::reduce,
                                     Function::all_gather, Function::broadcast};
  return names_of(text, kFunctions);
}

bool datatypes(std::string_view text) {
  constexpr Datatype kDatatypes[] = {Datatype::i8,  Datatype::u8,   Datatype::i32,    Datatype::u32,
                                     Datatype::i64, Datatype::u64,  Datatype::f16,    Datatype::f32,
                                     Datatype::f64, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2};
  return names_of(text, kDatatypes);
}

bool communicator_term(std::string_view term) {
  if (term.starts_with('!')) term.remove_prefix(1);
  std::uint64_t value = 0;
  if (term == "all" || term.starts_with("name=")) return true;
  if (term.starts_with("id=")) {
    term.remove_prefix(3);
    if (term.starts_with("0x")) term.remove_prefix(2);
    return number(term, &value, 16);
  }
  if (!term.starts_with("size")) return false;
  term.remove_prefix(4);
  for (const std::string_view relation : {"!=", "<=", ">=", "=", "<", ">"})
    if (term.starts_with(relation)) return number(term.substr(relation.size()), &value);
  return false;
}

bool communicators(std::string_view text) {
  const std::vector<std::string> list = words(text);
  if (list.size() == 1 && list[0] == "auto") return true;
  return !list.empty() && std::all_of(list.begin(), list.end(), communicator_term);
}

// Insertions, deletions, changes and swaps of neighbours that make one text the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); i++) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); i++) {
    for (std::size_t j = 1; j <= b.size(); j++) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> settings = {
      {"GRADPROBE", "0 or 1", integer<0, 1>},
      {"GRADPROBE_DIR", "a folder", anything},
      {"GRADPROBE_JOB", "a name", anything},
      {"GRADPROBE_RING_MB", "a whole number from 1 to 65536", integer<1, 65536>},
      {"GRADPROBE_SKETCH", "one of 0, 256, 512, 1024, 2048, 4096", sketch_size},
      {"GRADPROBE_SEED", "a whole number below 2^64", integer<0, UINT64_MAX>},
      {"GRADPROBE_GATE_TIMEOUT", "a whole number of milliseconds from 1 to 10000", integer<1, 10000>},
      {"GRADPROBE_MAX_CTAS", "a whole number from 1 to 256", integer<1, 256>},
      {"GRADPROBE_ZEROS", "0 or 1", integer<0, 1>},
      {"GRADPROBE_COLLECTIVES", "a list of AllReduce, ReduceScatter, Reduce, AllGather, Broadcast", functions},
      {"GRADPROBE_MIN_COUNT", "a whole number of elements up to 2^63", integer<0, (std::uint64_t{1} << 63)>},
      {"GRADPROBE_COMMS", "auto, all, or a list of size=N, id=HEX, name=PATTERN and their negations (!)",
       communicators},
      {"GRADPROBE_DTYPES", "a list of f32, bf16, f16, f64, f8e4m3, f8e5m2 or integer types such as i32", datatypes},
      {"GRADPROBE_EVERY", "a whole number of steps from 1 to 1000000000", integer<1, 1'000'000'000>},
      {"GRADPROBE_RESULT_EVERY", "a whole number of steps from 0 to 1000000000", integer<0, 1'000'000'000>},
      {"GRADPROBE_RESULT", "a whole number of steps from 0 to 1000000000", integer<0, 1'000'000'000>},
      {"GRADPROBE_CONTROL", "a file", anything},
      {"GRADPROBE_CHAIN", "a profiler plugin's file", anything},
      {"GRADPROBE_OPS_PER_STEP", "a whole number from 0 to 1048576", integer<0, 1048576>},
      {"GRADPROBE_LOG", "one of auto, nccl, stderr, off", log_target},
  };
  return settings;
}

const Setting* find_setting(std::string_view name) {
  for (const Setting& setting : all_settings())
    if (setting.name == name) return &setting;
  return nullptr;
}

std::string nearest_setting(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  if (name.size() > kLongest) return {};
  std::string_view best;
  std::size_t least = SIZE_MAX;
  for (const Setting& setting : all_settings()) {
    const std::size_t d = distance(name, setting.name);
    if (d >= least) continue;
    least = d;
    best = setting.name;
  }
  // The common prefix makes every name near; a third of what follows it may differ.
  constexpr std::size_t kPrefix = std::string_view("GRADPROBE_").size();
  const std::size_t own = name.size() > kPrefix ? name.size() - kPrefix : 1;
  return least <= std::max<std::size_t>(1, own / 3) ? std::string(best) : std::string();
}

std::vector<SettingProblem> check_settings(const Environment& environment) {
  std::vector<SettingProblem> bad_values, unknown;
  for (const auto& [name, value] : environment.all()) {
    if (name != "GRADPROBE" && !name.starts_with("GRADPROBE_")) continue;
    const Setting* setting = find_setting(name);
    if (setting == nullptr) {
      const std::string near = nearest_setting(name);
      unknown.push_back({name, value, fmt::format("{} is read by nobody", name),
                         near.empty() ? "unset " + name : fmt::format("unset {}; export {}={}", name, near, value)});
    } else if (!value.empty() && !setting->usable(value)) {
      bad_values.push_back({name, value,
                            fmt::format("{}={} is not {}; the default is taken", name, value, setting->wanted),
                            fmt::format("set {} to {}, or unset it", name, setting->wanted)});
    }
  }
  bad_values.insert(bad_values.end(), unknown.begin(), unknown.end());
  return bad_values;
}

}  // namespace gradprobe::tool
