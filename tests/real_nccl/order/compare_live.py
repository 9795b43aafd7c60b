#!/usr/bin/env python3
"""Compares the calls of the stand-in NCCL, imitating a release, with those of that release itself. Both run the same
scenarios with the same logging plugin.

usage: compare_live.py BUILD_FOLDER VERSION [SCENARIO...]
"""
import sys

import call_order
import runs


def main() -> int:
    build, version = runs.Build(sys.argv[1]), sys.argv[2]
    folder = runs.releases()[version]
    if not (folder / "libnccl.so.2").exists():
        return runs.missing(version, folder)
    names = sys.argv[3:]
    trace = build.on_wheel(folder, names or build.names())
    if not names:
        build.keep(version, trace)
        names = [name for name in build.names() if name not in runs.ONLY_REAL]
    real = call_order.read(trace)
    standin = call_order.read(build.on_standin(version, names))
    differing = 0
    for name in names:
        if not real.get(name):
            raise runs.Failed(f"scenario {name}: the plugin saw nothing of NCCL {version}")
        text = call_order.difference(real[name], standin.get(name, {}))
        if text:
            differing += 1
            print(f"scenario {name}: - only NCCL {version}, + only the stand-in\n{text}")
    print(f"NCCL {version}: {len(names) - differing} of {len(names)} scenarios make the same calls in the same order")
    return 1 if differing else 0


runs.main_of(main)
