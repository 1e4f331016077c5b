"""Read a history with one call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from ...core.history.period import Moment, Period
from ...core.selection import check_expression
from ...core.times import to_ms
from ...core.znodes.names import check_group
from ...exceptions import InvalidOptionError
from ..data_dir import DataDir
from .reader import HistoryItem, HistoryReader


def read_history(
    folder: str,
    *,
    log_folder: str | None = None,
    chroot: str = "",
    group: str | None = None,
    groups: str | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
) -> Iterator[HistoryItem]:
    """Yield every change to groups that is in the transaction logs of a ZooKeeper server, in order.

    - `folder`: its dataDir, or a copy of it. The server may be running.
    - `log_folder`: its dataLogDir, if the logs are elsewhere.
    - `chroot`: the chroot of the groups, such as `/kafka`.
    - `group`: only this group. `groups`: only groups whose whole name matches this regular expression.
    - `since`, `until`: only changes from and until this time (with a time zone), or this transaction.

    The events are `Commit`, `OwnerChange`, `MemberChange` and `GroupChange`. A `LogGap` stands where transactions are
    missing: at the beginning, if older logs were deleted, and wherever a log is missing or damaged.
    """
    if group is not None:
        check_group(group)
    check_expression("groups", groups)
    matching = None if groups is None else re.compile(groups, re.DOTALL)
    has_group = matching and (lambda name: group in (None, name) and matching.fullmatch(name) is not None)
    period = Period(_moment("since", since), _moment("until", until))
    data = DataDir(folder, log_folder=log_folder, chroot=chroot.rstrip("/"))
    return HistoryReader(data, group=group, has_group=has_group, period=period).items()


def _moment(option: str, given: datetime | int | None) -> Moment | None:
    if given is None:
        return None
    if isinstance(given, int):
        return Moment(zxid=given)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidOptionError(option, str(given), "it must be a datetime with a time zone, or a transaction")
    return Moment(time_ms=to_ms(given))
