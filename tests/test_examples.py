"""The examples in docstrings print the results that they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import zkgroups
from zkgroups import TopicPartition


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.walk_packages(zkgroups.__path__, "zkgroups."):
        found = importlib.import_module(module.name)
        yield from finder.find(found, module.name, extraglobs={"TopicPartition": TopicPartition})


EXAMPLES = [example for example in _examples() if example.examples]


def test_examples_are_found() -> None:
    assert "zkgroups.core.znodes.topic_partition.parse_partition" in {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_the_results_that_it_shows(example: doctest.DocTest) -> None:
    _run(example)


@pytest.mark.zookeeper
def test_the_example_of_the_whole_library_prints_the_results_that_it_shows(zookeeper_hosts: str) -> None:
    [example] = doctest.DocTestFinder(recurse=False).find(
        zkgroups, "zkgroups", extraglobs={"zookeeper": zookeeper_hosts}
    )
    assert example.examples
    _run(example)


def _run(example: doctest.DocTest) -> None:
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)
    if report:
        pytest.fail("".join(report), pytrace=False)
