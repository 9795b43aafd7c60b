#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <gradprobe/scalar.hpp>
#include <gradprobe/step_assignment.hpp>

#include "commands.hpp"
#include "output.hpp"
#include "ring_files.hpp"
#include "words.hpp"

namespace gradprobe::tool {
namespace {

volatile sig_atomic_t interrupted = 0;
void on_interrupt(int) {
  interrupted = 1;
}

constexpr auto kPollInterval = std::chrono::milliseconds(50);

std::string number_or_dash(std::uint64_t value) {
  return value == kNone ? "-" : std::to_string(value);
}

double norm_of(double sum_squares) {
  return sum_squares < 0 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(sum_squares);
}

// A fingerprint is an exact number of 64 bits, which JSON readers that know only doubles would round.
std::string fingerprint_text(const CollectiveBody& body) {
  return "0x" + hex(body.fingerprint);
}

// The elements that a record keeps, as they were, 64-bit integers included.
Json raw_values(const CollectiveBody& body) {
  Json values = Json::array();
  const auto type = static_cast<Datatype>(body.datatype);
  for (std::size_t i = 0; i < std::min(body.raw_count, kMaxRawElements); i++) {
    const std::optional<double> value = raw_value(body, i);
    if (!value) break;
    if (type == Datatype::i64)
      values.push_back(detail::load<std::int64_t>(body.raw + 8 * i));
    else if (type == Datatype::u64)
      values.push_back(detail::load<std::uint64_t>(body.raw + 8 * i));
    else if (is_floating_point(type))
      values.push_back(json_number(*value));
    else
      values.push_back(static_cast<std::int64_t>(*value));
  }
  return values;
}

std::string raw_text(const CollectiveBody& body) {
  std::string text;
  for (const Json& value : raw_values(body)) {
    if (!text.empty()) text += ',';
    if (value.is_number_float() && static_cast<Datatype>(body.datatype) == Datatype::f64)
      text += fmt::format("{}", value.get<double>());
    else if (value.is_number_float())
      text += fmt::format("{:.9g}", value.get<double>());
    else
      text += value.is_string() ? value.get<std::string>() : value.dump();
  }
  return text;
}

// Whether norm, counts and so on are those of the buffer: tiny ones may be of integers.
bool has_measures(const Record& record) {
  if (record.head.missed != 0) return false;
  return record.kind() == RecordKind::collective ||
         (record.kind() == RecordKind::result &&
          is_floating_point(static_cast<Datatype>(record.head.collective.datatype)));
}

std::string mark_text(const MarkBody& mark) {
  switch (static_cast<MarkKind>(mark.kind)) {
    case MarkKind::step:
      return number_or_dash(mark.number);
    case MarkKind::scalar:
      return printable(field_text(mark.name)) + fmt::format(" = {:.9g}", mark.value);
    case MarkKind::phase:
      return printable(field_text(mark.name));
    case MarkKind::none:
      break;
  }
  return "-";
}

Json mark_json(const RecordHead& head) {
  Json j;
  const auto kind = static_cast<MarkKind>(head.mark.kind);
  j["op"] = head.op;
  j["step_confirmed"] = (head.flags & kFlagStepConfirmed) != 0;
  j["mark"] = name(kind);
  j["name"] = kind == MarkKind::step ? Json(nullptr) : Json(field_text(head.mark.name));
  j["value"] = kind == MarkKind::scalar ? json_number(head.mark.value) : Json(nullptr);
  j["number"] = kind == MarkKind::step ? json_or_null(head.mark.number) : Json(nullptr);
  return j;
}

class TextTable {
 public:
  explicit TextTable(bool with_comm) : with_comm_(with_comm) {
    line("comm", "rank", "step", "op", "kind", "func", "dtype", "count", "norm", "max|x|", "nan", "inf", "first-bad",
         "status", "value");
  }

