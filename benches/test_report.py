#!/usr/bin/env python3
"""Tests of report.py with known results."""

import csv
import os
import tempfile
import unittest

import report


def line(number, program, setting, ranks, size, p50, p99):
    times = {"algorithm": setting or "ring", "iterations": 15, "min_us": p50, "p50_us": p50, "p99_us": p99, "max_us": p99}
    return report.row(program, setting, ranks, size, number, times)


class Report(unittest.TestCase):
    def test_the_best_setting_of_each_round_represents_an_implementation_and_trials_are_ignored(self):
        rows = [line("trial", "gloo", "a", 2, 4, 0.1, 0.1), line("trial", "gloo_rs", "", 2, 4, 0.1, 0.1)]
        for number, (ours, a, b) in enumerate([(3, 10, 20), (4, 20, 10), (9, 30, 10)]):
            rows += [line(number, "gloo_rs", "", 2, 4, ours, 2 * ours)]
            rows += [line(number, "gloo", "a", 2, 4, a, a), line(number, "gloo", "b", 2, 4, b, b)]
        point = report.Point(rows, 2, 4)
        self.assertEqual(point.time("gloo_rs"), 4)
        self.assertEqual(point.time("gloo"), 10)
        self.assertEqual(point.ratio("gloo"), 0.4)
        self.assertEqual(point.name("gloo"), "b")
        self.assertEqual(point.tail(), 2)

    def test_a_target_is_met_up_to_its_limit(self):
        def table(ours, p99, gloo):
            rows = [line(0, "gloo_rs", "", 4, 4 << 20, ours, p99), line(0, "gloo", "a", 4, 4 << 20, gloo, gloo)]
            return report.target_table([report.Point(rows, 4, 4 << 20)])[2:]

        for ours, p99, met in [(8, 40, ("yes", "yes")), (8.1, 41, ("**no**", "**no**"))]:
            cells = [row.split(" | ") for row in table(ours, p99, 10)]
            self.assertEqual([(row[2], row[5]) for row in cells],
                             [("Gloo", met[0]), ("its own p50, for p99", met[1])])

    def test_written_lines_are_read_back_equal(self):
        rows = [line("trial", "gloo", "a, unbound", 2, 4, 1.5, 2.5), line(0, "gloo_rs", "", 2, 4, 1.5, 2.5)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lines.csv")
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, report.FIELDS)
                writer.writeheader()
                writer.writerows(rows)
            read = report.load(path)
        self.assertEqual([row | {"iterations": 15} for row in read], rows)


if __name__ == "__main__":
    unittest.main()
