"""The tables that show descriptions and lags of groups. `description_rows.py` has their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from zkgroups.core.offsets.lag import LagNote
from zkgroups.core.time_formats import duration_text
from zkgroups.core.times import utc

from ..shared.output import Column, Table

_STATES: Final = {
    "Stable": "green",
    "Dead": "red",
    "Leaving": "red",
    "PreparingRebalance": "yellow",
    "CompletingRebalance": "yellow",
    "Joining": "yellow",
    "AwaitingSync": "yellow",
}

_NOTES: Final = {
    "orphan": "red",
    "blocked": "red",
    "two owners": "red",
    "unowned": "yellow",
    LagNote.PAST_END.value: "red",
    LagNote.CANNOT_BE_READ.value: "red",
    LagNote.BEFORE_START.value: "yellow",
    LagNote.LOG_UNKNOWN.value: "yellow",
}


def _subscription(value: Mapping[str, Any]) -> str:
    """E.g. `orders, payments x2`, or `white_list orders.*`."""
    if "unevaluable" in value:
        return f"{value['pattern']} {next(iter(value['streams'])):.40} (cannot be evaluated)"
    names = ", ".join(name if streams == 1 else f"{name} x{streams}" for name, streams in value["streams"].items())
    return names or "nothing" if value["pattern"] == "static" else f"{value['pattern']} {names}"


_SUMMARY: Final = (
    Column("GROUP", "group"),
    Column("STATE", "state", styles=_STATES),
    Column("MEMBERS", "totals.members", right=True),
    Column("TOPICS", "totals.topics", right=True),
    Column("PARTITIONS", "totals.partitions", right=True),
    Column("OWNED", "totals.owned", right=True),
    Column("OFFSETS", "totals.offsets", right=True),
    Column("LAST-COMMIT", "last_commit_ms", show=utc),
    Column("UNEVALUABLE", "unevaluable", wide=True),
)

SUBSCRIPTION: Final = Column("SUBSCRIPTION", "subscription", show=_subscription)

INSTANCES: Final = Table(
    "instances",
    key="instance",
    columns=(
        Column("INSTANCE", "instance"),
        Column("STATE", "state", styles=_STATES),
        Column("OWNED", "owned", right=True),
        SUBSCRIPTION,
        Column("DIALECT", "dialect"),
        Column("CLIENT-ID", "client_id", wide=True),
        Column("HOST", "client_host", wide=True),
        Column("SESSION", "session"),
        Column("SINCE", "registered_ms", show=utc),
    ),
)

_AT: Final = (Column("TOPIC", "topic"), Column("PARTITION", "partition", right=True))
_OFFSET: Final = Column("CURRENT-OFFSET", "offset", right=True)
_COMMITTED: Final = Column("COMMITTED", "committed_ms", show=utc, wide=True)
_OWNER: Final = Column("OWNER", "owners.id")
_NOTE: Final = Column("NOTE", "note", styles=_NOTES)
_CLAIMS: Final = (
    _OWNER,
    Column("SESSION", "owners.session"),
    Column("SINCE", "owners.claimed_ms", show=utc),
    _NOTE,
)
_LOG: Final = (
    Column("LOG-START-OFFSET", "log_start", right=True, wide=True),
    Column("LOG-END-OFFSET", "log_end", right=True),
    Column("LAG", "lag", right=True),
)

PARTITIONS: Final = Table("partitions", key="partition", columns=(*_AT, _OFFSET, _COMMITTED, *_CLAIMS))

PARTITIONS_WITH_LAG: Final = Table("partitions", key="partition", columns=(*_AT, _OFFSET, *_LOG, _COMMITTED, *_CLAIMS))

_MALFORMED: Final = Table(
    "malformed",
    key="path",
    columns=(Column("CANNOT-BE-READ", "path"), Column("REASON", "reason"), Column("DATA", "data")),
)

_BLOCKED: Final = Table(
    "blocked",
    key="holder",
    columns=(
        Column("BLOCKED-TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("HELD-BY", "holder"),
        Column("SESSION", "session"),
        Column("SINCE", "claimed_ms", show=utc),
        Column("PROBLEM", "obstacle"),
    ),
)

_MIGRATION: Final = Table(
    "migration",
    key="plan",
    columns=(
        Column("MOVED-TO", "target"),
        Column("STATE", "state", styles={"moving": "yellow"}),
        Column("BY-PLAN", "plan"),
        Column("SINCE", "since_ms", show=utc),
    ),
)

SUMMARIES: Final = Table("groups", key="group", columns=_SUMMARY)
"""One row per group."""

SUMMARIES_WITH_LAG: Final = SUMMARIES._replace(
    columns=(
        *_SUMMARY,
        Column("TOTAL-LAG", "total_lag", right=True),
        Column("MAX-LAG", "max_lag", right=True),
        Column("UNKNOWN-LAGS", "unknown_lags", right=True),
    )
)
"""One row per group, with its lag, for commands that asked the brokers."""

DESCRIPTIONS: Final = Table(
    "groups",
    key="group",
    columns=_SUMMARY,
    details=(INSTANCES, PARTITIONS, _BLOCKED, _MIGRATION, _MALFORMED),
    csv=PARTITIONS_WITH_LAG,
)
"""Groups with their instances, partitions and problems."""

DESCRIPTIONS_WITH_LAG: Final = DESCRIPTIONS._replace(
    details=(INSTANCES, PARTITIONS_WITH_LAG, _BLOCKED, _MIGRATION, _MALFORMED)
)
"""Descriptions with lag, for commands that asked the brokers."""

LAGS: Final = Table(
    "lags", key="group", columns=(Column("GROUP", "group"), *_AT, _OFFSET, *_LOG, _COMMITTED, _OWNER, _NOTE)
)
"""The lag of groups, one row per partition."""

TIME_LAGS: Final = LAGS._replace(
    columns=(
        *LAGS.columns[:-2],
        Column("TIME-LAG", "time_lag_seconds", show=duration_text, right=True),
        *LAGS.columns[-2:],
    )
)
"""The lag of groups with the age of the first unread message, one row per partition."""

TOTAL_LAGS: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("PARTITIONS", "partitions", right=True),
        Column("TOTAL-LAG", "total_lag", right=True),
        Column("MAX-LAG", "max_lag", right=True),
        Column("UNKNOWN", "unknown", right=True),
        Column("LAST-COMMIT", "last_commit_ms", show=utc),
    ),
)
"""The lag of groups, one row per group."""

TOTAL_TIME_LAGS: Final = TOTAL_LAGS._replace(
    columns=(
        *TOTAL_LAGS.columns[:4],
        Column("MAX-TIME-LAG", "max_time_lag_seconds", show=duration_text, right=True),
        *TOTAL_LAGS.columns[4:],
    )
)
"""The lag of groups with the age of the oldest unread message, one row per group."""
