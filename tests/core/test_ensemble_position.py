"""Another or a restored ensemble is detected by its position, and the same ensemble never counts as another one."""

from __future__ import annotations

import pytest

from zkgroups.core.ensemble_position import EnsemblePosition

BEFORE = EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000)


@pytest.mark.parametrize(
    ("now", "possible"),
    [
        (EnsemblePosition(100, 7, 1_000), True),
        (EnsemblePosition(99, 7, 1_000), False),
        (EnsemblePosition(101, 7, 1_000), True),
        (EnsemblePosition(101, 7, 1_001), False),
        (EnsemblePosition(101, 8, 1_000), False),
        (EnsemblePosition(200, 100, 5_000), False),
        (EnsemblePosition(200, 101, 5_000), True),
        (EnsemblePosition(200, 0, 0), True),
        (EnsemblePosition(99, 0, 0), False),
    ],
)
def test_an_ensemble_may_be_at_a_later_position(now: EnsemblePosition, possible: bool) -> None:
    assert BEFORE.may_precede(now) is possible


def test_an_ensemble_without_groups_may_have_some_later() -> None:
    assert EnsemblePosition(100, 0, 0).may_precede(EnsemblePosition(200, 150, 5_000))
    assert not EnsemblePosition(100, 0, 0).may_precede(EnsemblePosition(200, 50, 5_000))
