"""The meaning of a path below `/consumers/`: a group, a registration, an offset or an owner node."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ..znodes.offset_codec import decode_offset_path
from ..znodes.owner_codec import decode_owner_path
from ..znodes.paths import Part


class PlaceKind(Enum):
    """What a node is."""

    GROUP = 1
    REGISTRATION = 2
    OFFSET = 3
    OWNER = 4
    OTHER = 5


class Place(NamedTuple):
    """What a node is, and the names in its path that apply.

    - `id`: of a registration.
    - `topic`, `number`: the partition of an offset or of an owner node.
    """

    kind: PlaceKind
    group: str
    id: str = ""
    topic: str = ""
    number: int = 0


@lru_cache(maxsize=2**16)  # nodes are created and deleted again and again
def place_of(path: bytes) -> Place:
    """Return the meaning of a path.

    >>> place_of(b"billing/owners/b'orders'/1001-3")
    Place(kind=<PlaceKind.OWNER: 4>, group='billing', id='', topic='orders', number=3)
    """
    group, *names = path.decode(errors="backslashreplace").split("/")
    match names:
        case []:
            return Place(PlaceKind.GROUP, group)
        case [Part.IDS, id]:
            return Place(PlaceKind.REGISTRATION, group, id)
        case [Part.OFFSETS, topic, name] if at := decode_offset_path(topic, name):
            return Place(PlaceKind.OFFSET, group, topic=at.topic, number=at.partition)
        case [Part.OWNERS, topic, name] if at := decode_owner_path(topic, name):
            return Place(PlaceKind.OWNER, group, topic=at.topic, number=at.partition)
    return Place(PlaceKind.OTHER, group)
