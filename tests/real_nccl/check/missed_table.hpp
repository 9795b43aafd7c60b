// missed.txt: what gradprobe can't measure, by version of NCCL, with the reason that the record must give.
#pragma once

#include <string>
#include <vector>

#include "ledger.hpp"

namespace gradprobe::real {

// Which run is checked.
struct Setting {
  std::string version;  // 2.32.3
  std::string way;      // plugin or preload
  std::string bundle;   // as cases.txt names it
};

enum class Duty { measured, missed, either };

struct Expectation {
  Duty duty = Duty::measured;
  std::string reason;  // the reason's name in ring files, or no_record or no_ring
};

class MissedTable {
 public:
  // Throws std::runtime_error with file, line and what is wrong.
  MissedTable(const std::string& file, const Setting& setting);
  // Of the call's input or result.
  Expectation expected(const LedgerCall& call, bool result) const;

 private:
  struct Row {
    bool must = false, input = false, result = false;
    std::string modes, functions, reason;
  };
  std::vector<Row> rows_;
};

}  // namespace gradprobe::real
