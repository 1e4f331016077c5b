"""The transaction log of a ZooKeeper server: every change to a group in order, as `zkgroups history` reads it.

A watch shows the state when it reads. Between two reads, an offset may fall and rise again, and the watch does not
report the session that wrote it. The log contains every change. It survives a `kill -9` of the server.

The log of one server of an ensemble may contain changes that the majority never accepted: see `accepted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from zkgroups.core.history.changes import NodeChange
from zkgroups.core.history.events import HistoryEvent
from zkgroups.core.history.tracker import GroupsTracker
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.files import data_files
from zkgroups.datadir.history import HistoryReader, LogGap
from zkgroups.datadir.transaction_log import HEAD, ChangeDecoder, LogFile


def read(data_dir: Path, group: str, *, chroot: str = "") -> list[HistoryEvent]:
    """Every change to a group. The server must have kept all of its logs."""
    found = list(HistoryReader(DataDir(str(data_dir), chroot=chroot), group=group).items())
    events = [item for item in found if not isinstance(item, LogGap)]
    assert events == found
    return events


def accepted(data_dirs: Iterable[Path], group: str) -> list[HistoryEvent]:
    """Every change to a group that the majority of an ensemble has in its logs.

    A change is accepted when the majority has written it, and only a change that was not accepted is removed later.
    """
    logs = [dict(transactions(data_dir)) for data_dir in data_dirs]
    tracker, events = GroupsTracker({group}.__contains__), list[HistoryEvent]()
    for zxid in sorted({zxid for log in logs for zxid in log}):
        copies = [log[zxid] for log in logs if zxid in log]
        for copy in copies:
            if 2 * copies.count(copy) > len(logs):
                events += tracker.apply(copy)
                break
    return events


def transactions(data_dir: Path) -> Iterator[tuple[int, list[NodeChange]]]:
    """Every transaction in the logs of a server, with its changes to groups. The last one counts if several have the
    same number, because a server may have removed the others."""
    decoder = ChangeDecoder("", None)
    for log in data_files(str(data_dir)).logs:
        for record in LogFile(log.path, 0):
            session, request, zxid, time_ms, kind = HEAD.unpack_from(record)
            yield zxid, list(decoder.decode(record, session, request, zxid, time_ms, kind))
