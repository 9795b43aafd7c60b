#!/usr/bin/env python3
"""Writes ring-v1-results.ring: a ring of format version 1 with result records, made as make_ring_v1.py's is.

Usage: make_ring_v1_results.py OUTPUT
"""
import struct
import sys

from make_ring_v1 import K, NONE, RECORD_BYTES, header, live, record

CAPACITY = 6
F64, BF16, E4M3 = 8, 9, 10
ALL_REDUCE, REDUCE_SCATTER = 1, 2


def fingerprint(buffer):
    padded = buffer + bytes(-len(buffer) % 4)
    return sum(struct.unpack(f"<{len(padded) // 4}I", padded)) % 2**64


def body(op, count, sum_squares, max_abs, function, datatype, raw=b"", raw_count=0, words=0):
    b = struct.pack("<3Q2d4Q", count, 0x7F0000000000, 0x7F0000100000, sum_squares, max_abs, 0, 0, NONE, NONE)
    b += struct.pack("<4QIBBH", 1000 + op, 2000 + op, 0xFEED + op, 0, raw_count, function, datatype, 0)
    return b + raw.ljust(64, b"\0") + struct.pack("<2Q", words, 0)


def bucket(number, kind, op, missed=0, **measured):
    flags = 1 | (0 if missed else 16)
    sketch = None if missed else [number - i / 256 for i in range(K)]
    return record(number, kind, missed, op, flags, 0, op, body(op, **measured), sketch)


def tiny(number, kind, op, value, words=0):
    raw = struct.pack("<d", value)
    return record(number, kind, 0, op, 1, 0, op, body(op, 1, value * value, value, ALL_REDUCE, F64, raw, 1, words))


RECORDS = [
    bucket(0, 1, 0, count=8000, sum_squares=36.0, max_abs=2.5, function=REDUCE_SCATTER, datatype=BF16),
    bucket(1, 1, 1, count=70000, sum_squares=49.0, max_abs=448.0, function=ALL_REDUCE, datatype=E4M3),
    # One rank's shard of eight.
    bucket(2, 4, 0, count=1000, sum_squares=6.25, max_abs=1.5, function=REDUCE_SCATTER, datatype=BF16,
           words=0xFEDCBA9876543210),
    tiny(3, 3, 2, 0.1),
    bucket(4, 4, 1, missed=11, count=70000, sum_squares=0.0, max_abs=0.0, function=ALL_REDUCE, datatype=E4M3),
    tiny(5, 4, 2, 0.8, fingerprint(struct.pack("<d", 0.8))),
]


def main():
    slots = b"".join(data.ljust(RECORD_BYTES, b"\0") for data in RECORDS)
    with open(sys.argv[1], "wb") as out:
        out.write(header(CAPACITY, features=1) + live(len(RECORDS), measured=3, results=2) + slots)


if __name__ == "__main__":
    main()
