"""The requests for persistent recursive watches, which kazoo does not have.

Such a watch reports every change of every node of a tree: created, deleted, or written. It stays until the connection
is closed. Servers support it since ZooKeeper 3.6, as they support MultiRead.

    AddWatch (106)      path, mode (1: persistent and recursive)
    SetWatches2 (105)   zxid, then five lists of paths; the last has the persistent recursive watches

A server restores the watch of an earlier connection with SetWatches2, but does not report what has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from kazoo.protocol.serialization import Exists

_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_ADD_WATCH: Final = 106
_SET_WATCHES: Final = 105
_PERSISTENT_RECURSIVE: Final = 1
_OTHER_LISTS: Final = 4
_HARMLESS: Final[bytes] = bytes(Exists("/", None).serialize())


class RecursiveWatchRequest:
    """A request to watch the tree at `path`: a first one, or after a lost connection.

    Older servers close the connection after it. So it asks `is_supported` at the moment of sending, as `MultiRead`
    does, and otherwise sends a request that every server supports.
    """

    def __init__(self, path: str, is_supported: Callable[[], bool], *, seen_zxid: int | None = None) -> None:
        self._path = path.encode()
        self._is_supported = is_supported
        self._seen_zxid = seen_zxid
        self._sent: bool | None = None

    @property
    def type(self) -> int:
        """Read by kazoo, for the first time when it sends."""
        if self._sent is None:
            self._sent = self._is_supported()
        if not self._sent:
            return int(Exists.type)
        return _ADD_WATCH if self._seen_zxid is None else _SET_WATCHES

    def serialize(self) -> bytes:
        """Called by kazoo as it sends, after it has read the type."""
        if not self._sent:
            return _HARMLESS
        path = _INT.pack(len(self._path)) + self._path
        if self._seen_zxid is None:
            return path + _INT.pack(_PERSISTENT_RECURSIVE)
        return _LONG.pack(self._seen_zxid) + _INT.pack(0) * _OTHER_LISTS + _INT.pack(1) + path

    @staticmethod
    def deserialize(_answer: bytes, _offset: int) -> None:
        """Called by kazoo. The answer has no contents that matter."""
