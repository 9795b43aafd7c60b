// gradprobe: starts and looks at training runs, and reads the rings that the plugin writes.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string_view>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "control_file.hpp"
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

// The words behind "--" of doctor and run are another program's: CLI11 must not see them.
std::vector<std::string> take_command(int* argc, char** argv) {
  std::vector<std::string> command;
  if (*argc < 2 || (std::string_view(argv[1]) != "doctor" && std::string_view(argv[1]) != "run")) return command;
  for (int i = 2; i < *argc; i++) {
    if (std::string_view(argv[i]) != "--") continue;
    command.assign(argv + i + 1, argv + *argc);
    *argc = i;
  }
  return command;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Look at a training command's surroundings and say what to fix before it can be measured");
  command->add_option("--pid", options.pid, "Look at this running process instead of a command")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_flag("--json", options.json, "One JSON object: facts and fixes");
  command->footer(
      "gradprobe doctor [options] -- COMMAND...\n"
      "The command is never run: its files are looked at. If it is Python, that interpreter is asked for sys.path;\n"
      "the CUDA driver, gradprobe's plugin and a NCCL that doesn't tell its version are loaded in a child process.\n"
      "Exit codes: 0 nothing to fix; 1 something to fix; 2 wrong usage.");
  return command;
}

// Options of run that are variables of the plugin.
struct RunSetting {
  const char* option;
  const char* variable;
  const char* description;
};
constexpr RunSetting kRunSettings[] = {
    {"--every", "GRADPROBE_EVERY", "Measure every N-th step"},
    {"--result-every", "GRADPROBE_RESULT_EVERY", "Also measure results in every N-th step; 0: never"},
    {"--sketch", "GRADPROBE_SKETCH", "Floats per sketch: 0, 256, 512, 1024, 2048, 4096"},
    {"--comms", "GRADPROBE_COMMS", "Communicators to measure"},
    {"--collectives", "GRADPROBE_COLLECTIVES", "Collectives to measure"},
    {"--dtypes", "GRADPROBE_DTYPES", "Datatypes to measure"},
    {"--min-count", "GRADPROBE_MIN_COUNT", "Smallest input to measure, in elements"},
    {"--ring-mb", "GRADPROBE_RING_MB", "MiB per ring file"},
    {"--job", "GRADPROBE_JOB", "Name of the job"},
};

CLI::App* add_run(CLI::App& app, RunOptions& options) {
  CLI::App* command = app.add_subcommand("run", "Run a training command measured, then print the comparison's summary");
  command
      ->add_option("--dir", options.folder,
                   "Folder for the ring files: a new or an empty one [GRADPROBE_DIR, else "
                   "gradprobe-runs/TIME-PID]")
      ->check(check_not_empty);
  for (const RunSetting& setting : kRunSettings)
    command
        ->add_option_function<std::string>(
            setting.option,
            [&options, &setting](const std::string& value) { options.settings.emplace_back(setting.variable, value); },
            std::string(setting.description) + " (" + setting.variable + ")")
        ->check(check_not_empty);
  command->add_flag("--preload", options.preload, "For NCCL older than 2.28: measure through LD_PRELOAD");
  command->add_flag("--chain", options.chain,
                    "Keep the profiler plugin that NCCL_PROFILER_PLUGIN names, behind gradprobe");
  command->add_flag("--quiet", options.quiet, "No summary at the end");
  command->footer(
      "gradprobe run [options] -- COMMAND...\n"
      "What gradprobe prints goes to stderr; stdout is the command's. Started once for each rank (torchrun, mpirun, "
      "srun),\n"
      "all ranks share one folder (--dir, GRADPROBE_DIR or the job's name) and rank 0 prints.\n"
      "Exit codes: the command's; 128+N when signal N ended it; 127 not found; 126 not executable; 2 wrong usage, a\n"
      "folder that is in use, or no plugin: nothing was run.");
  return command;
}

CLI::App* add_control(CLI::App& app, ControlOptions& options) {
  CLI::App* command = app.add_subcommand(
      "control", "Change what running processes measure, within a second or so; without options: show it");
  command->add_option("dir", options.folder, "The folder of the run's ring files")->required()->check(check_not_empty);
  command
      ->add_option_function<std::string>(
          "switch", [&options](const std::string& value) { options.measure = value == "on"; }, "on or off")
      ->check(CLI::IsMember({"on", "off"}));
  const auto number = [command](const char* name, std::optional<std::uint64_t>& value, std::uint64_t low,
                                std::uint64_t high, const char* text) {
    return command->add_option(name, value, text)->check(CLI::Range(low, high))->type_name("N");
  };
  constexpr std::uint64_t kRarest = ControlSettings::kRarest;
  number("--every", options.every, 1, kRarest, "Measure every N-th step");
  number("--result-every", options.result_every, 0, kRarest, "Measure results in every N-th step; 0: never");
  number("--from-step", options.from_step, 0, UINT64_MAX,
         "The change holds from step N on, so that all ranks make it in the same step; 0: at once");
  command->add_flag("--reset", options.reset, "Remove the file: as the processes' environment says");
  command->footer("Exit codes: 0 done; 2 wrong usage, or a file that can't be read or written.");
  return command;
}

int run_tool(int argc, char** argv) {
  CLI::App app{
      "Measures every rank's gradient before NCCL averages it away, and compares the ranks: run, doctor and control "
      "for\n"
      "training runs, compare, dump and info for what they recorded.",
      "gradprobe"};
  app.set_version_flag("--version", "gradprobe " GRADPROBE_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit codes: 0 done; 2 wrong usage, or a file that can't be read or is no ring (one line on stderr);\n"
      "1 only from compare --fail-on-findings and doctor; run gives its command's.");

  const bool has_command = std::any_of(argv + std::min(argc, 2), argv + argc,
                                       [](const char* word) { return std::string_view(word) == "--"; });
  DoctorOptions doctor_options;
  RunOptions run_options;
  ControlOptions control_options;
  run_options.command = doctor_options.command = take_command(&argc, argv);
  CLI::App* run_command = add_run(app, run_options);
  CLI::App* doctor_command = add_doctor(app, doctor_options);
  CLI::App* control_command = add_control(app, control_options);

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
    print_note("command line: no command; choose run, doctor, control, compare, dump or info, or see gradprobe --help");
    return kExitError;
  }
  if (doctor_command->parsed()) {
    if (!has_command || !doctor_options.command.empty()) return doctor(doctor_options);
    print_note("command line: doctor: no command behind --; give the one that trains, or leave -- out");
    return kExitError;
  }
  if (run_command->parsed()) {
    if (!run_options.command.empty()) return run(run_options);
    print_note("command line: run: no command; write it behind --, as in gradprobe run -- torchrun train.py");
    return kExitError;
  }
  if (control_command->parsed()) {
    if (control_options.reset && (control_options.from_step || control_options.changes())) {
      print_note("command line: control: --reset goes alone; leave the other options out");
      return kExitError;
    }
    if (control_options.from_step && control_options.shows_only()) {
      print_note("command line: control: --from-step needs a change; add on, off, --every or --result-every");
      return kExitError;
    }
    return control(control_options);
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
    const int code = run_tool(argc, argv);
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
