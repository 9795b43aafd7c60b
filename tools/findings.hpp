// What stands out in a comparison, in plain words.
#pragma once

#include <string>
#include <vector>

#include "comparison.hpp"

namespace gradprobe::tool {

struct Finding {
  std::string kind;  // "nonfinite", "identical", "same_direction", "missing_rank", "length", "norm_outlier",
                     // "result_mismatch", ...
  std::string text;
  bool notable = true;  // false: about the data's completeness rather than the training
};

// About one communicator, from its rings and the steps that were compared.
std::vector<Finding> find_in(const Communicator& comm, const std::vector<StepComparison>& steps);

// Why no step could be compared between ranks; empty when at least one was. Without a comparison nothing was found, and
// nothing was looked at.
std::string why_not_compared(const Communicator& comm, const std::vector<StepComparison>& steps);

// How many steps had a loss, a norm or a cosine on several ranks.
std::size_t steps_compared(const std::vector<StepComparison>& steps);

// About the folder as a whole.
std::vector<Finding> find_across(const std::vector<Communicator>& communicators);

}  // namespace gradprobe::tool
