// Times what is put on a stream, by events.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/device.hpp"

namespace gradprobe::bench {

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;
};

class Event {
 public:
  Event() { test::check(cuEventCreate(&event_, CU_EVENT_DEFAULT), "cuEventCreate"); }
  ~Event() {
    if (event_) cuEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  Event& operator=(Event&&) = delete;

  void record(const test::Stream& stream) const { test::check(cuEventRecord(event_, stream.get()), "cuEventRecord"); }
  double microseconds_since(const Event& begin) const {
    float milliseconds = 0;
    test::check(cuEventElapsedTime(&milliseconds, begin.event_, event_), "cuEventElapsedTime");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  CUevent event_{};
};

class Stopwatch {
 public:
  explicit Stopwatch(std::uint32_t most_repeats) : begin_(most_repeats), end_(most_repeats) {}

  // ahead() puts something long on the stream, so that all repeats are queued before the device comes to the first and
  // no launch waits for the host; before(i) what repeat i needs; timed(i) what is timed.
  template <typename Ahead, typename Before, typename Timed>
  Timing time(const test::Stream& stream, std::uint32_t repeats, Ahead ahead, Before before, Timed timed) const {
    ahead();
    for (std::uint32_t i = 0; i < repeats; ++i) {
      before(i);
      begin_[i].record(stream);
      timed(i);
      end_[i].record(stream);
    }
    stream.synchronize();
    std::vector<double> times(repeats);
    for (std::uint32_t i = 0; i < repeats; ++i) times[i] = end_[i].microseconds_since(begin_[i]);
    std::sort(times.begin(), times.end());
    const std::size_t middle = times.size() / 2;
    const double median = times.size() % 2 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
    return {median, times.front(), times.back()};
  }

 private:
  std::vector<Event> begin_, end_;
};

}  // namespace gradprobe::bench
