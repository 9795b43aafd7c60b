#!/usr/bin/env python3
"""GRADPROBE_CHAIN inside NCCL: behind gradprobe the logging plugin must see what it sees when it is loaded alone, and
what gradprobe records is the same with and without it.

usage: chain_order.py BUILD_FOLDER VERSION [MASK SCENARIO]   on the stand-in as that release; all scenarios, or one with
                                                             another event mask
       chain_order.py BUILD_FOLDER wheel                     on the newest wheel, what the stand-in
                                                             lacks and what may differ there
"""
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "real_nccl/order"))
import call_order  # noqa: E402
import runs  # noqa: E402

ON_WHEEL = ["channels", "every-event", "graph", "graph-net", "group3sizes", "nonblocking"]
KEPT = ("kind", "missed", "op", "replay", "flags", "step", "count", "function", "datatype", "nan_count")


def without_measurements(trace: str) -> dict:
    return call_order.read("".join(line + "\n" for line in trace.splitlines() if "gradprobe_measure" not in line))


def records(build: runs.Build, folder: str) -> list:
    """What each ring of the folder holds, without what is new in every run."""
    rings = []
    for ring in pathlib.Path(folder).glob("*.ring"):
        dumped = subprocess.run([build.folder / "bin/gradprobe", "dump", "--json", ring], stdout=subprocess.PIPE,
                                text=True, check=True, timeout=runs.LIMIT_S).stdout
        lines = [json.loads(line) for line in dumped.splitlines()]
        rings.append([[line.get(field) for field in KEPT] for line in lines])
    return sorted(rings, key=json.dumps)


def main() -> int:
    build, version = runs.Build(sys.argv[1]), sys.argv[2]
    names = sys.argv[4:] or build.names()
    if version == "wheel":
        newest, folder = list(runs.releases().items())[-1]
        if not (folder / "libnccl.so.2").exists():
            return runs.missing(newest, folder)
        names = ON_WHEEL
        run = functools.partial(build.on_wheel, folder, names)
    else:
        names = [name for name in names if name not in runs.ONLY_REAL]
        run = functools.partial(build.on_standin, version, names)
    plugin = str(build.folder / "lib/libnccl-profiler-gradprobe.so")
    with tempfile.TemporaryDirectory() as chained_rings, tempfile.TemporaryDirectory() as alone_rings:
        settings = {"GRADPROBE_RING_MB": "1", "GRADPROBE_GATE_TIMEOUT": "5000", "GRADPROBE_LOG": "off"}
        if len(sys.argv) > 3:
            settings["CALL_LOG_MASK"] = sys.argv[3]
        by_gradprobe = {**settings, "NCCL_PROFILER_PLUGIN": plugin}
        alone = without_measurements(run(settings))
        chained = without_measurements(run(
            {**by_gradprobe, "GRADPROBE_CHAIN": str(build.plugin), "GRADPROBE_DIR": chained_rings}))
        run({**by_gradprobe, "GRADPROBE_DIR": alone_rings})
        failed = False
        for name in names:
            text = call_order.difference(alone[name], chained.get(name, {}))
            if text:
                failed = True
                print(f"scenario {name}: - only when it is loaded alone, + only behind gradprobe\n{text}")
        expected, found = records(build, alone_rings), records(build, chained_rings)
        if not expected or expected != found:
            failed = True
            print(f"gradprobe recorded in {len(expected)} rings {expected}\nbut with a plugin behind it in "
                  f"{len(found)} rings {found}")
        return 1 if failed else 0


runs.main_of(main)
