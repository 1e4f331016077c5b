"""Print which file of tests shows which promises and failures, its lines, and the seconds that its tests take.

    python scripts/test_map.py [REPORT]    a REPORT is what `pytest --junitxml` wrote; without one, there are no seconds

A file is of the first folder below `tests`. The seconds are a sum over all processes of the run.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
_ROW: Final = re.compile(r"^\| (?P<number>\d+) \| (?P<tests>.*`tests/.*?)\|")


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    shown, seconds = _shown(), _seconds(Path(arguments[0])) if arguments else {}
    lines = {file: len(file.read_text().splitlines()) for file in sorted((ROOT / "tests").rglob("*.py"))}
    for folder, files in _by_folder(lines):
        print(f"{folder}: {len(files)} files, {sum(lines[file] for file in files)} lines{_took(files, seconds)}")
        for file in files:
            if file.name.startswith("test_"):
                facts = ", ".join(sorted(shown[file], key=lambda fact: (fact.split()[0], int(fact.split()[1]))))
                print(
                    f"    {file.relative_to(ROOT)}: {lines[file]} lines{_took([file], seconds)}{facts and '; ' + facts}"
                )
    print(f"all: {len(lines)} files, {sum(lines.values())} lines{_took(lines, seconds)}")
    return 0


def _shown() -> dict[Path, set[str]]:
    """Return the promises and failures of each file, from the two tables of the guarantees."""
    found: dict[Path, set[str]] = defaultdict(set)
    kind = "promise"
    for line in (ROOT / "docs/guarantees.md").read_text().splitlines():
        if line == "## Failures":
            kind = "failure"
        elif row := _ROW.match(line):
            for name in re.findall(r"`(tests/[\w/]+\.py)", row["tests"]):
                found[ROOT / name].add(f"{kind} {row['number']}")
    return found


def _seconds(report: Path) -> dict[Path, float]:
    found: dict[Path, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (pytest wrote the report)
        parts = case.get("classname", "").split(".")
        file = next(
            (path for n in range(len(parts), 0, -1) if (path := ROOT.joinpath(*parts[:n]).with_suffix(".py")).exists()),
            None,
        )
        if file is not None:
            found[file] += float(case.get("time", 0))
    return found


def _by_folder(files: dict[Path, int]) -> Iterator[tuple[str, list[Path]]]:
    folders: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        inside = file.relative_to(ROOT).parts
        folders["/".join(inside[: min(2, len(inside) - 1)])].append(file)
    yield from folders.items()


def _took(files: Sequence[Path] | dict[Path, int], seconds: dict[Path, float]) -> str:
    return f", {sum(seconds.get(file, 0) for file in files):.0f} s" if seconds else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
