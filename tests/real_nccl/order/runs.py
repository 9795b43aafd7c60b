"""Runs nccl_scenarios on the stand-in NCCL or on a wheel's library, with the logging plugin, and reads what was called.

The parts are found in the build folder; wheels in GRADPROBE_CACHE, else in build/wheels (fetch_wheels.py puts them
there)."""
import os
import pathlib
import subprocess
import sys
import tempfile

import call_order

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WHEELS_FILE = HERE.parent / "wheels.txt"
LIMIT_S = 150
SKIPPED = 77  # exit status
ONLY_REAL = {"channels"}  # scenarios whose events the stand-in doesn't make


class Failed(Exception):
    """A run that didn't end well; the text says how."""


def version_of(text: str) -> tuple:
    return tuple(int(part) for part in text.split("."))


def releases() -> dict:
    """{version: folder of its wheel} of all releases that a profiler plugin can measure with, the oldest first. Of a
    release with several wheels the one for the newest CUDA."""
    cache = pathlib.Path(os.environ.get("GRADPROBE_CACHE") or ROOT / "build/wheels")
    found = {}
    for line in WHEELS_FILE.read_text().splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 2 and version_of(words[0]) >= (2, 28):
            found[words[0]] = max(found.get(words[0], ""), words[1])
    return {v: cache / f"{v}-{found[v]}" for v in sorted(found, key=version_of)}


def missing(version: str, folder: pathlib.Path) -> int:
    """One line for a wheel that isn't there, and the exit status: continuous integration must have it."""
    required = os.environ.get("CI") == "true"
    print(f"{'failed' if required else 'skipped'}: no {folder}/libnccl.so.2: run tests/real_nccl/fetch_wheels.py {version}")
    return 1 if required else SKIPPED


class Build:
    """What the scenarios need of a build folder."""

    def __init__(self, folder: str):
        self.folder = pathlib.Path(folder).resolve()
        self.program = self.folder / "bin/nccl_scenarios"
        self.plugin = self.folder / "standin/plugins/libcall_log.so"

    def names(self) -> list:
        listed = subprocess.run([self.program, "--list"], env=dict(os.environ, LD_LIBRARY_PATH=self.folder / "standin"),
                                stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
        return listed.stdout.split()

    def _run(self, command: list, environment: dict) -> str:
        """The trace."""
        with tempfile.TemporaryDirectory(prefix="nccl-order-") as folder:
            trace = pathlib.Path(folder) / "trace.jsonl"
            settings = {"NCCL_PROFILER_PLUGIN": str(self.plugin), **environment, "STANDIN_CUDA_TRACE": str(trace)}
            try:
                done = subprocess.run([str(word) for word in command], env={**os.environ, **settings}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S)
            except subprocess.TimeoutExpired as e:
                raise Failed(f"{command}: not done after {LIMIT_S} s") from e
            if done.returncode != 0:
                raise Failed(f"{command} ended with status {done.returncode}:\n{done.stdout}")
            return trace.read_text()

    def _run_all(self, command: list, names: list, environment: dict, for_symmetric: dict) -> str:
        """The traces of all scenarios, one behind the other: symmetric kernels need surroundings of their own."""
        symmetric = [name for name in names if name == "symmetric"]
        others = [name for name in names if name != "symmetric"]
        trace = self._run([*command, *others], environment) if others else ""
        return trace + (self._run([*command, *symmetric], {**environment, **for_symmetric}) if symmetric else "")

    def on_standin(self, version: str, names: list, environment=None) -> str:
        settings = {"STANDIN_NCCL_VERSION": version, "LD_LIBRARY_PATH": str(self.folder / "standin")}
        return self._run_all([self.program], names, {**settings, **(environment or {})},
                             {"STANDIN_NCCL_SYMMETRIC": "1"})

    def on_wheel(self, folder: pathlib.Path, names: list, environment=None) -> str:
        command = [ROOT / "tests/standin/with_standins.sh", self.folder, folder, self.program]
        return self._run_all(command, names, environment or {}, {"STANDIN_SYMMETRIC": "1"})

    def keep(self, version: str, trace: str) -> None:
        """For the report, which would run all scenarios once more."""
        kept = self.kept(version)
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_text(trace)
        new.replace(kept)

    def kept(self, version: str) -> pathlib.Path:
        return self.folder / f"tests/real_nccl/order/traces/{version}.jsonl"

    def trace_of(self, version: str, folder: pathlib.Path) -> str:
        """All scenarios on a wheel; the kept trace where nothing is newer."""
        kept = self.kept(version)
        parts = [self.program, self.plugin, folder / "libnccl.so.2", *(self.folder / "standin").glob("*.so*")]
        if not kept.exists() or any(part.stat().st_mtime > kept.stat().st_mtime for part in parts):
            self.keep(version, self.on_wheel(folder, self.names()))
        return kept.read_text()


def main_of(run) -> None:
    """Exit status of `run`, with one text for a run that failed."""
    try:
        sys.exit(run())
    except (Failed, ValueError, OSError) as e:
        print(f"failed: {e}")
        sys.exit(1)


__all__ = ["Build", "Failed", "SKIPPED", "call_order", "main_of", "missing", "releases", "version_of"]
