"""The groups in a tree that goes by: their nodes as `zookeeper/reading/tree_walk.py` gives them, in blocks of siblings.

A tree comes depth first, so that all of a group comes together. What comes first in it is not ours to say: offsets that
come before the owners have to wait, in a file where they are many, if the owners are wanted, too.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from ..core.znodes.codec import decode_owned_topic
from ..core.znodes.paths import CONSUMERS, Part
from ..exceptions import DamagedDataError
from ..zookeeper.reading.tree_walk import PartDirectory, TopicFilter
from ..zookeeper.requests.bulk_read import Block, Siblings
from ..zookeeper.requests.multiread import END
from .changes import Changes
from .scan import Run, Scan

_OWNERS: Final = Part.OWNERS.encode()
_PARTS: Final = {part.encode(): part for part in (Part.OWNERS, Part.IDS, Part.OFFSETS)}
_IN_MEMORY: Final = 2**24
"""So many bytes wait in memory; what is more waits in a file."""


class Groups:
    """The groups below a root, each with the wanted ones of its nodes: owners before offsets, and nothing between.

    `names` are those of all groups that are wanted, when all blocks have come.
    """

    def __init__(
        self,
        scan: Scan,
        changes: Changes,
        root: bytes,
        parts: Collection[Part],
        has_group: Callable[[str], bool],
        wanted: TopicFilter,
    ) -> None:
        self.names: list[str] = []
        self._scan = scan
        self._changed = _by_group(changes, root)
        self._root = root
        self._parts = parts
        self._has_group = has_group
        self._wanted = wanted
        self._group: bytes | None = None
        self._done: set[bytes] = set()
        self._is_wanted = self._in_owners = False
        self._owners_are_known = False
        self._waiting: IO[bytes] | None = None

    def blocks(self) -> Iterator[Block[PartDirectory]]:
        """The nodes, group by group; all of the tree has gone by when they end."""
        try:
            yield from self._blocks()
        finally:
            if self._waiting is not None:
                self._waiting.close()

    def _blocks(self) -> Iterator[Block[PartDirectory]]:
        for run in self._scan.runs():
            _, *names = run.directory[len(self._root) :].split(b"/")
            if not names:
                self._found(run)
                continue
            if names[0] != self._group:
                yield from self._finish()
                self._begin(names[0])
            yield from self._in_group(names[1:], run)
        yield from self._finish()
        for run in self._scan.new(self._root):
            self._found(run)
        for group in list(self._changed):
            self._begin(group)
            yield from self._finish()
        self._scan.rest()

    def _found(self, run: Run) -> None:
        self.names += filter(self._has_group, map(_text, run.names))

    def _begin(self, group: bytes) -> None:
        if group in self._done:
            raise DamagedDataError("the snapshot", f"the nodes of group {_text(group)!r} are not together in it")
        self._done.add(group)
        self._group = group
        self._is_wanted = self._has_group(_text(group))
        self._in_owners = False
        self._owners_are_known = Part.OWNERS not in self._parts

    def _in_group(self, names: list[bytes], run: Run) -> Iterator[Block[PartDirectory]]:
        """Nodes somewhere in the group; `names` lead from there to their directory."""
        if self._in_owners and names[:1] != [_OWNERS]:
            yield from self._know_owners()
        if not names and _OWNERS in run.names:
            self._in_owners = True
            if run.names[-1] != _OWNERS:
                yield from self._know_owners()
        if (block := self._block(names, run)) is not None:
            if block.parts[0].key.part is Part.OFFSETS and not self._owners_are_known:
                self._keep(block)
            else:
                yield block

    def _know_owners(self) -> Iterator[Block[PartDirectory]]:
        """All that the snapshot has of them has come."""
        self._in_owners = False
        if not self._owners_are_known:
            yield from self._new(_OWNERS)
            self._owners_are_known = True

    def _finish(self) -> Iterator[Block[PartDirectory]]:
        """What is left of a group when all that the snapshot has of it has come."""
        if self._group is None:
            return
        yield from self._know_owners()
        yield from self._kept()
        for part in _PARTS:
            yield from self._new(part)
        self._changed.pop(self._group, None)
        self._group = None

    def _new(self, part: bytes) -> Iterator[Block[PartDirectory]]:
        """The nodes in one part of the group that are not in the snapshot."""
        for names in self._changed.get(self._group or b"", {}).pop(part, ()):
            directory = b"/".join((self._root, self._group or b"", part, *names))
            for run in self._scan.new(directory):
                if (block := self._block([part, *names], run)) is not None:
                    yield block

    def _block(self, names: list[bytes], run: Run) -> Block[PartDirectory] | None:
        """These nodes, if they are of a kind that is wanted."""
        part = _PARTS.get(names[0]) if names else None
        if part not in self._parts or part is None or len(names) != (1 if part is Part.IDS else 2):
            return None
        group, topic = _text(self._group or b""), _text(names[-1]) if part is not Part.IDS else ""
        known = decode_owned_topic(topic) if part is Part.OWNERS else topic
        if not self._is_wanted or not self._wanted(group, known):
            return None
        block: Block[PartDirectory] = Block()
        directory = CONSUMERS + _text(run.directory[len(self._root) :])
        block.add(Siblings(PartDirectory(group, part, topic), directory, _text(b"/".join(run.names)).split("/")), b"")
        block.answer = run.answer() + END
        return block

    # Offsets that wait for owners

    def _keep(self, block: Block[PartDirectory]) -> None:
        if self._waiting is None:
            self._waiting = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 -- it is open from one node to another
        pickle.dump(block, self._waiting)

    def _kept(self) -> Iterator[Block[PartDirectory]]:
        if self._waiting is None:
            return
        with self._waiting as waiting:
            self._waiting = None
            end = waiting.tell()
            waiting.seek(0)
            while waiting.tell() < end:
                yield pickle.load(waiting)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DamagedDataError("the snapshot or the log", f"it has a name that is not UTF-8: {name[:200]!r}") from error


def _by_group(changes: Changes, root: bytes) -> dict[bytes, dict[bytes, list[list[bytes]]]]:
    """Where something has changed: the directories below each part of each group, by what leads there."""
    found: dict[bytes, dict[bytes, list[list[bytes]]]] = {}
    for directory in changes.nodes:
        if directory.startswith(root + b"/"):
            group, *names = directory[len(root) + 1 :].split(b"/")
            below = found.setdefault(group, defaultdict(list))
            if names:
                below[names[0]].append(names[1:])
    return found
