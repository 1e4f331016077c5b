"""Read the real tree, for comparison with a model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kazoo.exceptions import NoNodeError

Tree = dict[str, tuple[bytes, bool, int]]


def dump(client: Any, root: str = "/consumers") -> Tree:
    """Return `root` and every node below it: its data, whether it is ephemeral, and its version."""
    found: Tree = {}
    level = [root]
    while level:
        asked = [(path, client.get_async(path), client.get_children_async(path)) for path in level]
        level = []
        for path, node, names in asked:
            with suppress(NoNodeError):
                data, stat = node.get()
                found[path] = (data or b"", bool(stat.ephemeralOwner), stat.version)
                level += [f"{path}/{name}" for name in names.get()]
    return found


def dump_all(client: Any) -> Tree:
    """Return every node of a chroot."""
    return {path: node for name in client.get_children("/") for path, node in dump(client, f"/{name}").items()}


def offsets(client: Any, group: str) -> dict[str, bytes]:
    """Return the offset nodes of a group."""
    root = f"/consumers/{group}/offsets"
    return {p.removeprefix(root + "/"): data for p, (data, _, _) in dump(client, root).items() if p.count("/") == 5}
