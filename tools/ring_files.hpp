// Finds and opens ring files, and says what became of the process that writes one.
#pragma once

#include <gradprobe/ring_reader.hpp>

#include <string>
#include <vector>

namespace gradprobe::tool {

struct RingFiles {
  std::vector<RingReader> readers;  // sorted by communicator, rank, start time
  std::vector<std::string> notes;   // files passed over, one line each
  std::string error;                // set when there is nothing to work on
};

// `path`: one ring file, or a folder whose *.ring files are taken.
RingFiles open_rings(const std::string& path);

enum class Writer {
  finalized,  // the communicator was finalized: the ring is complete
  alive,
  stalled,    // the process exists and has stopped updating the ring
  dead,       // the process is gone and did not finalize
  elsewhere,  // another host or an earlier boot: can't tell
};

Writer writer_of(const RingReader& reader, const LiveCounters& counters);

}  // namespace gradprobe::tool
