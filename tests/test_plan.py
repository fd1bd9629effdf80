"""qa/plan.py: the scheduler on a virtual clock, its table, its command line."""
from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import unittest
from typing import List, Mapping, Optional, Sequence

import run_tests
from run_tests import Attributes, History, Options, Test
from tests.support import ROOT, Ran, RunnerCase, a_test, listed

sys.path.insert(0, os.path.join(ROOT, "qa"))

import plan

SCRIPT = os.path.join(ROOT, "qa", "plan.py")
DURATIONS = os.path.join(ROOT, "qa", "bench", "durations")   # of suites: name, seconds, GPUs
HEAD = " GPUs  wall time  GPU-hours    busy  to bound  cannot run  critical test"


def pool_of(gpus: int, jobs: int = 2, sequential: bool = False) -> run_tests.Pool:
    return run_tests.Pool([run_tests.Device(index, str(index)) for index in range(gpus)], jobs, sequential)


class SimulateTest(unittest.TestCase):
    """When each test ends."""

    def simulate(self, text: str, gpus: int = 2, sequential: bool = False) -> str:
        """When which test ends, in words."""
        tests = listed(text)
        seconds = {test: test.attributes.time or 0.0 for test in tests}
        ended = plan.simulate(tests, seconds, pool_of(gpus, sequential=sequential), Options(()))
        return " ".join(f"{test.label}@{at:g}" for at, test in ended)

    def test_tests_end_as_computed_by_hand(self) -> None:
        for text, gpus, expected in (
                ("a::5 b::3 c::4 d:2:2", 2, "b@3 a@5 c@7 d@9"),
                ("a::10 b::4 w:2:3 n::6 m::7", 2, "b@4 a@10 n@10 m@17 w@20"),
                ("a:.5:2 b:.5:3 c:.5:2 w:all:1 x:0:4", 1, "a@2 b@3 c@4 x@4 w@5"),
                ("x:0:5 y:0:2 z:0:1 a::9", 2, "y@2 z@3 x@5 a@9"),
                ("a::5 b::1 | c::1 d::2", 2, "b@1 a@5 c@6 d@7"),
                ("a::5 b::1+after=a c::2", 2, "c@2 a@5 b@6"),
                ("a::5+lock=x b::1+lock=x c::2", 2, "c@2 a@5 b@6"),
                ("a::5 w:3:1 b::1+after=w c::1", 2, "c@1 a@5"), ("", 2, "")):
            with self.subTest(text):
                self.assertEqual(self.simulate(text, gpus), expected)
        self.assertEqual(self.simulate("a::5 b::1 x:0:1", gpus=1, sequential=True), "a@5 b@6 x@7")

    def makespan(self, tests: Sequence[Test], gpus: int, actual: Optional[Mapping[Test, float]] = None) -> float:
        """How long a run in default order takes, if each test takes what is expected or these seconds."""
        selection = run_tests.select(tests, Options(()), History(Options(())))
        ordered = selection.starting_order("auto", pool_of(gpus))
        return plan.simulate(ordered, actual or selection.estimates, pool_of(gpus), Options(()))[-1][0]

    def assert_near_bound(self, tests: Sequence[Test], gpus: int) -> None:
        """Not 2 % more than what no schedule can beat: the work of all GPUs, or the longest test."""
        seconds = [test.attributes.time or 0.0 for test in tests]
        work = sum(test.gpus * time for test, time in zip(tests, seconds)) / gpus
        self.assertLessEqual(self.makespan(tests, gpus), 1.02 * max(work, *seconds))

    def random_tests(self, chance: random.Random, count: int, needs: Sequence[float]) -> List[Test]:
        """Tests as suites have them: most of them short, a few of them long."""
        return [a_test(index, gpus=chance.choice(needs), attributes=Attributes(time=chance.lognormvariate(3.0, 1.2)))
                for index in range(count)]

    def test_default_order_comes_within_two_percent_of_the_bound(self) -> None:
        for seed, gpus, needs in itertools.product(range(2), (1, 2, 4, 8), ([1.0], [1.0, 1.0, 2.0, 4.0])):
            tests = self.random_tests(random.Random(seed), 400, [need for need in needs if need <= gpus])
            with self.subTest(seed=seed, gpus=gpus, needs=needs):
                self.assert_near_bound(tests, gpus)

    @unittest.skipUnless(os.path.isdir(DURATIONS), "the bench's durations are not here")
    def test_real_suites_come_within_two_percent_of_the_bound(self) -> None:
        for name, gpus in itertools.product(sorted(os.listdir(DURATIONS)), (1, 2, 4, 8)):
            with open(os.path.join(DURATIONS, name), encoding="utf-8") as file:
                rows = [line.split("\t") for line in file if not line.startswith("#")]
            tests = [a_test(index, gpus=float(need), attributes=Attributes(time=float(seconds)))
                     for index, (_, seconds, need) in enumerate(rows)]
            with self.subTest(name, gpus=gpus):
                self.assert_near_bound([test for test in tests if test.gpus <= gpus], gpus)

    def test_no_estimate_is_so_wrong_that_gpus_idle(self) -> None:
        """Graham's bound for list scheduling: all GPUs are busy until the last test starts."""
        for seed in range(40):
            chance = random.Random(seed)
            tests, gpus = self.random_tests(chance, 30, [1.0]), chance.randint(1, 8)
            actual = {test: chance.uniform(0.0, 100.0) for test in tests}
            with self.subTest(seed=seed):
                bound = sum(actual.values()) / gpus + max(actual.values())
                self.assertLessEqual(self.makespan(tests, gpus, actual), bound)


