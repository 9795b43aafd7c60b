// Compares ring files with ledgers: every call must have the records that are due and no others, and each must say what
// the ledger says.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ledger.hpp"
#include "missed_table.hpp"
#include "rings.hpp"

namespace gradprobe::real {

// What is printed of a mode.
struct ModeCounts {
  std::uint64_t calls = 0, inputs = 0, results = 0, without_record = 0;
  std::map<std::string, std::uint64_t> missed;  // by reason
  std::uint64_t faults = 0;
};

class Comparison {
 public:
  explicit Comparison(const MissedTable* missed) : missed_(*missed) {}

  void compare(const std::vector<Ledger>& ledgers, const std::string& folder);

  const std::map<std::string, ModeCounts>& modes() const { return modes_; }
  const std::vector<std::string>& modes_in_order() const { return order_; }
  // One line each.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Key {
    std::string comm;
    CallId id;
    auto operator<=>(const Key&) const = default;
  };
  void compare_comm(const LedgerComm& comm, const std::vector<LedgerCall>& calls, const Ring& ring);
  void compare_call(const LedgerCall& call, const Ring& ring);
  void compare_record(const LedgerCall& call, const Ring& ring, const Record& record, bool result);
  void compare_values(const LedgerCall& call, const Record& record, bool result);
  ModeCounts& counts_of(const std::string& mode);
  void compare_across_ranks(const std::vector<Ledger>& ledgers);
  bool input_due(const LedgerCall& call, const Ring& ring) const;
  static bool result_due(const LedgerCall& call);
  void fault(const std::string& mode, const std::string& what);

  const MissedTable& missed_;
  std::map<std::string, ModeCounts> modes_;
  std::vector<std::string> order_, faults_;
  std::string rank_;                                    // that is being compared, for messages
  std::map<Key, std::set<std::uint64_t>> keys_;         // of sketches, over the ranks
  std::map<std::string, std::set<std::uint64_t>> ids_;  // of communicators
};

}  // namespace gradprobe::real
