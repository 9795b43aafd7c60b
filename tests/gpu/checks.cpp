#include "checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gradprobe::bench {
namespace {

// Relative error of the sum of squares: some float32 additions before each of float64, for f64 none.
double norm_tolerance(Datatype type) {
  return type == Datatype::f64 ? 1e-12 : 1e-7;
}

class Comparison {
 public:
  Comparison(const std::string& what, Report& report) : what_(what), report_(report) { report.checked(); }

  template <typename T>
  void equal(const char* field, T got, T want) {
    if (!(got == want)) report_.wrong(fmt::format("{}: {} is {}, not {}", what_, field, got, want));
  }
  void close(const char* field, double got, double want, double allowed) {
    // Negated, so that NaN counts as wrong.
    if (!(std::fabs(got - want) <= allowed)) {
      report_.wrong(fmt::format("{}: {} is {:.17g}, not {:.17g} within {:.3g}", what_, field, got, want, allowed));
    }
  }

 private:
  const std::string& what_;
  Report& report_;
};

}  // namespace

void check_sums(const test::Measured& got, const Expected& want, Datatype type, const std::string& what,
                Report& report) {
  Comparison comparison(what, report);
  comparison.equal<std::uint32_t>("status", got.head.status, gate::kMeasured);
  comparison.close("sum_squares", got.head.sum_squares, want.sum_squares, norm_tolerance(type) * want.sum_squares);
  comparison.equal("max_abs", got.head.max_abs, want.max_abs);
  comparison.equal<std::uint64_t>("nan_count", got.head.nan_count, 0);
  comparison.equal<std::uint64_t>("inf_count", got.head.inf_count, 0);
  comparison.equal("first_nonfinite", got.head.first_nonfinite, kNone);
  if (got.head.pass == gate::kResultPass) comparison.equal("fingerprint", got.head.fingerprint, want.fingerprint);
}

void check_all(const test::Measured& got, const test::Reference& want, Datatype type, bool exact,
               const std::string& what, Report& report) {
  Comparison comparison(what, report);
  comparison.equal<std::uint32_t>("status", got.head.status, gate::kMeasured);
  comparison.close("sum_squares", got.head.sum_squares, want.sum_squares,
                   exact ? 0 : norm_tolerance(type) * want.sum_squares);
  comparison.equal("max_abs", got.head.max_abs, want.max_abs);
  comparison.equal("nan_count", got.head.nan_count, want.nan_count);
  comparison.equal("inf_count", got.head.inf_count, want.inf_count);
  comparison.equal("zero_count", got.head.zero_count, want.zero_count);
  comparison.equal("first_nonfinite", got.head.first_nonfinite, want.first_nonfinite);
  comparison.equal("sketch size", got.sketch.size(), want.sketch.size());
  if (got.sketch.size() != want.sketch.size()) return;
  // Each float32 addition of n terms is off by at most half an ulp of a partial sum.
  const double terms =
      static_cast<double>(want.count) / static_cast<double>(std::max<std::size_t>(want.sketch.size(), 1));
  std::size_t wrong = 0;
  for (std::size_t j = 0; j < want.sketch.size(); ++j) {
    const double allowed = exact ? 0 : (terms + 64) * 0x1p-24 * want.magnitudes[j];
    wrong += !(std::fabs(static_cast<double>(got.sketch[j]) - want.sketch[j]) <= allowed);
  }
  comparison.equal<std::size_t>("wrong floats of the sketch", wrong, 0);
}

}  // namespace gradprobe::bench