PLANNED = "a:4:10 b::30 c::20 d:2:10 e:all:5 f:0:15 g:.5:8"


class TableTest(unittest.TestCase):
    """The lines that are printed."""

    maxDiff = None

    def table(self, text: str, **options: object) -> List[str]:
        chosen = Options(("tests.txt",), list=True, **options)     # type: ignore[arg-type]
        return list(plan.plan_lines(run_tests.select(listed(text), chosen, History(chosen)), chosen))

    def test_the_table(self) -> None:
        """On one GPU b, c, e, f and g come one by one; `to bound` is to max(GPU-seconds / GPUs, longest)."""
        self.assertEqual(self.table(PLANNED, gpus="3"), f"""\
Expected durations: 7 known from history (the median of the last 5 passes) or time=
{HEAD}
    1       1:18       0.02   75.6%     1.322           2  g (8.0s, gpus=0.5)
    2      45.0s       0.03   93.3%     1.071           1  b (30.0s, gpus=1)
    3      35.0s       0.03   84.8%     1.167           1  d (10.0s, gpus=2)
    4      45.0s       0.05   74.4%     1.343           0  b (30.0s, gpus=1)
    8      35.0s       0.08   55.0%     1.167           0  b (30.0s, gpus=1)
   16      35.0s       0.16   34.6%     1.167           0  b (30.0s, gpus=1)
   32      35.0s       0.31   24.5%     1.167           0  b (30.0s, gpus=1)""".splitlines())

    def test_it_says_what_the_durations_rest_on(self) -> None:
        for text, expected in (
                ("a::10 b::30", "2 known from history (the median of the last 5 passes) or time="),
                ("a::10 x y", "1 known from history (the median of the last 5 passes) or time=; 2 unknown, taken for "
                              "half of the shortest time=, 5.0s, each"),
                ("x y z", "3 unknown, taken for 1:00 each")):
            with self.subTest(text):
                self.assertEqual(self.table(text)[:2], [f"Expected durations: {expected}", HEAD])

    def test_nothing_can_run(self) -> None:
        lines = self.table("a:64 b+after=a")
        self.assertEqual(lines[2], "    1       0.0s       0.00    0.0%     1.000           2  none")
        self.assertEqual(len(lines), 8)

    def test_it_is_for_what_is_selected(self) -> None:
        lines = self.table(PLANNED, keep=run_tests.parse_expression("b or c or a"), max_gpus=2)
        self.assertEqual(lines[0], "Selected 2 of 7 tests (28.6%); deferred 1 by --max-gpus; left out 4 by -k")
        self.assertRegex(lines[1], "^Expected durations: 2 known ")
        self.assertEqual(lines[3:5], ["    1      50.0s       0.01  100.0%     1.000           0  c (20.0s, gpus=1)",
                                      "    2      30.0s       0.02   83.3%     1.000           0  b (30.0s, gpus=1)"])

    def test_gpus_adds_a_line(self) -> None:
        for gpus, sizes in (("", [1, 2, 4, 8, 16, 32]), ("3", [1, 2, 3, 4, 8, 16, 32]), ("0", [1, 2, 4, 8, 16, 32]),
                            ("5,7,", [1, 2, 4, 8, 16, 32]), ("0,1,2,3,4", [1, 2, 4, 5, 8, 16, 32]),
                            ("64", [1, 2, 4, 8, 16, 32, 64])):
            with self.subTest(gpus):
                self.assertEqual([int(line.split()[0]) for line in self.table(PLANNED, gpus=gpus)[2:]], sizes)

    def test_options_of_the_schedule_count(self) -> None:
        four = "a:0:10 b:0:10 c:0:10 d:0:10"
        self.assertEqual([self.table(four, **options)[2].split()[1] for options in ({}, {"jobs": 4})],
                         ["40.0s", "10.0s"])
        for order, wall in (("auto", "30.0s"), ("file", "40.0s")):
            self.assertEqual(self.table("a::10 b::10 c::10 d::30", order=order)[3].split()[1], wall)


