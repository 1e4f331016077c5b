"""Change the code in one small place, run the tests of its folder, and print each change that no test noticed.

    python scripts/mutate.py [--count 100] [--seed TEXT] [FOLDER ...]        (or: make mutate)

A seed chooses the places, so that a run can be repeated; without one, each day has its own. The changes are made in a
copy of the tracked files. The exit code is 1 if more than 3 % of the changes survive.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

TESTS: Final = {
    "zkgroups/core": "tests/core",
    "zkgroups/coordinator": "tests/coordinator",
    "zkgroups/zookeeper": "tests/zookeeper",
    "zkgroups/consumer": "tests/consumer",
    "zkgroups/migration": "tests/migration",
}
"""The tests that must notice a change, by folder."""

ALLOWED: Final = 0.03
"""The share of changes that may survive. Some changes have no effect: a bound that is never reached exactly, say."""

_OPPOSITE: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the text from `start` to `end`, as (line, byte in the line), of a file."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def made_in(self, source: bytes) -> bytes:
        """Return the changed source."""
        lines = source.splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        changed = lines[first - 1][:left] + self.text.encode() + lines[last - 1][right:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]])


def changes(file: str, source: str) -> Iterator[Change]:
    """Yield all changes of a file that could alter what it does."""
    for node in _walk(ast.parse(source)):
        for place, text in _replacements(node):
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            end = (place.end_lineno, place.end_col_offset)
            yield Change(file, (place.lineno, place.col_offset), end, text)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are executed: no annotations, decorators, messages of errors, or imports for types only."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "exc"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_type_checking(child):
                yield from _walk(child)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.expr():
            yield from ((node, text) for text in _other_values(node))


def _other_values(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPPOSITE:
            yield f"({ast.unparse(left)} {_OPPOSITE[type(op)]} {ast.unparse(right)})"
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.Or) else " or "
            yield "(" + word.join(f"({ast.unparse(value)})" for value in values) + ")"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.List(elts=[_, _, *_] as elements, ctx=ast.Load()):  # for example the guards of a transaction
            for element in elements:
                yield "[" + ", ".join(ast.unparse(each) for each in elements if each is not element) + "]"


def diff(change: Change, source: bytes) -> str:
    """Return the change as a unified diff without context."""
    before, after = (text.decode().splitlines() for text in (source, change.made_in(source)))
    return "\n".join(difflib.unified_diff(before, after, change.file, change.file, n=0, lineterm=""))


class Trial:
    """A copy of the tracked files, in which the tests run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)

    def passes(self, tests: str, timeout: float | None = None) -> bool:
        """Return True if all tests pass in this many seconds. What they started is ended with them."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests.split()]
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def notices(self, change: Change, tests: str, timeout: float) -> bool:
        """Return True if the tests fail under this change."""
        path = self._folder / change.file
        source = path.read_bytes()
        path.write_bytes(change.made_in(source))
        try:
            return not self.passes(tests, timeout)
        finally:
            path.write_bytes(source)


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=f"one below {', '.join(TESTS)} (default: all)")
    parser.add_argument("--count", type=int, default=100, help="the number of changes (default: 100)")
    parser.add_argument("--seed", default=str(date.today()), help="chooses the changes (default: the date)")
    parser.add_argument("--tests", help="run these tests, and not those of the folder")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed!r}")
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        chosen = _chosen(given.folders or list(TESTS), given.count, given.seed)
        survivors = _run(trial, chosen, given.tests)
    print(f"{survivors} of {len(chosen)} changes were not noticed")
    return int(survivors > ALLOWED * len(chosen))


def _chosen(folders: Sequence[str], count: int, seed: str) -> list[Change]:
    files = sorted({file for folder in folders for file in (ROOT / folder).rglob("*.py")})
    found = [change for file in files for change in changes(str(file.relative_to(ROOT)), file.read_text())]
    return random.Random(seed).sample(found, min(count, len(found)))


def _run(trial: Trial, chosen: Sequence[Change], tests: str | None) -> int:
    """Try the changes, print those that no test noticed, and return their number."""
    survivors = 0
    limits: dict[str, float] = {}
    for change in chosen:
        run = tests or next(TESTS[folder] for folder in TESTS if change.file.startswith(folder))
        if run not in limits:
            begin = time.monotonic()
            if not trial.passes(run):
                sys.exit(f"{run} fails without any change")
            limits[run] = 60 + 5 * (time.monotonic() - begin)
        if not trial.notices(change, run, limits[run]):
            survivors += 1
            print(diff(change, (ROOT / change.file).read_bytes()), flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
