"""The names that the packages export, and the error tree in the docstring of `zkgroups.exceptions`."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import zkgroups
import zkgroups.coordinator
import zkgroups.history
import zkgroups.kafka
import zkgroups.migration
import zkgroups.migration.local
import zkgroups.spark
import zkgroups.spark.migration
from zkgroups import exceptions

PACKAGES = (
    zkgroups,
    zkgroups.coordinator,
    zkgroups.history,
    zkgroups.kafka,
    zkgroups.migration,
    zkgroups.migration.local,
    zkgroups.spark,
    zkgroups.spark.migration,
)


def test_all_is_sorted_without_duplicates_and_every_name_exists() -> None:
    for package in PACKAGES:
        assert package.__all__ == sorted(set(package.__all__))
        assert all(hasattr(package, name) for name in package.__all__)


def test_type_checkers_see_the_names_that_are_exported_lazily() -> None:
    tree = ast.parse(Path(zkgroups.__file__).read_text())
    [type_checking] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in type_checking.body if isinstance(node, ast.ImportFrom)]
    seen = {"." * node.level + str(node.module): tuple(name.name for name in node.names) for node in imports}
    assert seen == zkgroups._MODULES
    assert sorted([*zkgroups._MODULE_OF, "__version__"]) == zkgroups.__all__


def test_the_package_imports_a_module_when_one_of_its_names_is_used() -> None:
    program = """
import sys, zkgroups
assert "Registry" in dir(zkgroups)
assert not [name for name in sys.modules if name.startswith(("kazoo", "zkgroups.")) and name != "zkgroups._version"]
zkgroups.TopicPartition
assert "zkgroups.core.znodes.topic_partition" in sys.modules and "kazoo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


EXPORTED = {f"{package.__name__}.{name}": getattr(package, name) for package in PACKAGES for name in package.__all__}


def test_the_signature_of_an_exported_name_has_no_private_parameters() -> None:
    for name, found in EXPORTED.items():
        with contextlib.suppress(ValueError, TypeError):  # an alias of a type, or a constant, has no signature
            assert not [each for each in inspect.signature(found).parameters if each.startswith("_")], name


def test_the_docstring_of_an_exported_value_explains_every_field() -> None:
    for name, found in EXPORTED.items():
        if dataclasses.is_dataclass(found):
            words = {_plain(word) for word in re.findall(r"\w+", found.__doc__ or "")}
            assert {_plain(field.name) for field in dataclasses.fields(found)} <= words, name


def _plain(name: str) -> str:
    """Spark's options are in camel case."""
    return name.replace("_", "").lower()


def test_the_error_tree_in_the_docstring_matches_the_classes() -> None:
    assert drawn_parents(exceptions.__doc__ or "") == {
        name: [parent.__name__ for parent in error.__bases__]
        for name, error in vars(exceptions).items()
        if inspect.isclass(error) and issubclass(error, Exception)
    }


def drawn_parents(drawing: str) -> dict[str, list[str]]:
    """Return the parents of each class in a tree drawing; a parent from outside the tree stands in brackets."""
    above: list[str] = []
    parents: dict[str, list[str]] = {}
    for branch, name, foreign in re.findall(r"^([│ ├└─]*)(\w+)(?: \((\w+)\))?(?: {2,}.*)?$", drawing, re.MULTILINE):
        depth = len(branch) // 4
        above[depth:] = [name]
        parents[name] = [above[depth - 1] if depth else "Exception", *([foreign] if foreign else [])]
    return parents
