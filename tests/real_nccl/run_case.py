#!/usr/bin/env python3
"""Runs one bundle of modes (cases.txt) on one NCCL wheel under gradprobe, and compares the ring files with what the
driver wrote down. Exit code 77: the wheel isn't there."""

import argparse
import fnmatch
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 200  # for one start; the driver itself gives up after 60 s without progress
SKIPPED = 77


def lines_of(file):
    for line in (HERE / file).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            yield line


def fits(patterns, text):
    return any(fnmatch.fnmatchcase(text, p) for p in patterns.split(","))


def version_key(text, missing):
    numbers = [int(n) for n in text.split(".")]
    return numbers + [missing] * (3 - len(numbers))


def in_range(version, versions):
    """As in missed.txt: *, 2.28, 2.28-2.30 with both included, 2.31-."""
    if versions == "*":
        return True
    first, dash, last = versions.partition("-")
    last = last if dash else first
    v = version_key(version, 0)
    return version_key(first, 0) <= v and (not last or v <= version_key(last, 1 << 30))


class Bundle:
    def __init__(self, line):
        self.name, settings, modes = (part.strip() for part in line.split(":"))
        words = settings.split()
        self.ranks, self.ways = words[0], words[1]
        self.options = [w for w in words[2:] if w.startswith("--")]
        self.environment = dict(w.split("=", 1) for w in words[2:] if not w.startswith("--"))
        self.patterns = modes.split()


def bundles():
    return {b.name: b for b in map(Bundle, lines_of("cases.txt"))}


