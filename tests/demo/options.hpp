// The command line of gradprobe-demo-train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradprobe::demo {

// The three settings of arXiv 2602.14462: what differs between the ranks.
enum class Setting {
  same,         // s1-1: nothing; every rank sees the same batches and dropout masks
  own_shuffle,  // s1-2: the order of the images
  own_seeds,    // s1-3: the order of the images and the dropout masks
};

enum class BucketType { f32, bf16, f16 };

struct Fault {
  int rank = -1;  // -1: none
  int step = 0;
};

inline constexpr int kMaxRanks = 64;

struct Options {
  Setting setting = Setting::own_seeds;
  BucketType type = BucketType::f32;
  int ranks = 8;  // 0: one for each device, at most 8
  int steps = 60;
  int batch = 64;
  std::uint64_t seed = 1;
  float learning_rate = 0.02f;
  float dropout = 0.2f;
  Fault nan;
  Fault kill;
  std::string data;
  std::string weights;  // file for the trained weights, empty: none
  std::string truth;    // folder for what the host computes itself, empty: none
  bool truth_buckets = false;
  int timeout_s = 60;
  bool quiet = false;
};

const char* name(Setting setting);

// Fills `options` and returns nothing, or says what is wrong or asked for (--help) and returns the exit status.
std::optional<int> parse_options(int argc, char** argv, Options& options);

}  // namespace gradprobe::demo
