#!/usr/bin/env python3
"""A tampered trace must differ from the one that it was made of, a run of the stand-in.

usage: call_order_test.py BUILD_FOLDER
"""
import copy
import json
import sys
import unittest

import call_order
import runs

BUILD = runs.Build(sys.argv.pop(1))


class Tampered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trace = call_order.records(BUILD.on_standin("2.28.9", ["single"]))
        cls.original = cls.read(cls.trace)

    @staticmethod
    def read(trace: list) -> dict:
        return call_order.read("".join(json.dumps(r) + "\n" for r in trace))["single"]

    def setUp(self):
        self.lines = copy.deepcopy(self.trace)

    def find(self, pid=None, **fields) -> dict:
        for r in self.lines:
            if all(r.get(k) == v for k, v in fields.items()) and pid in (None, r["pid"]):
                return r
        self.fail(f"the trace has no {fields}")

    def difference(self) -> str:
        return call_order.difference(self.original, self.read(self.lines))

    def expect_both_signs(self):
        text = self.difference()
        self.assertIn("\n  - ", text)
        self.assertIn("\n  + ", text)

    def test_untouched_there_is_none(self):
        self.assertGreaterEqual(len(self.original), 6)
        self.assertEqual(self.difference(), "")

    def test_order_of_launch_and_kernel_launch_stop(self):
        launch = self.find(ev="launch")
        handle = self.find(launch["pid"], type="KernelLaunch")["handle"]
        stop = self.find(launch["pid"], call="stopEvent", handle=handle)
        launch["seq"], stop["seq"] = stop["seq"], launch["seq"]
        self.expect_both_signs()

    def test_parent(self):
        coll = self.find(type="Coll")
        coll["parentObj"] = self.find(coll["pid"], type="GroupApi")["handle"]
        self.expect_both_signs()

    def test_count(self):
        self.find(type="Coll")["count"] = 1025
        self.expect_both_signs()

    def test_state(self):
        self.find(stateId=24)["stateId"] = 23
        self.expect_both_signs()

    def test_missing_call(self):
        group = self.find(type="Group")
        self.lines.remove(self.find(group["pid"], call="stopEvent", handle=group["handle"]))
        self.assertIn("  - stopEvent Group.", self.difference())

    def test_thread(self):
        self.find(type="Coll")["tid"] += 100000
        self.assertIn("library thread", self.difference())

    def test_broken_line(self):
        with self.assertRaisesRegex(ValueError, "line 2 "):
            call_order.read('{"seq":1}\n{\n')


if __name__ == "__main__":
    unittest.main()
