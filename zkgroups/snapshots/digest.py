"""The digest of a table in the summary of a snapshot, computed by Arrow: the same number that Spark computes.

Spark combines the XXH64 hashes of all rows with xor. The hash of a column is the seed of the next one, and null leaves
it unchanged. Arrow's arithmetic on unsigned integers wraps around, as XXH64 requires. So each step of the hash is one
operation on a whole column. Texts are hashed together if they have the same length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..exceptions import DamagedFileError

_SEED: Final = 42
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_STRIPE: Final = 32
"""Longer texts are hashed in four lanes."""
_FEW: Final = 64
"""So few texts of one length are hashed faster without Arrow, whose operations take microseconds each."""
_MASK: Final = 2**64 - 1


def digest(batches: Iterable[Any]) -> str:
    """Return the order-independent digest of all rows in these batches."""
    found = 0
    for batch in batches:
        found ^= _xor(row_hashes(batch))
    return f"{found:X}"


def row_hashes(batch: Any) -> Any:
    """Return the hash of each row as an array."""
    hashes = _repeated(_SEED, len(batch))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        hashes = _with_column(hashes, column, name)
    return hashes


def _with_column(hashes: Any, column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_map(kind):
        return _with_map(hashes, column, name)
    if pa.types.is_int32(kind):
        return _if_valid(column, _hash_int(column.view(pa.uint32()).cast(pa.uint64()), hashes), hashes)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us", tz=kind.tz))
        return _if_valid(column, _hash_long(column.view(pa.uint64()), hashes), hashes)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_texts(column.view(pa.binary()), hashes)
    if pa.types.is_null(kind):
        return hashes
    raise DamagedFileError(f"the column {name} has the type {kind}, which only Spark can compare with the summary")


def _with_map(hashes: Any, column: Any, name: str) -> Any:
    """Hash the entries of maps one after the other: the first ones of all rows, then the second ones, and so on."""
    starts = column.offsets[: len(column)]
    lengths = pc.if_else(pc.is_valid(column), pc.subtract(column.offsets[1:], starts), 0)
    rows = pc.indices_nonzero(pc.greater(lengths, 0))
    number = 0
    while len(rows):
        entries = pc.add(starts.take(rows), pa.scalar(number, pa.int32()))
        changed = hashes.take(rows)
        for values in (column.keys, column.items):
            changed = _with_column(changed, values.take(entries), name)
        hashes = _replaced(hashes, rows, changed)
        number += 1
        rows = rows.filter(pc.greater(lengths.take(rows), number))
    return hashes


def _replaced(hashes: Any, rows: Any, changed: Any) -> Any:
    mask = pc.is_in(pa.array(range(len(hashes)), pa.uint64()), value_set=rows)
    return pc.replace_with_mask(hashes, mask, changed)


# XXH64


def _hash_int(values: Any, seeds: Any) -> Any:
    return _mixed(_with_four_bytes(_plus(seeds, _number(_P5), _number(4)), values))


def _hash_long(values: Any, seeds: Any) -> Any:
    return _mixed(_with_eight_bytes(_plus(seeds, _number(_P5), _number(8)), values))


def _hash_texts(values: Any, seeds: Any) -> Any:
    """Hash the texts of each length together, and restore the order of the rows."""
    lengths = pc.binary_length(values)
    found = pc.unique(lengths)
    if len(found) == 1 and found[0].is_valid:
        return _hash_equally_long(values, found[0].as_py(), seeds)
    rows, hashes = [pc.indices_nonzero(pc.is_null(values))], [seeds.filter(pc.is_null(values))]
    for length in found.drop_null().to_pylist():
        those = pc.indices_nonzero(pc.fill_null(pc.equal(lengths, length), False))
        rows.append(those)
        hashes.append(_hash_equally_long(values.take(those), length, seeds.take(those)))
    return pa.concat_arrays(hashes).take(pc.sort_indices(pa.concat_arrays(rows)))


def _hash_equally_long(texts: Any, length: int, seeds: Any) -> Any:
    words = _Words(texts)
    hashes = _hash_stripes(words, length // _STRIPE, seeds) if length >= _STRIPE else _plus(seeds, _number(_P5))
    hashes = _plus(hashes, _number(length))
    at = length - length % _STRIPE
    for start in range(at, length - 7, 8):
        hashes = _with_eight_bytes(hashes, words.at(start, pa.uint64()))
    at = length - length % 8
    if at + 4 <= length:
        hashes = _with_four_bytes(hashes, words.at(at, pa.uint32()))
        at += 4
    for start in range(at, length):
        hashes = _times(_rotated(_xored(hashes, _times(words.at(start, pa.uint8()), _number(_P5))), 11), _number(_P1))
    return _mixed(hashes)


def _hash_stripes(words: _Words, stripes: int, seeds: Any) -> Any:
    lanes = (_lanes_of_few if len(seeds) <= _FEW else _lanes)(words, stripes, seeds)
    hashes = _plus(*(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)))
    for lane in lanes:
        hashes = _plus(
            _times(_xored(hashes, _times(_rotated(_times(lane, _number(_P2)), 31), _number(_P1))), _number(_P1)),
            _number(_P4),
        )
    return hashes


def _lanes(words: _Words, stripes: int, seeds: Any) -> list[Any]:
    lanes = [
        _plus(seeds, _number(_P1), _number(_P2)),
        _plus(seeds, _number(_P2)),
        seeds,
        pc.subtract(seeds, _number(_P1)),
    ]
    for stripe in range(stripes):
        for lane in range(4):
            word = words.at(stripe * _STRIPE + lane * 8, pa.uint64())
            lanes[lane] = _times(_rotated(_plus(lanes[lane], _times(word, _number(_P2))), 31), _number(_P1))
    return lanes


def _lanes_of_few(words: _Words, stripes: int, seeds: Any) -> list[Any]:
    """Like `_lanes`, one text after the other. A node can have a megabyte, and thus 32,000 stripes."""
    found = []
    for text, seed in zip(words.texts.to_pylist(), seeds.to_pylist(), strict=True):
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for stripe in struct.iter_unpack("<4Q", text[: stripes * _STRIPE]):
            for lane, word in enumerate(stripe):
                mixed = (lanes[lane] + word * _P2) & _MASK
                lanes[lane] = ((mixed << 31 | mixed >> 33) & _MASK) * _P1 & _MASK
        found.append(lanes)
    return [pa.array(lane, pa.uint64()) for lane in zip(*found, strict=True)]


class _Words:
    """The bytes of texts of equal length, by position."""

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def at(self, start: int, kind: Any) -> Any:
        """Return the little-endian numbers that begin at a position, one for each text."""
        cut = pc.binary_slice(self.texts, start, start + kind.bit_width // 8)
        count = len(self.texts)
        data = cut.buffers()[2]
        return pa.Array.from_buffers(kind, count, [None, data]).cast(pa.uint64())


def _with_eight_bytes(hashes: Any, words: Any) -> Any:
    changed = _xored(hashes, _times(_rotated(_times(words, _number(_P2)), 31), _number(_P1)))
    return _plus(_times(_rotated(changed, 27), _number(_P1)), _number(_P4))


def _with_four_bytes(hashes: Any, words: Any) -> Any:
    return _plus(_times(_rotated(_xored(hashes, _times(words, _number(_P1))), 23), _number(_P2)), _number(_P3))


def _mixed(hashes: Any) -> Any:
    hashes = _times(_xored(hashes, pc.shift_right(hashes, _number(33))), _number(_P2))
    hashes = _times(_xored(hashes, pc.shift_right(hashes, _number(29))), _number(_P3))
    return _xored(hashes, pc.shift_right(hashes, _number(32)))


# Arithmetic


@cache
def _number(value: int) -> Any:
    """Return a number for Arrow. The first one imports pandas, so not while modules are imported."""
    return pa.scalar(value, pa.uint64())


def _repeated(value: int, count: int) -> Any:
    return pa.repeat(_number(value), count)


def _plus(first: Any, *others: Any) -> Any:
    for each in others:
        first = pc.add(first, each)
    return first


def _times(first: Any, second: Any) -> Any:
    return pc.multiply(first, second)


def _xored(first: Any, second: Any) -> Any:
    return pc.bit_wise_xor(first, second)


def _rotated(hashes: Any, by: int) -> Any:
    return pc.bit_wise_or(pc.shift_left(hashes, _number(by)), pc.shift_right(hashes, _number(64 - by)))


def _if_valid(column: Any, hashes: Any, otherwise: Any) -> Any:
    return hashes if column.null_count == 0 else pc.if_else(pc.is_valid(column), hashes, otherwise)


def _xor(hashes: Any) -> int:
    """Combine all hashes: the first half with the second one, until one is left."""
    while len(hashes) > 1:
        half = len(hashes) // 2
        rest = hashes[2 * half :]
        hashes = pa.concat_arrays([_xored(hashes[:half], hashes[half : 2 * half]), rest])
    return int(hashes[0].as_py()) if len(hashes) else 0
