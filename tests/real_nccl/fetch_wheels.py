#!/usr/bin/env python3
"""Downloads the NCCL libraries of wheels.txt: FOLDER/VERSION-CUDA/libnccl.so.2 and include/.

pip downloads each wheel and checks its hash. Only the library and its headers are kept. A folder appears as a whole or
not at all, so an interrupted run leaves nothing half made; of two at once, one waits for the other.

Exit code: 0 all are there; 1 something is wrong (a hash, a full disk); 2 wrong usage; 3 a download failed and nothing
else is wrong. One line on stderr for each problem says what it is.
"""
import argparse
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "wheels.txt"
ROLES = {"always", "chosen", "cuda12", "preload"}
LIBRARY, HEADERS = "nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/"
# pip matches the platform's tag to the letter; these are the ones that NVIDIA's wheels have had.
PLATFORMS = ["manylinux_2_27_x86_64", "manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
DOWNLOAD_SECONDS = 900
TEMPORARY = ".fetching-"
WRONG, USAGE, UNREACHABLE = 1, 2, 3  # exit codes


class Failure(Exception):
    """What is wrong, in one line."""


class NotDownloaded(Failure):
    """No network, no pip, or no such wheel where pip looks."""


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


def is_whole(made):
    return (made / "libnccl.so.2").is_file() and (made / "include" / "nccl.h").is_file()


def is_there(wheel, folder):
    made = folder / wheel.name
    stamp = made / "sha256"
    return is_whole(made) and stamp.is_file() and stamp.read_text().strip() == wheel.sha256


@contextlib.contextmanager
def only_run(folder):
    """Keeps other runs out of the folder, and removes what a killed run left half made."""
    with (folder / ".lock").open("w") as lock:
        deadline = time.monotonic() + DOWNLOAD_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Failure(f"another run has held {folder}/.lock for more than {DOWNLOAD_SECONDS} s") from None
                time.sleep(0.2)
        for left in folder.glob(TEMPORARY + "*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def download(wheel, into):
    requirements = into / "requirements.txt"
    requirements.write_text(wheel.requirement)
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps",
               "--no-cache-dir", "--require-hashes", "--only-binary=:all:", "--progress-bar=off",
               "--retries=2", "--python-version=3.12", "--implementation=py", "--abi=none",
               *(f"--platform={p}" for p in PLATFORMS), "-d", str(into), "-r", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotDownloaded(f"NCCL {wheel.name}: the download took longer than {DOWNLOAD_SECONDS} s") from None
    found = sorted(into.glob("*.whl"))
    if done.returncode == 0 and len(found) == 1:
        return found[0]
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise Failure(f"NCCL {wheel.name}: the wheel's SHA-256 isn't the one in {LIST.name}: not used")
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    reason = lines[-1].strip() if lines else "no reason given"
    raise NotDownloaded(f"NCCL {wheel.name}: pip couldn't download it (no network?): {reason}")


def unpack(wheel, file, into):
    try:
        with zipfile.ZipFile(file) as archive:
            for inside in [LIBRARY, *(n for n in archive.namelist() if n.startswith(HEADERS) and not n.endswith("/"))]:
                kept = "libnccl.so.2" if inside == LIBRARY else "include/" + inside.removeprefix(HEADERS)
                target = (into / kept).resolve()
                if not target.is_relative_to(into.resolve()):
                    raise Failure(f"NCCL {wheel.name}: {file.name} holds {inside}, which lies outside its folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(inside) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise Failure(f"NCCL {wheel.name}: {file.name} isn't laid out as expected: {error}") from None
    if not is_whole(into):
        raise Failure(f"NCCL {wheel.name}: {file.name} isn't laid out as expected: no {HEADERS}nccl.h")
    (into / "sha256").write_text(wheel.sha256 + "\n")


def fetch(wheel, folder):
    with only_run(folder):
        if is_there(wheel, folder):  # another run has downloaded it meanwhile
            return
        with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY) as scratch:
            scratch = pathlib.Path(scratch)
            made = scratch / "made"
            made.mkdir()
            unpack(wheel, download(wheel, scratch), made)
            target = folder / wheel.name
            if target.exists():  # of another hash, or not whole
                target.rename(scratch / "old")
            made.rename(target)


def fetch_all(wheels, folder):
    """The exit code. Without a network every try takes long: after two failures in a row the rest isn't tried."""
    result = in_vain = 0
    for number, wheel in enumerate(wheels, 1):
        print(f"[{number}/{len(wheels)}] NCCL {wheel.name}", flush=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fetch(wheel, folder)
            in_vain = 0
        except (Failure, OSError) as failure:
            text = failure if isinstance(failure, Failure) else f"NCCL {wheel.name}: {failure}"
            print(f"fetch_wheels: {text}", file=sys.stderr, flush=True)
            if not isinstance(failure, NotDownloaded):
                result = WRONG
                continue
            result = result or UNREACHABLE
            in_vain += 1
            if in_vain == 2 and number < len(wheels):
                rest = " ".join(w.name for w in wheels[number:])
                print(f"fetch_wheels: not tried after two failed downloads: {rest}", file=sys.stderr, flush=True)
                break
    return result


def main():
    parser = argparse.ArgumentParser(description="Downloads the NCCL libraries that the tests run on.")
    parser.add_argument("--into", type=pathlib.Path, metavar="DIR",
                        help="folder for the libraries (default: GRADPROBE_CACHE, else build/wheels)")
    parser.add_argument("--list", action="store_true",
                        help="only print the name and role of each wheel and whether it is there")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="2.30.7-cu12, or 2.30.7 for its newest CUDA (default: all)")
    arguments = parser.parse_args()
    # Raises SystemExit, so that what is half made is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = arguments.into or pathlib.Path(os.environ.get("GRADPROBE_CACHE") or HERE.parents[1] / "build" / "wheels")
    try:
        wheels = read_list()
        wheels = chosen(wheels, arguments.names) if arguments.names else wheels
    except Failure as failure:
        print(f"fetch_wheels: {failure}", file=sys.stderr)
        return USAGE
    if arguments.list:
        for wheel in wheels:
            print(wheel.name, wheel.role, "there" if is_there(wheel, folder) else "missing")
        return 0
    return fetch_all([w for w in wheels if not is_there(w, folder)], folder)


if __name__ == "__main__":
    sys.exit(main())
