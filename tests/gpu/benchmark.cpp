#include "benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "checks.hpp"
#include "module.hpp"
#include "tests/kernels/formats.hpp"

namespace gradprobe::bench {
namespace {

using test::check;

constexpr std::uint64_t kMargin = 512;  // behind the pool's last part: unaligned ones reach beyond it
constexpr std::uint64_t kOtherMemory = 256ull << 20;
constexpr std::uint32_t kGroupBuckets = 64;
constexpr std::uint64_t kNanBytes = 25ull << 20;
// No multiple of anything that the kernels divide a buffer into.
constexpr std::uint64_t kPieceBytes = 1021 * 256;
constexpr std::uint64_t kHostSketchBytes = 1ull << 20;  // a float64 sketch of more takes the host too long
constexpr std::uint64_t kHeadStartBytes = 2ull << 30;   // a millisecond at least
constexpr std::uint64_t kKey = 0x5eed;

// Copies and fills without a stream may end after the call, and streams that don't block don't wait for them.
void settle() {
  check(cuCtxSynchronize(), "cuCtxSynchronize");
}

std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

test::RigOptions rig_options(std::uint32_t k, std::uint32_t slots, std::uint32_t flags) {
  test::RigOptions options;
  options.k = k;
  options.slots = slots;
  options.ring_capacity = std::max(slots * kGroupBuckets, 2 * slots);
  options.ctas = gate::kMaxCtas;
  options.flags = flags;
  return options;
}

// Sizes whose two buffers fit into the device's free memory; says which don't.
std::vector<std::uint64_t> fitting(const std::vector<std::uint64_t>& sizes, Report& report) {
  std::size_t free = 0, total = 0;
  check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
  std::vector<std::uint64_t> fit;
  for (const std::uint64_t size : sizes) {
    if (2 * (size + kMargin) + kOtherMemory <= free) {
      fit.push_back(size);
    } else {
      report.note(fmt::format("{} left out: {} MiB of device memory are free, and a buffer and its copy don't fit",
                              readable_size(size), free >> 20));
    }
  }
  if (fit.empty()) throw std::runtime_error("no size fits into the device's free memory: give smaller --sizes");
  return fit;
}

// The buffer through which timed launches go: several times the L2 cache, so that what a launch reads has left it.
std::uint64_t pool_size(const std::vector<std::uint64_t>& sizes, const DeviceInfo& device) {
  const std::uint64_t rotation = device.standin ? 0 : 4 * device.l2_bytes;
  return rounded_up(std::max(sizes.back(), rotation)) + kMargin;
}

}  // namespace

Benchmark::Benchmark(const Options& options, const DeviceInfo& device, Report& report)
    : options_(options),
      device_(device),
      report_(report),
      sizes_(fitting(options.sizes, report)),
      pool_bytes_(pool_size(sizes_, device)),
      pool_(pool_bytes_),
      copy_(pool_bytes_),
      stopwatch_(kMaxRepeats),
      rig_(rig_options(options.sketch_floats, kMaxRepeats, 0)),
      norm_rig_(rig_options(0, kMaxRepeats, 0)),
      check_rig_(rig_options(options.sketch_floats, 1, gate::kCountZeros)),
      cub_(GRADPROBE_CUB_NORM) {
  if (options_.caps.empty()) options_.caps = {16, 32, 64, std::min(device.multiprocessors, gate::kMaxCtas), 256};
  std::sort(options_.caps.begin(), options_.caps.end());
  options_.caps.erase(std::unique(options_.caps.begin(), options_.caps.end()), options_.caps.end());
  report_.note(fmt::format("{} launches each, one after another through a buffer of {} MiB: {}", options_.repeats,
                           pool_bytes_ >> 20,
                           pool_bytes_ >= 4 * device.l2_bytes ? "what one reads has left the L2 cache"
                                                              : "what one reads may lie in the L2 cache"));
  if (!cub_.available()) report_.note("without CUB: " + cub_.unavailable());
  cub_.reserve(sizes_.back());
  settle();
}

std::uint64_t Benchmark::next_part(std::uint64_t bytes) {
  if (at_ + bytes + kMargin > pool_bytes_) at_ = 0;
  const std::uint64_t part = at_;
  at_ += rounded_up(bytes);
  return part;
}

void Benchmark::head_start() {
  if (device_.standin) return;
  for (std::uint64_t done = 0; done < kHeadStartBytes; done += pool_bytes_) {
    check(cuMemcpyDtoDAsync(copy_.address(), pool_.address(), pool_bytes_, stream_.get()), "cuMemcpyDtoDAsync");
  }
}

// The different grids that the caps on CTAs lead to.
std::vector<std::uint32_t> Benchmark::launched_ctas(std::uint64_t count, std::uint32_t element_bytes) const {
  std::set<std::uint32_t> ctas;
  for (const std::uint32_t cap : options_.caps) ctas.insert(std::min(cap, gate::measure_ctas(count, element_bytes)));
  return {ctas.begin(), ctas.end()};
}

Timing Benchmark::time_passes(test::Rig& rig, Datatype type, const Series& series, const Content* content,
                              const std::string& what) {
  const std::uint64_t bytes = series.count * element_bytes(type);
  const auto kernel = test::measured_type(type);
  std::vector<std::uint64_t> parts;
  for (std::uint32_t i = 0; i < options_.repeats; ++i) {
    rig.reopen(i);
    for (std::uint32_t b = 0; b < series.buckets; ++b) {
      parts.push_back(next_part(bytes));
      gate::GateEntry entry{};
      entry.input = pool_.address() + parts.back() + series.offset;
      entry.count = series.count;
      // The copy holds the same, and the input pass before has not brought it into the cache.
      entry.output = copy_.address() + parts.back() + series.offset;
      entry.output_count = series.count;
      entry.key = kKey;
      entry.datatype = static_cast<std::uint8_t>(type);
      entry.mode = gate::kBucket;
      rig.add(i, entry);
    }
    rig.publish(i);
  }
  const auto launch = [&](std::uint32_t slot, gate::Pass pass) {
    test::Launch pass_launch;
    pass_launch.slot = slot;
    pass_launch.ctas = series.ctas;
    pass_launch.kernel = kernel;
    pass_launch.pass = pass;
    rig.launch(pass_launch, stream_);
  };
  const Timing timing = stopwatch_.time(
      stream_, options_.repeats, [&] { head_start(); },
      [&](std::uint32_t i) {
        if (series.pass == gate::kResultPass) launch(i, gate::kInputPass);
      },
      [&](std::uint32_t i) { launch(i, series.pass); });
  std::uint64_t results = 0;
  for (const test::Measured& got : rig.collect()) {
    if (got.head.pass != series.pass) continue;
    ++results;
    if (!content) continue;
    const std::uint64_t part = parts.at(std::size_t{got.head.slot} * series.buckets + got.head.entry);
    check_sums(got, content->expected(part + series.offset, series.count), type, what, report_);
  }
  if (results != parts.size()) report_.wrong(fmt::format("{}: {} results, not {}", what, results, parts.size()));
  return timing;
}

Timing Benchmark::time_copy(std::uint64_t bytes) {
  return stopwatch_.time(
      stream_, options_.repeats, [&] { head_start(); }, [](std::uint32_t) {},
      [&](std::uint32_t) {
        const std::uint64_t part = next_part(bytes);
        check(cuMemcpyDtoDAsync(copy_.address() + part, pool_.address() + part, bytes, stream_.get()),
              "cuMemcpyDtoDAsync");
      });
}

Timing Benchmark::time_cub(Datatype type, const Content& content, std::uint64_t bytes) {
  const auto measured = test::measured_type(type);
  const std::uint64_t count = bytes / element_bytes(type);
  std::uint64_t part = 0;
  const Timing timing = stopwatch_.time(
      stream_, options_.repeats, [&] { head_start(); }, [](std::uint32_t) {},
      [&](std::uint32_t) {
        part = next_part(bytes);
        cub_.enqueue(measured, pool_.address() + part, count, stream_.get());
      });
  // Only that CUB read all of it; its float32 sums are not as good as ours.
  const double want = content.expected(part, count).sum_squares, got = cub_.sum(measured);
  report_.checked();
  if (!(got > 0.99 * want && got < 1.01 * want)) {
    report_.wrong(
        fmt::format("{} {}: CUB's sum of squares is {}, not {}", name(type), readable_size(bytes), got, want));
  }
  return timing;
}

test::Measured Benchmark::measure_once(test::Rig& rig, Datatype type, CUdeviceptr input, std::uint64_t count,
                                       std::uint64_t key, std::uint32_t ctas) {
  gate::GateEntry entry{};
  entry.input = input;
  entry.count = count;
  entry.key = key;
  entry.datatype = static_cast<std::uint8_t>(type);
  entry.mode = gate::kBucket;
  rig.reopen(0);
  rig.add(0, entry);
  rig.publish(0);
  test::Launch launch;
  launch.ctas = ctas;
  launch.kernel = test::measured_type(type);
  rig.launch(launch, stream_);
  stream_.synchronize();
  std::vector<test::Measured> results = rig.collect();
  if (results.size() != 1) throw std::runtime_error(fmt::format("{} results of one bucket", results.size()));
  return std::move(results[0]);
}

void Benchmark::time_gate() {
  report_.heading();
  const Module module(GRADPROBE_EMPTY_KERNEL);
  for (const std::uint32_t ctas : options_.caps) {
    Row row;
    row.ctas = ctas;
    row.what = "launch that does nothing";
    gate::GateParams params{};
    void* arguments[] = {&params};
    row.timing = stopwatch_.time(
        stream_, options_.repeats, [&] { head_start(); }, [](std::uint32_t) {},
        [&](std::uint32_t) {
          check(cuLaunchKernel(module.kernel("gradprobe_empty"), ctas, 1, 1, gate::kThreads, 1, 1, 0, stream_.get(),
                               arguments, nullptr),
                "cuLaunchKernel");
        });
    report_.add(row);

    for (std::uint32_t i = 0; i < options_.repeats; ++i) {
      gate::GateEntry entry{};
      entry.input = pool_.address();
      entry.count = 1;
      entry.datatype = static_cast<std::uint8_t>(Datatype::f32);
      entry.mode = gate::kRaw;
      rig_.reopen(i);
      rig_.add(i, entry);
      rig_.publish(i);
    }
    row.what = "pass over one raw element";
    row.timing = stopwatch_.time(
        stream_, options_.repeats, [&] { head_start(); }, [](std::uint32_t) {},
        [&](std::uint32_t i) {
          test::Launch launch;
          launch.slot = i;
          launch.ctas = ctas;
          launch.kernel = gate::kTypeF32;
          rig_.launch(launch, stream_);
        });
    report_.add(row);
    const std::size_t results = rig_.collect().size();
    report_.checked();
    if (results != options_.repeats) report_.wrong(fmt::format("raw element: {} results", results));
  }
}

void Benchmark::time_size(Datatype type, const Content& content, std::uint64_t bytes) {
  const std::uint32_t element = element_bytes(type);
  const std::uint64_t count = bytes / element;
  const std::vector<std::uint32_t> grids = launched_ctas(count, element);
  Row row;
  row.type = name(type);
  row.bytes = bytes;

  row.what = "copy, device to device";
  row.bytes_moved = 2 * bytes;
  row.timing = time_copy(bytes);
  report_.add(row);
  const double copy_us = row.timing.median_us;

  row.bytes_moved = bytes;
  const auto fraction_of_copy = [&] {
    if (row.timing.median_us > 0) row.of_copy = copy_us / (2 * row.timing.median_us);
  };
  std::optional<double> cub_us;
  if (cub_.available()) {
    row.what = "CUB sum of squares";
    row.timing = time_cub(type, content, bytes);
    cub_us = row.timing.median_us;
    fraction_of_copy();
    report_.add(row);
  }

  const auto passes = [&](test::Rig& rig, const std::string& what, const Series& series) {
    row.what = what;
    row.ctas = series.ctas;
    row.timing =
        time_passes(rig, type, series, &content, fmt::format("{} {} {}", row.type, readable_size(bytes), what));
    fraction_of_copy();
    if (cub_us && *cub_us > 0) row.of_cub_time = row.timing.median_us / *cub_us;
    report_.add(row);
  };
  for (const std::uint32_t ctas : grids) passes(rig_, "measure", {.count = count, .ctas = ctas});
  passes(norm_rig_, "measure, no sketch", {.count = count, .ctas = grids.back()});
  passes(rig_, "measure, unaligned", {.count = count, .ctas = grids.back(), .offset = element});
  passes(rig_, "result with fingerprint", {.count = count, .ctas = grids.back(), .pass = gate::kResultPass});
}

void Benchmark::time_group(Datatype type, const Content& content, std::uint64_t bytes) {
  if (kGroupBuckets * rounded_up(bytes) + kMargin > pool_bytes_) return;
  const std::uint64_t count = bytes / element_bytes(type);
  for (const std::uint32_t cap : options_.caps) {
    Row row;
    row.type = name(type);
    row.bytes = bytes;
    row.what = fmt::format("measure, {} buckets", kGroupBuckets);
    row.ctas = std::min(cap, kGroupBuckets * gate::measure_ctas(count, element_bytes(type)));
    row.bytes_moved = kGroupBuckets * bytes;
    row.timing = time_passes(rig_, type, {.count = count, .ctas = row.ctas, .buckets = kGroupBuckets}, &content,
                             fmt::format("{} {} buckets of {}", row.type, kGroupBuckets, readable_size(bytes)));
    report_.add(row);
  }
}

// The slowest input there is: no group of elements passes the guard of the fast path.
void Benchmark::time_not_a_number(Datatype type, std::uint64_t bytes) {
  check(cuMemsetD8(pool_.address(), 0xff, pool_bytes_), "cuMemsetD8");
  settle();
  Row row;
  row.type = name(type);
  row.bytes = bytes;
  row.what = "measure, all are NaN";
  const std::uint64_t count = bytes / element_bytes(type);
  row.ctas = launched_ctas(count, element_bytes(type)).back();
  row.bytes_moved = bytes;
  row.timing = time_passes(rig_, type, {.count = count, .ctas = row.ctas}, nullptr, row.what);
  report_.add(row);
  const test::Measured got = measure_once(check_rig_, type, pool_.address(), count, kKey, row.ctas);
  test::Reference want;
  want.nan_count = count;
  want.first_nonfinite = 0;
  want.sketch.assign(options_.sketch_floats, 0);
  want.magnitudes.assign(options_.sketch_floats, 0);
  check_all(got, want, type, true, fmt::format("{} {} of NaN", row.type, readable_size(bytes)), report_);
}

// Dense content against a float64 sketch on the host.
void Benchmark::check_sketch(Datatype type, const Content& content, std::uint64_t bytes) {
  const std::uint64_t count = bytes / element_bytes(type);
  for (const std::uint32_t ctas : launched_ctas(count, element_bytes(type))) {
    const test::Measured got = measure_once(check_rig_, type, pool_.address(), count, kKey, ctas);
    const test::Reference want =
        test::measure(content.elements(0, count), options_.sketch_floats, test::run_key_reference(kKey, got.head.run));
    check_all(got, want, type, false,
              fmt::format("{} {}, {} CTAs, whole sketch", name(type), readable_size(bytes), ctas), report_);
  }
}

// A few small integers, NaN and infinities among zeros: the whole result is known exactly for any size.
void Benchmark::check_planted(Datatype type, std::uint64_t bytes, std::uint32_t offset) {
  const std::uint32_t element = element_bytes(type);
  const std::uint64_t count = bytes / element;
  const CUdeviceptr input = pool_.address() + offset;
  // NaN before and behind: nothing there may be taken for an element.
  check(cuMemsetD8(pool_.address(), 0xff, bytes + kMargin), "cuMemsetD8");
  check(cuMemsetD8(input, 0, bytes), "cuMemsetD8");
  std::set<std::uint64_t> places = {0, 2047, 2048, 16383, 16384, 65535, 65536, count / 2, count - 1};
  std::uint64_t state = count;
  for (int i = 0; i < 64; ++i) places.insert((state = gate::mix64(state)) % count);
  std::vector<test::Planted> planted;
  for (const std::uint64_t place : places) {
    if (place >= count) continue;
    const auto number = static_cast<int>(planted.size());
    std::uint64_t bits = test::encode(type, (number % 2 ? -1 : 1) * (1 + number % 8));
    if (number % 10 == 5) bits = test::nan_bits(type);
    if (number % 10 == 7 && test::has_infinity(type)) bits = test::infinity_bits(type);
    planted.push_back({place, bits});
    check(cuMemcpyHtoD(input + place * element, &bits, element), "cuMemcpyHtoD");
  }
  settle();
  const std::uint32_t ctas = launched_ctas(count, element).back();
  const test::Measured got = measure_once(check_rig_, type, input, count, kKey, ctas);
  const test::Reference want =
      test::measure_sparse(type, count, planted, options_.sketch_floats, test::run_key_reference(kKey, got.head.run));
  check_all(got, want, type, true,
            fmt::format("{} {} at {}, planted elements", name(type), readable_size(bytes), offset), report_);
}

void Benchmark::run(Datatype type) {
  const Content content(type, kPieceBytes);
  content.fill(pool_.address(), pool_bytes_);
  check(cuMemcpyDtoD(copy_.address(), pool_.address(), pool_bytes_), "cuMemcpyDtoD");
  settle();
  report_.heading();
  for (const std::uint64_t bytes : sizes_) {
    time_size(type, content, bytes);
    if (bytes <= kHostSketchBytes) check_sketch(type, content, bytes);
  }
  time_group(type, content, sizes_.front());
  for (const std::uint64_t bytes : sizes_) {
    check_planted(type, bytes, 0);
    check_planted(type, bytes, element_bytes(type));
  }
  time_not_a_number(type, std::min(kNanBytes, sizes_.back()));
}

}  // namespace gradprobe::bench
