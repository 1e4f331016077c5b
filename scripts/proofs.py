"""See the tests of docs/guarantees.md fail: make the changes that they must notice in the code, and run them.

    python scripts/proofs.py [ROW ...]        a ROW is "rule 4" or "failure 19"; all without one (or: make proofs)

The last column of the tables there names the changes of `proofs.toml`. They are made in a copy of the tracked files.
The exit code is 1 if tests do not notice a change, or if the code is now different, so that a change does not fit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trial import ROOT, Trial

PROOFS: Final = Path(__file__).with_suffix(".toml")
TIMEOUT: Final = 600.0
"""In seconds, for the tests of one change."""


def fits(proof: Mapping[str, Any]) -> bool:
    """Return True if the change can be made."""
    return all((ROOT / edit["file"]).read_text().count(edit["old"]) == 1 for edit in proof["edit"])


@contextmanager
def made(proof: Mapping[str, Any], folder: Path) -> Iterator[None]:
    """Make a change in the copy, and undo it at the end."""
    before = {folder / edit["file"]: (folder / edit["file"]).read_text() for edit in proof["edit"]}
    try:
        for edit in proof["edit"]:
            path = folder / edit["file"]
            path.write_text(path.read_text().replace(edit["old"], edit["new"]))
        yield
    finally:
        for path, source in before.items():
            path.write_text(source)


def result(proof: Mapping[str, Any], trial: Trial) -> str:
    """Make a change, run its tests, and return the result."""
    if not fits(proof):
        return "DOES NOT FIT"
    with made(proof, trial.folder):
        return "NOT NOTICED" if trial.passes(proof["tests"], TIMEOUT) else "noticed"


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help='"rule 4" or "failure 19" (default: all)')
    rows = parser.parse_args(arguments).rows
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        for proof in tomllib.loads(PROOFS.read_text())["proof"]:
            if not rows or proof["row"] in rows:
                found = result(proof, trial)
                failed += found != "noticed"
                print(f"{proof['row']}: {proof['change']}: {found}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
