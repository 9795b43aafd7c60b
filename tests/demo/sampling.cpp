#include "sampling.hpp"

#include <numeric>
#include <random>
#include <utility>

namespace gradprobe::demo {
namespace {

// A seed for each purpose and rank; the same on every machine.
std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t purpose, std::uint64_t rank) {
  std::seed_seq sequence{seed & 0xffffffff, seed >> 32, purpose, rank};
  std::uint32_t words[2];
  sequence.generate(words, words + 2);
  return std::uint64_t{words[1]} << 32 | words[0];
}

}  // namespace

std::vector<int> image_order(const Options& options, int rank, int images) {
  const auto source = static_cast<std::uint64_t>(options.setting == Setting::same ? 0 : rank);
  std::mt19937_64 random(derived_seed(options.seed, 1, source));
  std::vector<int> epoch(static_cast<std::size_t>(images));
  std::iota(epoch.begin(), epoch.end(), 0);
  std::vector<int> order;
  const auto wanted = static_cast<std::size_t>(options.steps) * static_cast<std::size_t>(options.batch);
  while (order.size() < wanted) {
    // Not std::shuffle: its draws differ between standard libraries. The modulo's bias is below 2^-53 here.
    for (std::size_t i = epoch.size() - 1; i > 0; --i) std::swap(epoch[i], epoch[random() % (i + 1)]);
    const auto whole = epoch.size() / static_cast<std::size_t>(options.batch) * static_cast<std::size_t>(options.batch);
    order.insert(order.end(), epoch.begin(), epoch.begin() + static_cast<std::ptrdiff_t>(whole));
  }
  order.resize(wanted);
  return order;
}

std::uint64_t dropout_key(const Options& options, int rank, int step) {
  const auto source = static_cast<std::uint64_t>(options.setting == Setting::own_seeds ? rank : 0);
  return derived_seed(options.seed + (static_cast<std::uint64_t>(step) << 32), 2, source);
}

}  // namespace gradprobe::demo
