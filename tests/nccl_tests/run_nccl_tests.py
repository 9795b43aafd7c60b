#!/usr/bin/env python3
"""Runs NVIDIA's nccl-tests with and without gradprobe and compares: exit codes, #wrong, records against calls, results
of all ranks against each other. On a machine with two GPUs it uses them and prints the ratio of the times. Elsewhere it
uses the stand-ins, whose times mean nothing.

A program runs in one process, with two GPUs and with two threads. One built with MPI also runs as two processes.
Exit code: 0 all right, 1 something differs, 2 wrong usage or something needed is missing.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

from binaries import Failure, find_programs, has_open_mpi, nccl_folders, needed_libraries
from comparison import Outcome, check_rings, compare_runs
from perf_run import HERE, Mode, Result, run

ONE_PROCESS = [
    Mode("1 process, 2 GPUs", 1, ["-t", "1", "-g", "2"]),
    Mode("1 process, 2 threads", 1, ["-t", "2", "-g", "1"]),
]
TWO_PROCESSES = Mode("2 processes", 2, ["-t", "1", "-g", "1"])
ON_STAND_INS = ["-b", "1K", "-e", "64K", "-f", "8", "-n", "3", "-w", "1", "-c", "1"]
ON_GPUS = ["-b", "1K", "-e", "128M", "-f", "8", "-n", "20", "-w", "5", "-c", "1"]


class Tests:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.build = options.build
        self.library, _ = nccl_folders(options.nccl)
        self.gradprobe = self.build / "bin" / "gradprobe"
        self.plugin = self.build / "lib" / "libnccl-profiler-gradprobe.so"
        self.counter = self.build / "lib" / "libnccl_call_counter.so"
        self.stand_ins = options.stand_ins or gpus() < 2
        needed = [self.gradprobe, self.plugin, self.counter]
        if self.stand_ins:
            stand_ins = ("libcuda.so.1", "libcudart.so.13", "libcudartaudit.so")
            needed += [self.build / "standin" / name for name in stand_ins]
        for file in needed:
            if not file.exists():
                raise Failure(f"{file} is missing; build first (./run build)")
        if self.stand_ins:
            self.wrapper = ["bash", HERE.parent / "standin" / "with_standins.sh", self.build, self.library.parent]
        else:
            # What was built here finds its CUDA runtime in the second folder.
            folders = [self.library.parent, self.build / "nccl-tests" / "lib", os.environ.get("LD_LIBRARY_PATH")]
            self.wrapper = ["env", "LD_LIBRARY_PATH=" + ":".join(str(folder) for folder in folders if folder)]
        self.arguments = [*(ON_STAND_INS if self.stand_ins else ON_GPUS), *options.arguments]

    def modes(self, program: pathlib.Path) -> list:
        with_mpi = any(name.startswith("libmpi") for name in needed_libraries(program))
        return [*ONE_PROCESS, TWO_PROCESSES] if with_mpi and has_open_mpi() else ONE_PROCESS

    def one(self, program: pathlib.Path, datatype: str, mode: Mode) -> Outcome:
        name = f"{program.name}-{datatype}-{mode.name.replace(', ', '-').replace(' ', '-')}"
        folder = self.options.runs / name
        arguments = [*self.arguments, "-d", datatype]

        def start(kind: str, more: dict) -> Result:
            return run(program, mode, arguments, self.wrapper, self.counter, folder / kind, more)

        rings = folder / "with" / "rings"
        settings = {
            "NCCL_PROFILER_PLUGIN": str(self.plugin), "GRADPROBE_DIR": str(rings), "GRADPROBE_RESULT_EVERY": "1",
        }
        if self.stand_ins:  # on a loaded machine a gate can wait for a host thread's turn
            settings["GRADPROBE_GATE_TIMEOUT"] = "5000"
        without = start("without", {})
        measured = start("with", settings)
        outcome = compare_runs(without, measured)
        try:
            check_rings(self.gradprobe, rings, measured, outcome)
        except AssertionError as problem:
            outcome.problems.append(str(problem))
        if outcome.problems:
            outcome.problems.append(f"see {folder}")
        return outcome

    def check_programs(self, programs: list) -> None:
        for program in programs:
            libraries = needed_libraries(program)
            if "libnccl.so.2" not in libraries:
                raise Failure(f"{program}: doesn't load libnccl.so.2, so its calls can't be counted: link it dynamically")
            if self.stand_ins and not any(name.startswith("libcudart.so") for name in libraries):
                raise Failure(f"{program}: has the CUDA runtime linked in; the stand-ins need it as a shared library")

    def all(self) -> int:
        programs = find_programs(self.options.tests, self.build, self.options.nccl, self.stand_ins)
        self.check_programs(programs)
        programs = [p for p in programs if re.search(self.options.program, p.name)]
        if not programs:
            raise Failure(f"--program {self.options.program}: no program has such a name")
        devices = "stand-ins for GPUs" if self.stand_ins else f"{gpus()} GPUs"
        print(f"NCCL {self.library}, {devices}; {' '.join(self.arguments)}")
        if not any(len(self.modes(p)) > len(ONE_PROCESS) for p in programs):
            print("No Open MPI, or programs without it: one process only, with two GPUs and with two threads.")
        print(f"{'program':21} {'type':8} {'how':20} {'#wrong':>6} {'records':>7} {'of calls':>8} {'compared':>8}"
              + ("" if self.stand_ins else f" {'time':>6}"))
        failed = total = 0
        for program in programs:
            for datatype in self.options.types.split(","):
                for mode in self.modes(program):
                    outcome = self.one(program, datatype, mode)
                    total += 1
                    failed += bool(outcome.problems)
                    self.show(program, datatype, mode, outcome)
        print(f"{total - failed} of {total} all right: same exit code, #wrong 0, a record for each call that is to be "
              "measured, equal results on all ranks")
        return 1 if failed else 0

    def show(self, program: pathlib.Path, datatype: str, mode: Mode, outcome: Outcome) -> None:
        wrong = "0" if not any("#wrong" in p or "no row" in p for p in outcome.problems) else "FAIL"
        ratio = "" if self.stand_ins or outcome.ratio is None else f" {outcome.ratio:6.3f}"
        print(f"{program.name:21} {datatype:8} {mode.name:20} {wrong:>6} {outcome.records:7} {outcome.calls:8} "
              f"{outcome.compared:8}{ratio}", flush=True)
        for problem in outcome.problems:
            print(f"  FAIL {problem}", flush=True)


def fetched_nccl() -> pathlib.Path:
    """The newest of the pinned wheels, downloaded where it isn't there yet."""
    script = HERE.parent / "real_nccl" / "fetch_wheels.py"
    listing = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True)
    names = [line.split()[0] for line in listing.stdout.splitlines() if "-cu13 " in line]
    if not names:
        raise Failure(f"{script.name} names no wheel; give --nccl a folder with libnccl.so.2 and include/")
    name = max(names, key=lambda name: [int(part) for part in name.split("-")[0].split(".")])
    if subprocess.run([sys.executable, script, name]).returncode != 0:
        raise Failure(f"NCCL {name} can't be downloaded; give --nccl a folder with libnccl.so.2 and include/")
    cache = os.environ.get("GRADPROBE_CACHE") or HERE.parents[1] / "build" / "wheels"
    return pathlib.Path(cache).resolve() / name


