#!/usr/bin/env python3
"""What kernel_resources.py counts, on a kernel whose cost is known: sass_test.py NVCC ARCH..."""
import pathlib
import sys
import tempfile
import unittest

import kernel_resources
import sass

NVCC, ARCHITECTURES = "nvcc", []


class Counted(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source = pathlib.Path(__file__).with_name("counted.cu")

    def for_every_architecture(self, check):
        for arch in ARCHITECTURES:
            with self.subTest(arch=arch):
                check(arch, kernel_resources.kernels_of(NVCC, arch, self.source, self.folder.name)[0])

    def test_one_loop_of_eight_elements_without_a_sketch(self):
        def check(_, kernel):
            self.assertEqual([(one.elements, one.kind) for one in kernel.loops], [(8, "k=0")])

        self.for_every_architecture(check)

    def test_fast_path_squares_every_element_once_and_does_nothing_else(self):
        def check(_, kernel):
            loop = kernel.loops[0].loop
            counts = loop.histogram()
            self.assertEqual((counts["LDG"], counts["FFMA"], counts["POPC"], counts["CALL"]), (2, 8, 0, 0))
            # Loads and squares, then addresses, guards and the branch back.
            self.assertLess(len(loop.fast_path), 10 + 24)

        self.for_every_architecture(check)

    def test_the_rest_is_in_the_whole_loop_only(self):
        def check(_, kernel):
            names = [one.name for one in kernel.loops[0].loop.instructions()]
            self.assertEqual(names.count("POPC"), 8)
            self.assertGreater(kernel.loops[0].whole_per_element, kernel.loops[0].per_element())

        self.for_every_architecture(check)

    def test_branches_lead_to_instructions(self):
        def check(arch, _):
            cubin, _ = kernel_resources.compile_cubin(NVCC, arch, self.source, self.folder.name)
            for section in sass.read_cubin(cubin, arch):
                targets = [one.target for one in section.instructions if one.name == "BRA"]
                self.assertTrue(targets)
                self.assertLessEqual(set(targets), {one.address for one in section.instructions})

        self.for_every_architecture(check)

    def test_occupancy(self):
        # CUDA C++ Programming Guide: 64 K registers, 2048 threads and 228 KiB of shared memory on 9.0.
        def ctas(registers, shared):
            return kernel_resources.ctas_of_multiprocessor(90, kernel_resources.Resources(registers, shared))

        self.assertEqual([ctas(32, 0), ctas(64, 0), ctas(65, 0), ctas(128, 0)], [4, 2, 1, 1])
        self.assertEqual([ctas(32, 56 * 1024), ctas(32, 57 * 1024), ctas(32, 113 * 1024), ctas(32, 114 * 1024)],
                         [4, 3, 2, 1])


if __name__ == "__main__":
    NVCC, ARCHITECTURES = sys.argv[1], [int(arch) for arch in sys.argv[2:]]
    unittest.main(argv=sys.argv[:1])
