"""One run of a *_perf program, with or without gradprobe: what it printed, and how often it called NCCL."""
import collections
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess

LIMIT_S = 300
HERE = pathlib.Path(__file__).resolve().parent

@dataclasses.dataclass
class Result:
    code: int
    times: dict  # microseconds by size, out of place and in place together
    wrong: int | None  # None where the program checked nothing
    calls: collections.Counter  # by (function, rank); empty where NCCL isn't linked dynamically
    tiny: collections.Counter  # those of them with up to 8 elements
    log: pathlib.Path


@dataclasses.dataclass
class Mode:
    name: str
    processes: int
    arguments: list

    def command(self, program: pathlib.Path, wrapper: list) -> list:
        command = [*wrapper, program, *self.arguments]
        if self.processes > 1:
            command = ["mpirun", "--oversubscribe", "-np", str(self.processes), *command]
        return command


def parse(output: str) -> tuple[dict, int | None]:
    """Times and #wrong. A row is: size, count, type, columns that only some programs print, then time, two bandwidths
    and #wrong, first out of place and then in place."""
    times, wrong, checked = {}, 0, False
    for line in output.splitlines():
        words = line.split()
        if len(words) < 11 or not words[0].isdigit() or not words[1].isdigit():
            continue
        out_of_place, in_place = words[-8:-4], words[-4:]
        try:
            times[int(words[0])] = float(out_of_place[0]) + float(in_place[0])
        except ValueError:
            continue
        for count in (out_of_place[3], in_place[3]):
            if count.isdigit():
                wrong += int(count)
                checked = True
    return times, wrong if checked else None


def read_counts(folder: pathlib.Path) -> tuple[collections.Counter, collections.Counter]:
    calls, tiny = collections.Counter(), collections.Counter()
    for file in folder.glob("calls.*"):
        for line in file.read_text().splitlines():
            function, rank, count, small = line.split()
            calls[function, int(rank)] += int(count)
            tiny[function, int(rank)] += int(small)
    return calls, tiny


def run(program: pathlib.Path, mode: Mode, arguments: list, wrapper: list, counter: pathlib.Path, folder: pathlib.Path,
        more: dict) -> Result:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("GRADPROBE", "NCCL_", "STANDIN_"))
    }
    preloaded = filter(None, [str(counter), environment.get("LD_PRELOAD")])
    environment |= {"LD_PRELOAD": ":".join(preloaded), "CALL_COUNTER_FILE": str(folder / "calls")}
    # mpirun runs as root only with both of these.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    log = folder / "output.log"
    command = list(map(str, [*mode.command(program, wrapper), *arguments]))
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=environment | more, stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
    times, wrong = parse(log.read_text(errors="replace"))
    calls, tiny = read_counts(folder)
    return Result(code, times, wrong, calls, tiny, log)
