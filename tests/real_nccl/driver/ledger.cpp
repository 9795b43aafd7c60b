#include "ledger.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace gradprobe::real {
namespace {

using Fields = std::map<std::string, std::string>;

// Exact, unlike decimal digits.
std::string exact(double x) {
  char text[64];
  std::snprintf(text, sizeof text, "%a", x);
  return text;
}

void append(std::string* line, const std::string& name, const std::string& value) {
  *line += " " + name + "=" + value;
}
template <typename Number>
void append(std::string* line, const std::string& name, Number value) {
  append(line, name, std::to_string(value));
}

void append(std::string* line, const std::string& prefix, const BufferFacts& facts) {
  append(line, prefix + "count", facts.count);
  append(line, prefix + "sum", exact(facts.sum_squares));
  append(line, prefix + "max", exact(facts.max_abs));
  append(line, prefix + "nan", facts.nans);
  append(line, prefix + "inf", facts.infs);
  append(line, prefix + "first", facts.first_nonfinite);
  append(line, prefix + "fingerprint", facts.fingerprint);
  append(line, prefix + "raw", facts.raw);
}

std::uint64_t number(const Fields& fields, const std::string& name) {
  return std::strtoull(fields.at(name).c_str(), nullptr, 10);
}
int small(const Fields& fields, const std::string& name) {
  return std::atoi(fields.at(name).c_str());
}

BufferFacts facts(const Fields& fields, const std::string& prefix) {
  BufferFacts f;
  f.count = number(fields, prefix + "count");
  f.sum_squares = std::strtod(fields.at(prefix + "sum").c_str(), nullptr);
  f.max_abs = std::strtod(fields.at(prefix + "max").c_str(), nullptr);
  f.nans = number(fields, prefix + "nan");
  f.infs = number(fields, prefix + "inf");
  f.first_nonfinite = number(fields, prefix + "first");
  f.fingerprint = number(fields, prefix + "fingerprint");
  f.raw = fields.at(prefix + "raw");
  return f;
}

LedgerCall parse_call(const Fields& fields) {
  LedgerCall call;
  call.mode = fields.at("mode");
  call.comm = fields.at("comm");
  call.function = fields.at("function");
  call.datatype = fields.at("datatype");
  call.op = number(fields, "op");
  call.replay = static_cast<std::uint32_t>(number(fields, "replay"));
  call.count = number(fields, "count");
  call.root = small(fields, "root");
  call.stream = small(fields, "stream");
  call.in_place = small(fields, "in_place") != 0;
  call.captured = small(fields, "captured") != 0;
  call.has_output = static_cast<Output>(small(fields, "has_output"));
  call.input = facts(fields, "in_");
  call.output = facts(fields, "out_");
  return call;
}

}  // namespace

LedgerWriter::LedgerWriter(const std::string& file) : out_(file) {
  if (!out_) throw std::runtime_error(file + ": can't be written");
}

void LedgerWriter::write(const LedgerComm& comm) {
  out_ << "comm name=" << comm.name << " rank=" << comm.rank << " ranks=" << comm.ranks << std::endl;
}

void LedgerWriter::write(const LedgerCall& call) {
  std::string line = "call";
  append(&line, "mode", call.mode);
  append(&line, "comm", call.comm);
  append(&line, "op", call.op);
  append(&line, "replay", call.replay);
  append(&line, "function", call.function);
  append(&line, "datatype", call.datatype);
  append(&line, "count", call.count);
  append(&line, "root", call.root);
  append(&line, "stream", call.stream);
  append(&line, "in_place", int{call.in_place});
  append(&line, "captured", int{call.captured});
  append(&line, "has_output", static_cast<int>(call.has_output));
  append(&line, "in_", call.input);
  append(&line, "out_", call.output);
  out_ << line << std::endl;
}

Ledger read_ledger(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + ": can't be read");
  Ledger ledger;
  std::string line;
  for (int number_of_line = 1; std::getline(in, line); number_of_line++) {
    std::istringstream words(line);
    std::string kind, word;
    words >> kind;
    Fields fields;
    while (words >> word) fields[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    try {
      if (kind == "comm")
        ledger.comms.push_back({fields.at("name"), small(fields, "rank"), small(fields, "ranks")});
      else
        ledger.calls.push_back(parse_call(fields));
    } catch (const std::out_of_range&) {
      throw std::runtime_error(file + ":" + std::to_string(number_of_line) + ": a field is missing: the rank died?");
    }
  }
  return ledger;
}

}  // namespace gradprobe::real