  void print(const FileHeader& header, const Record& record, const AssignedStep& assigned) {
    const RecordHead& head = record.head;
    const std::string comm = hex(header.comm_id), rank = std::to_string(header.rank);
    const std::string step = number_or_dash(assigned.step) + (assigned.extra ? "+" : "");
    if (record.kind() == RecordKind::step) {
      const StepBody& b = head.step_body;
      const std::string first_bad =
          b.first_bad_op == kNone ? "-" : fmt::format("op{}[{}]", b.first_bad_op, number_or_dash(b.first_nonfinite));
      const std::string status =
          b.missed == 0 ? fmt::format("{} ops", b.ops) : fmt::format("{} ops, {} missed", b.ops, b.missed);
      line(comm, rank, step, number_or_dash(b.first_op), "step", "-", "-", std::to_string(b.elements),
           real(norm_of(b.sum_squares)), real(b.max_abs), std::to_string(b.nan_count), std::to_string(b.inf_count),
           first_bad, status, std::isnan(b.scalar_sum) ? "-" : fmt::format("{:.9g}", b.scalar_sum));
      return;
    }
    if (record.kind() == RecordKind::mark) {
      line(comm, rank, step, std::to_string(head.op), "mark", name(static_cast<MarkKind>(head.mark.kind)), "-", "-",
           "-", "-", "-", "-", "-", "-", mark_text(head.mark));
      return;
    }
    const CollectiveBody& b = head.collective;
    const bool measured = head.missed == 0;
    const auto when_measured = [&](const std::string& text) { return has_measures(record) ? text : std::string("-"); };
    const std::string op = head.replay == 0 ? std::to_string(head.op) : fmt::format("{}.{}", head.op, head.replay);
    line(comm, rank, step, op, name(record.kind()), name(static_cast<Function>(b.function)),
         name(static_cast<Datatype>(b.datatype)), std::to_string(b.count), when_measured(real(norm_of(b.sum_squares))),
         when_measured(real(b.max_abs)), when_measured(std::to_string(b.nan_count)),
         when_measured(std::to_string(b.inf_count)), when_measured(number_or_dash(b.first_nonfinite)),
         status_name(head.missed), last_column(record, measured ? value_text(record.kind(), b) : "-"));
  }

 private:
  static std::string last_column(const Record& record, const std::string& value) {
    if (!record.has(kFlagSymmetric)) return value;
    return value == "-" ? "symmetric" : value + " symmetric";
  }

  static std::string value_text(RecordKind kind, const CollectiveBody& b) {
    if (kind == RecordKind::scalar) return raw_text(b);
    if (kind != RecordKind::result) return "-";
    return fingerprint_text(b) + (b.raw_count > 0 ? " " + raw_text(b) : "");
  }

  static std::string real(double value) { return fmt::format("{:.6g}", value); }

  template <typename... Text>
  void line(const std::string& comm, const Text&... columns) {
    print_line((with_comm_ ? fmt::format("{:16} ", comm) : std::string()) +
               fmt::format("{:>4} {:>7} {:>8} {:10} {:13} {:6} {:>11} {:>12} {:>12} {:>5} {:>5} {:>11} {:<10} {}",
                           columns...));
  }

