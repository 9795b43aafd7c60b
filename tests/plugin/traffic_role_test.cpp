// Gradients or activations: sequences of calls as training frameworks make them.
#include "traffic_role.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gradprobe {
namespace {

struct Call {
  Function function;
  std::uint64_t count;
};
constexpr Function kAllReduce = Function::all_reduce, kGather = Function::all_gather,
                   kScatter = Function::reduce_scatter;
constexpr std::uint64_t kActivations = 4096 * 4096;

// How many of the large reductions of `rounds` times the calls are taken.
struct Outcome {
  int taken = 0, left = 0;
  Role role = Role::undecided;
};
Outcome play(const std::vector<Call>& calls, int rounds, bool one_of_several_nodes, bool has_siblings) {
  TrafficRole traffic(one_of_several_nodes);
  Outcome o;
  for (int i = 0; i < rounds; i++)
    for (const Call& c : calls) {
      const bool takes = traffic.takes(c.function, Datatype::bf16, c.count, has_siblings);
      if (c.count < TrafficRole::kLarge) {
        EXPECT_TRUE(takes);
      }
      if (c.function == kGather || c.count < TrafficRole::kLarge) continue;
      (takes ? o.taken : o.left)++;
    }
  o.role = traffic.role();
  return o;
}

std::vector<Call> repeat(const std::vector<Call>& calls, int times) {
  std::vector<Call> all;
  for (int i = 0; i < times; i++) all.insert(all.end(), calls.begin(), calls.end());
  return all;
}

std::vector<Call> operator+(std::vector<Call> a, const std::vector<Call>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Buckets of a data-parallel model, the first and the last of another size, and the loss.
const std::vector<Call> kDdp = {{kAllReduce, 262'144},   {kAllReduce, 6'553'600}, {kAllReduce, 6'815'744},
                                {kAllReduce, 7'340'032}, {kAllReduce, 1'000'000}, {kAllReduce, 1}};
// Layers gathered in the forward pass, gathered again and scattered in the backward pass.
std::vector<Call> fsdp(int layers) {
  return repeat({{kGather, 3'000'000}}, layers) + repeat({{kGather, 3'000'000}, {kScatter, 3'000'000}}, layers);
}
// Megatron's tensor parallelism: two all-reduces a layer in each direction.
std::vector<Call> tensor_parallel(int layers) {
  return repeat({{kAllReduce, kActivations}}, 4 * layers) + std::vector<Call>{{kAllReduce, 4096}};
}
// With sequence parallelism: gather and scatter in turn forwards, one gather more backwards.
std::vector<Call> sequence_parallel(int layers) {
  return repeat({{kGather, kActivations}, {kScatter, kActivations}}, 2 * layers) +
         repeat({{kGather, kActivations}, {kGather, kActivations}, {kScatter, kActivations}}, 2 * layers);
}

TEST(TrafficRole, DataParallelIsTakenEverywhere) {
  for (const bool inside : {false, true})
    for (const bool siblings : {false, true}) {
      const Outcome o = play(kDdp, 50, inside, siblings);
      EXPECT_NE(o.role, Role::activations);
      EXPECT_LE(o.left, inside ? 3 : 0);  // until it can be told
    }
}

TEST(TrafficRole, OneBucketIsTakenUnlessItsNodeIsOneOfSeveral) {
  EXPECT_EQ(play({{kAllReduce, 1'000'000}, {kAllReduce, 1}}, 500, false, true).left, 0);
}

TEST(TrafficRole, ShardedIsTakenFromTheFirstScatterOn) {
  for (const int layers : {3, 32})
    for (const bool siblings : {false, true}) {
      const Outcome o = play(fsdp(layers), 20, siblings, siblings);
      EXPECT_EQ(o.left, 0);
      EXPECT_EQ(o.role, Role::gradients);
    }
  // Optimizer states only are sharded: all gradients are scattered, then all parameters gathered.
  EXPECT_EQ(play(repeat({{kScatter, 5'000'000}}, 5) + repeat({{kGather, 5'000'000}}, 5), 20, true, true).left, 0);
  // A single sharded unit can't be told from activations; alone in its process it is.
  EXPECT_EQ(play(fsdp(1), 500, false, false).left, 0);
}

TEST(TrafficRole, SequenceParallelIsLeftOutSoon) {
  const Outcome o = play(sequence_parallel(32), 20, false, true);
  EXPECT_EQ(o.role, Role::activations);
  EXPECT_LE(o.taken, static_cast<int>(TrafficRole::kWindow) / 2);
  EXPECT_GT(o.left, 2000);
}

TEST(TrafficRole, TensorParallelWithinANodeOfSeveralIsNeverTaken) {
  const Outcome o = play(tensor_parallel(24), 20, true, true);
  EXPECT_EQ(o.taken, 0);
  EXPECT_EQ(o.role, Role::activations);
}

TEST(TrafficRole, GathersOfEvaluationDecideNothing) {
  EXPECT_EQ(play(repeat({{kGather, 100'000}, {kAllReduce, 2'000'000}}, 100), 2, false, true).left, 0);
}

TEST(RoleOfName, Words) {
  for (const char* name : {"DATA_PARALLEL_GROUP", "dp", "mesh_dp_shard", "fsdp", "EXPERT_DATA_PARALLEL_GROUP",
                           "tensor-and-data-parallel", "dp2"})
    EXPECT_EQ(role_of_name(name), Role::gradients) << name;
  for (const char* name : {"TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp", "tp0", "PIPELINE_MODEL_PARALLEL_GROUP",
                           "CONTEXT_PARALLEL_GROUP", "ep"})
    EXPECT_EQ(role_of_name(name), Role::activations) << name;
  for (const char* name : {"", "default_pg", "world", "undefined", "output", "0", "http", "EMBEDDING_GROUP"})
    EXPECT_EQ(role_of_name(name), Role::undecided) << name;
}

}  // namespace
}  // namespace gradprobe