class CommandLineTest(RunnerCase):
    """`qa/plan.py [options] LIST`."""

    def plan(self, *arguments: str, script: str = SCRIPT, env: Mapping[str, str] = {}) -> Ran:  # noqa: B006
        ran = subprocess.run([sys.executable, "-S", script, *arguments], cwd=self.folder, check=False,
                             env=self.environment(None, env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        self.assertNotIn(b"Traceback", ran.stderr)
        return Ran(ran.returncode, ran.stdout, ran.stderr.decode(), self.folder)

    def test_it_runs_no_test_and_writes_nothing(self) -> None:
        """Nor does it ask for GPUs. Shell state runs: without it, nobody knows what a list says."""
        self.write("tests.txt", "N=3\ntouch ran #: time=1m\ntouch ran$N #: time=30s\n")
        tools = self.stub("nvidia-smi", "#!/bin/bash\ntouch asked\necho 'GPU 0: X'\n")
        before = sorted(os.listdir(self.folder))
        ran = self.plan("tests.txt", env={"PATH": f"{tools}:{os.environ['PATH']}"})
        self.assertEqual((ran.code, ran.err, sorted(os.listdir(self.folder))), (0, "", before))
        self.assertEqual(len(ran.text.splitlines()), 8)
        self.assertEqual(ran.text.splitlines()[2],
                         "    1       1:30       0.03  100.0%     1.000           0  touch ran3 (30.0s, gpus=1)")

    def test_durations_come_from_the_journal_and_from_histories(self) -> None:
        def record(label: str, seconds: float, outcome: str = "passed") -> str:
            return json.dumps({"event": "test_end", "run": "r", "time": 0.0, "test": run_tests.key_of(["true", label]),
                               "label": f"true {label}", "outcome": outcome, "seconds": seconds}) + "\n"

        self.write("logs/run_tests.jsonl", record("b", 3600.0))
        self.write("nightly.jsonl", record("c", 1800.0) + record("c", 9999.0, "failed") + record("e", 1800.0))
        self.write("tests.txt", "true b\ntrue c\ntrue d\ntrue e\n")
        ran = self.plan("--history", "nightly.jsonl", "tests.txt")
        self.assertEqual(ran.text.splitlines()[:4], [
            "Expected durations: 3 known from history (the median of the last 5 passes) or time=; 1 unknown, taken for "
            "the mean of the known, 40:00, each", HEAD,
            "    1    2:40:00       2.67  100.0%     1.000           0  true e (30:00, gpus=1)",
            "    2    1:30:00       3.00   88.9%     1.125           0  true e (30:00, gpus=1)"])

    def test_nothing_is_left_to_run(self) -> None:
        self.write("tests.txt", "true #: label=a gpus=2\n")
        self.write("few.txt", "b\n")
        for options in (["-k", "b"], ["--max-gpus", "1"], ["--only", "few.txt"]):
            ran = self.plan(*options, "tests.txt")
            self.assertEqual((ran.code, ran.text), (5, ""), options)
            self.assertTrue(ran.err.endswith("run_tests.py: nothing to plan in tests.txt\n"), ran.err)

    def test_help_tells_what_it_does(self) -> None:
        ran = self.plan("--help")
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertRegex(ran.text, r"\Ausage: plan.py .*\n\nWhat a list of tests would take on 1 to 32 GPUs")

    def test_mistakes_end_as_with_the_runner(self) -> None:
        self.write("tests.txt", "true\n")
        self.write("bad.txt", "true\ntrue #: gpu=1\n")
        self.write("x.sh", "touch ran\n")
        self.write("script", "#!/bin/bash\ntouch ran\n", mode=0o755)
        for arguments, code, error in (
                (["bad.txt"], 2, r"^bad\.txt:2: .*gpu"), (["none.txt"], 2, r"^none\.txt: .*No such file"),
                (["--order", "odd", "tests.txt"], 2, "--order"), ([], 2, "LIST"),
                (["--history", "none.jsonl", "tests.txt"], 2, "error: --history none.jsonl: cannot be read"),
                (["tests.txt", "x.sh"], 2, "error: a script cannot be planned"),
                (["script"], 2, "error: a script cannot be planned"),
                (["-k", "fp8", "tests.txt"], 5, r"nothing to plan in tests\.txt")):
            with self.subTest(arguments):
                ran = self.plan(*arguments)
                self.assertEqual((ran.code, ran.out), (code, b""), ran.err)
                self.assertRegex(ran.err.splitlines()[-1], error)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "ran")))

    def test_it_may_stand_beside_the_runner_or_below_it(self) -> None:
        self.write("tests.txt", "true #: time=1s\n")
        os.mkdir(os.path.join(self.folder, "below"))
        shutil.copy(os.path.join(ROOT, "run_tests.py"), self.folder)
        for place in (".", "below"):
            ran = self.plan("tests.txt", script=shutil.copy(SCRIPT, os.path.join(self.folder, place)))
            self.assertEqual((ran.code, ran.err), (0, ""))


if __name__ == "__main__":
    unittest.main()
