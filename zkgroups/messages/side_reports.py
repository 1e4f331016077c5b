"""Reports of a consumer that keeps its offsets on two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..consumer.group_notes import few
from ..core.offsets.copy_rules import TwoOffsets
from ..core.znodes.offset_sides import Side
from ..core.znodes.topic_partition import TopicPartition
from .deliverer import Partitions


class SideReports:
    """Reports differences between the sides, and copies that fail. `truth` is the side that is read.

    - `differ`: called with partitions, and with the numbers of both sides as text.
    - `cannot`: called with an error, and with the partitions whose copies could not be written.
    - `can`: called when copies can be written again.
    """

    def __init__(
        self,
        truth: Side,
        *,
        differ: Callable[[Partitions, str], object],
        cannot: Callable[[Exception, Partitions], object],
        can: Callable[[], object],
    ) -> None:
        self.cannot = cannot
        self.can = can
        self._truth = truth
        self._differ = differ
        self._known: dict[TopicPartition, TwoOffsets] = {}

    def compared(self, found: Mapping[TopicPartition, TwoOffsets]) -> None:
        """Report the differences. The same numbers are reported once."""
        different = {at: each for at, each in found.items() if each.is_different}
        new = {at: each for at, each in different.items() if self._known.get(at) != each}
        for at in found:
            self._known.pop(at, None)
        self._known |= different
        if new:
            texts = (f"{at}: {each.shown(self._truth)}" for at, each in new.items())
            self._differ(frozenset(new), f"{few(texts, '; ')}; reading those of {self._truth.shown}")
