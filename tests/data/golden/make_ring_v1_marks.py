#!/usr/bin/env python3
"""Writes ring-v1-marks.ring: a ring of format version 1 with marks, made as make_ring_v1.py's is.

Usage: make_ring_v1_marks.py OUTPUT
"""
import struct
import sys

from make_ring_v1 import K, NONE, RECORD_BYTES, crc32c, header, live

CAPACITY = 8
STEP, SCALAR, PHASE = 1, 2, 3


def record(number, kind, op, flags, step, step_op, body):
    assert len(body) == 192
    payload = struct.pack("<HHQIIQIIQ", kind, 0, op, 0, flags, step, step_op, 0, 1_700_000_001_000_000_000 + number)
    payload += body + bytes(4 * K)
    return struct.pack("<QQI", number + 1, number + 1, crc32c(payload)) + payload


def mark(number, op, step, kind, name="", value=0.0, count=NONE):
    body = struct.pack("<dQB", value, count, kind) + bytes(7) + name.encode().ljust(160, b"\0") + bytes(8)
    return record(number, 5, op, 0 if step == NONE else 1, step, 0, body)


def bucket(number, op, step, step_op):
    body = struct.pack("<3Q2d4Q", 100, 0x7F0000000000, 0x7F0000000000, 4.0, 1.0, 0, 0, NONE, NONE)
    body += struct.pack("<4QIBBH", 1000, 2000, 0, 0, 0, 1, 7, 0) + bytes(64 + 16)
    return record(number, 1, op, 1, step, step_op, body)


RECORDS = [
    mark(0, 0, NONE, PHASE, "Aufwärmen"),
    mark(1, 0, 40, STEP, count=40),
    bucket(2, 0, 40, 0),
    bucket(3, 1, 40, 1),
    mark(4, 2, 40, SCALAR, "loss", 0.625),
    mark(5, 2, 41, STEP, count=7),  # the application's count went back
    bucket(6, 2, 41, 0),
    mark(7, 3, 41, SCALAR, "learning rate", float("nan")),
]


def main():
    slots = b"".join(data.ljust(RECORD_BYTES, b"\0") for data in RECORDS)
    with open(sys.argv[1], "wb") as out:
        out.write(header(CAPACITY, features=3) + live(len(RECORDS), measured=3, marks_lost=2) + slots)


if __name__ == "__main__":
    main()
