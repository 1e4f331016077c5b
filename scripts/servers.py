"""Run the suites of registry, members, command and migration on each release of ZooKeeper, and print a table.

`ZKGROUPS_TEST_RELEASE` limits the run to one release. Arguments are passed to pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIABLE = "ZKGROUPS_TEST_RELEASE"
NEWEST = "3.9"
RELEASES = ("3.4.14", "3.5.10", "3.6.4", "3.8.4", NEWEST)
SUITES = (
    "tests/zookeeper",
    "tests/consumer",
    "tests/cli",
    "tests/migration",
    "tests/doors",
    "tests/hostile",
    "tests/simulation",
)
COUNTS = ("passed", "failed", "errors", "skipped")
LAST_LINE = re.compile(r"=* ?((?:\d+ \w+,? ?)+) in [\d.]+s.*")


def main() -> int:
    releases = [chosen] if (chosen := os.environ.get(VARIABLE)) else RELEASES
    results = {release: run(release, sys.argv[1:]) for release in releases}
    print("\nRELEASE  " + "  ".join(f"{name.upper():>7}" for name in COUNTS))
    for release, (_, counts) in results.items():
        print(f"{release:7}  " + "  ".join(f"{counts.get(name, 0):>7}" for name in COUNTS))
    return max(code for code, _ in results.values())


def run(release: str, arguments: list[str]) -> tuple[int, dict[str, int]]:
    """Return the exit code of pytest, and how many tests passed, failed and so on."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "6", *SUITES, *arguments]
    environment = os.environ | {VARIABLE: "" if release == NEWEST else release}
    print(f"ZooKeeper {release}", flush=True)
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as pytest:
        assert pytest.stdout is not None
        for line in pytest.stdout:
            print(line, end="", flush=True)
            last = found[1] if (found := LAST_LINE.fullmatch(line.strip())) else last
    return pytest.returncode, counted(last)


def counted(line: str) -> dict[str, int]:
    """Return the numbers in the last line of pytest.

    >>> counted("1 failed, 20 passed, 1 error")
    {'failed': 1, 'passed': 20, 'errors': 1}
    """
    found = re.findall(r"(\d+) (\w+)", line)
    return {"errors" if name == "error" else name: int(number) for number, name in found}


if __name__ == "__main__":
    sys.exit(main())
