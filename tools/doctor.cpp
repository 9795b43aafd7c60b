#include "doctor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include "command_line.hpp"
#include "commands.hpp"
#include "library_search.hpp"
#include "output.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;

const char* name(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::note:
      return "note";
    case Status::problem:
      break;
  }
  return "problem";
}

void Diagnosis::problem(const std::string& topic, Blocks blocks, const std::string& text, const std::string& action) {
  facts_.push_back({Status::problem, topic, text});
  const auto behind = std::find_if(fixes_.begin(), fixes_.end(), [&](const Fix& fix) { return fix.blocks > blocks; });
  fixes_.insert(behind, {blocks, topic + ": " + text, action});
}

InstalledFiles installed_files() {
  InstalledFiles files;
  const fs::path bin = fs::path(real_path("/proc/self/exe")).parent_path();
  for (const char* folder : {"../" GRADPROBE_LIBRARY_FOLDER, "../lib", "../lib64", "."}) {
    const std::string candidate = (bin / folder).lexically_normal().string();
    if (std::find(files.looked_in.begin(), files.looked_in.end(), candidate) != files.looked_in.end()) continue;
    files.looked_in.push_back(candidate);
    std::error_code ec;
    const fs::path plugin = fs::path(candidate) / kPluginFile;
    if (!fs::is_regular_file(plugin, ec)) continue;
    files.plugin = plugin.string();
    const fs::path preload = fs::path(candidate) / kPreloadFile;
    if (fs::is_regular_file(preload, ec)) files.preload = preload.string();
    break;
  }
  return files;
}

Diagnosis diagnose(const Patient& patient) {
  Diagnosis diagnosis;
  Environment environment = patient.environment;
  check_nccl_and_plugin(patient, &environment, &diagnosis);
  check_driver(environment, &diagnosis);
  check_environment(environment, &diagnosis);
  check_folder(patient, environment, &diagnosis);
  return diagnosis;
}

namespace {

// Long lines are broken between words, so that the table stays readable.
void print_wrapped(const std::string& first, std::size_t indent, const std::string& text) {
  constexpr std::size_t kWidth = 110;
  std::string line = first;
  bool empty = true;
  for (const std::string& word : split(text, ' ')) {
    if (!empty && line.size() + 1 + word.size() > kWidth) {
      print_line(line);
      line.assign(indent, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  print_line(line);
}

void print_text(const Diagnosis& diagnosis) {
  for (const Fact& fact : diagnosis.facts())
    print_wrapped(fmt::format("{:<8} {:<9} ", name(fact.status), fact.topic), 19, printable(fact.text));
  print_line("");
  if (diagnosis.fixes().empty()) {
    print_line("Nothing to fix.");
    return;
  }
  print_line("To fix, most blocking first:");
  int number = 1;
  for (const Fix& fix : diagnosis.fixes()) {
    print_wrapped(fmt::format("{:>3}. ", number++), 5, printable(fix.problem));
    // Not wrapped: it is meant to be copied.
    print_line("     -> " + printable(fix.action));
  }
}

void print_as_json(const Diagnosis& diagnosis) {
  Json j;
  j["facts"] = Json::array();
  for (const Fact& fact : diagnosis.facts())
    j["facts"].push_back({{"status", name(fact.status)}, {"topic", fact.topic}, {"text", fact.text}});
  j["fixes"] = Json::array();
  for (const Fix& fix : diagnosis.fixes()) j["fixes"].push_back({{"problem", fix.problem}, {"action", fix.action}});
  print_json(j);
}

}  // namespace

int doctor(const DoctorOptions& options) {
  Patient patient;
  patient.command = options.command;
  patient.environment = Environment::of_this_process();
  if (options.pid != 0) {
    if (!options.command.empty()) {
      print_note("command line: doctor: --pid and a command; give one of them");
      return kExitError;
    }
    patient.pid = options.pid;
    const std::string path = fmt::format("/proc/{}/environ", options.pid);
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      print_note(
          fmt::format("{}: can't open: {}; give the number of a running process of yours", path, std::strerror(errno)));
      return kExitError;
    }
    patient.environment = Environment::parse(std::string{std::istreambuf_iterator<char>(in), {}});
  }
  const Diagnosis diagnosis = diagnose(patient);
  if (options.json)
    print_as_json(diagnosis);
  else
    print_text(diagnosis);
  return diagnosis.fixes().empty() ? kExitOk : kExitFindings;
}

}  // namespace gradprobe::tool
