"""The lag of offsets as an expression in SQL."""

from __future__ import annotations


def lag(offset: str = "offset", end: str = "log_end") -> str:
    """Return the expression for a lag, null if it is unknown: `core/offsets/lag.py` has the rule.

    >>> lag()
    'case when offset <= log_end then log_end - offset end'
    """
    return f"case when {offset} <= {end} then {end} - {offset} end"
