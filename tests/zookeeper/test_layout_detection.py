"""A sample of a tree: it says whether it is the whole tree."""

from __future__ import annotations

import pytest

from zkgroups import Registry
from zkgroups.zookeeper.reading.layout_detection import Detection, detect_layouts
from zkgroups.zookeeper.session.registry_context import context_of

pytestmark = pytest.mark.zookeeper


def detected(registry: Registry, *paths: str, most_nodes: int = 1000) -> Detection:
    """Look at a tree with these nodes, which hold numbers."""
    for path in paths:
        registry.client.ensure_path(path)
        registry.client.set(path, b"7")
    return detect_layouts(context_of(registry), "/", most_nodes=most_nodes)


@pytest.mark.parametrize(("children", "is_complete"), [(24, True), (25, False)])
def test_of_more_than_24_children_only_some_are_looked_at(registry: Registry, children: int, is_complete: bool) -> None:
    found = detected(registry, *(f"/consumers/g/offsets/t/{number}" for number in range(children)))
    above = len(["/", "/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"])
    assert (found.is_complete, found.nodes) == (is_complete, above + 24)
    [layout] = found.layouts
    assert (layout.groups, layout.offsets, layout.is_complete) == (1, children, True)


@pytest.mark.parametrize(("depth", "is_complete"), [(9, True), (10, False)])
def test_a_tree_is_looked_at_to_a_depth_of_nine_names(registry: Registry, depth: int, is_complete: bool) -> None:
    assert detected(registry, "/deep" + "/d" * (depth - 1)).is_complete == is_complete


@pytest.mark.parametrize(("most_nodes", "is_complete"), [(4, True), (3, False)])
def test_only_so_many_nodes_are_looked_at(registry: Registry, most_nodes: int, is_complete: bool) -> None:
    found = detected(registry, "/a", "/b", "/c", most_nodes=most_nodes)
    assert (found.nodes, found.is_complete) == (most_nodes, is_complete)