  bool with_comm_;
};

Json to_json(const FileHeader& header, const Record& record, const AssignedStep& assigned, bool with_sketch) {
  const RecordHead& head = record.head;
  Json j;
  j["comm"] = hex(header.comm_id);
  j["rank"] = header.rank;
  j["number"] = record.number;
  j["kind"] = name(record.kind());
  j["step"] = json_or_null(assigned.step);
  j["time_ns"] = head.time_ns;
  if (record.kind() == RecordKind::step) {
    const StepBody& b = head.step_body;
    j["ops_per_step"] = head.ops_per_step;
    j["first_op"] = json_or_null(b.first_op);
    j["ops"] = b.ops;
    j["measured"] = b.measured;
    j["missed"] = b.missed;
    j["scalars"] = b.scalars;
    j["elements"] = b.elements;
    j["norm"] = json_number(norm_of(b.sum_squares));
    j["sum_squares"] = json_number(b.sum_squares);
    j["max_abs"] = json_number(b.max_abs);
    j["nan"] = b.nan_count;
    j["inf"] = b.inf_count;
    j["first_bad_op"] = json_or_null(b.first_bad_op);
    j["first_nonfinite"] = json_or_null(b.first_nonfinite);
    j["gpu_start_ns"] = b.gpu_start_ns;
    j["gpu_end_ns"] = b.gpu_end_ns;
    j["last_scalar"] = std::isnan(b.scalar_sum) ? Json(nullptr) : json_number(b.scalar_sum);
  } else if (record.kind() == RecordKind::mark) {
    j.update(mark_json(head));
  } else {
    const CollectiveBody& b = head.collective;
    const bool measured = head.missed == 0;
    const bool result = record.kind() == RecordKind::result;
    const bool has_values = measured && (record.kind() == RecordKind::scalar || (result && b.raw_count > 0));
    const auto if_measured = [&](Json value) { return has_measures(record) ? std::move(value) : Json(nullptr); };
    j["op"] = head.op;
    j["replay"] = head.replay;
    j["step_confirmed"] = record.has(kFlagStepConfirmed);
    const bool placed = assigned.ops_per_step != 0 || record.has(kFlagStepConfirmed);
    j["step_op"] = !placed ? Json(nullptr) : Json(assigned.step_op);
    j["ops_per_step"] = assigned.ops_per_step == 0 ? Json(nullptr) : Json(assigned.ops_per_step);
    j["extra"] = assigned.extra;
    j["captured"] = record.has(kFlagCaptured);
    j["in_place"] = record.has(kFlagInPlace);
    const bool told = (header.features_compatible & kFeatureSymmetric) != 0;
    j["symmetric"] = told ? Json(record.has(kFlagSymmetric)) : Json(nullptr);
    j["function"] = name(static_cast<Function>(b.function));
    j["datatype"] = name(static_cast<Datatype>(b.datatype));
    j["count"] = b.count;
    j["status"] = status_name(head.missed);
    j["norm"] = if_measured(json_number(norm_of(b.sum_squares)));
    j["sum_squares"] = if_measured(json_number(b.sum_squares));
    j["max_abs"] = if_measured(json_number(b.max_abs));
    j["nan"] = if_measured(b.nan_count);
    j["inf"] = if_measured(b.inf_count);
    j["zeros"] = if_measured(record.has(kFlagZerosCounted) ? json_or_null(b.zero_count) : Json(nullptr));
    j["first_nonfinite"] = if_measured(json_or_null(b.first_nonfinite));
    j["values"] = has_values ? raw_values(b) : Json(nullptr);
    j["fingerprint"] = measured && result ? Json(fingerprint_text(b)) : Json(nullptr);
    j["input"] = fmt::format("{:#x}", b.input);
    j["output"] = fmt::format("{:#x}", b.output);
    j["gpu_start_ns"] = b.gpu_start_ns;
    j["gpu_end_ns"] = b.gpu_end_ns;
    j["gate_wait_ns"] = b.gate_wait_ns;
    j["sketch_key"] = record.sketch.empty() ? Json(nullptr) : Json(hex(b.sketch_key));
    j["sketch_valid"] = !record.sketch.empty() && !record.has(kFlagSketchInvalid);
  }
  j["sketch_floats"] = record.sketch.size();
  if (with_sketch) {
    Json values = Json::array();
    for (const float value : record.sketch) values.push_back(json_number(static_cast<double>(value)));
    j["sketch"] = std::move(values);
  }
  return j;
}

class Printer {
 public:
  Printer(const DumpOptions& options, bool several_comms) : options_(options) {
    if (!options.json) table_ = std::make_unique<TextTable>(several_comms);
  }

  void print(const RingReader& ring, const Record& record, const AssignedStep& assigned) {
    if (!wanted(record, assigned)) return;
    if (options_.json)
      print_json(to_json(ring.header(), record, assigned, options_.sketch));
    else
      table_->print(ring.header(), record, assigned);
    if (options_.follow) flush_output();
  }

 private:
  bool wanted(const Record& record, const AssignedStep& assigned) const {
    const RecordKind kind = record.kind();
    if (!record.has_body() && kind != RecordKind::step && kind != RecordKind::result && kind != RecordKind::mark)
      return false;
    if (options_.steps.given && (assigned.step == kNone || !options_.steps.contains(assigned.step))) return false;
    return options_.kinds.empty() ||
           std::find(options_.kinds.begin(), options_.kinds.end(), name(kind)) != options_.kinds.end();
  }

