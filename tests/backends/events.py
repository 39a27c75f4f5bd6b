"""TensorBoard's event files, written byte by byte as SummaryWriter does: one record a value."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_events(path: Path, steps: Iterable[tuple[int, Mapping[str, float]]]) -> Path:
    """Write scalars of steps. Checksums are 0: orch reads none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records, clock = [], 1_700_000_000.0
    for step, values in steps:
        for tag, value in values.items():
            clock += 0.25
            named = _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
            event = b"\x09" + struct.pack("<d", clock) + b"\x10" + _varint(step)
            event += _bytes(5, _bytes(1, named))
            records.append(struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4))
    path.write_bytes(b"".join(records))
    return path


def _bytes(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
