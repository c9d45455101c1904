#!/usr/bin/env python3
"""Tests of report.py, and of what record.py and programs.py compute, with known results."""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

import programs
import record
import report
from programs import Cell


def line(number, program, setting, ranks, size, p50, p99=None, loop=None, line_us=0.05, **rest):
    known = {"round": number, "program": program, "setting": setting, "collective": "allreduce", "dtype": "float32"}
    known |= {"ranks": ranks, "bytes": size, "line_us": line_us, **rest}
    times = {"min_us": p50, "p50_us": p50, "p99_us": p99 or p50, "max_us": p99 or p50, "loop_us": loop}
    return report.row(known, {"algorithm": "ring", "iterations": 15, **times})


def verdicts(which, rows):
    """(against, measured, met) of each line of the table of targets."""
    table = report.target_table(report.RECORDS[which], report.points_of(rows))[2:]
    cells = [row.strip("| ").split(" | ") for row in table]
    return [(row[3], row[5], row[6]) for row in cells]


class Points(unittest.TestCase):
    KEY = ("allreduce", "float32", 2, 4)

    def test_the_best_setting_of_each_round_represents_an_implementation_and_trials_are_ignored(self):
        rows = [line("trial", "gloo", "a", 2, 4, 0.1), line("trial", "gloo_rs", "", 2, 4, 0.1)]
        for number, (ours, a, b) in enumerate([(3, 10, 20), (4, 20, 10), (9, 30, 10)]):
            rows += [line(number, "gloo_rs", "", 2, 4, ours, 2 * ours)]
            rows += [line(number, "gloo", "a", 2, 4, a), line(number, "gloo", "b", 2, 4, b)]
        point = report.Point(rows, self.KEY)
        self.assertEqual(point.time("gloo_rs"), 4)
        self.assertEqual(point.time("gloo"), 10)
        self.assertEqual(point.ratio("gloo"), 0.4)
        self.assertEqual(point.name("gloo"), "b")
        self.assertEqual(point.tail(), 2)

    def test_loops_are_compared_with_loops(self):
        rows = [line(0, "gloo_rs", "", 2, 4, 1.0, loop=0.4)]
        rows += [line(0, "impi", "a", 2, 4, 2.0, loop=0.8), line(0, "impi", "b", 2, 4, 4.0, loop=0.5)]
        point = report.Point(rows, self.KEY)
        self.assertEqual((point.ratio("impi"), point.ratio("impi", "loop_us")), (0.5, 0.8))

    def test_a_program_that_failed_in_a_round_is_left_out_of_that_point_only(self):
        rows = [line(number, "gloo_rs", "", 2, size, 1.0) for number in (0, 1) for size in (4, 8)]
        rows += [line(0, "impi", "a", 2, 4, 1.0), line(0, "impi", "a", 2, 8, 1.0), line(1, "impi", "a", 2, 4, 1.0)]
        rows += [{**rows[-1], "bytes": 8, "p50_us": None, "failed": "not done"}]
        points = {point.bytes: point for point in report.points_of(rows)}
        self.assertEqual(set(points[4].rows), {"gloo_rs", "impi"})
        self.assertEqual(set(points[8].rows), {"gloo_rs"})
        self.assertIn("not done", report.failures(report.HOST, rows)[-1])

    def test_written_lines_are_read_back_equal(self):
        rows = [line("trial", "gloo", "a, unbound", 2, 4, 1.5, 2.5), line(0, "gloo_rs", "", 2, 4, 1.5, 2.5, loop=1.25)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lines.csv")
            record.Record(path, False).add(rows)
            read = record.Record(path, True).rows
        self.assertEqual([row | {"iterations": 15} for row in read], rows)


class Targets(unittest.TestCase):
    def test_a_target_is_met_up_to_its_limit(self):
        for ours, p99, met in [(8, 40, ("yes", "yes")), (8.1, 41, ("**no**", "**no**"))]:
            rows = [line(0, "gloo_rs", "", 4, 4 << 20, ours, p99), line(0, "gloo", "a", 4, 4 << 20, 10)]
            self.assertEqual([(v[0], v[2]) for v in verdicts("tcp", rows)], [("Gloo", met[0]), ("its own p50, for p99", met[1])])

    def test_the_fastest_peer_counts_by_calls_and_by_loops(self):
        rows = [line(0, "gloo_rs", "", 2, 8 << 10, 0.8, loop=0.7)]
        rows += [line(0, "impi", "a", 2, 8 << 10, 1.0, loop=1.0), line(0, "mpich", "a", 2, 8 << 10, 2.0, loop=0.8)]
        self.assertEqual(verdicts("host", rows), [("Intel MPI / MPICH", "0.8 / 0.875", "**no**")])
        rows[0]["loop_us"] = 0.64
        self.assertEqual(verdicts("host", rows), [("Intel MPI / MPICH", "0.8 / 0.8", "yes")])

    def test_the_state_of_the_machine_in_a_round_selects_what_small_calls_are_compared_with(self):
        rows = []
        for number, (state, ours) in enumerate([(0.05, 0.2), (0.05, 0.2), (0.25, 0.5)]):
            rows += [line(number, "gloo_rs", "", 2, 4, ours, loop=ours, line_us=state)]
            rows += [line(number, "impi", "a", 2, 4, 0.4, loop=0.4, line_us=state)]
            rows += [line(number, "bare", "a", 2, 4, 0.4, loop=0.4, line_us=state)]
        near, far = ("Intel MPI, shared cache", "0.5 / 0.5", "yes"), ("bare exchange, no shared cache", "1.25 / 1.25", "yes")
        self.assertEqual(verdicts("host", rows), [near, far])
        none = ("bare exchange, no shared cache", "no such round", f"[by hand]({report.BY_HAND})")
        self.assertEqual(verdicts("host", [row for row in rows if row["line_us"] < 0.2]), [near, none])
        self.assertIn("in 1 of 3 it took", report.state_of(report.points_of(rows))[0])

    def test_tls_is_compared_with_the_bare_pair(self):
        for size, ours, met in [(4, 1.5, "yes"), (64 << 10, 1.5, "**no**"), (64 << 10, 1.25, "yes"), (4 << 20, 1.26, "**no**")]:
            times = [("gloo_rs", ours), ("tls_pair", 1), ("gloo_rs_tcp", 0.5)]
            rows = [line(0, program, "", 2, size, us) for program, us in times]
            self.assertEqual(verdicts("tls", rows), [("bare pair", f"{ours:.3g}", met)])

    def test_large_calls_are_compared_with_the_memory_too(self):
        times = [("gloo_rs", 60), ("impi", 80), ("memory", 30)]
        rows = [line(0, program, "", 2, 256 << 20, us) for program, us in times]
        self.assertEqual(verdicts("host", rows), [("Intel MPI", "0.75", "yes"), ("memory floor", "2", "**no**")])

    def test_sixteen_bit_floats_are_compared_with_as_many_of_float32(self):
        rows = []
        for number in range(3):
            rows += [line(number, "gloo_rs", "", 2, 16 << 20, 10.0), line(number, "gloo_rs", "", 2, 8 << 20, 1.0)]
            rows += [line(number, "gloo_rs", "", 2, 8 << 20, 6.0 + number, dtype="bfloat16")]
        self.assertEqual(len(report.half_table(report.points_of(rows))), 1)
        self.assertIn("| 0.65 | 0.70 | **no** |", report.half_table(report.points_of(rows))[0])

    def test_the_slowest_and_the_fastest_run_are_compared_with_the_median(self):
        rows = [line(number, "gloo_rs", "", 8, 256 << 20, us) for number, us in enumerate([100, 98, 102.5])]
        self.assertIn("3 runs | ±3 % | -2.0 % to +2.5 % | yes |", report.steady_table(report.points_of(rows))[0])
        rows[1]["p50_us"] = 96
        self.assertIn("**no**", report.steady_table(report.points_of(rows))[0])

    def test_auto_is_compared_with_the_best_algorithm_of_each_size(self):
        lines = [(4, "auto", 1.1), (4, "ring", 1.0), (4, "tree", 2.0), (8, "auto", 3.0), (8, "ring", 4.0), (8, "tree", 2.0)]
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(report.auto_table(folder), [])
            with open(os.path.join(folder, "algorithms.csv"), "w", newline="") as file:
                head = ["collective", "ranks", "bytes", "algorithm", "us"]
                csv.writer(file).writerows([head, *(["allreduce", 2, *row] for row in lines)])
            median, worst = report.auto_table(folder)
        self.assertIn("| 1.05 | 1.30 | **no** |", median)
        self.assertIn("| 1.2 | 1.50 | **no** |", worst)

    def test_every_table_of_a_record_is_written(self):
        rows = [line(0, program, "a", 2, 4, 1.0, loop=1.0, collective=collective)
                for program in ("gloo_rs", "impi") for collective in record.COLLECTIVES]
        with tempfile.TemporaryDirectory() as folder:
            report.write("host", folder, rows)
            with open(os.path.join(folder, "host.md")) as file:
                text = file.read()
        for collective in record.COLLECTIVES:
            self.assertIn(f"## {collective}, 2 ranks", text)
        self.assertIn("Intel MPI: a | 1 |", text)


class Measuring(unittest.TestCase):
    def test_cells_are_launches_of_small_and_of_large_sizes_in_whole_blocks(self):
        found = record.cells(["allreduce", "alltoall", "barrier"], [8], "4,64Ki,1000001")
        sizes = [(cell.collective, cell.sizes, cell.loop) for cell in found]
        self.assertEqual(sizes[:2], [("allreduce", (4, 64 << 10), True), ("allreduce", (1000001,), False)])
        self.assertEqual(sizes[2:4], [("alltoall", (32, 64 << 10), True), ("alltoall", (1000000 // 32 * 32,), False)])
        self.assertEqual(sizes[4:], [("barrier", (0,), True)])

    def test_finalists_are_the_best_on_average_and_those_that_are_best_somewhere(self):
        def rows(setting, small, large):
            return [line("trial", "impi", setting, 2, 4, small), line("trial", "impi", setting, 2, 8, large)]

        all_of = rows("even", 1.1, 1.1) + rows("small", 1.0, 9.0) + rows("large", 9.0, 1.0) + rows("slow", 2.0, 2.0)
        self.assertEqual(record.finalists(all_of, 3), ["even", "small", "large"])
        self.assertEqual(len(record.finalists(all_of, 2)), 2)
        self.assertEqual(record.finalists(rows("a", 1.0, 1.0) + rows("b", 1.3, 1.3), 2), ["a"])

    def test_a_setting_that_fails_at_a_size_is_no_finalist_for_it(self):
        rows = [line("trial", "impi", "half", 2, 4, 1.0), line("trial", "impi", "half", 2, 8, None, failed="why")]
        rows += [line("trial", "impi", "whole", 2, 4, 2.0), line("trial", "impi", "whole", 2, 8, 2.0)]
        self.assertEqual(record.finalists(rows, 2), ["whole", "half"])
        self.assertEqual(record.finalists(rows[1:2], 2), [])

    def test_what_is_kept_is_not_measured_again(self):
        class Counting:
            calls = 0

            def settings(self, cell):
                return ["a", "b"]

            def measure(self, setting, cell, *_):
                self.calls += 1
                return [{"bytes": size, "p50_us": 1.0} for size in cell.sizes]

        with tempfile.TemporaryDirectory() as folder:
            path, program, cell = os.path.join(folder, "rows.csv"), Counting(), Cell("allreduce", 2, (4, 8))
            for rounds, calls in [(1, 4), (3, 8), (3, 8)]:
                recorder = record.Recorder(record.Record(path, True), {"gloo_rs": program}, None, rounds, False, lambda: None)
                recorder.cell(cell)
                self.assertEqual(program.calls, calls)

    def test_a_program_that_hangs_is_ended_with_all_that_it_started_and_its_lines_are_kept(self):
        programs.adopt_orphans()
        script = """import subprocess, time
subprocess.Popen(["setsid", "sleep", "600"])
print('{"bytes": 4}', flush=True)
time.sleep(600)"""
        with self.assertRaises(programs.Failed) as failed:
            programs.run([[sys.executable, "-c", script]], 1)
        self.assertIn("not done after 1 s", str(failed.exception))
        self.assertEqual(failed.exception.lines, [{"bytes": 4}])
        self.assertEqual(programs.children(), [])

    def test_a_program_that_fails_says_why(self):
        with self.assertRaisesRegex(programs.Failed, "status 3: no such thing"):
            programs.run([["sh", "-c", "echo no such thing >&2; exit 3"]], 10)


if __name__ == "__main__":
    unittest.main()
