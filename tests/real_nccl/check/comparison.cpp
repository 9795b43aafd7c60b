#include "comparison.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace gradprobe::real {
namespace {

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* text, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof line, text, arguments);
  va_end(arguments);
  return line;
}

std::string describe(const LedgerCall& call) {
  std::string text = format("%s: communicator %s op %" PRIu64, call.mode.c_str(), call.comm.c_str(), call.op);
  if (call.captured) text += format(" replay %u", call.replay);
  return text + format(" (%s %s of %" PRIu64 ")", call.function.c_str(), call.datatype.c_str(), call.count);
}

bool reduces(const LedgerCall& call) {
  return call.function == "AllReduce" || call.function == "ReduceScatter" || call.function == "Reduce";
}

// Kept as the bytes that they are.
bool is_tiny(const LedgerCall& call) {
  return call.count <= kMaxRawElements && call.function != "ReduceScatter";
}

bool is_floating(const LedgerCall& call) {
  return call.datatype[0] == 'f' || call.datatype == "bf16";
}

std::string hexadecimal(const unsigned char* bytes, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; i++) text += format("%02x", bytes[i]);
  return text;
}

// The kernels add chains of 16 squares in float32 before they go on in float64; f64 in float64 alone.
double tolerance(const LedgerCall& call) {
  return call.datatype == "f64" ? 1e-13 : 16 * 0x1p-24;
}

}  // namespace

void Comparison::fault(const std::string& mode, const std::string& what) {
  modes_[mode].faults++;
  faults_.push_back(rank_ + what);
}

bool Comparison::input_due(const LedgerCall& call, const Ring& ring) const {
  if (reduces(call)) return true;
  if (!is_tiny(call)) return false;
  if (call.function != "Broadcast") return true;
  // Its input is valid on the root alone. From profiler struct 6 on its launch isn't reported, so it is only counted.
  return ring.header.profiler_abi < 6 && !call.captured && call.root == static_cast<int>(ring.header.rank);
}

bool Comparison::result_due(const LedgerCall& call) {
  return reduces(call) && (is_floating(call) || is_tiny(call)) && call.has_output != Output::none;
}

void Comparison::compare_values(const LedgerCall& call, const Record& record, bool result) {
  const CollectiveBody& body = record.head.collective;
  const BufferFacts& facts = result ? call.output : call.input;
  const std::string what = describe(call) + (result ? ": result" : ": input");
  if (result && body.fingerprint != facts.fingerprint)
    fault(call.mode,
          what + format(" has fingerprint %016" PRIx64 ", not %016" PRIx64, body.fingerprint, facts.fingerprint));
  if (!facts.raw.empty() && is_tiny(call)) {
    const std::string raw = hexadecimal(body.raw, std::min<std::size_t>(facts.raw.size() / 2, kRawBytes));
    if (body.raw_count != facts.count || raw != facts.raw)
      fault(call.mode, what + " has the bytes " + raw + ", not " + facts.raw);
  }
  if (!is_floating(call)) return;
  const double off = std::abs(body.sum_squares - facts.sum_squares);
  if (!(off <= tolerance(call) * facts.sum_squares))
    fault(call.mode, what + format(" has norm^2 %.10g, not %.10g", body.sum_squares, facts.sum_squares));
  if (body.max_abs != facts.max_abs)
    fault(call.mode, what + format(" has largest magnitude %.10g, not %.10g", body.max_abs, facts.max_abs));
  if (body.nan_count != facts.nans || body.inf_count != facts.infs || body.first_nonfinite != facts.first_nonfinite)
    fault(call.mode, what + format(" has %" PRIu64 " NaN, %" PRIu64 " Inf, first at %" PRId64 ", not %" PRIu64
                                   ", %" PRIu64 ", %" PRId64,
                                   body.nan_count, body.inf_count, static_cast<std::int64_t>(body.first_nonfinite),
                                   facts.nans, facts.infs, static_cast<std::int64_t>(facts.first_nonfinite)));
}

void Comparison::compare_record(const LedgerCall& call, const Ring& ring, const Record& record, bool result) {
  const CollectiveBody& body = record.head.collective;
  const std::string what = describe(call) + (result ? ": result" : ": input");
  const BufferFacts& facts = result ? call.output : call.input;
  const bool known = !result || call.has_output == Output::known;
  const bool right = name(static_cast<Function>(body.function)) == call.function &&
                     name(static_cast<Datatype>(body.datatype)) == call.datatype &&
                     (!known || body.count == facts.count) && record.has(kFlagCaptured) == call.captured;
  if (!right)
    fault(call.mode,
          what + format(" is recorded as %s %s of %" PRIu64 ", flags %x", name(static_cast<Function>(body.function)),
                        name(static_cast<Datatype>(body.datatype)), body.count, record.head.flags));
  Expectation expected = missed_.expected(call, result);
  if (!is_floating(call) && !is_tiny(call)) expected = {Duty::missed, name(Missed::unsupported_datatype)};
  const auto missed = static_cast<Missed>(record.head.missed);
  if (missed != Missed::none) {
    modes_[call.mode].missed[name(missed)]++;
    if (expected.duty == Duty::measured || expected.reason != name(missed))
      fault(call.mode, what + " is missed: " + name(missed));
    return;
  }
  (result ? modes_[call.mode].results : modes_[call.mode].inputs)++;
  if (expected.duty == Duty::missed) fault(call.mode, what + " is measured, not missed: " + expected.reason);
  // These modes are named after the kernels that NCCL must have chosen, and did where it says so.
  const bool symmetric = call.mode.starts_with("symmetric");
  if ((ring.header.features_compatible & kFeatureSymmetric) != 0 && record.has(kFlagSymmetric) != symmetric)
    fault(call.mode,
          what + (symmetric ? " is not said to be a symmetric kernel's" : " is said to be a symmetric kernel's"));
  if (!known) return;
  compare_values(call, record, result);
  if (!result) keys_[{call.comm, {call.op, call.replay}}].insert(body.sketch_key);
}

