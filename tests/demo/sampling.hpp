// Which images a rank sees and which dropout masks it draws: all that differs between the settings.
#pragma once

#include <cstdint>
#include <vector>

#include "options.hpp"

namespace gradprobe::demo {

// The images of `steps` batches, by number: each epoch a new permutation of all `images`, an incomplete last batch
// left out. Depends on the rank except in setting s1-1.
std::vector<int> image_order(const Options& options, int rank, int images);

// Key of a step's dropout masks. Depends on the rank in setting s1-3 only.
std::uint64_t dropout_key(const Options& options, int rank, int step);

}  // namespace gradprobe::demo
