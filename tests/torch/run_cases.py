#!/usr/bin/env python3
"""Runs PyTorch's ways of calling NCCL under gradprobe and prints a line for each. run_torch.sh prepares and starts it.

usage: run_cases.py --build BUILD --runs FOLDER [--stand-ins] [CASE...]
"""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import time

import checks
from launch import RANKS, Run, Surroundings, fresh_folder, output_of, train
from rings import Rings

# DDP rebuilds its buckets after the first step and broadcasts the new order in two calls. Since 2.29 NCCL announces
# these calls and reports no launch.
REBUILD = {"no_events": 2}


@dataclasses.dataclass
class Case:
    title: str
    work: str  # what worker.py does
    allowed: dict = dataclasses.field(default_factory=dict)  # calls without values, on each rank
    environment: dict = dataclasses.field(default_factory=dict)
    how: str = "plugin"  # or preload, run
    cosines: bool = False
    steps: bool = True
    nan: bool = False
    hook: bool = True  # the ranks keep what they send


CASES = {
    "ddp": Case("DDP", "ddp", REBUILD, hook=False),
    "hook": Case("DDP, hook that keeps each bucket", "hook", REBUILD, cosines=True),
    "no_sync": Case("gradient accumulation, no_sync", "no_sync", REBUILD, cosines=True),
    "unused": Case("find_unused_parameters", "unused", cosines=True),
    "static_graph": Case("static_graph", "static_graph", REBUILD, cosines=True),
    "nonblocking": Case("non-blocking init", "hook", REBUILD, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}, cosines=True),
    "fsdp": Case("reduce_scatter_tensor, all_gather", "fsdp", cosines=True),
    "hsdp": Case("reduce-scatter, then another group", "hsdp"),
    "coalesced": Case("coalesced all-reduces", "coalesced", cosines=True),
    "streams": Case("side streams", "streams", cosines=True),
    "graph": Case("CUDA graph", "graph", steps=False),
    "abort": Case("process group abort", "abort", steps=False),
    "nan": Case("NaN on one rank", "nan", REBUILD, nan=True),
    "preload": Case("preload library", "hook", how="preload", cosines=True),
    "run": Case("gradprobe run -- torchrun", "hook", REBUILD, how="run", cosines=True),
}


def measured_run(here: Surroundings, case: Case, folder: pathlib.Path) -> Run:
    rings = folder / "rings"
    if case.how == "run":
        run = train(here, case.work, folder, case.environment, [here.gradprobe, "run", "--dir", rings, "--"])
        checks.need("mean pairwise cosine" in run.output, f"gradprobe run printed no summary: {folder / 'output.log'}")
        return run
    gradprobe = {"GRADPROBE_DIR": str(rings)}
    if case.how == "preload":
        gradprobe["LD_PRELOAD"] = str(here.preload)
    else:
        gradprobe["NCCL_PROFILER_PLUGIN"] = str(here.plugin)
    return train(here, case.work, folder, case.environment | gradprobe)


def check(here: Surroundings, name: str, baselines: dict) -> str:
    case = CASES[name]
    folder = fresh_folder(here.runs / name)
    plain = (case.work, *case.environment.items())
    if plain not in baselines:
        baselines[plain] = train(here, case.work, fresh_folder(here.runs / f"{name}-without"), case.environment)
    run = measured_run(here, case, folder)
    rings = Rings(here.gradprobe, folder / "rings")
    written_by_preload = "preload" in rings.info()
    checks.need(written_by_preload == (case.how == "preload"), "the rings are not by the library that was asked for")
    told = [checks.norms(run, rings)] if case.hook else []
    if case.cosines:
        told.append(checks.cosines(run, rings))
    if case.steps:
        told.append(checks.step_count(run, rings, may_join_two=name == "static_graph"))
    if case.nan:
        told.append(checks.named_nan(run, rings))
    return "; ".join([*told, checks.missed(rings, case.allowed), checks.same_training(run, baselines[plain])])


def check_doctor(here: Surroundings) -> str:
    """doctor in the environment of the other cases, then with a plugin that isn't there."""
    folder = fresh_folder(here.runs / "doctor")
    told = []
    for plugin, expected in ((here.plugin, 0), (folder / "none.so", 1)):
        environment = here.environment({"GRADPROBE_DIR": str(folder / "rings"), "NCCL_PROFILER_PLUGIN": str(plugin)})
        command = here.wrapped([here.gradprobe, "doctor", "--", *here.torchrun_command("ddp", folder)])
        log = folder / f"{plugin.stem}.log"
        code, output = output_of(command, environment, log)
        checks.need(code == expected, f"exit code {code}, expected {expected}: {log}")
        found = re.search(r"NCCL .*?:\s+(/\S+)", output)
        library = found and pathlib.Path(found[1]).resolve()
        checks.need(library == here.nccl / "libnccl.so.2", f"PyTorch's NCCL is not what it found: {log}")
        told.append(f"exit code {code} with {'the plugin' if expected == 0 else 'a file that is not there'}")
    return "finds PyTorch's NCCL; " + ", ".join(told)


def versions() -> str:
    text = "import torch; print(f\"PyTorch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}\")"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="run_cases.py")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--runs", type=pathlib.Path, required=True)
    parser.add_argument("--stand-ins", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    names = [*CASES, "doctor"]
    unknown = [name for name in options.cases if name not in names]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(names)}")

    import nvidia.nccl

    nccl = pathlib.Path(nvidia.nccl.__path__[0]).resolve() / "lib"
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    here = Surroundings(options.build.resolve(), nccl, torchrun, options.runs.resolve(), options.stand_ins)
    devices = "stand-ins for GPUs" if here.stand_ins else "GPUs"
    print(f"{versions()}; {RANKS} ranks on {devices}; files in {here.runs}")
    failed, baselines = 0, {}
    selected = options.cases or names
    for name in selected:
        began = time.monotonic()
        title = CASES[name].title if name in CASES else "gradprobe doctor -- torchrun"
        try:
            text = check(here, name, baselines) if name in CASES else check_doctor(here)
            verdict = "pass"
        except AssertionError as problem:
            text, verdict = str(problem), "FAIL"
            failed += 1
        print(f"{verdict}  {name:13} {time.monotonic() - began:3.0f} s  {title}: {text}", flush=True)
    print(f"{len(selected) - failed} of {len(selected)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
