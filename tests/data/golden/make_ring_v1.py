#!/usr/bin/env python3
"""Writes ring-v1.ring: a ring of format version 1, made from docs/FORMAT.md alone and without the project's code.

The file is kept in the repository, so that every later reader is tested against bytes that this version wrote.
Usage: make_ring_v1.py OUTPUT
"""
import struct
import sys

K = 256  # floats of a sketch
CAPACITY = 6
NONE = 2**64 - 1
RECORD_BYTES = (256 + 4 * K + 63) // 64 * 64


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def text(value, size):
    return value.encode().ljust(size, b"\0")


def header(capacity=CAPACITY, features=0):
    h = b"GRADPRB\n"
    h += struct.pack("<4I", 1, 4096, RECORD_BYTES, K)
    h += struct.pack("<4Q", capacity, features, 0, 0x0123456789ABCDEF)
    h += struct.pack("<4I", 3, 8, 2, 6)
    h += struct.pack("<2Q", 42, 1_700_000_000_000_000_000)
    h += struct.pack("<2I", 4711, 0)
    h += struct.pack("<Q", 0)
    h += text("00000000-1111-2222-3333-444444444444", 40) + text("node7", 64) + text("dp", 128)
    h += bytes(range(16)) + text("Test Device", 64) + text("job-5", 64) + text("0.1.0", 32)
    h += text("GRADPROBE_SKETCH=256\nGRADPROBE_SEED=42\n", 1024) + bytes(508)
    assert len(h) == 2044
    return h + struct.pack("<I", crc32c(h))


def live(written, measured=4, results=0, marks_lost=0):
    missed = [0] * 32
    missed[1] = 1
    c = struct.pack("<8Q", written, 1, 1_700_000_009_000_000_000, measured, 1500, 7, results, marks_lost)
    c += struct.pack("<32Q", *missed)
    return c.ljust(2048, b"\0")


def record(number, kind, missed, op, flags, step, step_op, body, sketch=None):
    assert len(body) == 192
    payload = struct.pack("<HHQIIQIIQ", kind, missed, op, 0, flags, step, step_op, 3,
                          1_700_000_001_000_000_000 + number) + body
    payload += struct.pack(f"<{K}f", *(sketch or [0.0] * K))
    return struct.pack("<QQI", number + 1, number + 1, crc32c(payload)) + payload


def collective(number, op, step, step_op, count, sum_squares, max_abs, nan=0, first=NONE, missed=0):
    flags = 1 | 4 | (0 if missed else 16)
    body = struct.pack("<3Q2d4Q", count, 0x7F0000000000, 0x7F0000000000, sum_squares, max_abs, nan, 0, NONE, first)
    body += struct.pack("<4QIBBH", 1000 + number, 2000 + number, 0xFEED + op, 0, 0, 1, 7, 0) + bytes(64 + 16)
    sketch = None if missed else [number + i / 256 for i in range(K)]
    return record(number, 1, missed, op, flags, step, step_op, body, sketch)


def scalar(number, op, step, step_op, datatype, raw, elements):
    body = struct.pack("<3Q2d4Q", elements, 0x7F0000001000, 0x7F0000001000, 0.0, 0.0, 0, 0, NONE, NONE)
    body += struct.pack("<4QIBBH", 1000 + number, 2000 + number, 0, 0, elements, 1, datatype, 0)
    body += raw.ljust(64, b"\0") + bytes(16)
    return record(number, 3, 0, op, 1, step, step_op, body)


def step(number, first_op, step_number, loss):
    body = struct.pack("<Q4IQ2d4Q2Qd", first_op, 3, 2, 0, 1, 300, 6.25, 1.5, 0, 0, NONE, NONE, 10, 20, loss) + bytes(88)
    return record(number, 2, 0, first_op, 1, step_number, 0, body)


RECORDS = [  # the first two are overwritten: the ring holds six
    collective(0, 0, 0, 0, 100, 4.0, 1.0),
    collective(1, 1, 0, 1, 200, 2.25, 1.5),
    scalar(2, 2, 0, 2, 7, struct.pack("<f", 0.625), 1),
    step(3, 0, 0, 0.625),
    collective(4, 3, 1, 0, 100, 9.0, 2.0),
    collective(5, 4, 1, 1, 200, 0.0, 0.0, missed=1),
    scalar(6, 5, 1, 2, 9, struct.pack("<2H", 0x3FC0, 0xC000), 2),  # bfloat16 1.5 and -2
    collective(7, 6, 2, 0, 100, 16.0, 3.0, nan=2, first=17),
]


def main():
    slots = [b"\0" * RECORD_BYTES] * CAPACITY
    for number, data in enumerate(RECORDS):
        slots[number % CAPACITY] = data.ljust(RECORD_BYTES, b"\0")
    with open(sys.argv[1], "wb") as out:
        out.write(header() + live(len(RECORDS)) + b"".join(slots))


if __name__ == "__main__":
    main()
