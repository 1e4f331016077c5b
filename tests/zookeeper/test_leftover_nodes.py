"""Which nodes count as left behind: those of this session with these contents, and overwritten ones. No server."""

from __future__ import annotations

from typing import Any

from zkgroups.zookeeper.ownership.leftover_nodes import LeftoverNodes
from zkgroups.zookeeper.requests.node import Node

CONTEXT: Any = None


def node(path: str, data: bytes = b"me", *, session: int = 1, version: int = 0) -> Node:
    return Node(path, data, 10, 10, 0, 0, version, session)


def test_nodes_of_expired_sessions_are_forgotten() -> None:
    leftovers = LeftoverNodes(CONTEXT, "/me")
    leftovers.remember({"/a": b"me", "/b": b"me"}, 1)
    leftovers.remember({"/b": b"me", "/c": b"me"}, 2)
    leftovers.remember_overwritten("/d", 0, 1)
    leftovers.remember_overwritten("/e", 0, 2)
    assert sorted(leftovers._paths(2)) == ["/b", "/c", "/e"]
    assert not leftovers._includes(node("/b", session=1))
    assert leftovers._includes(node("/b", session=2))
    assert leftovers.any
    assert leftovers._paths(3) == []
    assert not leftovers.any


def test_a_node_is_left_behind_only_with_its_session_and_contents() -> None:
    leftovers = LeftoverNodes(CONTEXT, "/me")
    leftovers.remember({"/a": b"me"}, 1)
    assert leftovers._includes(node("/a"))
    for other in (node("/a", session=2), node("/a", b"other"), node("/b")):
        assert not leftovers._includes(other)
        assert not leftovers.delete_if_any_is(other, 1)
    assert not leftovers.delete_if_any_is(node("/a"), 2)


def test_a_node_is_overwritten_only_if_its_version_is_higher_in_the_same_session() -> None:
    leftovers = LeftoverNodes(CONTEXT, "/me")
    leftovers.remember_overwritten("/a", 3, 1)
    assert leftovers.is_overwritten(node("/a", b"other", version=4))
    for other in (node("/a", version=3), node("/a", version=4, session=2), node("/b", version=4)):
        assert not leftovers.is_overwritten(other)


def test_nodes_in_use_are_not_left_behind() -> None:
    leftovers = LeftoverNodes(CONTEXT, "/me")
    leftovers.remember({"/a": b"one", "/b": b"one"}, 1)
    leftovers.remember({"/a": b"two"}, 1)
    leftovers.remember_overwritten("/b", 3, 1)
    leftovers.discard_contents("/a", b"one")
    assert not leftovers._includes(node("/a", b"one"))
    assert leftovers._includes(node("/a", b"two"))
    leftovers.discard(["/b"])
    assert leftovers._paths(1) == ["/a"]
    leftovers.discard_contents("/a", b"two")
    assert not leftovers.any
    leftovers.remember({"/a": b"me"}, 1)
    leftovers.remember_overwritten("/b", 3, 1)
    leftovers.clear()
    assert not leftovers.any
