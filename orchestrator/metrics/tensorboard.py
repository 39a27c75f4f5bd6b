"""Read the scalars of a TensorBoard event file without TensorBoard.

A file is a sequence of records: length (8 bytes), its checksum (4), a protobuf Event, its checksum.
Three fields of an Event are read: wall_time (field 1), step (2), and, in its summary (5), each
value's tag (1) and simple_value (2).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LARGEST = 1 << 26
"""Bytes of a record; a longer one is a torn or foreign file."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Scalar(NamedTuple):
    """One value of one tag. `time` in Unix seconds."""

    step: int
    time: float
    tag: str
    value: float


def scalars(path: Path) -> Iterator[Scalar]:
    """Yield scalars in file order. Stop at a record that is cut off."""
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if not 0 < length <= LARGEST:
                return
            record = file.read(length + 4)
            if len(record) < length + 4:
                return
            try:
                yield from _scalars_of(record[:length])
            except (ValueError, struct.error, IndexError, UnicodeDecodeError):
                return


def _scalars_of(event: bytes) -> Iterator[Scalar]:
    time, step, summaries = 0.0, 0, []
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                inner = dict(_fields(value))
                tag, simple = inner.get(1), inner.get(2)
                if isinstance(tag, bytes) and isinstance(simple, bytes) and len(simple) == 4:
                    yield Scalar(step, time, tag.decode(), struct.unpack("<f", simple)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of a protobuf message: varints as int, all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(message):
            raise ValueError("a field longer than its message")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")
