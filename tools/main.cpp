// gradprobe: reads the rings that the plugin writes.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <sstream>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "output.hpp"

namespace gradprobe::tool {

bool parse_step_range(const std::string& text, StepRange& range) {
  const auto number = [](const std::string& digits, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  StepRange r;
  r.given = true;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    if (!number(text, r.first)) return false;
    r.last = r.first;
  } else {
    const std::string first = text.substr(0, colon), last = text.substr(colon + 1);
    if (first.empty() && last.empty()) return false;
    if (!first.empty() && !number(first, r.first)) return false;
    if (!last.empty() && !number(last, r.last)) return false;
  }
  if (r.first > r.last) return false;
  range = r;
  return true;
}

bool parse_ranks(const std::string& text, std::vector<std::uint32_t>& ranks) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::uint32_t rank = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, rank);
    if (error != std::errc() || stop != text.data() + end) return false;
    ranks.push_back(rank);
    begin = end + 1;
  }
  return true;
}

namespace {

// CLI11 takes an empty value for a missing one, or for 0.
std::string check_not_empty(const std::string& value) {
  return value.empty() ? "is empty" : "";
}

CLI::Option* add_path(CLI::App& command, std::string& path, const std::string& description) {
  return command.add_option("path", path, description)->required()->check(check_not_empty);
}

CLI::Option* add_step_option(CLI::App& command, std::string& text) {
  return command.add_option("--step", text, "Only steps a to b, both included; either side may be left open")
      ->type_name("a:b")
      ->check([](const std::string& value) {
        StepRange range;
        if (parse_step_range(value, range)) return std::string();
        return "'" + value + "' is no step range; write 7, 7:9, 7: or :9";
      });
}

int run(int argc, char** argv) {
  CLI::App app{"Reads gradprobe ring files: what every rank's gradient was before NCCL averaged it away.", "gradprobe"};
  app.set_version_flag("--version", "gradprobe " GRADPROBE_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit codes: 0 done; 2 wrong usage, or a file that can't be read or is no ring (one line on stderr);\n"
      "1 only from compare --fail-on-findings.");

  DumpOptions dump_options;
  std::string dump_steps;
  CLI::App* dump_command = app.add_subcommand("dump", "Print records, one a line, oldest first");
  add_path(*dump_command, dump_options.path, "A ring file, or a folder of *.ring files");
  dump_command->add_flag("--json", dump_options.json,
                         "One JSON object a line. Unknown values are null; NaN and infinities are the strings \"NaN\", "
                         "\"Infinity\", \"-Infinity\"");
  dump_command->add_option("--kind", dump_options.kinds, "Only this kind of record; may be repeated")
      ->check(CLI::IsMember({"collective", "step", "scalar", "result", "mark"}))
      ->allow_extra_args(false);
  std::vector<std::string> dump_ranks;
  dump_command->add_option("--rank", dump_ranks, "Only these ranks; may be repeated or a,b,c")
      ->type_name("a,b,c")
      ->allow_extra_args(false)
      ->check([](const std::string& value) {
        std::vector<std::uint32_t> ranks;
        if (parse_ranks(value, ranks)) return std::string();
        return "'" + value + "' is no list of ranks; write 3 or 0,2,5";
      });
  add_step_option(*dump_command, dump_steps);
  dump_command->add_flag("--follow", dump_options.follow,
                         "Go on as records are written, until every writer has finalized its ring, exited or is gone");
  dump_command->add_flag("--sketch", dump_options.sketch, "With --json: also the sketches' values");

  std::string info_path;
  CLI::App* info_command = app.add_subcommand("info", "Print a ring's header, counters, integrity and what was lost");
  add_path(*info_command, info_path, "A ring file, or a folder of *.ring files");

  CompareOptions compare_options;
  std::string compare_steps;
  CLI::App* compare_command = app.add_subcommand(
      "compare", "Compare the ranks: dispersion of loss and gradient norm, cosines between gradients, findings");
  add_path(*compare_command, compare_options.path, "A folder of *.ring files, one per rank");
  compare_command->add_option("--comm", compare_options.comm, "Only this communicator (hexadecimal, as printed)")
      ->check(check_not_empty);
  add_step_option(*compare_command, compare_steps);
  compare_command->add_flag(
      "--json", compare_options.json,
      "One JSON object a step and communicator. What can't be told is null; NaN and infinities are "
      "the strings \"NaN\", \"Infinity\", \"-Infinity\"");
  compare_command->add_flag("--summary", compare_options.summary, "Only the summary and the findings, not every step");
  compare_command->add_flag("--fail-on-findings", compare_options.fail_on_findings,
                            "Exit with 1 when there is a finding");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    std::ostringstream text, none;
    const int code = app.exit(done, text, none);
    std::string help = text.str();
    while (help.ends_with('\n')) help.pop_back();
    print_line(help);
    return code;
  } catch (const CLI::ParseError& wrong) {
    std::string why = wrong.what();
    for (char& c : why)
      if (c == '\n') c = ' ';
    print_note("command line: " + why + "; see gradprobe --help");
    return kExitError;
  }
  parse_step_range(dump_steps, dump_options.steps);
  for (const std::string& ranks : dump_ranks) parse_ranks(ranks, dump_options.ranks);
  parse_step_range(compare_steps, compare_options.steps);

  if (dump_options.sketch && !dump_options.json) {
    print_note("command line: --sketch needs --json; add it");
    return kExitError;
  }
  if (app.get_subcommands().empty()) {
    print_note("command line: no command; choose dump, info or compare, or see gradprobe --help");
    return kExitError;
  }
  if (dump_command->parsed()) return dump(dump_options);
  if (info_command->parsed()) return info(info_path);
  return compare(compare_options);
}

}  // namespace
}  // namespace gradprobe::tool

int main(int argc, char** argv) {
  using namespace gradprobe::tool;
  // A reader that goes away (| head) is then a failed write, not a death by signal.
  signal(SIGPIPE, SIG_IGN);
  try {
    const int code = run(argc, argv);
    flush_output();
    return code;
  } catch (const OutputClosed& closed) {
    if (closed.error() == EPIPE) return kExitOk;
    print_note(std::string("standard output: can't write: ") + std::strerror(closed.error()) + "; " +
               output_advice(closed.error()));
    return kExitError;
  } catch (const std::exception& unexpected) {
    print_note(std::string("stopped: ") + unexpected.what() + "; please report it");
    return kExitError;
  }
}
