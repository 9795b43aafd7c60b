// The stand-in's nccl.h against the machine's own: every value, size, offset and signature that both have.
#include "api_values.h"

#include <gtest/gtest.h>

namespace {

TEST(ApiValues, EqualTheInstalledHeaders) {
  ApiValues own = own_api_values(), installed = installed_api_values();
  EXPECT_GE(installed.size(), 60u);
  for (const auto& [name, value] : installed) {
    if (!own.contains(name)) continue;
    EXPECT_EQ(own.at(name), value) << name;
  }
}

}  // namespace