def gpus() -> int:
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return 0
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="run_nccl_tests.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--build", type=pathlib.Path, required=True, help="a build folder with tests, e.g. build/dev")
    add("--tests", type=pathlib.Path, required=True, help="a checkout of nccl-tests, or a folder of its programs")
    add("--nccl", type=pathlib.Path, help="a folder with libnccl.so.2 and include/; default: the newest pinned wheel")
    add("--stand-ins", action="store_true", help="use them even where there are GPUs")
    add("--program", default="", metavar="REGEX", help="only programs whose name matches")
    add("--types", default="float,bfloat16", help="datatypes as nccl-tests names them")
    add("--runs", type=pathlib.Path, metavar="DIR", help="where outputs and rings go; default: BUILD/nccl-tests-runs")
    add("arguments", nargs="*", metavar="-- ARGS", help="more arguments for the programs")
    options = parser.parse_args()
    try:
        if not options.build.is_dir():
            raise Failure(f"--build {options.build}: no such folder; build first (./run build)")
        options.build = options.build.resolve()
        options.runs = (options.runs or options.build / "nccl-tests-runs").resolve()
        options.tests = options.tests.resolve()
        options.nccl = options.nccl.resolve() if options.nccl else fetched_nccl()
        return Tests(options).all()
    except Failure as failure:
        print(f"run_nccl_tests.py: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
