#!/usr/bin/env python3
"""Prints what a profiler plugin's callbacks cost the thread that calls NCCL, for each all-reduce: instructions, counted
by valgrind's callgrind, and nanoseconds. The CUDA driver is a null driver, and what is executed in it isn't counted.

usage: callback_cost.py BUILD_FOLDER [--plugin FILE]... [--check] [--instructions-only]
  BUILD_FOLDER         of a preset with tests, e.g. build/dev
  --plugin FILE        another profiler plugin (struct version 5 or 6), run by the same driver
  --check              exit code 1 when gradprobe costs more than its limits; without valgrind exit code 77
  --instructions-only  no times
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ALL_REDUCES = 9 * 30  # whole steps of the driver's sequence
# The aims.
LIMITS = {"off": 0, "communicator left out": 0, "filtered out": 100, "measured": 1500}


def inclusive_instructions(profile: str, plugin: str, driver: str) -> int:
    """Instructions in calls into the plugin less those in its calls into the CUDA driver."""
    names = {}

    def name(text: str) -> str:
        number, _, value = text.partition(" ")
        if value:
            names[number] = value
        return names.get(number, number)

    total = 0
    here = callee = ""
    in_call = False
    for line in profile.splitlines():
        if line.startswith("ob="):
            here = callee = name("ob" + line[3:])
        elif line.startswith("cob="):
            callee = name("ob" + line[4:])
        elif line.startswith("fn="):
            callee = here
        elif line.startswith("calls="):
            in_call = True
        elif in_call and re.match(r"[+\-*\d]", line):
            cost = int(line.split()[1])
            if callee.endswith(plugin) and not here.endswith(plugin):
                total += cost
            if here.endswith(plugin) and driver in callee:
                total -= cost
            in_call = False
            callee = here
    return total


class Benchmark:
    def __init__(self, build: pathlib.Path):
        self.program = build / "bin" / "gradprobe_callbacks"
        self.null_cuda = build / "tests" / "bench" / "null-cuda"

    def environment(self, settings: dict, folder: str) -> dict:
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("GRADPROBE", "NCCL", "CUDA"))}
        ours.update(LD_LIBRARY_PATH=str(self.null_cuda), GRADPROBE_DIR=folder, GRADPROBE_RING_MB="8", GRADPROBE_SKETCH="0",
                    GRADPROBE_LOG="off")
        return ours | settings

    def instructions(self, plugin: pathlib.Path, settings: dict, others: int) -> tuple[float, int]:
        """For each all-reduce; and how many kernels were launched in all."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "profile"
            run = subprocess.run(
                ["valgrind", "--tool=callgrind", "--toggle-collect=drive_counted", f"--callgrind-out-file={out}",
                 self.program, plugin, "--count", str(ALL_REDUCES), str(others)],
                env=self.environment(settings, folder), capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"callback_cost.py: {plugin}: {run.stderr}")
            launches = int(re.search(r"launches (\d+)", run.stdout).group(1))
            return inclusive_instructions(out.read_text(), plugin.name, "libcuda.so") / ALL_REDUCES, launches

    def nanoseconds(self, plugin: pathlib.Path, settings: dict) -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [self.program, plugin, "--benchmark_format=json", "--benchmark_repetitions=5"],
                env=self.environment(settings, folder), capture_output=True, text=True, check=True)
            return min(b["real_time"] for b in json.loads(run.stdout)["benchmarks"] if b["run_type"] == "iteration")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--plugin", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--instructions-only", action="store_true")
    options = parser.parse_args()
    counting = shutil.which("valgrind") is not None
    if not counting:
        print("callback_cost.py: valgrind is not installed, so no instructions are counted", file=sys.stderr)
        if options.check:
            return 77
    build = options.build.resolve()
    gradprobe = build / "lib" / "libnccl-profiler-gradprobe.so"
    by_function = {"GRADPROBE_COLLECTIVES": "ReduceScatter"}
    # Label, plugin, settings, other communicators of the process.
    rows = [("off", gradprobe, {"GRADPROBE": "0"}, 0),
            ("filtered out", gradprobe, by_function, 0),
            ("filtered out, not alone", gradprobe, by_function, 1),
            ("all but losses by size", gradprobe, {"GRADPROBE_MIN_COUNT": "1000000000"}, 0),
            ("communicator left out", gradprobe, {"GRADPROBE_COMMS": "size=2"}, 0),
            ("not sampled", gradprobe, {"GRADPROBE_EVERY": "1000000"}, 0),
            ("measured", gradprobe, {}, 0),
            ("measured, results too", gradprobe, {"GRADPROBE_RESULT_EVERY": "1"}, 0),
            ("empty plugin", build / "tests" / "bench" / "libbench_empty_plugin.so", {}, 0)]
    rows += [(f"{p.name}", p.resolve(), {}, 0) for p in options.plugin]
    benchmark = Benchmark(build)
    failed = False
    print(f"{'per all-reduce':24} {'instructions':>13} {'ns':>8}")
    for label, plugin, settings, others in rows:
        count, launches = benchmark.instructions(plugin, settings, others) if counting else (float("nan"), 0)
        time = "" if options.instructions_only else f"{benchmark.nanoseconds(plugin, settings):8.0f}"
        print(f"{label:24} {count:13.1f} {time:>8}", flush=True)
        if not options.check:
            continue
        launches_of = {"measured": 1, "measured, results too": 2, "all but losses by size": 1 / 9}
        wanted = round(launches_of.get(label, 0) * ALL_REDUCES)
        if launches != wanted:
            print(f"  {launches} kernels were launched instead of {wanted}")
            failed = True
        if count > LIMITS.get(label, float("inf")):
            print(f"  more than {LIMITS[label]}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
