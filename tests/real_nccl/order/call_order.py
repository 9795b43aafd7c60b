"""A trace of profiler calls, launches and API calls (of nccl_scenarios), brought into a form in which two runs can be
compared: handles, threads, streams and processes are named by what they are for, and only orders that the program
determines are kept. A scenario becomes named sequences of lines:

  rank R profiler        all of the profiler's calls for rank R, whatever their thread, in the order they were made
  rank R caller          those made on the thread that calls the API for rank R, between the API's calls and returns,
                         with kernel launches and host functions given to the driver
  rank R library thread  the same on each of the library's own threads that worked for rank R
  rank R stream S        what ran on a stream's thread: kernels, host functions and the calls made by them
"""
import collections
import difflib
import json
import re

START_FIELDS = ("rank", "func", "count", "datatype", "root", "peer", "seqNumber", "graphCaptured", "groupDepth",
                "channel", "isComplete")


def records(text: str) -> list:
    """The trace's lines in their common order."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError as e:
            raise ValueError(f"line {number} of the trace: {e}") from e
    return sorted(out, key=lambda r: r["seq"])


def by_scenario(trace: list) -> dict:
    """Each process's lines between its marks, by scenario."""
    current, out = {}, collections.defaultdict(list)
    for r in trace:
        if r.get("ev") == "scenario":
            current[r["pid"]] = r["name"]
        elif current.get(r["pid"]):
            out[current[r["pid"]]].append(r)
    return out


def of_records(trace: list) -> dict:
    """{scenario: {sequence: [line, ...]}}"""
    return {name: Reader(lines).sequences() for name, lines in by_scenario(trace).items()}


def read(text: str) -> dict:
    return of_records(records(text))


def api_call(r: dict) -> str:
    return r.get("text", "") if r["src"] == "app" else ""


def operation(r: dict) -> str:
    """AllReduce of a kernel's name, which ends in what releases differ in."""
    found = re.search(r"DevKernel_([A-Za-z]+)", r["kernel"])
    return found[1] if found else r["kernel"]


def joined(ranks) -> str:
    return "+".join(sorted(ranks))


