"""One partition signals the release of all partitions that are released with it."""

from __future__ import annotations

from zkgroups import TopicPartition
from zkgroups.core.rebalance.release_signals import ReleaseSignals

A, B, C, D = (TopicPartition("orders", number) for number in range(4))


def test_the_last_partition_signals_all_that_are_released_together() -> None:
    signals = ReleaseSignals()
    assert signals.choose({A: "x", C: "x", B: "y"}) == {B, C}
    assert signals.released_with(C) == {A, C}
    assert signals.released_with(B) == {B}


def test_a_repeated_signal_stands_only_for_itself() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x"})
    signals.released_with(B)
    assert signals.released_with(B) == {B}


def test_a_signal_that_is_chosen_again_stands_for_all_its_partitions() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", C: "x"})
    signals.choose({B: "x", C: "x"})
    assert signals.released_with(C) == {A, B, C}


def test_partitions_without_a_signal_are_returned_once() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x", D: "x", C: "y"})
    assert signals.without_signal({A, B, C}) == {A, B}
    assert signals.without_signal({A, B, C}) == frozenset()
    assert signals.released_with(C) == {C}


def test_every_partition_that_is_waited_for_has_a_signal() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x"})
    assert signals.without_signal({B}) == frozenset()
    assert signals.released_with(B) == {A, B}


def test_a_signal_may_come_while_partitions_without_a_signal_are_looked_for() -> None:
    """Kazoo's threads report releases at any moment."""

    class Meanwhile(set[TopicPartition]):
        def __contains__(self, at: object) -> bool:
            signals.released_with(B)
            return super().__contains__(at)

    signals = ReleaseSignals()
    signals.choose({A: "x", B: "y", C: "z"})
    assert signals.without_signal(Meanwhile({A, C})) == frozenset()
    assert signals.released_with(B) == {B}
