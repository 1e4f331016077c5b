"""`zkgroups history members`: every registration, and how it ended."""

from __future__ import annotations

from typing import Any, Final

import click

from zkgroups.core.history.events import MemberChange, PastInstance
from zkgroups.core.znodes.values import UnevaluableRegistration, unreadable_part

from ..groups.description_tables import SUBSCRIPTION
from ..shared.command_classes import Command
from ..shared.options import Options
from ..shared.output import Column, Row, Table
from .columns import (
    DIALECT,
    GROUP,
    HOST,
    INSTANCE,
    MARKS,
    SESSION,
    TIME,
    ZXID,
    event_row,
    instance_row,
    marks,
    shown_session,
)
from .options import HistoryOptions, HistoryRun, group_argument, history_options

_MEMBERS: Final = Table(
    "members",
    key="instance",
    columns=(
        TIME,
        ZXID,
        GROUP,
        Column("EVENT", "event", styles={"removed": "red", "expired": "yellow"}),
        INSTANCE,
        Column("MEMBER-SESSION", "member_session"),
        DIALECT._replace(wide=False),
        HOST,
        SUBSCRIPTION._replace(wide=True),
        SESSION._replace(wide=True),
        Column("BY", "by", wide=True),
        MARKS,
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@group_argument
@history_options
@click.pass_obj
def members(options: Options, /, **given: Any) -> None:
    """Show every registration in the logs, in order, and how it ended.

    EVENT: registered; changed, the registration was written; deregistered, by its own session; removed, by another
    session; closed, the client closed its session; expired, the server ended the session; deleted, it is not known by
    whose session. With -o wide, SESSION and BY are the session that made the change, and its instance.

    \b
    Example:
      zkgroups history members billing --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history members --groups 'bill.*' --from-data-dir /backup/zookeeper -o jsonl
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (_row(event) for event in run.events() if isinstance(event, MemberChange))
    run.write(_MEMBERS, rows, "No registrations were found.")


def _row(change: MemberChange) -> Row:
    member = change.member
    unreadable = unreadable_part(member.read)
    return {
        **event_row(change),
        **instance_row(member),
        "member_session": shown_session(member.session),
        "registered_ms": member.registered_ms or None,
        "subscription": _subscription(member),
        "by": change.instance.id if change.instance else None,
        "marks": list(marks(change)),
        "problem": unreadable.reason if unreadable else None,
    }


def _subscription(member: PastInstance) -> Row | None:
    """Return the subscription in the form that other commands have."""
    if member.registration is None:
        return None
    found = {"pattern": member.registration.pattern.value, "streams": dict(member.registration.streams)}
    return found | {"unevaluable": member.read.reason} if isinstance(member.read, UnevaluableRegistration) else found
