#!/usr/bin/env python3
"""What gradprobe's kernels cost, counted in the machine code that nvcc makes for each architecture.

  tests/bench/kernel_resources.py                 a table of all architectures
  tests/bench/kernel_resources.py --check 80 90   exit 1 if a kernel spills, too few CTAs fit, or a loop got too long
  tests/bench/kernel_resources.py --loops 90      every hot loop by itself, with its instructions by name
  tests/bench/kernel_resources.py --limits 80 90  also what limits the main loops on some devices (limits.py)

Columns: registers, stack and spilled bytes of the kernel or the worst function that it calls; static shared memory;
CTAs of 512 threads and threads that a multiprocessor holds by registers, shared memory and threads; then SASS
instructions per element:
  sketch     the kernel's main loop with a sketch, fast path: all loads aligned, every element finite and in the range
             that float32 sums are good for, zeros not counted, no fingerprint
  loop       the same loop with all that lies in it, whether it runs or not
  k=0        the kernel's loop for launches without a sketch, fast path
  unaligned  the kernel's loop with a sketch for addresses that are no multiple of 16, fast path
  norm only  the kernel of norm_only.cu: the same loads, guard and norm in order of addresses, nothing else
  f64, cvt   of "sketch": float64 arithmetic, and conversions on the units that work at a fraction of the rate

A hot loop is an innermost loop around 16-byte loads that also multiplies. Its fast path is, of all ways through one
iteration that contain no call (the exact path is a call), the one that loads most, of those the one with most
fused multiply-adds (every square is one; a group that fails the guard skips its squares), and of those the shortest.
Every instruction on it counts, also if a predicate may turn it off. The elements of an iteration are the bytes that
it loads divided by the size of an element; in an unaligned loop, where neighbouring loads overlap, the multiply-adds
stand for the elements at the rate of the aligned loop.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import limits
import sass

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1}
THREADS = 512

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Shared memory in KiB of a
# multiprocessor, of which 1 KiB a CTA is the system's from 8.0 on.
THREADS_OF_MULTIPROCESSOR = {75: 1024, 80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
CTAS_OF_MULTIPROCESSOR = {75: 16, 80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
SHARED_KIB = {75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
REGISTERS_OF_MULTIPROCESSOR = 65536
REGISTERS_GRANULE = 256  # of a warp

# Most instructions per element of the main loop's fast path on compute capability 9.0.
TARGETS = {"f32": 9.2, "bf16": 6.8, "f16": 6.8, "f8e4m3": 6.5}


def compile_cubin(nvcc, arch, source, folder):
    """(path of the cubin, what ptxas said of it), with the flags of the fat binary."""
    cubin = pathlib.Path(folder) / f"{source.stem}-{arch}.cubin"
    command = [nvcc, "-cubin", f"-arch=sm_{arch}", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v",
               "-I", str(ROOT / "include"), "-I", str(ROOT), "-o", str(cubin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel_resources.py: nvcc failed for sm_{arch} on {source}:\n{done.stderr}")
    return cubin, done.stderr


@dataclasses.dataclass
class Resources:
    """Of a kernel; stack and spills: the largest of it and of the functions compiled into it."""
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spilled: int = 0
    spilling: list = dataclasses.field(default_factory=list)  # the functions that do


def resources(ptxas_output):
    """{kernel: Resources}. ptxas lists a kernel's own functions behind its name."""
    kernels, kernel, function = {}, None, ""
    for line in ptxas_output.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = kernels.setdefault(m.group(1), Resources())
        elif m := re.search(r"Function properties for (\S+)", line):
            function = m.group(1)
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel.stack = max(kernel.stack, int(m.group(1)))
            kernel.spilled = max(kernel.spilled, int(m.group(2)), int(m.group(3)))
            if int(m.group(2)) or int(m.group(3)):
                kernel.spilling.append(sass.readable(function))
        elif m := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernel.registers = int(m.group(1))
            kernel.shared = int(shared.group(1)) if shared else 0
    return kernels


