"""Extract the nodes of a layout from a snapshot scan.

They are in memory together, because the nodes of a group may be anywhere in the tree.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.layouts.layout import Layout, LayoutNode, is_misnamed_in
from ..core.layouts.path_template import Fields
from ..core.znodes.paths import parent
from ..zookeeper.requests.multiread_format import END, records
from .groups import node_name
from .replayed_changes import ReplayedChanges
from .scan import SiblingRun, SnapshotScan


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
