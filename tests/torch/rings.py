"""What gradprobe's own program says about a folder of rings: records, steps, findings."""
import collections
import json
import pathlib
import re
import subprocess


class Rings:
    def __init__(self, gradprobe: pathlib.Path, folder: pathlib.Path):
        self.gradprobe, self.folder = gradprobe, folder
        self.records = self._json_lines("dump", "--json")

    def _output(self, command: str, *arguments: str) -> str:
        call = [self.gradprobe, command, self.folder, *arguments]
        done = subprocess.run(call, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"gradprobe {command}: exit code {done.returncode}: {done.stderr.strip()[:300]}")
        return done.stdout

    def _json_lines(self, command: str, *arguments: str) -> list:
        return [json.loads(line) for line in self._output(command, *arguments).splitlines() if line.startswith("{")]

    def measured(self, rank: int) -> dict:
        """The inputs of more than 8 elements, by communicator, in the order of the calls."""
        by_comm = collections.defaultdict(list)
        for record in self.records:
            if record["rank"] == rank and record["kind"] == "collective" and record["status"] == "measured":
                by_comm[record["comm"]].append(record)
        return {comm: sorted(records, key=lambda r: (r["replay"], r["op"])) for comm, records in by_comm.items()}

    def missed(self) -> collections.Counter:
        """How many calls on all ranks lack values, by reason. Most have no record either."""
        counts = collections.Counter()
        for count, reason in re.findall(r"not measured +(\d+): .*\((\w+)\)$", self.info(), re.MULTILINE):
            if reason != "unsupported_function":  # what isn't to be measured at all
                counts[reason] += int(count)
        return counts

    def steps(self) -> list:
        return [line for line in self._json_lines("compare", "--json") if "mean_cosine" in line and "step" in line]

    def summary(self) -> str:
        return self._output("compare", "--summary")

    def info(self) -> str:
        return self._output("info")
