// Step detection on the sequences that training frameworks make.
#include <gtest/gtest.h>

#include <random>

#include "training_sequence.hpp"

namespace gradprobe {
namespace {

using test::fraction_right;
using test::TrainingSequence;

// DDP's buckets, in the order of its rebuilt buckets from the second iteration on.
const std::vector<std::uint64_t> kFirstBuckets = {262144, 6553600, 6553600, 4100096, 1000};
const std::vector<std::uint64_t> kBuckets = {1048576, 7340032, 6815744, 2263144};

void ddp_iteration(TrainingSequence& run, bool loss, bool unused_parameters = false) {
  run.all_reduces(run.step() == 0 ? kFirstBuckets : kBuckets);
  // find_unused_parameters: a bitmap with an element for each parameter.
  if (unused_parameters) run.all_reduce(161, Datatype::i32);
  if (loss) run.loss();
  run.end_step();
}

TEST(TrainingSteps, DdpWhoseFirstIterationDiffers) {
  for (const bool unused : {false, true}) {
    for (const bool loss : {false, true}) {
      TrainingSequence run;
      for (int i = 0; i < 100; i++) ddp_iteration(run, loss, unused);
      EXPECT_EQ(fraction_right(run, 0), 1.0) << unused << loss;
    }
  }
}

TEST(TrainingSteps, DdpThatBeginsWithABarrierAndASanityCheck) {
  for (const std::size_t scalars : {0u, 2u, 40u, 200u}) {
    TrainingSequence run;
    run.other(1, 1, Datatype::u8);
    run.other(2, scalars);
    for (int i = 0; i < 100; i++) ddp_iteration(run, true);
    EXPECT_EQ(fraction_right(run, 2), 1.0) << scalars;
  }
}

// Only every m-th backward reduces; the loss is reduced once a step or in every micro-batch.
TEST(TrainingSteps, AccumulationWithNoSync) {
  for (const int micro_batches : {2, 4, 16, 64}) {
    for (const bool loss_each : {false, true}) {
      TrainingSequence run;
      for (int i = 0; i < 60; i++) {
        for (int m = 0; loss_each && m + 1 < micro_batches; m++) run.loss();
        ddp_iteration(run, true);
      }
      EXPECT_EQ(fraction_right(run, 1), 1.0) << micro_batches << loss_each;
    }
  }
}

// What a step calls besides its buckets.
enum class Sign { loss, norm_and_overflow, metrics };
void add(TrainingSequence& run, Sign sign) {
  if (sign == Sign::loss) run.loss();
  if (sign == Sign::norm_and_overflow) {
    run.all_reduce(1, Datatype::f32);
    run.all_reduce(1, Datatype::u8);
  }
  if (sign == Sign::metrics) run.all_reduce(12);
}

// Every micro-batch reduces all buckets. At first micro-batches may pass for steps.
TEST(TrainingSteps, AccumulationInWhichEveryMicroBatchReduces) {
  for (const Sign sign : {Sign::loss, Sign::norm_and_overflow, Sign::metrics}) {
    for (const std::size_t buckets : {1u, 2u, 3u, 5u, 12u}) {
      for (int micro_batches = 2; micro_batches <= 64; micro_batches++) {
        TrainingSequence run;
        for (int i = 0; i < 12; i++) {
          for (int m = 0; m < micro_batches; m++)
            for (std::size_t b = 0; b < buckets; b++) run.all_reduce(1000000 + 4096 * b);
          add(run, sign);
          run.end_step();
        }
        // Short steps need more of them until there are enough ops.
        const std::size_t settled = buckets * static_cast<std::size_t>(micro_batches) < 12 ? 8 : 5;
        ASSERT_EQ(fraction_right(run, settled), 1.0)
            << static_cast<int>(sign) << " " << buckets << " buckets, " << micro_batches << " micro-batches";
      }
    }
  }
}

// Nothing in the sequence tells the micro-batches from steps; GRADPROBE_OPS_PER_STEP does.
TEST(TrainingSteps, AccumulationThatNothingTells) {
  TrainingSequence run;
  for (int i = 0; i < 50; i++) {
    for (int m = 0; m < 4; m++) run.all_reduces(kBuckets);
    run.end_step();
  }
  EXPECT_EQ(fraction_right(run, 10), 0.0);
  EXPECT_EQ(test::steps_found(run), 200u);
  StepDetector set(4 * kBuckets.size());
  EXPECT_EQ(test::accuracy(run, test::number_all(set, run.signatures()), 0).fraction(), 1.0);
}

// Steps grow also over the micro-batches that passed for steps, and what was said of an op stays.
TEST(TrainingSteps, MicroBatchesGiveWayWithoutGoingBack) {
  TrainingSequence run;
  for (int i = 0; i < 12; i++) {
    for (int m = 0; m < 32; m++) run.all_reduces(kBuckets);
    run.loss();
    run.end_step();
  }
  StepDetector detector;
  std::uint64_t step = 0;
  std::uint32_t first_period = 0;
  for (const std::uint64_t signature : run.signatures()) {
    const StepDetector::Position p = detector.feed(signature);
    if (!p.confirmed) continue;
    if (first_period == 0) first_period = p.ops_per_step;
    ASSERT_GE(p.step, step);
    step = p.step;
  }
  EXPECT_EQ(first_period, kBuckets.size());
  EXPECT_EQ(detector.period(), 32 * kBuckets.size() + 1);
}

TEST(TrainingSteps, FsdpWithEqualLayers) {
  for (const std::size_t layers : {12u, 32u, 80u, 126u}) {
    for (const bool root : {false, true}) {
      for (const bool norm : {false, true}) {
        if (!root && !norm) continue;
        TrainingSequence run;
        for (int i = 0; i < 20; i++) {
          for (std::size_t l = 0; l < layers; l++) run.reduce_scatter(25165824);
          if (root) run.reduce_scatter(131072000);
          if (norm) run.all_reduce(1);
          run.end_step();
        }
        ASSERT_EQ(fraction_right(run, 0), 1.0) << layers << root << norm;
      }
    }
  }
}

// More equal layers, or micro-batches of them, than are waited for: they pass for steps until the step has come three
// times.
TEST(TrainingSteps, FsdpWithVeryManyEqualLayers) {
  for (const std::size_t layers : {250u, 504u, 1000u}) {
    TrainingSequence run;
    for (int i = 0; i < 20; i++) {
      for (std::size_t l = 0; l < layers; l++) run.reduce_scatter(25165824);
      run.all_reduce(1);
      run.end_step();
    }
    EXPECT_EQ(fraction_right(run, 4), 1.0) << layers;
  }
}

// 32 equal reduce-scatters and nothing else: where a step ends isn't in the sequence.
TEST(TrainingSteps, FsdpOfEqualLayersAlone) {
  TrainingSequence run;
  for (int i = 0; i < 20; i++) {
    for (int l = 0; l < 32; l++) run.reduce_scatter(25165824);
    run.end_step();
  }
  EXPECT_EQ(fraction_right(run, 5), 0.0);
  StepDetector set(32);
  EXPECT_EQ(test::accuracy(run, test::number_all(set, run.signatures()), 0).fraction(), 1.0);
}

TEST(TrainingSteps, Zero) {
  for (const int stage : {1, 2, 3}) {
    for (const int micro_batches : {1, 2, 8, 16}) {
      TrainingSequence run;
      for (int i = 0; i < 30; i++) {
        for (int m = 0; m < micro_batches; m++) {
          // Stage 1 reduces once a step, 2 and 3 in every micro-batch.
          if (stage == 1 && m + 1 < micro_batches) continue;
          if (stage < 3) {
            for (int b = 0; b < 6; b++) run.reduce_scatter(500000000, Datatype::f16);
            run.reduce_scatter(123456789, Datatype::f16);
          } else {
            for (int l = 0; l < 24; l++) {
              run.reduce_scatter(12582912, Datatype::f16);
              run.reduce_scatter(25165824, Datatype::f16);
            }
          }
        }
        run.all_reduce(1, Datatype::u8);  // overflow in any rank's loss scaling?
        run.all_reduce(1, Datatype::f32);
        run.end_step();
      }
      ASSERT_EQ(fraction_right(run, stage == 1 ? 0 : 4), 1.0) << stage << " " << micro_batches;
    }
  }
}

// Megatron's distributed optimizer: equal buckets and a last one, the loss over the data-parallel group.
TEST(TrainingSteps, MegatronDistributedOptimizer) {
  for (const bool loss : {false, true}) {
    TrainingSequence run;
    for (int i = 0; i < 50; i++) {
      for (int b = 0; b < 40; b++) run.reduce_scatter(40000000, Datatype::f32);
      run.reduce_scatter(17000000, Datatype::f32);
      if (loss) run.all_reduce(2);
      run.end_step();
    }
    EXPECT_EQ(fraction_right(run, 0), 1.0) << loss;
  }
}

TEST(TrainingSteps, LogLinesAndCheckpoints) {
  for (const bool loss : {false, true}) {
    TrainingSequence run;
    for (int i = 0; i < 1000; i++) {
      ddp_iteration(run, loss);
      // Without a scalar in every step, one in every tenth reads as ten micro-batches: that isn't tried here.
      if (i % 10 == 9 && loss) run.other(4);
      if (i % 100 == 99) {
        run.other(1, 2, Datatype::i64);
        run.other(100000);
      }
    }
    EXPECT_EQ(fraction_right(run, 0), 1.0) << loss;
  }
}

TEST(TrainingSteps, EvaluationsInBetween) {
  for (const bool loss : {false, true}) {
    for (const bool like_the_loss : {false, true}) {
      for (std::size_t scalars = 1; scalars <= 300; scalars += scalars < 40 ? 1 : 23) {
        // As few as there may be scalars in a step: without a loss in every step they read as one.
        if (!loss && scalars <= 4) continue;
        TrainingSequence run;
        for (int i = 0; i < 400; i++) {
          ddp_iteration(run, loss);
          if (i % 50 == 49) run.other(like_the_loss ? 1 : 3, scalars);
        }
        ASSERT_EQ(fraction_right(run, 0), 1.0) << loss << like_the_loss << " " << scalars;
      }
    }
  }
}

// Each batch of an evaluation reduces several metrics: what repeats there are no steps.
TEST(TrainingSteps, EvaluationsOfSeveralMetrics) {
  for (const std::uint64_t metrics : {2u, 3u, 5u}) {
    for (const std::size_t batches : {4u, 30u, 200u}) {
      TrainingSequence run;
      for (int i = 0; i < 200; i++) {
        ddp_iteration(run, true);
        for (std::size_t b = 0; i % 50 == 49 && b < batches; b++)
          for (std::uint64_t m = 1; m <= metrics; m++) run.other(m);
      }
      ASSERT_EQ(fraction_right(run, 0), 1.0) << metrics << " " << batches;
      // The steps of the run, and the one that follows the last evaluation.
      ASSERT_EQ(test::steps_found(run), 200u + 1);
    }
  }
}

// The number of an evaluation's batches changes, and it may begin anywhere in a step.
TEST(TrainingSteps, IrregularEvaluations) {
  std::mt19937 random(11);
  TrainingSequence run;
  for (int i = 0; i < 2000; i++) {
    ddp_iteration(run, true);
    if (random() % 50 == 0) run.other(1, 1 + random() % 200);
  }
  EXPECT_EQ(fraction_right(run, 0), 1.0);
}

// Each communicator of a pipeline stage has its own number of collectives in a step.
TEST(TrainingSteps, PipelineStages) {
  for (const std::size_t buckets : {3u, 4u, 7u, 11u}) {
    TrainingSequence data_parallel, embedding, model_parallel;
    for (int i = 0; i < 300; i++) {
      for (std::size_t b = 0; b < buckets; b++) data_parallel.reduce_scatter(1000000 + 1000 * (b / 2));
      data_parallel.end_step();
      embedding.all_reduce(65536000);
      embedding.end_step();
      model_parallel.all_reduce(1, Datatype::u8);
      model_parallel.all_reduce(1, Datatype::f32);
      model_parallel.end_step();
    }
    EXPECT_EQ(fraction_right(data_parallel, 0), 1.0) << buckets;
    EXPECT_EQ(fraction_right(embedding, 0), 1.0);
    EXPECT_EQ(fraction_right(model_parallel, 0), 1.0);
  }
}

// Activations of sequences whose length changes: no period, so no steps.
TEST(TrainingSteps, VariableSequenceLengths) {
  for (const int layers : {4, 12, 40}) {
    for (const bool loss : {false, true}) {
      std::mt19937 random(7);
      TrainingSequence run;
      for (int i = 0; i < 200; i++) {
        const std::uint64_t length = 512 + random() % 1536;
        for (int l = 0; l < 4 * layers; l++) run.all_reduce(4096 * length, Datatype::bf16);
        if (loss) run.loss();
        run.end_step();
      }
      EXPECT_EQ(test::steps_found(run), 0u) << layers << loss;
    }
  }
}

// A bucket whose size changes in every step among others that stay.
TEST(TrainingSteps, OneVariableBucket) {
  std::mt19937 random(8);
  TrainingSequence run;
  for (int i = 0; i < 300; i++) {
    run.all_reduce(1000000);
    run.all_reduce(1000 + random());
    run.all_reduce(2000000);
    run.loss();
    run.end_step();
  }
  EXPECT_EQ(test::steps_found(run), 0u);
}

// Training stops, loads a checkpoint and goes on: first iterations and log lines come again.
TEST(TrainingSteps, Resume) {
  TrainingSequence run;
  for (int part = 0; part < 3; part++) {
    run.other(1, 3);
    run.other(5000, 2);
    run.all_reduces(kFirstBuckets);
    run.loss();
    run.end_step();
    for (int i = 0; i < 100; i++) ddp_iteration(run, true);
  }
  // Steps that resume in the midst of others: the first one of each part may be lost.
  EXPECT_GE(fraction_right(run, 2), 300.0 / 303);
}

// Layers are frozen, or the batch is split otherwise: the steps are another pattern from then on.
TEST(TrainingSteps, AnotherPattern) {
  TrainingSequence run;
  for (int i = 0; i < 100; i++) ddp_iteration(run, true);
  for (int i = 0; i < 100; i++) {
    run.all_reduces({1048576, 7340032});
    run.loss();
    run.end_step();
  }
  EXPECT_GE(fraction_right(run, 0), 0.94);
}

}  // namespace
}  // namespace gradprobe
