// Compares the ring files of one run with what its driver wrote down, and prints a line for each mode.
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "comparison.hpp"

namespace gradprobe::real {
namespace {

constexpr std::size_t kMostFaults = 20;  // that are printed

int run(const Setting& setting, const std::string& table, const std::string& ledger_folder, const std::string& rings) {
  const MissedTable missed(table, setting);
  std::vector<Ledger> ledgers;
  for (int r = 0;; r++) {
    const std::string file = ledger_folder + "/rank" + std::to_string(r) + ".ledger";
    if (!std::filesystem::exists(file)) break;
    ledgers.push_back(read_ledger(file));
  }
  Comparison comparison(&missed);
  comparison.compare(ledgers, rings);
  for (const std::string& mode : comparison.modes_in_order()) {
    const ModeCounts& c = comparison.modes().at(mode);
    std::string what;
    for (const auto& [reason, n] : c.missed) what += " " + reason + " " + std::to_string(n);
    if (c.without_record > 0) what += " without record " + std::to_string(c.without_record);
    std::printf("%-8s %-8s %-18s %-25s %4" PRIu64 " calls %4" PRIu64 " inputs %4" PRIu64 " results  missed:%s  %s\n",
                setting.version.c_str(), setting.way.c_str(), setting.bundle.c_str(), mode.c_str(), c.calls, c.inputs,
                c.results, what.empty() ? " none" : what.c_str(), c.faults == 0 ? "ok" : "WRONG");
  }
  std::size_t printed = 0;
  for (const std::string& fault : comparison.faults())
    if (printed++ < kMostFaults) std::printf("  %s\n", fault.c_str());
  if (printed > kMostFaults) std::printf("  and %zu more\n", printed - kMostFaults);
  return comparison.faults().empty() && !ledgers.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gradprobe::real

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr,
                 "usage: real_nccl_check VERSION plugin|preload BUNDLE MISSED_TABLE LEDGER_FOLDER RING_FOLDER\n");
    return 2;
  }
  try {
    return gradprobe::real::run({argv[1], argv[2], argv[3]}, argv[4], argv[5], argv[6]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "real_nccl_check: %s\n", e.what());
    return 1;
  }
}
