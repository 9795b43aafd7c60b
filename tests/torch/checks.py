"""What each case has to show. A check returns its numbers as text, or raises AssertionError with what is wrong."""
import collections
import math
import re

import numpy as np

from launch import RANKS, Run
from rings import Rings

NORM_TOLERANCE = 1e-6  # relative: the device adds float32 squares in another order than the float64 reference


def need(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def paired(run: Run, rings: Rings, rank: int) -> list:
    """(what the rank sent, its record) for each buffer. A group's communicator is the one with the same calls."""
    sent = run.facts(rank)["sent"]
    by_comm = rings.measured(rank)
    pairs = []
    for group in dict.fromkeys(s["group"] for s in sent):
        own = [s for s in sent if s["group"] == group]
        calls = [(s["replay"], s["function"], s["count"]) for s in own]
        fitting = [c for c, rs in by_comm.items() if [(r["replay"], r["function"], r["count"]) for r in rs] == calls]
        found = ", ".join(f"{len(records)} in {comm}" for comm, records in by_comm.items()) or "none"
        need(len(fitting) == 1, f"rank {rank}, group {group}: {len(own)} buffers sent, recorded: {found}")
        pairs += zip(own, by_comm.pop(fitting[0]))
    need(not by_comm, f"rank {rank}: records of a communicator that got no buffer: {list(by_comm)}")
    return pairs


def norms(run: Run, rings: Rings) -> str:
    worst, count = 0.0, 0
    for rank in range(RANKS):
        for sent, record in paired(run, rings, rank):
            where = f"rank {rank}, op {record['op']}, replay {record['replay']}"
            need(record["nan"] == sent["nan"], f"{where}: {record['nan']} NaN recorded, {sent['nan']} sent")
            expected = math.sqrt(sent["sum_squares"])
            error = abs(record["norm"] - expected) / expected
            need(error <= NORM_TOLERANCE, f"{where}: norm {record['norm']}, the CPU's {expected}")
            largest = abs(record["max_abs"] - sent["max_abs"]) <= 1e-7 * sent["max_abs"]
            need(largest, f"{where}: largest magnitude {record['max_abs']}, the CPU's {sent['max_abs']}")
            worst, count = max(worst, error), count + 1
    return f"{count} of {count} norms (error {worst:.0e})"


def missed(rings: Rings, allowed: dict) -> str:
    """`allowed` says how many calls may lack values, by reason, on each rank."""
    seen = rings.missed()
    for reason, count in seen.items():
        most = allowed.get(reason, 0) * RANKS
        need(count <= most, f"{count} calls without values ({reason}), at most {most} expected")
    return ", ".join(f"{count} {reason}" for reason, count in seen.items()) or "none missed"


def first_two_as_one(run: Run, rings: Rings) -> bool:
    """Whether compare takes the first two steps for one and says so beside it, which is all that it can do where DDP
    reduces in the second step as it did in the first (static_graph)."""
    steps = rings.steps()
    return len(steps) == run.facts(0)["steps"] - 1 and len(steps[0]["notes"]) > 0


def true_cosines(run: Run, rings: Rings) -> list:
    """Of the two ranks' gradients in each step, from the buffers that they kept."""
    first = 1 if first_two_as_one(run, rings) else 0
    vectors = []
    for rank in range(RANKS):
        by_step = {}
        for sent, buffer in zip(run.facts(rank)["sent"], run.buffers(rank)):
            by_step.setdefault(max(sent["step"], first), []).append(buffer.astype(np.float64))
        vectors.append([np.concatenate(by_step[step]) for step in sorted(by_step)])
    return [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(*vectors)]


def fewest_inside(intervals: int) -> int:
    """How many of the 95 % intervals must hold the truth: by chance fewer do once in a million times."""
    tail = 0.0
    for inside in range(intervals + 1):
        tail += math.comb(intervals, inside) * 0.95**inside * 0.05 ** (intervals - inside)
        if tail > 1e-6:
            return inside
    return intervals


def cosines(run: Run, rings: Rings) -> str:
    truths = true_cosines(run, rings)
    steps = rings.steps()
    need(len(steps) == len(truths), f"{len(steps)} steps found, {len(truths)} trained")
    inside = 0
    for truth, step in zip(truths, steps):
        need(step["mean_cosine"] is not None, f"step {step['step']} has no cosine")
        low, high = step["cosine_low"], step["cosine_high"]
        inside += low <= truth <= high
        reach = high - low  # three half-widths from the middle: six standard deviations
        near = low - reach <= truth <= high + reach
        need(near, f"step {step['step']}: cosine {truth:.4f}, compare says [{low:.4f}, {high:.4f}]")
    need(inside >= fewest_inside(len(truths)), f"{inside} of {len(truths)} cosines in their 95 % interval")
    return f"{inside} of {len(truths)} cosines in their 95 % interval"


def same_training(run: Run, without: Run) -> str:
    losses = 0
    for rank in range(RANKS):
        ours, theirs = run.facts(rank), without.facts(rank)
        need(ours["losses"] == theirs["losses"], f"rank {rank}: losses differ from those without gradprobe")
        need(ours["results"] == theirs["results"], f"rank {rank}: results differ from those without gradprobe")
        losses += len(ours["losses"])
    results = sum(len(run.facts(rank)["results"]) for rank in range(RANKS))
    return (f"{losses} losses and " if losses else "") + f"{results} results as without"


def step_count(run: Run, rings: Rings, may_join_two: bool) -> str:
    trained = run.facts(0)["steps"]
    if may_join_two and first_two_as_one(run, rings):
        return f"{trained - 1} steps, the first for two: {rings.steps()[0]['notes'][0]}"
    by_comm = collections.Counter(step["comm"] for step in rings.steps())
    for comm, found in by_comm.items():
        need(found == trained, f"{found} steps found in communicator {comm}, {trained} trained")
    need(len(by_comm) > 0, "no steps found")
    return f"{trained} steps"


def named_nan(run: Run, rings: Rings) -> str:
    firsts = []
    for rank in range(RANKS):
        with_nan = ((sent, record) for sent, record in paired(run, rings, rank) if sent["nan"])
        sent, record = next(with_nan)
        firsts.append((sent["step"], rank, record["op"], sent["first_nonfinite"]))
    step, rank, op, element = min(firsts)
    summary = rings.summary()
    told = re.search(r"FINDING: rank (\d+) had the first NaN: step (\d+), op (\d+) .*?, element (\d+) ", summary)
    need(told is not None, "compare names no first NaN")
    need(tuple(map(int, told.groups())) == (rank, step, op, element), f"compare says: {told[0]}")
    return f"compare names rank {rank}, step {step}, op {op}, element {element}"
