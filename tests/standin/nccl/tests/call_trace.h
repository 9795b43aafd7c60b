// A trace of profiler calls, launches and API calls, brought into a form in which two runs can be compared: handles,
// threads, streams and processes are named by what they are for, and only orders that the program determines are kept.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace call_trace {

// Named sequences of lines:
//   "rank R caller"              calls made on the thread that calls the API for rank R, between the API's call and
//   return,
//                                with kernel launches and host functions given to the driver
//   "rank R library thread"      the same on each of the library's own threads that worked for rank R
//   "stream S"                   what ran on a stream's thread: kernels, host functions and the calls made by them
//   "rank R profiler"            all calls for rank R, whatever their thread, in the order they were made
struct Sequences {
  std::map<std::string, std::vector<std::string>> by_name;
};

// `text`: one JSON object a line. Throws std::runtime_error with the line's number for one that can't be read.
Sequences read(const std::string& text);
Sequences read_file(const std::string& path);

// Empty when equal; else for each sequence that differs its lines, - only expected, + only found.
std::string difference(const Sequences& expected, const Sequences& found);

}  // namespace call_trace
