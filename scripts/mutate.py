"""Change the code in one small place, run the tests that run this place, and print each change that no test detects.

    python scripts/mutate.py [--count 100] [--seed TEXT] [--minutes 60] [--log FILE] [FOLDER ...]    (or: make mutate)

A seed chooses the places, so that a run can be repeated; without one, each day has its own. The changes are made in a
copy of the tracked files. With a log, the next run with the same log tries what is left, and what survived before.
`survivors.toml` explains changes that no test can detect. The exit code is 1 if more than 3 % of the changes of a
folder survive without an explanation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, Final

from mutate_changes import Change, changes
from mutate_worker import TIMEOUT, VARIABLE
from trial import ROOT, Trial

_QUICK: Final = "not soak and not zookeeper and not spark and not kafka and not docker and not slow"
_OF_CORE: Final = "tests/core tests/cli tests/consumer tests/migration tests/zookeeper tests/test_examples.py"
_NO_BROKER: Final = "not soak and not spark and not kafka and not docker and not slow"
_NO_SPARK: Final = "not soak and not spark and not docker and not slow"

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "zkgroups/core": (*_OF_CORE.split(), "-m", _QUICK),
    "zkgroups/coordinator": ("tests/coordinator", "-m", _QUICK),
    "zkgroups/zookeeper": ("tests/simulation", "tests/zookeeper", "tests/consumer", "-m", _NO_BROKER),
    "zkgroups/consumer": ("tests/simulation", "tests/consumer", "-m", _NO_BROKER),
    "zkgroups/messages": ("tests/simulation", "tests/messages", "-m", _NO_SPARK),
    "zkgroups/gateway": ("tests/simulation/test_gateways.py", "tests/gateway", "tests/coordinator", "-m", _NO_SPARK),
    "zkgroups/serve": ("tests/serve", "tests/test_examples.py", "-m", _NO_BROKER),
    "zkgroups/migration": ("tests/migration", "-m", _NO_SPARK),
}
"""The tests that must detect a change, by folder."""

ALLOWED: Final = 0.03
"""The share of changes that may survive without an explanation."""

EXPLAINED: Final = Path(__file__).with_name("survivors.toml")
SURVIVED: Final = frozenset({"survived", "not run by any test"})


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=f"one of, or below, {', '.join(TESTS)} (all)")
    parser.add_argument("--count", type=int, default=100, help="the number of changes of each folder (100)")
    parser.add_argument("--seed", default=str(date.today()), help="chooses the changes (the date)")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="begin no change after so many minutes")
    parser.add_argument("--log", type=Path, help="the file with the results, to continue later")
    parser.add_argument("--tests", help="run these tests, and not those of the folder")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed!r}", flush=True)
    run = Run(time.monotonic() + given.minutes * 60, given.log)
    for folder in given.folders or list(TESTS):
        tests = given.tests.split() if given.tests else next(TESTS[each] for each in TESTS if folder.startswith(each))
        run.folder(folder, tests, chosen(folder, given.count, given.seed))
    return int(run.too_many)


def chosen(folder: str, count: int, seed: str) -> list[Change]:
    """Return so many changes of a folder. Most stay the same when the code changes in other places."""
    found = [
        change
        for file in sorted((ROOT / folder).rglob("*.py"))
        for change in changes(str(file.relative_to(ROOT)), file.read_text())
    ]
    return sorted(found, key=lambda change: random.Random(f"{seed} {name(change)}").random())[:count]


def name(change: Change) -> str:
    """Return what a log calls the change. It stays the same when other lines of the file change."""
    return json.dumps([change.file, change.scope, change.old, change.new, change.repeated])


class Run:
    """The changes that were tried, and what became of them."""

    def __init__(self, deadline: float, log: Path | None) -> None:
        self.too_many = False
        self._deadline = deadline
        self._log = log
        self._explained = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
        logged = log.read_text().splitlines() if log is not None and log.exists() else []
        self._outcomes: dict[str, str] = {each["change"]: each["outcome"] for each in map(json.loads, logged)}

    def folder(self, folder: str, tests: Sequence[str], found: Sequence[Change]) -> None:
        """Try the changes of a folder, and print the survivors and a summary."""
        counts: Counter[str] = Counter()
        left = []
        for change in found:
            outcome = self._known(change)
            counts[outcome] += bool(outcome)
            if not outcome:
                left.append(change)
        if left:
            with worker(folder, tests) as send:
                for change in left:
                    if time.monotonic() > self._deadline:
                        break
                    counts[self._try(change, send)] += 1
        self._summarize(folder, counts, len(found))

    def _known(self, change: Change) -> str:
        """Return the outcome that needs no trial, or nothing."""
        if self._is_explained(change):
            return "explained"
        known = self._outcomes.get(name(change), "")
        return "" if known in SURVIVED else known

    def _is_explained(self, change: Change) -> bool:
        own = {"file": change.file, "in": change.scope, "old": change.old, "new": change.new}
        return any(all(own.get(key) == text for key, text in each.items() if key != "why") for each in self._explained)

    def _try(self, change: Change, send: Any) -> str:
        found = send(asdict(change))
        if self._log is not None:
            with self._log.open("a") as out:
                print(json.dumps({"change": name(change), **found}), file=out)
        if found["outcome"] in SURVIVED:
            tests = f"{found['tests']} tests pass" if found["tests"] else "no test runs it"
            where = f"{change.file}:{change.start[0]}, in {change.scope or 'the module'}: {tests}"
            old, new = (textwrap.indent(text, sign) for text, sign in ((change.old, "- "), (change.new, "+ ")))
            print(f"{where}\n{old}\n{new}\n", flush=True)
        return str(found["outcome"])

    def _summarize(self, folder: str, counts: Counter[str], chosen: int) -> None:
        tried, survived = sum(counts.values()), sum(counts[each] for each in SURVIVED)
        detected = tried - survived - counts["explained"]
        share = survived / max(tried, 1)
        self.too_many |= share > ALLOWED
        print(
            f"{folder}: {tried} of {chosen} tried, {detected} detected ({counts['hangs']} of them hang), "
            f"{counts['explained']} explained, {survived} survived ({share:.1%})",
            flush=True,
        )


@contextmanager
def worker(folder: str, tests: Sequence[str]) -> Iterator[Any]:
    """Start pytest with `mutate_worker.py`. Yield a function that sends it a change and returns its answer."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Trial(Path(temporary) / "copy")
        (from_main, to_worker), (from_worker, to_main) = os.pipe(), os.pipe()
        environment = copy.environment() | {VARIABLE: f"{from_main} {to_main} {copy.folder / folder}"}
        environment["PYTHONPATH"] += os.pathsep + str(ROOT / "scripts")
        del environment["PYTHONDONTWRITEBYTECODE"]  # the forks, and processes that tests start, use its bytecode
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-p", "mutate_worker", f"--timeout={TIMEOUT}", f"--basetemp={temporary}/scratch", *tests]
        with (Path(temporary) / "output").open("w") as output:
            process = subprocess.Popen(
                command, cwd=copy.folder, env=environment, stdout=output, stderr=output, pass_fds=(from_main, to_main)
            )
            os.close(from_main)
            os.close(to_main)
            try:
                with os.fdopen(to_worker, "w", buffering=1) as out, os.fdopen(from_worker) as answers:

                    def send(request: dict[str, Any]) -> dict[str, Any]:
                        print(json.dumps(request), file=out)
                        return _answer(answers, output.name)

                    _report(folder, _answer(answers, output.name))
                    yield send
            finally:
                process.wait(120)


def _answer(answers: Any, output: str) -> dict[str, Any]:
    if not (line := answers.readline()):
        sys.exit("pytest has ended:\n" + Path(output).read_text()[-3000:])
    answer: dict[str, Any] = json.loads(line)
    return answer


def _report(folder: str, measured: dict[str, Any]) -> None:
    print(f"{folder}: {measured['tests']} tests ran in {measured['seconds']:.0f} s", flush=True)
    for why in ("failed", "slow"):
        for test in measured[why]:
            print(f"  not used, because it {'failed' if why == 'failed' else 'is slow'}: {test}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
