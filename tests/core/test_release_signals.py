"""One partition tells of all that its holder lets go of together."""

from __future__ import annotations

from zkgroups import TopicPartition
from zkgroups.core.rebalance.release_signals import Heralds

A, B, C, D = (TopicPartition("orders", number) for number in range(4))


def test_the_last_of_those_that_go_together_tells_of_all_of_them() -> None:
    heralds = Heralds()
    assert heralds.choose({A: "x", C: "x", B: "y"}) == {B, C}
    assert heralds.heard(C) == {A, C}
    assert heralds.heard(B) == {B}


def test_what_is_heard_twice_tells_of_itself_only() -> None:
    heralds = Heralds()
    heralds.choose({A: "x", B: "x"})
    heralds.heard(B)
    assert heralds.heard(B) == {B}


def test_a_herald_that_is_chosen_again_tells_of_all_that_it_was_chosen_for() -> None:
    heralds = Heralds()
    heralds.choose({A: "x", C: "x"})
    heralds.choose({B: "x", C: "x"})
    assert heralds.heard(C) == {A, B, C}


def test_what_has_lost_its_herald_is_told_once_and_needs_another() -> None:
    heralds = Heralds()
    heralds.choose({A: "x", B: "x", D: "x", C: "y"})
    assert heralds.left_alone({A, B, C}) == {A, B}
    assert heralds.left_alone({A, B, C}) == frozenset()
    assert heralds.heard(C) == {C}


def test_while_its_herald_is_waited_for_nothing_is_left_alone() -> None:
    heralds = Heralds()
    heralds.choose({A: "x", B: "x"})
    assert heralds.left_alone({B}) == frozenset()
    assert heralds.heard(B) == {A, B}
