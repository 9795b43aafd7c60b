#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "commands.hpp"
#include "output.hpp"
#include "ring_files.hpp"
#include "words.hpp"

namespace gradprobe::tool {
namespace {

std::string when(std::uint64_t ns) {
  if (ns == 0) return "never";
  const auto seconds = static_cast<std::time_t>(ns / 1'000'000'000);
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return fmt::format("{} ns", ns);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} UTC", utc, ns / 1'000'000 % 1000);
}

std::string state_in_words(Writer writer, const FileHeader& header, const LiveCounters& live) {
  switch (writer) {
    case Writer::finalized:
      return "finalized: the communicator was destroyed in order";
    case Writer::exited:
      return fmt::format("ended in order: process {} exited without destroying the communicator", header.pid);
    case Writer::alive:
      return fmt::format("running: process {} is alive", header.pid);
    case Writer::stalled:
      return fmt::format(
          "process {} exists and has stopped updating the ring (stopped, hung, or another process got its "
          "number)",
          header.pid);
    case Writer::dead:
      return fmt::format("died without finalizing: process {} is gone", header.pid);
    case Writer::alive_elsewhere:
      return "alive elsewhere, " + heartbeat_in_words(live);
    case Writer::unseen:
      return fmt::format(
          "unknown: {}; its process can't be seen from here (another host or container, or before a reboot)",
          heartbeat_in_words(live));
  }
  return {};
}

std::string uuid_text(const unsigned char (&uuid)[16]) {
  std::string text;
  for (std::size_t i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

std::string list(const std::vector<std::uint64_t>& numbers, std::uint64_t count) {
  if (count == 0) return "none";
  std::string text = fmt::format("{} (number", count);
  for (const std::uint64_t number : numbers) text += fmt::format(" {}", number);
  return text + (count > numbers.size() ? " ...)" : ")");
}

void field(std::string_view title, std::string_view text) {
  print_line(fmt::format("  {:<14} {}", title, text));
}

void print_header(const FileHeader& h) {
  const std::string comm_name = printable(field_text(h.comm_name));
  field("communicator", hex(h.comm_id) + (comm_name.empty() ? "" : " \"" + comm_name + "\"") +
                            (h.comm_ordinal > 0 ? fmt::format(", number {} of this process", h.comm_ordinal) : ""));
  field("rank", fmt::format("{} of {}", h.rank, h.nranks) +
                    (h.nnodes > 0 ? fmt::format(", {} node(s)", h.nnodes) : std::string()));
  field("process",
        fmt::format("{} on {}, job \"{}\"", h.pid, printable(field_text(h.host)), printable(field_text(h.job))));
  const bool has_device =
      std::any_of(std::begin(h.device_uuid), std::end(h.device_uuid), [](auto b) { return b != 0; });
  field("device", has_device ? fmt::format("{} ({})", printable(field_text(h.device_name)), uuid_text(h.device_uuid))
                             : std::string("none"));
  field("writer",
        fmt::format("gradprobe {}, ", printable(field_text(h.plugin_version))) +
            (h.profiler_abi == 0 ? "preload library" : fmt::format("NCCL profiler interface v{}", h.profiler_abi)));
  field("started", when(h.start_time_ns));
  field("format", fmt::format("version {}, {} records of {} bytes, sketch of {} floats, seed {:#x}", h.version,
                              h.capacity, h.record_bytes, h.sketch_floats, h.sketch_seed));
  field("step length", h.ops_per_step == 0 ? std::string("detected") : fmt::format("{} ops (set)", h.ops_per_step));
  std::string config = field_text(h.config);
  std::replace(config.begin(), config.end(), '\n', ' ');
  while (!config.empty() && config.back() == ' ') config.pop_back();
  field("settings", config.empty() ? "not recorded" : printable(config));
}

void print_counters(const RingReader& ring, const LiveCounters& live, Writer writer) {
  field("state", state_in_words(writer, ring.header(), live));
  field("heartbeat", when(live.heartbeat_ns));
  field("collectives", fmt::format("{} announced by NCCL, {} inputs measured, gates waited {:.3f} ms in all",
                                   live.announced, live.measured, static_cast<double>(live.gated_ns) / 1e6));
  const bool keeps_results = (ring.header().features_compatible & kFeatureResults) != 0;
  field("results", keeps_results ? fmt::format("{} measured", live.results) : std::string("not counted"));
  if ((ring.header().features_compatible & kFeatureMarks) != 0 && live.marks_lost > 0)
    field("marks", fmt::format("{} lost: more than the queue holds came before their collectives were recorded",
                               live.marks_lost));
  bool any = false;
  for (std::uint16_t reason = 1; reason < 32; reason++) {
    if (live.missed[reason] == 0) continue;
    any = true;
    const auto missed = static_cast<Missed>(reason);
    field("not measured", fmt::format("{}: {} ({})", live.missed[reason],
                                      missed_in_words(missed, ring.header().profiler_abi), name(missed)));
  }
  if (!any) field("not measured", "none");
}

bool print_integrity(const RingReader& ring, Writer writer) {
  RingCursor cursor(ring);
  Record record;
  std::uint64_t readable = 0, by_kind[6] = {}, unknown = 0;
  Next next = Next::end;
  while ((next = cursor.next(record)) == Next::record) {
    readable++;
    if (record.head.kind >= 1 && record.head.kind <= 5)
      by_kind[record.head.kind]++;
    else
      unknown++;
  }
  const RingCursor::Losses& lost = cursor.losses();
  field("written", fmt::format("{} record(s), {} overwritten by later ones", cursor.next_number(), lost.overwritten));
  field("readable", fmt::format("{}: {} collective, {} step, {} scalar, {} result, {} mark{}", readable, by_kind[1],
                                by_kind[2], by_kind[3], by_kind[4], by_kind[5],
                                unknown > 0 ? fmt::format(", {} of unknown kind", unknown) : ""));
  std::vector<std::uint64_t> torn = lost.torn;
  std::uint64_t torn_count = lost.torn_count;
  const bool writing = is_running(writer) || writer == Writer::stalled;
  if (const auto unfinished = ring.unfinished(); unfinished && !writing) {
    torn.push_back(*unfinished);
    torn_count++;
  }
  field("torn", list(torn, torn_count) + (torn_count == lost.torn_count ? ""
                                          : writer == Writer::dead      ? ": the writer was killed in it"
                                                                        : ": the writer did not finish it"));
  field("damaged", list(lost.corrupt, lost.corrupt_count));
  if (ring.actual_bytes() < ring.expected_bytes()) {
    field("truncated", fmt::format("the file has {} of {} bytes; {} record(s) lost with the rest", ring.actual_bytes(),
                                   ring.expected_bytes(), lost.missing));
  }
  if (const std::uint64_t counter = ring.counters().written; counter > cursor.next_number()) {
    field("counter", fmt::format("damaged (says {}); the records' own stamps were used", counter));
  }
  return next != Next::error;
}

}  // namespace

int info(const std::string& path) {
  const RingFiles found = open_rings(path);
  if (!found.error.empty()) {
    print_note(found.error);
    return kExitError;
  }
  int code = kExitOk;
  for (const RingReader& ring : found.readers) {
    const LiveCounters live = ring.counters();
    const Writer writer = writer_of(ring, live);
    print_line(printable(ring.name()));
    print_header(ring.header());
    print_counters(ring, live, writer);
    if (!print_integrity(ring, writer)) {
      print_note(ring.name() + ": can't read; check the file system");
      code = kExitError;
    }
  }
  for (const std::string& note : found.notes) print_note(note);
  return code;
}

}  // namespace gradprobe::tool
