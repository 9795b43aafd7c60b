#include "config.hpp"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace gradprobe {
namespace {

// An empty value counts as unset, as in most launchers' scripts.
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

class Reader {
 public:
  explicit Reader(std::vector<std::string>* warnings) : warnings_(warnings) {}

  std::uint64_t integer(const char* name, std::uint64_t low, std::uint64_t high, std::uint64_t standard) {
    const auto text = variable(name);
    if (!text) return standard;
    errno = 0;
    char* end = nullptr;
    const bool digits = std::isdigit(static_cast<unsigned char>(text->front())) != 0;
    const bool hexadecimal = text->starts_with("0x") || text->starts_with("0X");
    const std::uint64_t value = std::strtoull(text->c_str(), &end, hexadecimal ? 16 : 10);
    if (digits && errno == 0 && *end == '\0' && value >= low && value <= high) return value;
    reject(name, *text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high),
           std::to_string(standard));
    return standard;
  }

  bool boolean(const char* name, bool standard) { return integer(name, 0, 1, standard ? 1 : 0) != 0; }

  std::uint32_t one_of(const char* name, std::initializer_list<std::uint32_t> allowed, std::uint32_t standard) {
    const auto text = variable(name);
    if (!text) return standard;
    std::string list;
    for (const std::uint32_t value : allowed) {
      if (*text == std::to_string(value)) return value;
      list += (list.empty() ? "" : ", ") + std::to_string(value);
    }
    reject(name, *text, "one of " + list, std::to_string(standard));
    return standard;
  }

  // `parse(text, &wrong)` gives a value, or none and the wrong part of the text.
  template <typename Value, typename Parse>
  Value parsed(const char* name, const char* wanted, const char* standard_text, Value standard, const Parse& parse) {
    const auto text = variable(name);
    if (!text) return standard;
    std::string wrong;
    if (auto value = parse(*text, &wrong)) return *std::move(value);
    const std::string part = wrong == *text ? "" : " ('" + wrong + "')";
    warnings_->push_back(std::string(name) + "=" + *text + " is not " + wanted + part + ": using " + standard_text);
    return standard;
  }

  LogTarget log_target(const char* name) {
    const auto text = variable(name);
    if (!text || *text == "auto") return LogTarget::automatic;
    if (*text == "nccl") return LogTarget::nccl;
    if (*text == "stderr") return LogTarget::stderr_only;
    if (*text == "off") return LogTarget::off;
    reject(name, *text, "one of auto, nccl, stderr, off", "auto");
    return LogTarget::automatic;
  }

 private:
  void reject(const char* name, const std::string& text, const std::string& wanted, const std::string& standard) {
    warnings_->push_back(std::string(name) + "=" + text + " is not " + wanted + ": using " + standard);
  }
  std::vector<std::string>* warnings_;
};

// A job's name becomes a folder's name: keep it one path component.
std::string path_component(std::string name) {
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr("-_.", c) == nullptr) c = '_';
  if (name == "." || name == "..") name = "_";
  return name.substr(0, 63);
}

std::string job_name() {
  for (const char* name : {"GRADPROBE_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"}) {
    const auto value = variable(name);
    if (value && *value != "none") return path_component(*value);  // torchrun's run id is "none" unless one is given
  }
  return "ppid-" + std::to_string(getppid());
}

// 0: nobody says.
std::uint32_t nodes_of_job() {
  const auto number = [](const char* name) -> std::uint32_t {
    const auto text = variable(name);
    return text ? static_cast<std::uint32_t>(std::strtoul(text->c_str(), nullptr, 10)) : 0;
  };
  for (const char* name : {"GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"})
    if (const std::uint32_t nodes = number(name); nodes != 0) return nodes;
  const std::uint32_t ranks = number("WORLD_SIZE"), local = number("LOCAL_WORLD_SIZE");
  return local != 0 ? (ranks + local - 1) / local : 0;
}

const char* name(LogTarget target) {
  switch (target) {
    case LogTarget::automatic:
      return "auto";
    case LogTarget::nccl:
      return "nccl";
    case LogTarget::stderr_only:
      return "stderr";
    case LogTarget::off:
      return "off";
  }
  return "auto";
}

}  // namespace

