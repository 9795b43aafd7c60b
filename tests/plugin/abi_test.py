#!/usr/bin/env python3
"""Each adapter holds every field that it declares against the table of NCCL's layouts, and a table with another number
for any of them doesn't compile.

usage: abi_test.py PLUGIN_FOLDER TABLE_HEADER WORK_FOLDER COMPILE_COMMAND...
"""
import pathlib
import re
import subprocess
import sys

# At the end of version 1's collective, after all that the table has; they count for the struct's size.
UNLISTED = {"coll.is_collnet", "coll.is_nvls"}


def declared(source: str) -> set[str]:
    """The members of the descriptor, nested ones with a dot."""
    body = re.search(r"struct Descriptor\w* \{\n(.*?)\n\};", source, re.S).group(1)
    members = set()
    for nested, name in re.findall(r"struct \{\n(.*?)\n    \} (\w+);", body, re.S):
        members |= {f"{name}.{m}" for line in nested.splitlines() for m in re.findall(r"(\w+)(?:;|,)", line)}
    return members | set(re.findall(r"^  [\w:]+\*? (\w+);", body, re.M))


def not_where_older_ones_are(table: pathlib.Path) -> int:
    """A struct of version 5 serves versions 6 and 7, one of version 6 serves version 7 (GRADPROBE_CHAIN): whatever the
    older one has must be in the newer one at the same place."""
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for line in table.read_text().splitlines()[1:]:
        struct, field, offset, size = line.split("\t")
        rows.setdefault(struct, {})[field] = (offset, size)
    failures = 0
    assert len(rows["ncclProfilerEventDescr_v5_t"]) > 40
    for kind in ("EventDescr", "EventStateArgs", ""):
        for older, newer in ((5, 6), (6, 7)):
            a, b = (rows[f"ncclProfiler{kind}_v{v}_t"] for v in (older, newer))
            for field, place in a.items():
                if field != "(struct)" and b.get(field) != place:
                    print(f"{kind}: {field} lies at {place} in version {older}, at {b.get(field)} in version {newer}")
                    failures += 1
    return failures


def main() -> int:
    plugin, header, work = (pathlib.Path(a) for a in sys.argv[1:4])
    compile_command = sys.argv[4:]
    work.mkdir(parents=True, exist_ok=True)
    text = header.read_text()
    wrong = re.sub(r"\{(\d+), (\d+)\}", r"{\1 + 1, \2}", text)
    wrong = re.sub(r"kSize = (\d+);", r"kSize = \1 + 1;", wrong)
    assert wrong != text
    (work / header.name).write_text(wrong)

    failures = not_where_older_ones_are(plugin / "abi" / "profiler-abi.tsv")
    for version in range(1, 8):
        adapter = plugin / f"profiler_v{version}.cpp"
        source = adapter.read_text()
        if "descriptor_v5.hpp" in source:
            source += (plugin / "descriptor_v5.hpp").read_text()
        members = declared(source) - UNLISTED
        checked = set(re.findall(r"GRADPROBE_ABI_FIELD\(Descriptor\w*, ([\w.]+),", source))
        if len(members) < 10 or members != checked:
            print(f"{adapter.name}: declared but not checked, or the other way round: {sorted(members ^ checked)}")
            failures += 1
        command = [*compile_command, "-fsyntax-only", "-fmax-errors=0", f"-I{work}", f"-I{plugin}", str(adapter)]
        run = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
        errors = re.findall(r"static assertion failed(?: due to requirement '.*?')?: (.*)", run.stderr)
        fields = {e for e in errors if "is not where" in e}
        sizes = {e for e in errors if "has not the size" in e}
        # The exported table has six fields and a size of its own.
        if run.returncode == 0 or len(fields) != len(checked) + 6 or len(sizes) != 2:
            print(f"{adapter.name}: {len(fields)} fields and {len(sizes)} sizes were refused of {len(checked) + 6} and 2")
            print(run.stderr[:2000])
            failures += 1
    return failures


if __name__ == "__main__":
    sys.exit(main())