class Reader:
    """The lines of one scenario."""

    def __init__(self, lines: list):
        self.lines = lines
        self.rank_of = {}  # of (pid, context or handle)
        self.name_of = {}  # of (pid, handle)
        self.comms, self.process_ranks = {}, collections.defaultdict(set)
        self.caller_of, self.several_callers = {}, set()
        self.stream_of = {}  # of (pid, stream)
        self.rank_streams, self.process_streams = collections.defaultdict(dict), collections.defaultdict(dict)
        self.non_blocking, self.in_host_function = set(), {}
        self.out = collections.defaultdict(list)
        self.library = collections.defaultdict(lambda: (set(), []))  # thread: ranks, lines

    def sequences(self) -> dict:
        self.find_ranks()
        self.find_callers()
        for r in self.lines:
            self.add(r)
        threads = collections.defaultdict(list)
        for ranks, lines in self.library.values():
            threads[joined(ranks)].append(lines)
        for ranks, all_lines in threads.items():
            for i, lines in enumerate(sorted(all_lines)):
                self.out[f"rank {ranks} library thread {i}"] = lines
        return dict(self.out)

    def find_ranks(self):
        """Contexts and handles belong to the rank that init named."""
        made = collections.Counter()
        for r in self.lines:
            if r["src"] != "plugin":
                continue
            if r["call"] == "init":
                rank = self.rank_of[r["pid"], r["ctx"]] = str(r["rank"])
                self.process_ranks[r["pid"]].add(rank)
                self.comms.setdefault(r["comm"], len(self.comms))
            elif r["call"] == "startEvent":
                rank = self.rank_of[r["pid"], r["handle"]] = self.rank_of[r["pid"], r["ctx"]]
                self.name_of[r["pid"], r["handle"]] = f"{r['type']}.{made[rank, r['type']]} of rank {rank}"
                made[rank, r["type"]] += 1

    def find_callers(self):
        """A thread that calls the API stands for the ranks whose init it made or, in a process with one caller, for
        all of the process's."""
        threads = collections.defaultdict(set)
        for r in self.lines:
            if api_call(r):
                threads[r["pid"]].add((r["pid"], r["tid"]))
            if api_call(r) == "ncclCommInitRankConfig":  # only one that doesn't block has a configuration
                self.non_blocking.add(r["pid"])
        for pid, callers in threads.items():
            if len(callers) > 1:
                self.several_callers.add(pid)
            for thread in callers:
                mine = {str(r["rank"]) for r in self.lines
                        if r.get("call") == "init" and (r["pid"], r["tid"]) == thread}
                self.caller_of[thread] = joined(mine or self.process_ranks[pid])

    def handle(self, r: dict, field: str) -> str:
        if r[field] is None:
            return "none"
        return self.name_of.get((r["pid"], r[field]), f"stranger {r[field]}")

    def rank_stream(self, r: dict) -> str:
        """Streams are numbered within a rank, so their numbers don't depend on how ranks interleave."""
        rank = self.rank_of[r["pid"], r["ctx"]]
        known = self.rank_streams[rank]
        number = known.setdefault((r["pid"], r["stream"]), len(known))
        self.stream_of.setdefault((r["pid"], r["stream"]), f"rank {rank} stream {number}")
        return str(number)

    def stream(self, r: dict) -> str:
        key = r["pid"], r["stream"]
        if key not in self.stream_of:  # one that no event named
            owner = self.caller_of.get((r["pid"], r["tid"])) or joined(self.process_ranks[r["pid"]])
            known = self.process_streams[r["pid"]]
            self.stream_of[key] = f"rank {owner} other stream {known.setdefault(r['stream'], len(known))}"
        return self.stream_of[key]

    def plugin_line(self, r: dict) -> str:
        call = r["call"]
        if call == "init":
            fields = (f"{f}={r[f]}" for f in ("comm_name", "nodes", "ranks", "rank", "mask"))
            return f"init comm={self.comms[r['comm']]} " + " ".join(fields)
        if call == "finalize":
            return "finalize rank=" + self.rank_of[r["pid"], r["ctx"]]
        if call != "startEvent":
            return f"{call} {self.handle(r, 'handle')}" + (f" stateId={r['stateId']}" if "stateId" in r else "")
        parts = ["startEvent", self.handle(r, "handle"), "parent=" + self.handle(r, "parentObj")]
        if "parentGroup" in r:
            parts.append("group=" + self.handle(r, "parentGroup"))
        parts += [f"{f}={r[f]}" for f in START_FIELDS if f in r]
        if "stream" in r:
            parts.append("stream=" + self.rank_stream(r))
        if "sendBuff" in r:
            parts.append("in-place" if r["sendBuff"] == r["recvBuff"] else "out-of-place")
        return " ".join(parts)

    def on_thread(self, thread: tuple) -> list:
        if thread in self.caller_of:
            return self.out[f"rank {self.caller_of[thread]} caller"]
        return self.library[thread][1]

    def add(self, r: dict):
        thread = r["pid"], r["tid"]
        if r["src"] == "app":
            self.add_api_call(r, thread)
        elif r["src"] == "plugin":
            self.add_plugin_call(r, thread)
        else:
            self.add_driver_line(r, thread)

    def add_api_call(self, r: dict, thread: tuple):
        call = api_call(r)
        line = f"{r['ev']} {call}"
        # Whether a non-blocking communicator is done at its call's return is a matter of time.
        if r["ev"] == "return" and r["pid"] not in self.non_blocking:
            line += f" {r['result']}"
        self.out[f"rank {self.caller_of[thread]} caller"].append(line)

    def add_driver_line(self, r: dict, thread: tuple):
        event = r["ev"]
        if event == "launch":
            captured = ", captured" if r["capturing"] else ""
            self.on_thread(thread).append(f"kernel launch {operation(r)} on {self.stream(r)}{captured}")
        elif event == "host_func":
            self.on_thread(thread).append("host function given to the driver")
        elif event == "graph_launch":
            self.on_thread(thread).append(f"graph launch on {self.stream(r)}")
        elif event in ("kernel_begin", "kernel_end"):
            self.out[self.stream(r)].append(f"{event[7:]} of kernel {operation(r)}")
        elif event == "host_begin":
            self.in_host_function[thread] = self.stream(r)
            self.out[self.stream(r)].append("host function begins")
        elif event == "host_end":
            self.in_host_function.pop(thread, None)
            self.out[self.stream(r)].append("host function ends")

    def add_plugin_call(self, r: dict, thread: tuple):
        line = self.plugin_line(r)
        key = "ctx" if r["call"] in ("init", "finalize", "startEvent") else "handle"
        rank = self.rank_of.get((r["pid"], r[key]), "unknown")
        races_launch = r["pid"] in self.non_blocking and r["call"] == "stopEvent" and " GroupApi." in line
        if " KernelCh." not in line and not races_launch:
            self.out[f"rank {rank} profiler"].append(line)
        # Of several callers in a process, the one that destroys its communicator last cleans up for all.
        if r["call"] == "finalize" and r["pid"] in self.several_callers and thread in self.caller_of:
            self.out["last destroyer"].append(line)
        elif thread in self.in_host_function:
            self.out[self.in_host_function[thread]].append(line)
        else:
            if thread not in self.caller_of:
                self.library[thread][0].add(rank)
            self.on_thread(thread).append(line)


def difference(expected: dict, found: dict, context: int = 2) -> str:
    """Empty when two scenarios' sequences are equal; else for each sequence that differs the lines around the
    difference: - only expected, + only found."""
    out = []
    for name in sorted(expected.keys() | found.keys()):
        a, b = expected.get(name, []), found.get(name, [])
        if a == b:
            continue
        out.append(name + ":")
        for line in difflib.unified_diff(a, b, n=context, lineterm=""):
            if line.startswith(("---", "+++")):
                continue
            out.append("  ..." if line.startswith("@@") else f"  {line[0]} {line[1:]}")
    return "".join(line + "\n" for line in out)
