"""Positions as streaming checkpoints and audits store them. The names of the fields are part of the formats on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..core.ensemble_position import EnsemblePosition

FIELDS: Final = {"zxid": "zxid", "made_zxid": "created_zxid", "made_ms": "created_ms"}
"""The fields of a position by their names on disk."""


def encode_position(position: EnsemblePosition) -> dict[str, int]:
    """Convert a position to the fields on disk.

    >>> encode_position(EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000))
    {'zxid': 100, 'made_zxid': 7, 'made_ms': 1000}
    """
    return {name: getattr(position, field) for name, field in FIELDS.items()}


def decode_position(saved: Mapping[str, int]) -> EnsemblePosition:
    """Convert the fields on disk to a position. Other fields are ignored."""
    return EnsemblePosition(**{field: saved[name] for name, field in FIELDS.items()})
