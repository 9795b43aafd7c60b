#!/usr/bin/env python3
"""Prints for each release of NCCL (wheels.txt) which profiler struct it took, which of its events gradprobe doesn't
know, and how its calls differ from those of the release before. A difference that known_differences.txt doesn't name is
an error.

usage: report.py BUILD_FOLDER [VERSION...]
"""
import pathlib
import sys

import call_order
import differences
import runs

# What NCCL can be asked for up to 2.32, besides what gradprobe asks for.
KNOWN_TYPES = {"Group", "Coll", "P2p", "KernelCh", "GroupApi", "CollApi", "P2pApi", "KernelLaunch", "CeColl", "CeSync",
               "CeBatch"}
KNOWN_STATES = {22, 23, 24}  # KernelChStop, GroupStartApiStop, GroupEndApiStart


def unknown_events(trace: list) -> list:
    types = {r["type"] for r in trace if r.get("call") == "startEvent"} - KNOWN_TYPES
    states = {r["stateId"] for r in trace if r.get("call") == "recordEventState"} - KNOWN_STATES
    return [f"event type {t.removeprefix('Type')}" for t in sorted(types)] + [f"state {s}" for s in sorted(states)]


class Release:
    def __init__(self, build: runs.Build, version: str, folder: pathlib.Path):
        self.version = version
        trace = call_order.records(build.trace_of(version, folder))
        self.structs = sorted({r["abi"] for r in trace if r.get("call") == "init"})
        self.unknown = unknown_events(trace)
        self.scenarios = call_order.of_records(trace)

    def print(self):
        print(f"\nNCCL {self.version}: profiler struct {', '.join(self.structs)}; events that gradprobe doesn't know: "
              f"{', '.join(self.unknown) or 'none'}")


def compare(before: Release, after: Release, known: differences.Known) -> bool:
    """Prints how the second differs; whether all of it is known."""
    lines, new = {}, []
    for name in sorted(after.scenarios):
        for line in differences.of_scenario(before.scenarios.get(name, {}), after.scenarios[name]):
            is_known = known.take(before.version, after.version, name, line)
            lines.setdefault((line, is_known), []).append(name)
            if not is_known and name not in new:
                new.append(name)
    print(f"  differs from {before.version} in " + ("nothing" if not lines else f"{len(lines)} ways:"))
    for (line, is_known), names in lines.items():
        others = f" and {len(names) - 4} more" if len(names) > 5 else ""
        where = ", ".join(names[:4] if others else names) + others
        print(f"    {line}    ({where}){'' if is_known else '  NEW'}")
    for name in new:
        print(f"  not in known_differences.txt, scenario {name}: - {before.version}, + {after.version}")
        print(call_order.difference(before.scenarios.get(name, {}), after.scenarios[name]))
    return not new


def main() -> int:
    build = runs.Build(sys.argv[1])
    chosen = {v: folder for v, folder in runs.releases().items() if not sys.argv[2:] or v in sys.argv[2:]}
    for version, folder in chosen.items():
        if not (folder / "libnccl.so.2").exists():
            return runs.missing(version, folder)
    known = differences.Known((runs.HERE / "known_differences.txt").read_text())
    before, well = None, True
    for version, folder in chosen.items():
        release = Release(build, version, folder)
        release.print()
        if before:
            well = compare(before, release, known) and well
        before = release
    unmet = known.unmet(list(chosen))
    for line in unmet:
        print(f"in known_differences.txt, but no release shows it: {line}")
    return 0 if well and not unmet else 1


runs.main_of(main)
