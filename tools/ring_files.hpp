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
  exited,     // the process ended in order without destroying the communicator: nothing follows either
  alive,
  stalled,  // the process exists and has stopped updating the ring
  dead,     // the process is gone and did not finalize
  // Process numbers mean something only on one boot of one host in one PID namespace. From elsewhere (another host, a
  // container, before a reboot) only the heartbeat tells.
  alive_elsewhere,
  unseen,
};

Writer writer_of(const RingReader& reader, const LiveCounters& counters);

// The process updates the ring, as far as can be told.
bool is_running(Writer writer);

// The heartbeat's age as a sentence part: "heartbeat 3 s ago", "no heartbeat for 75 s".
std::string heartbeat_in_words(const LiveCounters& counters);

}  // namespace gradprobe::tool
