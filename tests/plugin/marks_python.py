#!/usr/bin/env python3
"""The lines of README.md that mark a run from Python, in a process whose NCCL (played here, through ctypes) loads the
plugin by its path.   marks_python.py PLUGIN TOOL FOLDER"""
import ctypes
import json
import os
import subprocess
import sys

plugin_path, tool, folder = sys.argv[1:]


class Profiler(ctypes.Structure):  # ncclProfiler_v5
    _fields_ = [(name, ctypes.c_void_p) for name in "name init start stop record finalize".split()]


def call(address, result, *arguments):
    return ctypes.CFUNCTYPE(result)(address)(*arguments)


def mark(n):
    import contextlib, ctypes, os
    with contextlib.suppress(OSError): ctypes.CDLL("libnccl-profiler-gradprobe.so", os.RTLD_NOLOAD).gradprobe_step(n)


cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
os.environ["GRADPROBE_DIR"] = folder
os.environ["GRADPROBE_RING_MB"] = "1"

mark(5)  # not loaded
plugin = ctypes.CDLL(plugin_path)
mark(6)  # no communicator yet
profiler = Profiler.in_dll(plugin, "ncclProfiler_v5")
comm, mask = ctypes.c_void_p(), ctypes.c_int()
logger = ctypes.CFUNCTYPE(None)()
assert call(profiler.init, ctypes.c_int, ctypes.byref(comm), ctypes.c_uint64(7), ctypes.byref(mask),
            ctypes.c_char_p(b""), ctypes.c_int(1), ctypes.c_int(2), ctypes.c_int(0), logger) == 0
assert comm.value, "not measured"
mark(7)
gradprobe = ctypes.CDLL("libnccl-profiler-gradprobe.so")
gradprobe.gradprobe_scalar(b"loss", ctypes.c_double(0.625))
gradprobe.gradprobe_phase("Prüfung".encode())
gradprobe.gradprobe_step(ctypes.c_uint64(2**40))
assert call(profiler.finalize, ctypes.c_int, comm) == 0
mark(8)  # no communicator any more

dump = subprocess.run([tool, "dump", "--json", folder], check=True, capture_output=True, text=True).stdout
found = [(m["mark"], m["number"], m["name"], m["value"]) for m in map(json.loads, dump.splitlines())]
expected = [("step", 6, None, None), ("step", 7, None, None), ("scalar", None, "loss", 0.625),
            ("phase", None, "Prüfung", None), ("step", 2**40, None, None)]
assert found == expected, found
