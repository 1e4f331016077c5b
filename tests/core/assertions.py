"""Assertions on decoded values."""

from __future__ import annotations

from zkgroups.core.znodes.values import (
    MalformedNode,
    UnevaluableRegistration,
)


def malformed(value: object, path: str, data: bytes) -> str:
    """Return the reason of a malformed node, after checking its path, its data and that the reason has one line."""
    value = value.node if isinstance(value, UnevaluableRegistration) else value
    assert isinstance(value, MalformedNode), value
    assert (value.path, value.data) == (path, data)
    assert value.reason
    assert value.reason.isprintable()
    assert len(value.reason) <= 400
    return value.reason
