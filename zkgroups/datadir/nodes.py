"""Extract the nodes of groups, or of another layout, from a snapshot scan."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from ..core.layouts.layout import Fields, Layout, LayoutNode, is_misnamed_in
from ..core.znodes.codecs import decode_owned_topic
from ..core.znodes.paths import CONSUMERS, Part, parent
from ..exceptions import DamagedDataError
from ..zookeeper.reading.tree_walk import PartDirectory, TopicFilter
from ..zookeeper.requests.bulk_read import Block, Siblings
from ..zookeeper.requests.multiread import END, records
from .scan import ReplayedChanges, SiblingRun, SnapshotScan

# Extract the nodes of groups from a snapshot scan, as blocks like those of `zookeeper/reading/tree_walk.py`.
#
# A snapshot is written depth first, so the nodes of a group are consecutive. But offsets may come before owners. If
# owners are selected, too, such offsets are held back, in a temporary file if they are large.


_OWNERS: Final = Part.OWNERS.encode()
_PARTS: Final = {part.encode(): part for part in (Part.OWNERS, Part.IDS, Part.OFFSETS)}
_IN_MEMORY: Final = 2**24
"""Held-back blocks above this size in bytes go to a file."""


class GroupScanner:
    """Yields the selected nodes of the groups below a root, with the owners of each group before its offsets.

    `names` are the names of all selected groups, complete after the last block.
    """

    def __init__(
        self,
        scan: SnapshotScan,
        changes: ReplayedChanges,
        root: bytes,
        parts: Collection[Part],
        has_group: Callable[[str], bool],
        wanted: TopicFilter,
    ) -> None:
        self.names: list[str] = []
        self._scan = scan
        self._changed_directories = _by_group(changes, root)
        self._root = root
        self._parts = parts
        self._has_group = has_group
        self._wanted = wanted
        self._group: bytes | None = None
        self._done: set[bytes] = set()
        self._is_wanted = self._in_owners = False
        self._owners_are_complete = False
        self._held_back: IO[bytes] | None = None

    def blocks(self) -> Iterator[Block[PartDirectory]]:
        """Yield the nodes group by group. Afterwards, the whole tree has been scanned."""
        try:
            yield from self._blocks()
        finally:
            if self._held_back is not None:
                self._held_back.close()

    def _blocks(self) -> Iterator[Block[PartDirectory]]:
        for run in self._scan.runs():
            _, *names = run.directory[len(self._root) :].split(b"/")
            if not names:
                self._add_groups(run)
                continue
            if names[0] != self._group:
                yield from self._finish()
                self._begin(names[0])
            yield from self._in_group(names[1:], run)
        yield from self._finish()
        for run in self._scan.new_children(self._root):
            self._add_groups(run)
        for group in list(self._changed_directories):
            self._begin(group)
            yield from self._finish()
        self._scan.finish()

    def _add_groups(self, run: SiblingRun) -> None:
        self.names += filter(self._has_group, map(self._text, run.names))

    def _begin(self, group: bytes) -> None:
        if group in self._done:
            raise DamagedDataError(self._scan.file, f"the nodes of group {self._text(group)!r} are not consecutive")
        self._done.add(group)
        self._group = group
        self._is_wanted = self._has_group(self._text(group))
        self._in_owners = False
        self._owners_are_complete = Part.OWNERS not in self._parts

    def _in_group(self, names: list[bytes], run: SiblingRun) -> Iterator[Block[PartDirectory]]:
        """Yield nodes of the current group; `names` is the path of their directory relative to the group."""
        if self._in_owners and names[:1] != [_OWNERS]:
            yield from self._finish_owners()
        if not names and _OWNERS in run.names:
            self._in_owners = True
            if run.names[-1] != _OWNERS:
                yield from self._finish_owners()
        if (block := self._block(names, run)) is not None:
            if block.parts[0].key.part is Part.OFFSETS and not self._owners_are_complete:
                self._hold_back(block)
            else:
                yield block

    def _finish_owners(self) -> Iterator[Block[PartDirectory]]:
        """Yield the owners that only the logs have."""
        self._in_owners = False
        if not self._owners_are_complete:
            yield from self._new(_OWNERS)
            self._owners_are_complete = True

    def _finish(self) -> Iterator[Block[PartDirectory]]:
        """Yield the rest of a group after its last node in the snapshot."""
        if self._group is None:
            return
        yield from self._finish_owners()
        yield from self._release()
        for part in _PARTS:
            yield from self._new(part)
        self._changed_directories.pop(self._group, None)
        self._group = None

    def _new(self, part: bytes) -> Iterator[Block[PartDirectory]]:
        """Yield the nodes in one part of the group that only the logs have."""
        for names in self._changed_directories.get(self._group or b"", {}).pop(part, ()):
            directory = b"/".join((self._root, self._group or b"", part, *names))
            for run in self._scan.new_children(directory):
                if (block := self._block([part, *names], run)) is not None:
                    yield block

    def _block(self, names: list[bytes], run: SiblingRun) -> Block[PartDirectory] | None:
        """Convert the nodes to a block, if they are selected."""
        part = _PARTS.get(names[0]) if names else None
        if part not in self._parts or part is None or len(names) != (1 if part is Part.IDS else 2):
            return None
        group, topic = self._text(self._group or b""), self._text(names[-1]) if part is not Part.IDS else ""
        known = decode_owned_topic(topic) if part is Part.OWNERS else topic
        if not self._is_wanted or not self._wanted(group, known):
            return None
        block: Block[PartDirectory] = Block()
        directory = CONSUMERS + self._text(run.directory[len(self._root) :])
        names_in_it = self._text(b"/".join(run.names)).split("/")
        block.add(Siblings(PartDirectory(group, part, topic), directory, names_in_it), b"")
        block.answer = run.answer() + END
        return block

    # Offsets held back until the owners are complete

    def _hold_back(self, block: Block[PartDirectory]) -> None:
        if self._held_back is None:
            self._held_back = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 -- it stays open between nodes
        pickle.dump(block, self._held_back)

    def _release(self) -> Iterator[Block[PartDirectory]]:
        if self._held_back is None:
            return
        with self._held_back as blocks:
            self._held_back = None
            end = blocks.tell()
            blocks.seek(0)
            while blocks.tell() < end:
                yield pickle.load(blocks)  # noqa: S301 -- a nameless file of this process

    def _text(self, name: bytes) -> str:
        return node_name(name, self._scan.file)


def node_name(name: bytes, file: str) -> str:
    """Return a name or a path as text. `file` is the name of the snapshot, for the error."""
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        reason = f"a node name is not UTF-8, in this file or in a log after it: {name[:200]!r}"
        raise DamagedDataError(file, reason) from error


def _by_group(changes: ReplayedChanges, root: bytes) -> dict[bytes, dict[bytes, list[list[bytes]]]]:
    """Return the changed directories of each group, by part, as names relative to the part."""
    found: dict[bytes, dict[bytes, list[list[bytes]]]] = {}
    for directory in changes.nodes:
        if directory.startswith(root + b"/"):
            group, *names = directory[len(root) + 1 :].split(b"/")
            below = found.setdefault(group, defaultdict(list))
            if names:
                below[names[0]].append(names[1:])
    return found


# Extract the nodes of a layout from a snapshot scan.
#
# They are in memory together, because the nodes of a group may be anywhere in the tree.


def scanned_root(layout: Layout) -> str:
    """Return the path below which all nodes of a layout are. If its root is a node of it, this is the one above."""
    template = layout.templates[0]
    return parent(layout.root) if template.is_end(template.start) else layout.root


class LayoutScanner:
    """Collects the nodes of the selected groups."""

    def __init__(
        self,
        scan: SnapshotScan,
        changes: ReplayedChanges,
        chroot: str,
        layout: Layout,
        has_group: Callable[[str], bool],
    ) -> None:
        self._scan = scan
        self._changes = changes
        self._chroot = chroot
        self._layout = layout
        self._has_group = has_group
        self._found: dict[str, list[LayoutNode]] = {}

    def nodes(self) -> dict[str, list[LayoutNode]]:
        """Scan the whole tree, and return the nodes of each group."""
        for run in self._scan.runs():
            self._add(run)
        for directory in list(self._changes.nodes):
            for run in self._scan.new_children(directory):
                self._add(run)
        return self._found

    def _add(self, run: SiblingRun) -> None:
        directory = node_name(run.directory, self._scan.file)
        if not f"{directory}/".startswith(f"{self._chroot}/"):
            return
        below = directory.removeprefix(self._chroot)
        for number, template in enumerate(self._layout.templates):
            if (located := template.locate(below)) is None:
                continue
            position, above = located
            chosen: list[tuple[int, str, Fields, bool]] = []
            for place, raw in enumerate(run.names):
                name = node_name(raw, self._scan.file)
                step = template.step(position, name)
                if step is not None and template.is_end(step[0]):
                    chosen.append((place, name, {**above, **step[1]}, False))
                elif step is None and is_misnamed_in(template, position, name):
                    chosen.append((place, name, above, True))
            self._add_nodes(number, below, run, chosen)

    def _add_nodes(
        self, number: int, directory: str, run: SiblingRun, chosen: list[tuple[int, str, Fields, bool]]
    ) -> None:
        some = SiblingRun(run.directory, [], [run.records[place] for place, *_ in chosen])
        decoded = records(some.answer() + END, len(chosen))
        for (_place, name, fields, is_misnamed), record in zip(chosen, decoded, strict=True):
            group = self._layout.group_of(fields)
            assert not isinstance(record, int)  # every record in a snapshot is a node
            if group is not None and self._has_group(group):
                data, _czxid, mzxid, created_ms, modified_ms, version, _session = record
                node = LayoutNode(
                    number, fields, f"{directory}/{name}", data, mzxid, created_ms, modified_ms, version, is_misnamed
                )
                self._found.setdefault(group, []).append(node)
