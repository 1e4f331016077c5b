"""The numbers of a summary."""

from __future__ import annotations

import pyarrow as pa

from zkgroups.migration.summaries import _lag

OFFSETS, ENDS = (5, 5, 6, 0, None, 5), (5, 6, 5, 0, 5, None)


def test_a_lag_of_zero_counts_and_one_that_is_negative_or_unknown_does_not() -> None:
    found = _lag(pa.array(OFFSETS, pa.int64()), pa.array(ENDS, pa.int64())).to_pylist()
    assert found == [0, 1, None, 0, None, None]
