"""The public names: what `zkgroups` exports, and the tree of errors as it is drawn."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import zkgroups
import zkgroups.kafka
import zkgroups.migration
import zkgroups.spark
import zkgroups.spark.migration
from zkgroups import exceptions

PACKAGES = (zkgroups, zkgroups.kafka, zkgroups.migration, zkgroups.spark, zkgroups.spark.migration)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_is_sorted_and_names_nothing_twice_and_all_of_it_is_there(package: Any) -> None:
    assert package.__all__ == sorted(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)


def test_every_public_class_that_the_package_imports_is_exported() -> None:
    imported = {name for name, value in vars(zkgroups).items() if inspect.isclass(value) and not name.startswith("_")}
    assert imported == {name for name in zkgroups.__all__ if inspect.isclass(getattr(zkgroups, name))}


def test_the_drawn_tree_of_errors_is_the_tree_of_errors() -> None:
    assert drawn_parents(exceptions.__doc__ or "") == {
        name: [parent.__name__ for parent in error.__bases__]
        for name, error in vars(exceptions).items()
        if inspect.isclass(error) and issubclass(error, Exception)
    }


def test_the_drawing_is_read_as_a_tree() -> None:
    drawing = """Text above.

Root
├── A (ValueError)      words
│   └── B               words
└── C
"""
    assert drawn_parents(drawing) == {"Root": ["Exception"], "A": ["Root", "ValueError"], "B": ["A"], "C": ["Root"]}


def drawn_parents(drawing: str) -> dict[str, list[str]]:
    """The parents of each class, as a drawing of indented lines shows them; a foreign parent stands in brackets."""
    above: list[str] = []
    parents: dict[str, list[str]] = {}
    for branch, name, foreign in re.findall(r"^([│ ├└─]*)(\w+)(?: \((\w+)\))?(?: {2,}.*)?$", drawing, re.MULTILINE):
        depth = len(branch) // 4
        above[depth:] = [name]
        parents[name] = [above[depth - 1] if depth else "Exception", *([foreign] if foreign else [])]
    return parents
