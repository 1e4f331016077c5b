"""The options of a consumer that say where its offsets are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ..core.znodes.offset_sides import OffsetSides, Side
from ..exceptions import InvalidOptionError

OffsetsIn: TypeAlias = Literal["zookeeper", "kafka", "both"]
SideName: TypeAlias = Literal["zookeeper", "kafka"]

_BOTH: Final = "both"


@dataclass(frozen=True, slots=True)
class OffsetOptions:
    """Where offsets are committed and read. `initial`: begin at those in ZooKeeper where the brokers have none."""

    sides: OffsetSides
    initial: bool


def offset_options(offsets: object, truth: object, initial: object) -> OffsetOptions:
    """Check the options of a user.

    >>> str(offset_options("both", "kafka", None).sides)
    'both, kafka is the truth'
    """
    if offsets not in (*Side, _BOTH):
        raise InvalidOptionError("offsets", offsets, "it must be one of " + ", ".join((*Side, _BOTH)))
    if offsets == _BOTH and truth not in list(Side):
        raise InvalidOptionError("truth", truth, 'with offsets="both" it must be the side to read: zookeeper or kafka')
    if offsets != _BOTH and truth is not None:
        raise InvalidOptionError("truth", truth, 'it is only for offsets="both"')
    sides = OffsetSides(Side(str(truth if offsets == _BOTH else offsets)), both=offsets == _BOTH)
    if initial not in (None, Side.ZOOKEEPER):
        raise InvalidOptionError("initial", initial, "it must be zookeeper, or left out")
    if initial is not None and sides.truth is not Side.KAFKA:
        raise InvalidOptionError("initial", initial, "it is only for offsets that are read from the brokers")
    return OffsetOptions(sides, initial is not None)
