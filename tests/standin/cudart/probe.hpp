// A library with a statically linked CUDA runtime and device code in two files, as NCCL is one. The test loads it.
#pragma once

// Runs one check by its name. Returns null when it holds, else what doesn't.
using Probe = const char* (*)(const char* check);
