#!/usr/bin/env python3
"""Registers, spills and shared memory of gradprobe's kernels, as ptxas reports them for each architecture.

  tests/bench/kernel_resources.py                    a table
  tests/bench/kernel_resources.py --check            the same; exit 1 if a kernel spills or two CTAs don't fit
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHITECTURES = ["75", "80", "86", "89", "90", "100", "120"]
# Shared memory of a multiprocessor, of which 1 KiB a CTA is the system's (from compute capability 8.0 on).
SHARED_KIB = {"75": 64, "80": 164, "86": 100, "89": 100, "90": 228, "100": 228, "120": 100}
MEASURE_THREADS = 512
REGISTERS_OF_MULTIPROCESSOR = 65536


def report(nvcc, arch):
    """{function: {registers, stack, spill_stores, spill_loads, shared}}; kernels and what they call."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-cubin", f"-arch=sm_{arch}", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v",
                   "-I", str(ROOT / "include"), "-I", str(ROOT), "-o", f"{folder}/kernels.cubin",
                   str(ROOT / "kernels/gradprobe.cu")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel_resources.py: nvcc failed for sm_{arch}:\n{done.stderr}")
    functions, name, kernel = {}, None, None
    for line in done.stderr.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = m.group(1)
        elif m := re.search(r"Function properties for (\w+)", line):
            name = m.group(1)
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            entry = functions.setdefault(name, {})
            entry.update(stack=int(m.group(1)), spill_stores=int(m.group(2)), spill_loads=int(m.group(3)))
        elif m := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            functions.setdefault(kernel, {}).update(registers=int(m.group(1)),
                                                    shared=int(shared.group(1)) if shared else 0)
    return functions


def readable(name):
    """The last name and the type argument of a mangled function of namespace gradprobe::gate."""
    m = re.match(r"_ZN9gradprobe4gate(\d+)", name)
    if not m:
        return name
    begin = m.end()
    end = begin + int(m.group(1))
    argument = re.match(r"INS0_\d+(\w+?)E", name[end:])
    return "  " + name[begin:end] + (f"<{argument.group(1)}>" if argument else "")


def complaints(arch, functions):
    for name, f in functions.items():
        if f.get("spill_stores") or f.get("spill_loads"):
            yield f"sm_{arch}: {readable(name).strip()} spills"
        if name.startswith("gradprobe_measure"):
            if 2 * MEASURE_THREADS * f["registers"] > REGISTERS_OF_MULTIPROCESSOR:
                yield f"sm_{arch}: {name}: two CTAs need more registers than a multiprocessor has"
            reserved = 0 if arch == "75" else 1024
            if 2 * (f["shared"] + reserved) > 1024 * SHARED_KIB[arch]:
                yield f"sm_{arch}: {name}: two CTAs need more shared memory than a multiprocessor has"
    if sum(name.startswith("gradprobe_") for name in functions) != 4:
        yield f"sm_{arch}: expected 4 kernels, ptxas reported {sorted(functions)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--check", action="store_true", help="exit 1 if a kernel spills or two CTAs don't fit")
    parser.add_argument("arch", nargs="*", default=ARCHITECTURES, help="75, 80, ... (default: all that are built)")
    arguments = parser.parse_args()
    print(f"{'arch':5} {'function':36} {'registers':>9} {'stack':>6} {'spill st':>8} {'spill ld':>8} {'shared':>7}")
    found = []
    for arch in arguments.arch:
        functions = report(arguments.nvcc, arch)
        for name, f in functions.items():
            print(f"{arch:5} {readable(name):36} {f.get('registers', ''):>9} {f.get('stack', 0):>6} "
                  f"{f.get('spill_stores', 0):>8} {f.get('spill_loads', 0):>8} {f.get('shared', ''):>7}", flush=True)
        found += complaints(arch, functions)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