def ctas_of_multiprocessor(arch, kernel):
    per_warp = -(-32 * kernel.registers // REGISTERS_GRANULE) * REGISTERS_GRANULE
    by_registers = REGISTERS_OF_MULTIPROCESSOR // per_warp // (THREADS // 32)
    fitting = [by_registers, THREADS_OF_MULTIPROCESSOR[arch] // THREADS, CTAS_OF_MULTIPROCESSOR[arch]]
    if shared := kernel.shared + (0 if arch == 75 else 1024):
        fitting.append(1024 * SHARED_KIB[arch] // shared)
    return min(fitting)


@dataclasses.dataclass
class HotLoop:
    loop: sass.Loop
    datatype: str
    elements: float  # a thread's, of one iteration
    kind: str = ""

    def per_element(self, names=None):
        return sum(names is None or one.name in names for one in self.loop.fast_path) / self.elements

    @property
    def whole_per_element(self):
        return len(self.loop.instructions()) / self.elements


def loaded(loop):
    return sum(one.load_bytes for one in loop.fast_path if one.load_bytes >= 16)


def multiply_adds(loop):
    return sum(one.multiply_adds for one in loop.fast_path)


def is_unaligned(loop):
    """Puts most words together from two."""
    return 8 * sum(one.funnel_shift for one in loop.fast_path) >= loaded(loop)


def has_sketch(loop, elements):
    """Adds every element once beside squaring it."""
    return sum(one.multiply_adds + one.additions for one in loop.fast_path) >= 1.75 * elements


def typed_loops(section, datatype):
    """[HotLoop] of a kernel whose datatype is known."""
    loops = sass.hot_loops(section)
    found = []
    for loop in (one for one in loops if not is_unaligned(one)):
        elements = loaded(loop) / ELEMENT_BYTES[datatype]
        found.append(HotLoop(loop, datatype, elements, "sketch" if has_sketch(loop, elements) else "k=0"))
    rate = max((multiply_adds(one.loop) / one.elements for one in found if one.kind == "k=0"), default=1)
    for loop in (one for one in loops if is_unaligned(one)):
        # What overlapping loads bring twice counts once: a batch of n vectors takes n + 1 loads or 2 n.
        elements = min(loaded(loop) / ELEMENT_BYTES[datatype], multiply_adds(loop) / rate)
        found.append(HotLoop(loop, datatype, elements,
                             "unaligned" if has_sketch(loop, elements) else "unaligned k=0"))
    return sorted(found, key=lambda one: one.loop.address)


def mixed_loops(section, known):
    """[HotLoop] of the kernel for all datatypes: each is taken for the known loop that its fast path resembles most."""
    found = []
    for loop in sass.hot_loops(section):
        own = loop.histogram()

        def distance(other):
            theirs = other.loop.histogram()
            return sum(abs(own[name] - theirs[name]) for name in own | theirs)

        like = min(known, key=distance)
        found.append(HotLoop(loop, like.datatype, like.elements, like.kind))
    return found


@dataclasses.dataclass
class Kernel:
    arch: int
    name: str
    resources: Resources
    ctas: int
    loops: list

    @property
    def datatype(self):
        return self.name.rsplit("_", 1)[-1]

    def cheapest(self, kind):
        """The plain one of several: others also count zeros or take a fingerprint."""
        return min((one for one in self.loops if one.kind == kind), key=HotLoop.per_element, default=None)


def kernels_of(nvcc, arch, source, folder):
    """[Kernel] of a source for one architecture, the one for all datatypes last."""
    cubin, output = compile_cubin(nvcc, arch, source, folder)
    used = resources(output)
    kernels, known, mixed = [], [], []
    for section in sorted(sass.read_cubin(cubin, arch), key=lambda one: one.name):
        kernel = Kernel(arch, section.name, used[section.name], ctas_of_multiprocessor(arch, used[section.name]), [])
        if kernel.datatype in ELEMENT_BYTES:
            kernel.loops = typed_loops(section, kernel.datatype)
            known += kernel.loops
        elif kernel.datatype == "mixed":
            mixed.append((kernel, section))
        kernels.append(kernel)
    for kernel, section in mixed:
        kernel.loops = mixed_loops(section, known)
    order = [*ELEMENT_BYTES, "mixed"]
    return sorted(kernels, key=lambda one: order.index(one.datatype) if one.datatype in order else len(order))


def complaints(kernel):
    where = f"sm_{kernel.arch}: {kernel.name}"
    if kernel.resources.spilled:
        functions = ", ".join(kernel.resources.spilling)
        yield f"{where}: up to {kernel.resources.spilled} bytes are spilled, in {functions}"
    wanted = 1 if kernel.arch == 75 else 2
    if kernel.ctas < wanted:
        yield f"{where}: {kernel.ctas} CTAs fit on a multiprocessor, {wanted} should"
    for loop in kernel.loops:
        if loop.loop.inner_loops:
            yield f"{where}: the loop at {loop.loop.address:#x} holds another loop: its cost was not counted"
    if kernel.datatype not in ELEMENT_BYTES:
        return
    main = kernel.cheapest("sketch")
    if main is None:
        yield f"{where}: no loop with 16-byte loads and a sketch was found"
    elif kernel.arch == 90 and main.per_element() > TARGETS.get(kernel.datatype, float("inf")):
        yield (f"{where}: {main.per_element():.2f} instructions per element in the main loop, at most "
               f"{TARGETS[kernel.datatype]} wanted")


HEADINGS = ("arch", "kernel", "registers", "stack", "spilled", "shared", "CTAs", "threads", "sketch", "loop", "k=0",
            "unaligned", "norm only", "f64", "cvt")


def row(kernel, norm_only):
    def number(loop, value):
        return f"{value(loop):.2f}" if loop else "-"

    sketch = kernel.cheapest("sketch") if kernel.datatype in ELEMENT_BYTES else None
    plain = kernel.cheapest("k=0") if kernel.datatype in ELEMENT_BYTES else None
    unaligned = kernel.cheapest("unaligned") if kernel.datatype in ELEMENT_BYTES else None
    alone = norm_only.get(kernel.datatype)
    used = kernel.resources
    return (f"sm_{kernel.arch}", kernel.name.removeprefix("gradprobe_"), str(used.registers), str(used.stack),
            str(used.spilled), str(used.shared), str(kernel.ctas), str(kernel.ctas * THREADS),
            number(sketch, HotLoop.per_element), number(sketch, lambda one: one.whole_per_element),
            number(plain, HotLoop.per_element), number(unaligned, HotLoop.per_element),
            number(alone.cheapest("k=0") if alone else None, HotLoop.per_element),
            number(sketch, lambda one: one.per_element(limits.UNITS["float64"])), number(sketch, lambda one: one.per_element(limits.UNITS["convert"])))


def print_text(rows):
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    for one in rows:
        print(" ".join(f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(one, widths))),
              flush=True)


def print_markdown(rows):
    for number, one in enumerate(rows):
        print("| " + " | ".join(one) + " |")
        if number == 0:
            print("|" + "|".join("---" if i < 2 else "---:" for i in range(len(one))) + "|", flush=True)


def print_loops(kernel):
    for one in kernel.loops:
        names = ", ".join(f"{name} {count}" for name, count in one.loop.histogram().most_common())
        where = sass.readable(one.loop.function)
        print(f"sm_{kernel.arch} {kernel.name}: {one.datatype} {one.kind} at {one.loop.address:#x} of {where}: "
              f"{one.elements:g} elements a thread, {len(one.loop.fast_path)} of {len(one.loop.instructions())} "
              f"instructions, {one.per_element():.2f} per element\n    {names}", flush=True)


def print_blocks(kernel):
    for one in kernel.loops:
        print(f"sm_{kernel.arch} {kernel.name}: {one.datatype} {one.kind}; * = fast path")
        for number, block in one.loop.body.items():
            last = block.instructions[-1]
            follow = " ".join(f"{one.loop.body[n].instructions[0].address:#x}" if n in one.loop.body else "out"
                              for n in block.successors)
            calls = sum(i.name == "CALL" for i in block.instructions)
            print(f"  {'*' if number in one.loop.fast else ' '} {block.instructions[0].address:#07x} "
                  f"{len(block.instructions):4} instructions, {sum(i.load_bytes for i in block.instructions):4} bytes "
                  f"loaded, {sum(i.multiply_adds for i in block.instructions):3} multiply-adds, {calls} calls, "
                  f"{last.name} -> {follow}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--check", action="store_true", help="exit 1 if something is worse than it may be")
    parser.add_argument("--markdown", action="store_true", help="the table as in docs/PERFORMANCE.md")
    parser.add_argument("--loops", action="store_true", help="also every hot loop, with its instructions by name")
    parser.add_argument("--limits", action="store_true", help="also what limits the main loops, predicted")
    parser.add_argument("--blocks", action="store_true", help="also the hot loops' basic blocks")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT / "kernels/gradprobe.cu",
                        help="the kernels (default: kernels/gradprobe.cu)")
    parser.add_argument("--norm-only", type=pathlib.Path, default=ROOT / "tests/bench/norm_only.cu",
                        help="the kernels to compare with ('none': leave them out)")
    parser.add_argument("arch", nargs="*", type=int, help=f"of {ARCHITECTURES} (default: all)")
    arguments = parser.parse_args()
    for arch in arguments.arch:
        if arch not in ARCHITECTURES:
            parser.error(f"{arch}: must be one of {ARCHITECTURES}")

    rows, kernels = [HEADINGS], []
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 4)) as pool:
        def start(source, arch):
            return pool.submit(kernels_of, arguments.nvcc, arch, source, folder)

        jobs = []
        for arch in arguments.arch or ARCHITECTURES:
            compared = start(arguments.norm_only, arch) if str(arguments.norm_only) != "none" else None
            jobs.append((start(arguments.source, arch), compared))
        for own, compared in jobs:
            norm_only = {one.datatype: one for one in compared.result()} if compared else {}
            kernels += own.result()
            rows += [row(one, norm_only) for one in own.result()]
    print_table = print_markdown if arguments.markdown else print_text
    print_table(rows)
    if arguments.limits:
        print("\nPredicted picoseconds per element on the whole chip, by what is busy:\n")
        print_table([limits.HEADINGS, *limits.rows(kernels, ELEMENT_BYTES)])
        print("\nPredicted microseconds of 25 MiB by CTAs, best and worst:\n")
        print_table([limits.CAP_HEADINGS, *limits.cap_rows(kernels, ELEMENT_BYTES)])
    for kernel in kernels:
        if arguments.loops:
            print_loops(kernel)
        if arguments.blocks:
            print_blocks(kernel)
    found = [line for kernel in kernels for line in complaints(kernel)]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