Config read_config() {
  Config c;
  Reader read(&c.warnings);
  c.enabled = read.boolean("GRADPROBE", true);
  c.job = job_name();
  if (const auto directory = variable("GRADPROBE_DIR")) {
    c.directory = *directory;
    while (c.directory.size() > 1 && c.directory.ends_with('/')) c.directory.pop_back();
    c.default_directory = false;
  } else {
    c.directory = "/dev/shm/gradprobe-" + std::to_string(getuid()) + "/" + c.job;
  }
  c.ring_mb_set = variable("GRADPROBE_RING_MB").has_value();
  c.ring_mb = read.integer("GRADPROBE_RING_MB", 1, 65536, c.ring_mb);
  c.sketch_floats = read.one_of("GRADPROBE_SKETCH", {0, 256, 512, 1024, 2048, 4096}, c.sketch_floats);
  c.seed = read.integer("GRADPROBE_SEED", 0, UINT64_MAX, c.seed);
  c.gate_timeout_ms = static_cast<std::uint32_t>(read.integer("GRADPROBE_GATE_TIMEOUT", 1, 10000, c.gate_timeout_ms));
  c.max_ctas = static_cast<std::uint32_t>(read.integer("GRADPROBE_MAX_CTAS", 1, 256, c.max_ctas));
  c.count_zeros = read.boolean("GRADPROBE_ZEROS", false);
  c.selection.functions =
      read.parsed("GRADPROBE_COLLECTIVES", "a list of AllReduce, ReduceScatter, Reduce, AllGather, Broadcast", "all",
                  Selection::kAllFunctions, parse_functions);
  c.selection.datatypes =
      read.parsed("GRADPROBE_DTYPES", "a list of f32, bf16, f16, f64, f8e4m3, f8e5m2 or integer types such as i32",
                  "all", Selection::kAllDatatypes, parse_datatypes);
  c.selection.min_count = read.integer("GRADPROBE_MIN_COUNT", 0, std::uint64_t{1} << 63, 0);
  c.comms =
      read.parsed("GRADPROBE_COMMS", "auto, all or a list of size=N, id=HEX, name=PATTERN and their negations (!)",
                  "auto", CommFilter(), CommFilter::parse);
  constexpr std::uint64_t kRarest = 1'000'000'000;
  c.sampling.every = static_cast<std::uint32_t>(read.integer("GRADPROBE_EVERY", 1, kRarest, 1));
  const bool older = !variable("GRADPROBE_RESULT_EVERY") && variable("GRADPROBE_RESULT");
  c.sampling.result_every =
      static_cast<std::uint32_t>(read.integer(older ? "GRADPROBE_RESULT" : "GRADPROBE_RESULT_EVERY", 0, kRarest, 0));
  c.control_file = variable("GRADPROBE_CONTROL").value_or(c.directory + "/control");
  c.job_nodes = nodes_of_job();
  c.ops_per_step = read.integer("GRADPROBE_OPS_PER_STEP", 0, 1048576, 0);
  c.log = read.log_target("GRADPROBE_LOG");
  c.chain = variable("GRADPROBE_CHAIN").value_or("");
  // CUDA reads this variable as a number and takes everything but 0 as "on".
  if (const auto blocking = variable("CUDA_LAUNCH_BLOCKING"))
    c.launch_blocking = std::strtol(blocking->c_str(), nullptr, 10) != 0;
  return c;
}

std::string Config::text() const {
  const auto line = [](std::string_view key, const std::string& value) {
    return std::string(key) + "=" + value + "\n";
  };
  return line("GRADPROBE_DIR", directory) + line("GRADPROBE_JOB", job) +
         line("GRADPROBE_RING_MB", std::to_string(ring_mb)) + line("GRADPROBE_SKETCH", std::to_string(sketch_floats)) +
         line("GRADPROBE_SEED", std::to_string(seed)) +
         line("GRADPROBE_GATE_TIMEOUT", std::to_string(gate_timeout_ms)) +
         line("GRADPROBE_MAX_CTAS", std::to_string(max_ctas)) + line("GRADPROBE_ZEROS", count_zeros ? "1" : "0") +
         line("GRADPROBE_COLLECTIVES", functions_text(selection.functions)) +
         line("GRADPROBE_MIN_COUNT", std::to_string(selection.min_count)) +
         line("GRADPROBE_DTYPES", datatypes_text(selection.datatypes)) + line("GRADPROBE_COMMS", comms.text()) +
         line("GRADPROBE_EVERY", std::to_string(sampling.every)) +
         line("GRADPROBE_RESULT_EVERY", std::to_string(sampling.result_every)) +
         line("GRADPROBE_OPS_PER_STEP", std::to_string(ops_per_step)) + line("GRADPROBE_LOG", name(log)) +
         line("GRADPROBE_CHAIN", chain) + line("CUDA_LAUNCH_BLOCKING", launch_blocking ? "1" : "0");
}

}  // namespace gradprobe
