"""Differences between two runs of a scenario in few lines, and the list of those that are known.

Lines have no numbers of handles and ranks, so that one change reads the same wherever it occurs:
  startEvent CollApi: rank=0 -> rank=1        fields of a call that changed
  - stopEvent Coll                            a call that is gone, + one that is new
Before a call that moved to another thread or stream stands the kind of that (caller, library thread, stream).
"""
import difflib
import fnmatch
import re

import runs


def plain(line: str) -> str:
    return re.sub(r"\.\d+ of rank \d+", "", line).replace("rank 0 stream", "stream").replace("rank 1 stream", "stream")


def brief(line: str) -> str:
    """A call that is gone or new, without most of its fields."""
    words = plain(line).split()
    return " ".join(words[:3] if words[0] == "startEvent" else words)


def kind(sequence: str) -> str:
    """profiler, caller, library thread or stream."""
    return re.sub(r"^rank [\d+]+ |( other)?( \d+)$", "", sequence)


def changed_fields(old: str, new: str) -> str:
    """One line for two that are the same call with other fields; empty for different calls."""
    a, b = plain(old).split(), plain(new).split()
    if len(a) != len(b) or a[:2] != b[:2]:
        return ""
    pairs = [(x, y) for x, y in zip(a, b) if x != y]
    return f"{' '.join(a[:2])}: " + ", ".join(f"{x} -> {y}" for x, y in pairs) if pairs else ""


def of_sequences(old: list, new: list) -> set:
    out = set()
    for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone, come = old[a0:a1], new[b0:b1]
        if len(gone) == len(come) and all(changed_fields(x, y) for x, y in zip(gone, come)):
            out |= {changed_fields(x, y) for x, y in zip(gone, come)}
        else:
            out |= {"- " + brief(x) for x in gone} | {"+ " + brief(x) for x in come}
    return out


def of_scenario(old: dict, new: dict) -> list:
    out, by_profiler = set(), set()
    for name in sorted(old.keys() | new.keys(), key=lambda n: (not n.endswith("profiler"), n)):
        found = of_sequences(old.get(name, []), new.get(name, []))
        if kind(name) == "profiler":
            by_profiler |= found
            out |= found
        else:
            out |= {f"{kind(name)}: {line}" for line in found - by_profiler}
    return sorted(out)


class Known:
    """The differences of a file, and which of them came."""

    def __init__(self, text: str):
        self.blocks, self.met = [], set()
        for number, line in enumerate(text.splitlines(), 1):
            head = re.match(r"\[(\S+) ([^\]]+)\] *(.*)", line)
            if head:
                if not head[3]:
                    raise ValueError(f"known_differences.txt line {number}: a reason must follow the bracket")
                self.blocks.append((head[1], head[2].split(), set()))
            elif line.strip() and not line.startswith("#"):
                if not self.blocks:
                    raise ValueError(f"known_differences.txt line {number}: no [SINCE SCENARIO] above it")
                self.blocks[-1][2].add(line.strip())

    def take(self, before: str, version: str, scenario: str, difference: str) -> bool:
        """Whether this one is known, between these two releases."""
        found = False
        for since, scenarios, lines in self.blocks:
            between = runs.version_of(before) < runs.version_of(since) <= runs.version_of(version)
            if between and difference in lines and any(fnmatch.fnmatch(scenario, s) for s in scenarios):
                self.met.add((since, difference))
                found = True
        return found

    def unmet(self, versions: list) -> list:
        """Known ones that no scenario showed, though their release and the one before it are among `versions`."""
        first, last = runs.version_of(versions[0]), runs.version_of(versions[-1])
        return [f"[{since}] {line}" for since, _, lines in self.blocks for line in sorted(lines)
                if first < runs.version_of(since) <= last and (since, line) not in self.met]