class Case:
    def __init__(self, arguments):
        self.build = pathlib.Path(arguments.build).resolve()
        self.wheel, self.way, self.seed = arguments.wheel, arguments.way, arguments.seed
        self.version = self.wheel.split("-")[0]
        self.plugin = arguments.plugin or self.build / "lib/libnccl-profiler-gradprobe.so"
        self.with_standins = arguments.with_standins
        self.extra = dict(s.split("=", 1) for s in arguments.set)
        self.only = arguments.modes
        self.table = arguments.table
        self.bare, self.discard = arguments.bare, arguments.discard
        self.all_modes = self.known_modes()

    def known_modes(self):
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.build / "standin"))
        said = subprocess.run([self.build / "bin/real_nccl_driver"], env=environment, capture_output=True, text=True)
        return re.search(r"^modes: (.*)$", said.stderr, re.M).group(1).split()

    def nccl(self):
        cache = os.environ.get("GRADPROBE_CACHE") or HERE.parent.parent / "build/wheels"
        return pathlib.Path(cache).resolve() / self.wheel

    def modes(self, bundle):
        modes = []
        for pattern in bundle.patterns:
            found = [m for m in self.all_modes if fnmatch.fnmatchcase(m, pattern)]
            if not found:
                sys.exit(f"cases.txt: {bundle.name}: no mode fits {pattern}")
            modes += found
        if self.only:
            for mode in set(self.only) - set(self.all_modes):
                sys.exit(f"run_case.py: no mode {mode}; there are: {' '.join(self.all_modes)}")
            modes = [m for m in self.all_modes if m in self.only]
        left_out = []
        for line in lines_of("exclusions.txt"):
            versions, names, patterns = line.split()
            if in_range(self.version, versions) and fits(names, bundle.name):
                left_out += [m for m in modes if fits(patterns, m)]
        if left_out:
            print(f"{self.version} {bundle.name}: left out (exclusions.txt): {' '.join(left_out)}")
        return [m for m in modes if m not in left_out]

    def environment(self, bundle, rings):
        e = dict(os.environ, GRADPROBE_DIR=str(rings), GRADPROBE_COMMS="all", GRADPROBE_RESULT_EVERY="1",
                 GRADPROBE_SKETCH="256", GRADPROBE_RING_MB="8", GRADPROBE_GATE_TIMEOUT="2000", NCCL_DEBUG="WARN")
        e.pop("NCCL_PROFILER_PLUGIN", None)
        if self.bare:
            e["NCCL_PROFILER_PLUGIN"] = "none"
        elif self.way == "plugin":
            e["NCCL_PROFILER_PLUGIN"] = str(self.plugin)
        else:
            e["LD_PRELOAD"] = str(self.build / "lib/libgradprobe-preload.so")
        return e | bundle.environment | self.extra

    def run(self, bundle):
        """True when nothing is wrong."""
        modes = self.modes(bundle)
        if not modes:
            print(f"{self.version} {bundle.name}: nothing is left to run")
            return True
        (self.build / "real_nccl").mkdir(exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.wheel}.{bundle.name}.", dir=self.build / "real_nccl"))
        (folder / "rings").mkdir()
        command = [self.with_standins, self.build, self.nccl(), self.build / "bin/real_nccl_driver", "--out", folder,
                   "--seed", str(self.seed), "--ranks", bundle.ranks, "--as", bundle.ways, *bundle.options, *modes]
        good = self.call(command, self.environment(bundle, folder / "rings"), folder / "log")
        if good and not self.bare:
            good = self.check(bundle, folder)
        if not good:
            print((folder / "log").read_text()[-6000:])
            print(f"{self.wheel} {self.way} {bundle.name}: FAILED with seed {self.seed}"
                  + ("" if self.discard else f"; kept: {folder}"))
        if good or self.discard:
            shutil.rmtree(folder)
        sys.stdout.flush()
        return good

    def call(self, command, environment, log):
        with open(log, "w") as out:
            process = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                out.write(f"not done after {LIMIT_S} s\n")
                code = None
            finally:
                # Ranks may outlive a killed driver.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        return code == 0

    def check(self, bundle, folder):
        command = [self.build / "bin/real_nccl_check", self.version, self.way, bundle.name, HERE / "missed.txt", folder,
                   folder / "rings"]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="")
        if self.table:
            with open(self.table, "a") as out:
                out.write("".join(line + "\n" for line in done.stdout.splitlines() if " calls " in line))
        return done.returncode == 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=HERE.parent.parent / "build/dev", help="build folder")
    parser.add_argument("--wheel", required=True, help="name of the wheel's folder, such as 2.32.3-cu13")
    parser.add_argument("--way", choices=["plugin", "preload"], default="plugin")
    parser.add_argument("--bundle", action="append", default=[], help="of cases.txt; may be repeated")
    parser.add_argument("--choose", type=int, help="number of bundles, chosen by the seed (GRADPROBE_TEST_ALL=1: all)")
    parser.add_argument("--modes", nargs="+", help="only these, even if the bundle doesn't list them")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("GRADPROBE_TEST_SEED") or random.randrange(10**9)))
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE", help="for the ranks' environment")
    parser.add_argument("--plugin", help="a plugin other than the build's")
    parser.add_argument("--bare", action="store_true", help="without gradprobe: only NCCL's results are checked")
    parser.add_argument("--discard", action="store_true", help="keep no files of a run that failed")
    parser.add_argument("--table", help="file for the table of modes, besides printing it")
    parser.add_argument("--with", dest="with_standins", default=HERE.parent / "standin/with_standins.sh",
                        help="script that starts a command on the stand-ins: SCRIPT BUILD NCCL_FOLDER COMMAND...")
    return parser.parse_args()


def main():
    arguments = parse()
    known = bundles()
    for name in arguments.bundle:
        if name not in known:
            sys.exit(f"run_case.py: no bundle {name} in cases.txt; there are: {' '.join(known)}")
    case = Case(arguments)
    if not (case.nccl() / "libnccl.so.2").exists():
        print(f"skipped: {case.nccl()}/libnccl.so.2 is not there (tests/real_nccl/fetch_wheels.py fetches it)")
        sys.exit(1 if os.environ.get("CI") == "true" else SKIPPED)
    if arguments.table:
        pathlib.Path(arguments.table).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(arguments.table).write_text("")
    names = arguments.bundle or list(known)
    if arguments.choose and os.environ.get("GRADPROBE_TEST_ALL") != "1":
        names = random.Random(f"{arguments.wheel} {arguments.seed}").sample(names, arguments.choose)
    print(f"NCCL {case.wheel}, {case.way}, seed {arguments.seed} (GRADPROBE_TEST_SEED repeats it): {' '.join(names)}")
    sys.exit(0 if all([case.run(known[name]) for name in names]) else 1)


if __name__ == "__main__":
    main()
