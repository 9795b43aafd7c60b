#!/usr/bin/env python3
"""The demo on the newest wheel of NCCL: the faulty rank is named, and the settings are told apart.

usage: on_wheel_test.py BUILD_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "real_nccl/order"))
import runs  # noqa: E402


def mean_cosine(compared: pathlib.Path) -> float:
    steps = [json.loads(line)["mean_cosine"] for line in compared.read_text().splitlines()]
    return sum(steps) / len(steps)


def main() -> int:
    version, folder = list(runs.releases().items())[-1]
    if not (folder / "libnccl.so.2").exists():
        return runs.missing(version, folder)
    with tempfile.TemporaryDirectory(prefix="gradprobe-demo-") as out:
        command = ["bash", HERE / "run_demo.sh", "--build", sys.argv[1], "--out", out, "--nccl", folder, "--ranks", "2",
                   "--steps", "4"]
        try:
            done = subprocess.run(command, env={**os.environ, "NCCL_DEBUG": "VERSION"}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=280)
        except subprocess.TimeoutExpired as e:
            raise runs.Failed(f"run_demo.sh: not done after {e.timeout} s:\n{(e.stdout or b'').decode()}") from e
        same, own = (mean_cosine(pathlib.Path(out) / f"s1-{setting}.compare.jsonl") for setting in (1, 3)) \
            if done.returncode == 0 else (0, 0)
    expected = {
        "the demo ends well": done.returncode == 0,
        f"it ran on NCCL {version}": f"NCCL version {version}+cuda" in done.stdout,
        "rank 1 is named for the NaN that it wrote in step 3": "rank 1 had the first NaN: step 3," in done.stdout,
        f"equal ranks have a cosine of 1 (found {same:.3f})": abs(same - 1) < 1e-12,
        f"ranks that differ have a cosine below 0.5 (found {own:.3f})": own < 0.5,
    }
    wrong = [what for what, holds in expected.items() if not holds]
    if wrong:
        print(done.stdout)
        print("these don't hold: " + "; ".join(wrong))
    return 1 if wrong else 0


runs.main_of(main)
