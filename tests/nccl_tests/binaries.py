"""The *_perf programs: found in a folder of binaries, or built from a checkout of nccl-tests."""
import os
import pathlib
import re
import shutil
import subprocess

BUILD_LIMIT_S = 1800


class Failure(Exception):
    """What is missing or wrong, in one line."""


def needed_libraries(program: pathlib.Path) -> list:
    done = subprocess.run(["readelf", "-d", program], capture_output=True, text=True)
    return re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout)


def has_open_mpi() -> bool:
    """Only Open MPI's options are known here."""
    if not shutil.which("mpirun"):
        return False
    return "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


def mpi_home() -> pathlib.Path | None:
    """The folder whose include/ and lib/ a program with MPI is built against: Open MPI's, by its compiler wrapper."""
    if not has_open_mpi() or not shutil.which("mpicc"):
        return None
    done = subprocess.run(["mpicc", "--showme:incdirs"], capture_output=True, text=True)
    for folder in map(pathlib.Path, done.stdout.split()):
        if (folder / "mpi.h").is_file() and list((folder.parent / "lib").glob("libmpi.so*")):
            return folder.parent
    return None


def find_nvcc(build: pathlib.Path) -> pathlib.Path:
    """The nvcc that the build folder was configured with, else that of the machine."""
    cache = build / "CMakeCache.txt"
    found = re.search(r"^GRADPROBE_NVCC:\w+=(.+)$", cache.read_text() if cache.is_file() else "", re.MULTILINE)
    nvcc = (found and found[1]) or shutil.which("nvcc")
    if not nvcc or not pathlib.Path(nvcc).exists():
        raise Failure("no nvcc: set CUDA_HOME, or give --tests a folder of built programs")
    return pathlib.Path(nvcc)


def toolkit_folders(nvcc: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """nvcc's toolkit, and its libcudart.so.NN."""
    done = subprocess.run([nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.MULTILINE)
    home = pathlib.Path(top[1]).resolve() if top else nvcc.resolve().parent.parent
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
        runtime = sorted((home / folder).glob("libcudart.so.[0-9]*"))
        if runtime:
            return home, runtime[0]
    raise Failure(f"{home}: holds no libcudart.so; give --tests a folder of built programs")


def nccl_folders(nccl: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The library and the headers below DIR: a wheel's folder, an installation, or what fetch_wheels.py makes."""
    for library in (nccl / "libnccl.so.2", nccl / "lib" / "libnccl.so.2"):
        if library.is_file():
            return library.resolve(), nccl / "include"
    raise Failure(f"--nccl {nccl}: holds no libnccl.so.2, nor does its lib/")


def build_checkout(checkout: pathlib.Path, build: pathlib.Path, nccl: pathlib.Path, stand_ins: bool) -> pathlib.Path:
    """Builds all programs, with MPI where there is one, in a folder of BUILD. It is made anew when anything differs."""
    library, headers = nccl_folders(nccl)
    if not (headers / "nccl.h").is_file():
        raise Failure(f"--nccl {nccl}: holds no include/nccl.h")
    nvcc = find_nvcc(build)
    home, runtime = toolkit_folders(nvcc)
    mpi = mpi_home()
    # The stand-in executes PTX; its device is of compute capability 12.0, as the wheels' PTX is.
    code = "-gencode=arch=compute_120,code=compute_120" if stand_ins else "-arch=native"
    folder = build / "nccl-tests"
    made_of = "\n".join(map(str, (checkout, newest(checkout), library, library.stat().st_size, nvcc, mpi, code)))
    stamp = folder / "made-of"
    if stamp.is_file() and stamp.read_text() == made_of:
        return folder / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    (folder / "include").symlink_to(headers.resolve())
    # One folder for both, searched before all others: a toolkit may have an NCCL of its own.
    for target, names in ((library, ("libnccl.so", "libnccl.so.2")), (runtime, ("libcudart.so", runtime.name))):
        for name in names:
            (libraries / name).symlink_to(target)
    sources = folder / "sources"
    shutil.copytree(checkout, sources, ignore=shutil.ignore_patterns(".git", "build"))
    command = ["make", "-C", sources / "src", f"-j{os.environ.get('GRADPROBE_JOBS', os.cpu_count())}", "build",
               f"BUILDDIR={folder / 'programs'}", f"NVCC={nvcc}", f"CUDA_HOME={home}", f"CUDA_LIB={libraries}",
               f"NCCL_HOME={folder}", f"NVCC_GENCODE={code}"]
    if mpi:
        command += ["MPI=1", f"MPI_HOME={mpi}"]
    log = folder / "build.log"
    print(f"building nccl-tests{' with MPI' if mpi else ''} (log: {log}) ...", flush=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT,
                                  timeout=BUILD_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"building {checkout} took longer than {BUILD_LIMIT_S} s; see {log}") from None
    if done.returncode != 0:
        raise Failure(f"{checkout} can't be built against {headers}; see {log}")
    stamp.write_text(made_of)
    return folder / "programs"


def newest(folder: pathlib.Path) -> int:
    return max(path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)


def find_programs(tests: pathlib.Path, build: pathlib.Path, nccl: pathlib.Path, stand_ins: bool) -> list:
    if not tests.is_dir():
        raise Failure(f"--tests {tests}: no such folder; give a checkout of nccl-tests or a folder of its programs")
    is_checkout = (tests / "src" / "Makefile").is_file() and (tests / "src" / "common.cu").is_file()
    folder = build_checkout(tests, build, nccl, stand_ins) if is_checkout else tests
    named = (p for p in folder.iterdir() if re.fullmatch(r"\w+_perf(_mpi)?", p.name))
    programs = sorted(p for p in named if os.access(p, os.X_OK))
    if not programs:
        raise Failure(f"--tests {tests}: holds no executable *_perf and is no checkout of nccl-tests")
    return programs
