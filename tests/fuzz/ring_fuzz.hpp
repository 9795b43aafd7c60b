// One input of the ring fuzzers: any bytes as a ring file, read in every way there is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradprobe::test {

// Aborts when the reader breaks a promise; returns otherwise.
void read_everything(const unsigned char* data, std::size_t size);

// Makes a header's checksum right if there is a header, so that mutations reach what lies behind it.
void repair_header(unsigned char* data, std::size_t size);

}  // namespace gradprobe::test
