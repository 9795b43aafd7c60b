// The stand-in runtime behind a library that has the real one linked into it. Started by with_standins.sh; the path of
// the library comes from STANDIN_PROBE.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "probe.hpp"

namespace {
Probe load() {
  const char* path = getenv("STANDIN_PROBE");
  void* library = path ? dlopen(path, RTLD_NOW) : nullptr;
  return library ? reinterpret_cast<Probe>(dlsym(library, "probe")) : nullptr;
}

class StaticRuntime : public testing::TestWithParam<const char*> {};

TEST_P(StaticRuntime, IsDivertedToTheStandIn) {
  Probe probe = load();
  ASSERT_NE(probe, nullptr) << dlerror();
  const char* trouble = probe(GetParam());
  EXPECT_EQ(trouble, nullptr) << trouble;
}

INSTANTIATE_TEST_SUITE_P(Probe, StaticRuntime,
                         testing::Values("launches", "functions_by_address", "variables", "streams_and_events",
                                         "graphs", "memory", "missing_functions"),
                         [](const auto& i) { return std::string(i.param); });
}  // namespace
