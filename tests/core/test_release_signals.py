"""One partition tells of all that its holder lets go of together."""

from __future__ import annotations

from zkgroups import TopicPartition
from zkgroups.core.rebalance.release_signals import ReleaseSignals

A, B, C, D = (TopicPartition("orders", number) for number in range(4))


def test_the_last_of_those_that_go_together_tells_of_all_of_them() -> None:
    signals = ReleaseSignals()
    assert signals.choose({A: "x", C: "x", B: "y"}) == {B, C}
    assert signals.released_with(C) == {A, C}
    assert signals.released_with(B) == {B}


def test_what_is_heard_twice_tells_of_itself_only() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x"})
    signals.released_with(B)
    assert signals.released_with(B) == {B}


def test_a_herald_that_is_chosen_again_tells_of_all_that_it_was_chosen_for() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", C: "x"})
    signals.choose({B: "x", C: "x"})
    assert signals.released_with(C) == {A, B, C}


def test_what_has_lost_its_herald_is_told_once_and_needs_another() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x", D: "x", C: "y"})
    assert signals.without_signal({A, B, C}) == {A, B}
    assert signals.without_signal({A, B, C}) == frozenset()
    assert signals.released_with(C) == {C}


def test_while_its_herald_is_waited_for_nothing_is_left_alone() -> None:
    signals = ReleaseSignals()
    signals.choose({A: "x", B: "x"})
    assert signals.without_signal({B}) == frozenset()
    assert signals.released_with(B) == {A, B}
