"""TensorBoard event files, read without TensorBoard: scalars only.

A file is records of <length: u64><its crc: u32><data><its crc: u32>, little-endian; the data is a
protocol buffer `Event` {1: wall_time, 2: step, 5: Summary {1: Value {1: tag, 2: simple_value}}}.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEAD, _CRC = 12, 4


class Scalar(NamedTuple):
    """One value of one tag. `time` in Unix seconds."""

    step: int
    time: float
    tag: str
    value: float


def read_scalars(path: Path) -> Iterator[Scalar]:
    """The scalars of a file in its order; a record that is cut or is no event ends it."""
    with path.open("rb") as file:
        while True:
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                return
            (length,) = struct.unpack_from("<Q", head)
            data = file.read(length + _CRC) if length < 1 << 30 else b""
            if len(data) < length + _CRC:
                return
            try:
                scalars = list(_event(data[:length]))
            except (ValueError, IndexError, struct.error):
                return
            yield from scalars


def _event(data: bytes) -> Iterator[Scalar]:
    time, step, summaries = 0.0, 0, []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, entry in _fields(summary):
            if number == 1 and isinstance(entry, bytes):
                yield from _value(entry, step, time)


def _value(data: bytes, step: int, time: float) -> Iterator[Scalar]:
    fields = dict(_fields(data))
    tag, value = fields.get(1), fields.get(2)
    if isinstance(tag, bytes) and isinstance(value, bytes) and len(value) == 4:
        yield Scalar(step, time, tag.decode(), struct.unpack("<f", value)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field of a message. Raises ValueError where it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
