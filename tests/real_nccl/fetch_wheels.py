#!/usr/bin/env python3
"""Brings the NCCL libraries of wheels.txt onto this machine: FOLDER/VERSION-CUDA/libnccl.so.2 and include/.

pip downloads each wheel and checks its hash. Only the library and its headers are kept. A folder appears as a whole or
not at all, so an interrupted run, or two at once, leave nothing half made.

Exit code: 0 all there; 1 something couldn't be brought (one line each says what); 2 wrong usage.
"""
import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "wheels.txt"
ROLES = {"always", "chosen", "cuda12", "preload"}
LIBRARY, HEADERS = "nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/"
# pip matches the platform's tag to the letter; these are the ones that NVIDIA's wheels have had.
PLATFORMS = ["manylinux_2_27_x86_64", "manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
DOWNLOAD_SECONDS = 900


class Failure(Exception):
    """What is wrong, in one line."""


@dataclasses.dataclass(frozen=True)
class Wheel:
    version: str  # of NCCL, as 2.32.3
    cuda: str  # cu12 or cu13
    role: str  # when the tests use it
    sha256: str

    @property
    def name(self):
        return f"{self.version}-{self.cuda}"

    @property
    def requirement(self):
        return f"nvidia-nccl-{self.cuda}=={self.version} --hash=sha256:{self.sha256}\n"


def read_list(path=LIST):
    wheels = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 4 or words[1] not in ("cu12", "cu13") or words[2] not in ROLES or len(words[3]) != 64:
            raise Failure(f"{path.name}, line {number}: must be VERSION cu12|cu13 {'|'.join(sorted(ROLES))} SHA256")
        wheels.append(Wheel(*words))
    return wheels


def chosen(wheels, names):
    """The wheels with these names: 2.30.7-cu12, or 2.30.7 for the one of the newest CUDA."""
    picked = []
    for name in names:
        fitting = [w for w in wheels if name in (w.name, w.version)]
        if not fitting:
            raise Failure(f"{name}: not among {', '.join(w.name for w in wheels)}")
        picked.append(max(fitting, key=lambda w: w.cuda))
    return picked


def is_there(wheel, folder):
    stamp = folder / wheel.name / "sha256"
    return stamp.is_file() and stamp.read_text().strip() == wheel.sha256


def download(wheel, into):
    requirements = into / "requirements.txt"
    requirements.write_text(wheel.requirement)
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps",
               "--no-cache-dir", "--require-hashes", "--only-binary=:all:", "--progress-bar=off",
               "--python-version=3.12", "--implementation=py", "--abi=none",
               *(f"--platform={p}" for p in PLATFORMS), "-d", str(into), "-r", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"NCCL {wheel.name}: the download took longer than {DOWNLOAD_SECONDS} s") from None
    found = sorted(into.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise Failure(f"NCCL {wheel.name}: pip couldn't download it: {lines[0].strip() if lines else 'no reason given'}")
    return found[0]


def unpack(wheel, file, into):
    try:
        with zipfile.ZipFile(file) as archive:
            for inside in [LIBRARY, *(n for n in archive.namelist() if n.startswith(HEADERS) and not n.endswith("/"))]:
                kept = "libnccl.so.2" if inside == LIBRARY else "include/" + inside.removeprefix(HEADERS)
                target = (into / kept).resolve()
                if not target.is_relative_to(into.resolve()):
                    raise Failure(f"NCCL {wheel.name}: {file.name} holds {inside}, which leads out of its folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(inside) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise Failure(f"NCCL {wheel.name}: {file.name} isn't laid out as expected: {error}") from None
    (into / "sha256").write_text(wheel.sha256 + "\n")


def fetch(wheel, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        scratch = pathlib.Path(scratch)
        made = scratch / "made"
        made.mkdir()
        unpack(wheel, download(wheel, scratch), made)
        target = folder / wheel.name
        if target.exists():  # of another hash, or half removed by hand
            target.rename(scratch / "old")
        try:
            made.rename(target)
        except OSError:
            if not is_there(wheel, folder):  # else a run beside this one was faster
                raise


def main():
    parser = argparse.ArgumentParser(description="Downloads the NCCL libraries that the tests run on.")
    parser.add_argument("--into", type=pathlib.Path, metavar="DIR",
                        help="where to (default: GRADPROBE_CACHE, else build/wheels)")
    parser.add_argument("--list", action="store_true", help="print name, role and whether it is there; fetch nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="2.30.7-cu12, or 2.30.7 for the newest CUDA (default: all)")
    arguments = parser.parse_args()
    folder = arguments.into or pathlib.Path(os.environ.get("GRADPROBE_CACHE") or HERE.parents[1] / "build" / "wheels")
    try:
        wheels = read_list()
        wheels = chosen(wheels, arguments.names) if arguments.names else wheels
    except Failure as failure:
        print(f"fetch_wheels: {failure}", file=sys.stderr)
        return 2
    if arguments.list:
        for wheel in wheels:
            print(wheel.name, wheel.role, "there" if is_there(wheel, folder) else "missing")
        return 0
    result = 0
    missing = [w for w in wheels if not is_there(w, folder)]
    for number, wheel in enumerate(missing, 1):
        print(f"[{number}/{len(missing)}] NCCL {wheel.name}", flush=True)
        try:
            fetch(wheel, folder)
        except Failure as failure:
            print(f"fetch_wheels: {failure}", file=sys.stderr, flush=True)
            result = 1
        except OSError as error:
            print(f"fetch_wheels: NCCL {wheel.name}: {error}", file=sys.stderr, flush=True)
            result = 1
    return result


if __name__ == "__main__":
    sys.exit(main())
