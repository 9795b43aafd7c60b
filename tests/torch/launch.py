"""Starts torchrun for one case, on real GPUs or on the stand-ins, with a time limit."""
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess

import numpy as np

RANKS = 2
LIMIT_S = 180
HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Surroundings:
    build: pathlib.Path  # what CMake built: bin/, lib/, standin/
    nccl: pathlib.Path  # folder of the libnccl.so.2 that PyTorch brings
    torchrun: pathlib.Path
    runs: pathlib.Path  # where each case keeps its files
    stand_ins: bool

    @property
    def gradprobe(self) -> pathlib.Path:
        return self.build / "bin" / "gradprobe"

    @property
    def plugin(self) -> pathlib.Path:
        return self.build / "lib" / "libnccl-profiler-gradprobe.so"

    @property
    def preload(self) -> pathlib.Path:
        return self.build / "lib" / "libgradprobe-preload.so"

    def wrapped(self, command: list) -> list:
        if not self.stand_ins:
            return command
        return ["bash", HERE.parent / "standin" / "with_standins.sh", self.build, self.nccl, *command]

    def torchrun_command(self, case: str, folder: pathlib.Path) -> list:
        return [self.torchrun, "--standalone", f"--nproc-per-node={RANKS}", HERE / "worker.py", case, folder]

    def environment(self, more: dict) -> dict:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("GRADPROBE", "NCCL_", "STANDIN_"))
        }
        clean |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if self.stand_ins:
            # On a loaded machine a gate can wait for a host thread's turn; torch's own kernels are in this library.
            clean |= {"GRADPROBE_GATE_TIMEOUT": "5000"}
            kernels = str(self.build / "standin" / "libstandin_torch_kernels.so")
            clean["LD_PRELOAD"] = ":".join(filter(None, [kernels, clean.get("LD_PRELOAD")]))
        if "LD_PRELOAD" in more and "LD_PRELOAD" in clean:
            more = more | {"LD_PRELOAD": f"{more['LD_PRELOAD']}:{clean['LD_PRELOAD']}"}
        return clean | more


@dataclasses.dataclass
class Run:
    """One torchrun that ended well: what the ranks knew by themselves, and what was printed."""

    folder: pathlib.Path
    output: str

    def facts(self, rank: int) -> dict:
        return json.loads((self.folder / f"{rank}.json").read_text())

    def buffers(self, rank: int) -> list:
        with np.load(self.folder / f"{rank}.npz") as archive:
            return [archive[name] for name in sorted(archive.files)]


def fresh_folder(path: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def output_of(command: list, environment: dict, log: pathlib.Path) -> tuple[int, str]:
    """Runs the command. After LIMIT_S it and all that it started is killed, which is a failure."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs: killed after {LIMIT_S} s; its output: {log}") from None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
    return code, log.read_text(errors="replace")


def train(here: Surroundings, case: str, folder: pathlib.Path, environment: dict, in_front: list = ()) -> Run:
    command = here.wrapped([*in_front, *here.torchrun_command(case, folder)])
    code, output = output_of(command, here.environment(environment), folder / "output.log")
    missing = [rank for rank in range(RANKS) if not (folder / f"{rank}.json").exists()]
    if code != 0 or missing:
        what = f"exit code {code}" if code != 0 else f"rank(s) {missing} left nothing"
        raise AssertionError(f"{what}; output: {folder / 'output.log'}")
    return Run(folder, output)
