"""Print how large the code is and how it is divided: files, lines, imports and small helpers, by folder.

    python scripts/sizes.py [FOLDER...]

Without a folder: `zkgroups/` and `cli/` by folder, and `tests/` as a whole. With folders, for example those of
installed packages, only one row for each, to compare.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SMALL = 8
"""A helper of so many lines or fewer that one place uses could as well stand in that place."""
HEAD = ("", "files", "lines", "median", "largest", "imports", "helpers used once")


def row(name: str, files: Sequence[Path]) -> tuple[str, ...]:
    """Measure these files."""
    texts = [file.read_text() for file in files]
    trees = [ast.parse(text) for text in texts]
    lines = [text.count("\n") for text in texts]
    filled = [size for size in lines if size > 1] or [0]  # an empty `__init__.py` is no file to read
    functions = imported = once = 0
    for tree in trees:
        imported += sum(_lines(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
        uses = Counter(_names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                private = node.name.startswith("_") and not node.name.endswith("__")
                once += private and uses[node.name] == 1 and _lines(node) <= SMALL
    total = sum(lines)
    shares = (f"{imported / max(total, 1):.1%}", f"{once} of {functions} functions")
    return (name, str(len(files)), f"{total:,}", f"{median(filled):.0f}", str(max(filled)), *shares)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def rows(folders: Iterable[Path]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each folder; for the project, one for each part."""
    if given := list(folders):
        for folder in given:
            yield row(folder.name, sorted(folder.rglob("*.py")))
        return
    product = [file for top in ("zkgroups", "cli") for file in sorted((ROOT / top).rglob("*.py"))]
    parts: dict[str, list[Path]] = {}
    for file in product:
        path = file.relative_to(ROOT).parts
        parts.setdefault("/".join(path[:2]) if path[0] == "zkgroups" and len(path) > 2 else path[0], []).append(file)
    for name, files in sorted(parts.items()):
        yield row(f"{name}/", files)
    yield row("the product", product)
    yield row("tests/", sorted((ROOT / "tests").rglob("*.py")))


def main() -> None:
    """Print the table."""
    table = [HEAD, *rows(map(Path, sys.argv[1:]))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]))


if __name__ == "__main__":
    main()