void Comparison::compare_call(const LedgerCall& call, const Ring& ring) {
  ModeCounts& counts = counts_of(call.mode);
  counts.calls++;
  for (const bool result : {false, true}) {
    const auto& records = result ? ring.results : ring.inputs;
    const auto [from, to] = records.equal_range({call.op, call.replay});
    const auto n = static_cast<std::size_t>(std::distance(from, to));
    const bool due = result ? result_due(call) : input_due(call, ring);
    const Expectation expected = missed_.expected(call, result);
    const bool may_lack = expected.reason == "no_record";
    if (due && n == 0 && may_lack) counts.without_record++;
    if (n > (due ? 1 : 0) || (due && n == 0 && !may_lack))
      fault(call.mode, describe(call) + format(": %zu records of its %s", n, result ? "result" : "input"));
    if (!due || n != 1) continue;
    compare_record(call, ring, from->second, result);
  }
}

void Comparison::compare_comm(const LedgerComm& comm, const std::vector<LedgerCall>& calls, const Ring& ring) {
  const std::string mode = calls.empty() ? "start" : calls.front().mode;
  ids_[comm.name].insert(ring.header.comm_id);
  if (static_cast<int>(ring.header.nranks) != comm.ranks)
    fault(mode, comm.name + format(": the ring says %u ranks, not %d", ring.header.nranks, comm.ranks));
  std::set<CallId> called;
  for (const LedgerCall& call : calls) {
    called.insert({call.op, call.replay});
    compare_call(call, ring);
  }
  for (const auto* records : {&ring.inputs, &ring.results})
    for (const auto& [id, record] : *records)
      if (!called.contains(id))
        fault(mode, comm.name +
                        format(": a record of op %" PRIu64 " replay %u, which was never called", id.first, id.second));
  if (!std::is_sorted(ring.direct_order.begin(), ring.direct_order.end()))
    fault(mode, comm.name + ": records are not in the order of the calls");
}

ModeCounts& Comparison::counts_of(const std::string& mode) {
  if (std::find(order_.begin(), order_.end(), mode) == order_.end()) order_.push_back(mode);
  return modes_[mode];
}

void Comparison::compare_across_ranks(const std::vector<Ledger>& ledgers) {
  rank_.clear();
  for (const auto& [key, values] : keys_)
    if (values.size() != 1)
      fault("all", format("%s op %" PRIu64 " replay %u: the ranks' sketch keys differ", key.comm.c_str(), key.id.first,
                          key.id.second));
  std::set<std::uint64_t> all;
  for (const auto& [comm, values] : ids_) {
    if (values.size() != 1) fault("all", comm + ": the ranks disagree on the communicator's id");
    all.insert(values.begin(), values.end());
  }
  if (all.size() != ids_.size()) fault("all", "communicators share an id");
  // Results of an all-reduce are equal on all ranks: so must be what the driver saw.
  std::map<Key, std::set<std::uint64_t>> results;
  for (const Ledger& ledger : ledgers)
    for (const LedgerCall& call : ledger.calls)
      if (call.function == "AllReduce" && call.has_output == Output::known)
        results[{call.comm, {call.op, call.replay}}].insert(call.output.fingerprint);
  for (const auto& [key, values] : results)
    if (values.size() != 1)
      fault("all",
            format("%s op %" PRIu64 ": NCCL left different results on the ranks", key.comm.c_str(), key.id.first));
}

void Comparison::compare(const std::vector<Ledger>& ledgers, const std::string& folder) {
  const auto rings = read_rings(folder);
  std::size_t wanted = 0;
  for (std::size_t r = 0; r < ledgers.size(); r++) {
    rank_ = format("rank %zu: ", r);
    for (const LedgerComm& comm : ledgers[r].comms) {
      std::vector<LedgerCall> calls;
      for (const LedgerCall& call : ledgers[r].calls)
        if (call.comm == comm.name) calls.push_back(call);
      const auto n = rings.count({comm.name, comm.rank});
      wanted += n;
      if (n == 1)
        compare_comm(comm, calls, rings.find({comm.name, comm.rank})->second);
      else
        fault(calls.empty() ? "start" : calls.front().mode,
              format("%zu ring files of communicator %s rank %d", n, comm.name.c_str(), comm.rank));
    }
  }
  compare_across_ranks(ledgers);
  if (rings.size() != wanted)
    fault("all", format("%zu ring files of communicators that nobody made", rings.size() - wanted));
}

}  // namespace gradprobe::real
