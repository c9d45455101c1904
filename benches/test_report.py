#!/usr/bin/env python3
"""Tests of report.py, and of what record.py and programs.py compute, with known results."""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

import patterns
import programs
import record
import report
from programs import Cell


def line(number, program, setting, ranks, size, p50, p99=None, loop=None, line_us=0.05, **rest):
    known = {"round": number, "program": program, "setting": setting, "collective": "allreduce", "dtype": "float32"}
    known |= {"ranks": ranks, "bytes": size, "line_us": line_us, **rest}
    times = {"min_us": p50, "p50_us": p50, "p99_us": p99 or p50, "max_us": p99 or p50, "loop_us": loop, "beside_us": rest.get("beside_us")}
    return report.row(known, {"algorithm": "ring", "iterations": 15, **times})


def verdicts(which, rows):
    """(against, measured, met) of each line of the table of targets."""
    kind = patterns.KIND if which == "programs" else report.RECORDS[which]
    table = report.target_table(kind, report.points_of(rows))[2:]
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


class Patterns(unittest.TestCase):
    def test_requests_of_a_rank_take_a_quarter_of_a_gigabyte_at_most(self):
        found = patterns.cells(["requests"], [2, 4, 16])
        self.assertEqual({cell.ranks for cell in found}, {2, 4})
        in_and_out = [2 * int(name.split("-")[1]) * size for cell in found for name in cell.collectives for size in cell.sizes]
        self.assertEqual(max(in_and_out), 256 << 20)

    def test_the_sizes_of_a_command_replace_those_of_families_that_have_several(self):
        found = patterns.cells(patterns.FAMILIES, [2], "4")
        sizes = {patterns.family_of(cell.collective): cell.sizes for cell in found}
        self.assertEqual(sizes, {"late": (4,), "rotation": (8,), "sequence": (16,), "requests": (4,), "wait": (8,)})
        self.assertEqual(len(found), len(sizes))

    def test_the_settings_of_allreduce_are_those_of_its_patterns(self):
        late, sequence = patterns.cells(["late", "sequence"], [2])
        self.assertEqual((late.measured, sequence.measured), ("allreduce", "sequence"))

    def test_modes_of_waiting_run_where_a_rank_waits_with_their_variable(self):
        mode = programs.Only(programs.GlooRs("echo", "auto", environment={"GLOO_RS_WAIT": "poll"}), "late", "wait")
        cells = patterns.cells(patterns.FAMILIES, [2])
        self.assertEqual({patterns.family_of(cell.collective) for cell in cells if mode.settings(cell)}, {"late", "wait"})
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "tool")
            with open(tool, "w") as file:
                file.write("""#!/bin/sh
echo '{"verified": true, "mode": "'$GLOO_RS_WAIT'"}'""")
            os.chmod(tool, 0o755)
            found = programs.GlooRs(tool, "auto", environment={"GLOO_RS_WAIT": "poll"}).measure("bound", cells[0], 1, 1, 10)
        self.assertEqual([line["mode"] for line in found], ["poll"])

    def test_each_pattern_of_a_launch_has_rows_of_its_own_and_is_not_measured_again(self):
        class Both:
            calls = 0

            def settings(self, cell):
                return ["a"]

            def measure(self, setting, cell, *_):
                self.calls += 1
                lines = [{"collective": name, "bytes": size, "p50_us": 1.0} for name in cell.collectives for size in cell.sizes]
                raise programs.Failed("why", lines[:-1])

        with tempfile.TemporaryDirectory() as folder:
            path, program, cell = os.path.join(folder, "rows.csv"), Both(), Cell("requests-2,requests-8", 2, (4, 8))
            for _ in range(2):
                record.Recorder(record.Record(path, True), {"gloo_rs": program}, None, 1, False, lambda: None).cell(cell)
            rows = record.Record(path, True).rows
        self.assertEqual(program.calls, 1)
        found = [(row["collective"], row["bytes"], row["failed"]) for row in rows]
        self.assertEqual(found, [("requests-2", 4, ""), ("requests-2", 8, ""), ("requests-8", 4, ""), ("requests-8", 8, "why")])

    def test_a_setting_is_a_finalist_for_a_pattern_where_it_is_the_best(self):
        def rows(setting, ba, ab):
            times = {"sequence-ba": ba, "sequence-ab": ab}
            return [line("trial", "impi", setting, 2, 16, us, collective=name) for name, us in times.items()]

        self.assertEqual(record.finalists(rows("even", 1.0, 2.0) + rows("second", 4.0, 1.0), 2), ["even", "second"])

    def test_requests_are_compared_with_the_same_calls_of_their_own_round(self):
        rows = [line(number, program, "", 2, 64 << 10, 10.0 * number, collective="requests-8", beside_us=beside * number)
                for number in (1, 2, 3) for program, beside in (("gloo_rs", 10.0), ("gloo_rs_tcp", 8.0), ("openmpi_tcp", 1.0))]
        own = "the same calls one after the other"
        expected = [(own, "1", "yes"), (f"{own}, of gloo_rs, TCP", "1.25", "**no**")]
        self.assertEqual(verdicts("programs", rows), expected)

    def test_late_ranks_are_compared_by_the_slowest_rank_and_by_the_last(self):
        rows = [line(0, "gloo_rs", "", 2, 8, 0.4, collective="late-1000", beside_us=0.3)]
        rows += [line(0, "impi", "a", 2, 8, 0.5, collective="late-1000", beside_us=0.2)]
        rows += [line(0, "openmpi", "a", 2, 8, 0.6, collective="late-1000", beside_us=0.6)]
        self.assertEqual(verdicts("programs", rows), [("Intel MPI", "0.8 / 1.5", "**no**")])

    def test_sequences_are_compared_with_open_mpi_and_rotations_with_intel_mpi_too(self):
        programs_of = ("gloo_rs", "openmpi", "impi")
        rows = [line(0, name, "", 16, 16, us, collective="sequence-ba") for name, us in zip(programs_of, (1.0, 1.0, 0.5))]
        self.assertEqual(verdicts("programs", rows), [("Open MPI", "1", "yes")])
        rows = [line(0, name, "", 2, 8, us, collective="rotation-64") for name, us in zip(programs_of, (0.7, 1.0, 0.5))]
        self.assertEqual(verdicts("programs", rows), [("Open MPI", "0.7", "yes"), ("Intel MPI", "1.4", "**no**")])

    def test_the_record_begins_with_who_is_ahead_and_has_every_pattern(self):
        rows = []
        for cell in patterns.cells(patterns.FAMILIES, [2, 4]):
            for name in cell.collectives:
                for size in cell.sizes:
                    theirs = {"sequence-gs": 0.25, "requests-8": 0.5}.get(name, 2.0) if cell.ranks == 4 else 2.0
                    known = {"collective": name, "beside_us": 0.5}
                    for ours, peer in [("gloo_rs", "mpich"), ("gloo_rs_tcp", "openmpi_tcp")][: 2 if name in patterns.REQUESTS else 1]:
                        rows += [line(0, program, "a", cell.ranks, size, us, 8.0, **known) for program, us in ((ours, 1.0), (peer, theirs))]
        with tempfile.TemporaryDirectory() as folder:
            patterns.write(folder, rows)
            with open(os.path.join(folder, "programs.md")) as file:
                text = file.read().split("\n")
        self.assertIn("**Late ranks**: gloo_rs is ahead of the fastest peer in 24 of 24 rows.", text[2])
        self.assertIn("in 21 of 22 rows and behind in 1 (1 with 4 ranks), furthest at gs, 4 ranks: 4 times the time of MPICH.", text[2])
        for ranks in (2, 4):
            for family in patterns.FAMILIES.values():
                self.assertIn(f"## {family.title}, {ranks} ranks", text)
        self.assertTrue(any(row.startswith("| 0.02 ms, 16 KiB | 1 / 8 (0.5) |") for row in text))
        self.assertTrue(any(row.startswith("| 32 × 1 MiB | 1 / 8 (2) |") for row in text))
        self.assertTrue(any("| MPICH: a | 4 |" in row for row in text))

    def test_the_peers_harness_finds_wrong_results_and_knows_when_the_last_rank_came(self):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "patterns_test.cpp")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "patterns_test")
            subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", source, "-o", program], check=True)
            run = lambda fault, pattern: programs.run([[program, fault, pattern, "64", "5", "0.001", "0"]], 60)
            everything = [name for cell in patterns.cells(patterns.FAMILIES, [2], "64") for name in cell.collectives]
            lines = {found["collective"]: found for found in run("none", ",".join(everything))}
            self.assertEqual(list(lines), everything)
            for name in patterns.LATE:
                self.assertAlmostEqual(lines[name]["p50_us"], lines[name]["beside_us"], delta=0.001)
            faults = [("length 17", "rotation-8"), ("reduce_float64", "rotation-mixed"), ("alltoall", "sequence-bt"), ("broadcast", "sequence-cr"),
                      ("start", "requests-2"), ("allreduce", "requests-2"), ("allreduce", "late-20"), ("allreduce", "wait-1")]  # fmt: skip
            for fault, pattern in faults:
                with self.assertRaisesRegex(programs.Failed, "wrong result", msg=fault):
                    run(fault, pattern)


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


class Records(unittest.TestCase):
    def test_the_targets_of_the_recorded_pages_are_those_of_report(self):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "benchmarks")
        for which, kind in report.RECORDS.items():
            with open(os.path.join(folder, f"{kind.name}.md")) as file:
                lines = set(file.read().splitlines())
            table = report.target_table(kind, report.points_of(report.load(os.path.join(folder, f"{kind.name}.csv"))))
            self.assertGreater(len(table), 5, which)
            self.assertEqual([row for row in table if row not in lines], [], which)


if __name__ == "__main__":
    unittest.main()