  const DumpOptions& options_;
  std::unique_ptr<TextTable> table_;
};

void say_losses(const RingReader& ring, const RingCursor::Losses& losses) {
  const auto say = [&](std::uint64_t n, const std::string& what) {
    if (n > 0) print_note(fmt::format("{}: {} record(s) {}", ring.name(), n, what));
  };
  say(losses.torn_count, "torn (see gradprobe info)");
  say(losses.corrupt_count, "damaged (see gradprobe info)");
  say(losses.missing, "beyond the end of the truncated file");
}

// Steps need the whole ring first: what confirms a step comes after its first records.
int dump_once(const std::vector<RingReader>& rings, Printer& printer) {
  int code = kExitOk;
  for (const RingReader& ring : rings) {
    RingCursor cursor(ring);
    std::vector<NumberedHead> heads;
    Record record;
    Next next = Next::end;
    while ((next = cursor.next(record)) == Next::record) heads.push_back({record.number, record.head});
    if (next == Next::error) {
      print_note(ring.name() + ": can't read; check the file system");
      code = kExitError;
    }
    const std::vector<AssignedStep> steps = assign_steps(heads);
    std::uint64_t overtaken = 0;
    for (std::size_t i = 0; i < heads.size(); i++) {
      if (ring.read(heads[i].number, record) == ReadStatus::ok)
        printer.print(ring, record, steps[i]);
      else
        overtaken++;
    }
    if (overtaken > 0) print_note(fmt::format("{}: {} record(s) overwritten while reading", ring.name(), overtaken));
    say_losses(ring, cursor.losses());
  }
  return code;
}

// Steps as they were known when the record was written.
AssignedStep recorded_step(const RecordHead& head) {
  return {head.step, head.step_op, head.ops_per_step, (head.flags & kFlagExtraOp) != 0};
}

int dump_following(const std::vector<RingReader>& rings, Printer& printer) {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  std::vector<RingCursor> cursors;
  for (const RingReader& ring : rings) cursors.emplace_back(ring);
  std::vector<bool> done(rings.size(), false);
  Record record;
  while (interrupted == 0) {
    bool all_done = true, progress = false;
    for (std::size_t i = 0; i < rings.size(); i++) {
      if (done[i]) continue;
      // The writer's end is looked at before its last records, or some could be left behind.
      const LiveCounters counters = rings[i].counters();
      const Writer writer = writer_of(rings[i], counters);
      const bool last_round = !is_running(writer) && writer != Writer::stalled;
      const std::uint64_t lost_before = cursors[i].losses().overwritten;
      Next next = Next::end;
      while (interrupted == 0 && (next = cursors[i].next(record)) == Next::record) {
        printer.print(rings[i], record, recorded_step(record.head));
        progress = true;
      }
      const std::uint64_t lost = cursors[i].losses().overwritten - lost_before;
      if (lost > 0)
        print_note(fmt::format("{}: {} record(s) overwritten before they were read", rings[i].name(), lost));
      if (next == Next::error) print_note(rings[i].name() + ": can't read; check the file system");
      done[i] = last_round || next == Next::error;
      if (!done[i]) {
        all_done = false;
        continue;
      }
      if (writer == Writer::unseen) {
        print_note(fmt::format("{}: {}, and its process can't be seen from here: not followed any longer",
                               rings[i].name(), heartbeat_in_words(counters)));
      }
      say_losses(rings[i], cursors[i].losses());
    }
    if (all_done) break;
    if (!progress) std::this_thread::sleep_for(kPollInterval);
  }
  return kExitOk;
}

}  // namespace

int dump(const DumpOptions& options) {
  RingFiles found = open_rings(options.path);
  if (!found.error.empty()) {
    print_note(found.error);
    return kExitError;
  }
  for (const std::string& note : found.notes) print_note(note);
  std::vector<RingReader> rings;
  for (RingReader& ring : found.readers) {
    const bool wanted = options.ranks.empty() || std::find(options.ranks.begin(), options.ranks.end(),
                                                           ring.header().rank) != options.ranks.end();
    if (wanted) rings.push_back(std::move(ring));
  }
  if (rings.empty()) {
    print_note(options.path + ": no ring of the rank(s) asked for; see gradprobe info for what is there");
    return kExitError;
  }
  const bool several_comms = std::any_of(rings.begin(), rings.end(), [&](const RingReader& ring) {
    return ring.header().comm_id != rings.front().header().comm_id;
  });
  Printer printer(options, several_comms);
  return options.follow ? dump_following(rings, printer) : dump_once(rings, printer);
}

}  // namespace gradprobe::tool
