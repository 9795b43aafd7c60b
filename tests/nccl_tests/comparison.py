"""Compares a run with gradprobe with one without, and its records with the calls that were counted."""
import collections
import dataclasses
import json
import pathlib
import re
import subprocess

from perf_run import LIMIT_S, Result

MEASURED = ("AllReduce", "ReduceScatter", "Reduce")  # of any size; of the others only tiny inputs


@dataclasses.dataclass
class Outcome:
    problems: list
    records: int = 0
    calls: int = 0
    compared: int = 0
    ratio: float | None = None


def output_of(gradprobe: pathlib.Path, *arguments) -> str:
    done = subprocess.run([gradprobe, *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"gradprobe {arguments[0]}: {done.stderr.strip()[:200]}")
    return done.stdout


def expected_records(result: Result) -> collections.Counter:
    return collections.Counter(
        {key: count if key[0] in MEASURED else result.tiny[key] for key, count in result.calls.items()}
    )


def check_rings(gradprobe: pathlib.Path, rings: pathlib.Path, result: Result, outcome: Outcome) -> None:
    expected = expected_records(result)
    found = collections.Counter()
    lines = output_of(gradprobe, "dump", "--json", rings).splitlines() if list(rings.glob("*.ring")) else []
    for record in map(json.loads, lines):
        if record["kind"] in ("collective", "scalar") and record["status"] == "measured":
            found[record["function"], record["rank"]] += 1
    outcome.records, outcome.calls = found.total(), sum(expected.values())
    for key in sorted({*expected, *found}):
        if expected[key] != found[key]:
            outcome.problems.append(f"rank {key[1]}: {expected[key]} {key[0]} to measure, {found[key]} measured")
    if not found:
        return
    summary = output_of(gradprobe, "compare", "--summary", rings)
    told = re.findall(r"results: (\d+) all-reduces compared between ranks, (\d+) differ", summary)
    outcome.compared = sum(int(compared) for compared, _ in told)
    differing = sum(int(differ) for _, differ in told)
    if differing:
        outcome.problems.append(f"{differing} of {outcome.compared} results differ between ranks")
    all_reduces = found["AllReduce", 0]
    if outcome.compared != all_reduces:
        outcome.problems.append(f"{outcome.compared} results compared, of {all_reduces} all-reduces")


def compare_runs(without: Result, measured: Result) -> Outcome:
    outcome = Outcome([])
    for name, result in (("without", without), ("with", measured)):
        if result.code == 124:
            outcome.problems.append(f"{name} gradprobe: killed after {LIMIT_S} s")
        elif result.wrong is None:
            outcome.problems.append(f"{name} gradprobe: exit code {result.code}, no row of results")
        elif result.wrong:
            outcome.problems.append(f"{name} gradprobe: #wrong {result.wrong}")
    if without.code != measured.code:
        outcome.problems.append(f"exit code {without.code} without, {measured.code} with gradprobe")
    if without.calls != measured.calls:
        outcome.problems.append("the calls of NCCL with gradprobe differ from those without")
    shared = [size for size in without.times if size in measured.times and without.times[size] > 0]
    if shared:
        outcome.ratio = sum(measured.times[size] / without.times[size] for size in shared) / len(shared)
    return outcome
