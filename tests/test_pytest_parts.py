"""qa/pytest_parts.py: parts of a pytest file, put back together, and cases that go on past a crash."""
from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
import unittest
from typing import Any, Dict, List, Mapping, Sequence, Tuple
from xml.etree import ElementTree
from unittest import mock

import run_tests
from tests.support import ROOT, WAIT_S, Fifo, GatedCase, Ran, RunnerCase, a_test

sys.path.insert(0, os.path.join(ROOT, "qa"))

import pytest_parts
from pytest_parts import Told, Whole

SCRIPT = os.path.join(ROOT, "qa", "pytest_parts.py")
# A developer's environment for pytest has both; these tests take half a minute.
HAS_PYTEST = all(importlib.util.find_spec(name) for name in ("pytest", "xdist"))
Cases = List[Tuple[str, str, List[str]]]

# Every way in which a case can end; what the variable CRASH names ends the process in the middle of it.
EVERY = """
import os, pytest

def may_crash(name):
    if name in os.environ.get("CRASH", "").split(","):
        os.abort() if os.environ.get("HOW") != "exit" else os._exit(0)

def note(name):
    with open("made", "a") as file:
        print(name, file=file)

@pytest.fixture(scope="module")
def module():
    note("module")

@pytest.mark.parametrize("name", ["first", "b c", "d::e/f.py"])
def test_it(name):
    may_crash(name)
    print("said by", name)

@pytest.fixture(scope="class")
def of_class():
    note("class")

@pytest.mark.usefixtures("of_class")
class TestClass:
    def test_one(self): may_crash("one")
    def test_two(self): assert 1 == 2, "never"
    def test_three(self): pass

@pytest.fixture
def bad_end():
    yield
    assert 0, "teardown"

def test_setup(no_such_fixture): pass
def test_teardown(bad_end): pass
def test_both(bad_end): assert 0, "call"
def test_module(module): pass
@pytest.mark.skip(reason="so")
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert 0
def test_module_too(module, record_property): record_property("key", "value")
def test_last(): may_crash("last")
"""
FIVE = "import pytest\n@pytest.mark.parametrize('i', range(5))\ndef test_it(i): pass\n"


def cases_in(path: str) -> Cases:
    """Class, name, and what is in the element, of each case of a JUnit file."""
    return [(case.get("classname", ""), case.get("name", ""),
             [f"{part.tag} {part.get('message')} {part.text}" for part in case])
            for case in ElementTree.parse(path).iter("testcase")]


class PartsCase(RunnerCase):
    """A test case that runs the companion."""

    def command(self, *arguments: str) -> List[str]:
        return [sys.executable, SCRIPT, "--python", sys.executable, "--output", "none", *arguments]

    def labels(self, ran: Ran) -> List[str]:
        """The tests that were started, parts too."""
        return [record["label"] for record in ran.journal("test_start")]

    def write_cases(self, stem: str, seconds: Mapping[str, float], startup: float = 1.0) -> None:
        """The durations of earlier runs."""
        rows: List[Dict[str, Any]] = [{"startup": startup}]
        rows += [{"case": case, "seconds": taken} for case, taken in seconds.items()]
        self.write(f"logs/{stem}.parts/cases.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


class Commands(unittest.TestCase):
    """What a line may be, and what becomes of it."""

    def test_a_line_calls_pytest_once_and_runs_nothing_else(self) -> None:
        for command, why in (
                ("pytest a.py", ""), ("A=1 python3 -u -m pytest --tb=auto a.py -k 'x or y'", ""),
                ("/usr/bin/py.test a", ""),
                ("cd x && pytest a.py", ""), ("export A=1; env B=2 pytest a.py >log 2>&1", ""),
                ("coverage run -m pytest a.py", ""), ("python3 a.py", "does not call"), ("make test", "does not call"),
                ("pytest a.py && pytest b.py", "more than once"), ("for a in b; do pytest $a; done", "more than once"),
                ("pytest a.py | tee log", "runs more"), ("pytest a.py || true", "runs more"),
                ("! pytest a.py", "passes where pytest fails"), ("make && pytest a", "runs more"),
                ("mpirun -n 2 pytest a", "several processes"),
                ("torchrun --nproc-per-node=2 -m pytest a.py", "several processes")):
            with self.subTest(command):
                said = pytest_parts.obstacle_of(command)
                self.assertEqual(bool(said), bool(why), said)
                self.assertIn(why, said)

    def test_what_the_line_sets_itself_stays_behind_the_plugin(self) -> None:
        text = pytest_parts.with_plugin("PYTHONPATH=src:$B PYTEST_ADDOPTS='-v -x' pytest a", "/t/a b", "/t/1")
        self.assertTrue(text.endswith("""; PYTHONPATH='/t/a b':src:$B PYTEST_ADDOPTS='-p pytest_parts_plugin'' '"""
                                      """'-v -x' pytest a"""), text)
        self.assertIn("RUN_TESTS_PART=/t/1", text)

    def test_names_are_those_of_pytest(self) -> None:
        for case, names in (("a/test_b.py::TestC::test_d", ("a.test_b.TestC", "test_d")),
                            ("test_b.py::test_d[x::y/z.py]", ("test_b", "test_d[x::y/z.py]")),
                            ("test_b.py::test_d #2", ("test_b", "test_d"))):
            self.assertEqual(pytest_parts.names_of(case), names)


class Counts(unittest.TestCase):
    """`split=auto`."""

    def best(self, cases_s: float, startup: float, others: Sequence[Tuple[float, str]], gpus: int = 8) -> int:
        tests = [a_test(index, attributes=run_tests.Attributes(time=seconds, split=split))
                 for index, (seconds, split) in enumerate([(cases_s + startup, "auto"), *others])]
        selection = run_tests.select(tests, run_tests.Options(()), run_tests.History(run_tests.Options(())))
        pool = run_tests.Pool([run_tests.Device(index, str(index)) for index in range(gpus)], 2)
        return pytest_parts.best_count(tests[0], cases_s, startup, 1000, selection, pool)

    def test_a_test_is_split_as_far_as_it_bounds_the_run(self) -> None:
        for cases_s, startup, others, count in (
                (100, 1, [], 8),                                # alone: each GPU gets a part
                (100, 1, [(110.0, "")], 1),                     # another test takes longer anyway
                (100, 1, [(60.0, "")], 2),                      # two parts are shorter than that one
                (100, 1, [(60.0, "auto")], 6),                  # which may be split as well
                (100, 1, [(10.0, "")] * 80, 1),                 # all GPUs are busy for as long
                (100, 30, [], 3), (100, 60, [], 1),             # each part has more to do than to start
                (100, 1e-320, [], 8),
                (0.5, 1, [], 1)):
            with self.subTest(cases_s=cases_s, startup=startup, others=others[:1]):
                self.assertEqual(self.best(cases_s, startup, others), count)


class Notes(RunnerCase):
    """What a part has noted, and what its attempts make of it."""

    def test_a_torn_file_tells_which_case_was_lost(self) -> None:
        text = "".join(json.dumps(record) + "\n" for record in (
            {"collected": ["a", "b", "c"], "junit": []}, {"begun": "a"},
            {"ended": "a", "seconds": 1.5, "failures": 1, "junit": ["<testcase/>"]}, {"begun": "b"}))
        found = pytest_parts.read_progress(self.write("1.1.jsonl", text + '{"ended": "b", "sec'))
        self.assertEqual((found.collected, found.ended), (("a", "b", "c"), {"a": 1.5}))
        self.assertEqual((found.lost, found.failures), ("b", 1))
        found = pytest_parts.read_progress(self.write("1.1.jsonl", text + '{"finished": 2, "junit": []}\n'))
        self.assertEqual(found.lost, "")        # pytest has ended itself, as at Ctrl-C
        self.assertEqual(pytest_parts.read_progress("none"), pytest_parts.Progress())

    def test_a_damaged_line_of_durations_costs_itself_alone(self) -> None:
        damaged = [b"\xff", b"[" * 99_999, b"7", b'{"startup": 1' + b"0" * 400 + b"}", b'{"startup": -1}',
                   b'{"case": "b", "seconds": "Infinity"}', b'{"case": "b", "seconds": NaN}', b'{"case": ["b"]}']
        path = self.write("cases.jsonl", "")
        with open(path, "wb") as file:
            file.write(b"\n".join([b'{"startup": 2}', *damaged, b'{"case": "a", "seconds": 1.5}', b'{"case": "b"']))
        self.assertEqual(pytest_parts.read_cases(path), ({"a": 1.5}, 2.0))

    def test_the_worst_part_decides_and_a_case_that_nobody_reports_is_a_failure(self) -> None:
        def told(outcome: run_tests.Outcome, ended: Sequence[str], lost: str = "", status: int = 0) -> List[Told]:
            made = {case: ["<testcase/>"] for case in ended}
            progress = pytest_parts.Progress(("a", "b", "c"), dict.fromkeys(ended, 1.0), made, lost=lost)
            return [Told(run_tests.Result(a_test(), outcome, 1.0, status), progress, "none")]

        out = run_tests.Outcome
        for parts, outcome, why in (
                ([told(out.PASSED, "ab"), told(out.PASSED, "c")], out.PASSED, ""),
                ([told(out.PASSED, "ab"), told(out.PASSED, "")], out.FAILED, "collected, and not reported: c"),
                ([told(out.FLAKY, "ab"), told(out.PASSED, "c")], out.FLAKY, ""),
                ([told(out.KNOWN, "ab"), told(out.PASSED, "c")], out.KNOWN, ""),
                ([told(out.SKIPPED, "", status=77), told(out.SKIPPED, "", status=77)], out.SKIPPED, ""),
                ([told(out.SKIPPED, "", status=77), told(out.PASSED, "c")], out.FAILED, "not reported: a, b"),
                ([told(out.FAILED, "ab", status=1), told(out.CRASHED, "", "c", -6)], out.CRASHED, "(SIGABRT) in c"),
                ([told(out.FAILED, "a", "b", 0), told(out.PASSED, "c")], out.FAILED, "ended with exit 0 in b"),
                ([told(out.TIMEOUT, "a", "b", -15), told(out.PASSED, "")], out.TIMEOUT, "1 case did not run"),
                ([told(out.INTERRUPTED, "a", status=2), told(out.PASSED, "b")], out.INTERRUPTED, ""),
                ([told(out.PASSED, "ab"), [Told(run_tests.Result(a_test(), out.NOT_RUN), pytest_parts.Progress(), "")]],
                 out.INTERRUPTED, "some of its parts have not run")):
            result = pytest_parts.Sum(parts).result(a_test(1), 1)
            self.assertEqual(result.outcome, outcome)
            self.assertIn(why, result.reason + result.cause.line)
        none = run_tests.Result(a_test(), out.PASSED, status=0, reason="ran none of its cases")
        for others, why in (([told(out.PASSED, "abc")], ""), ([], none.reason)):
            empty = [Told(none, pytest_parts.Progress(), "none")]
            self.assertEqual(pytest_parts.Sum([empty, *others]).result(a_test(1), 1).reason, why)

    def test_only_an_attempt_that_lost_a_case_is_gone_on_from(self) -> None:
        whole = Whole(a_test(), self.folder)
        part = a_test(1)
        whole.parts.append(part)
        whole.went_on.update([(part, 1), (part, 3)])
        record = run_tests.Record(run_tests.Options((), log_dir=self.folder), "r")
        self.addCleanup(os.close, record.lock)
        results = [run_tests.Result(part, run_tests.Outcome.FAILED, attempt=number) for number in (1, 2, 3, 4, 5)]
        turns = whole.turns(part, results, record)
        self.assertEqual([[told.result.attempt for told in turn] for turn in turns], [[1, 2], [3, 4], [5]])
        self.assertEqual([os.path.basename(told.log) for turn in turns for told in turn],
                         ["t1.attempt1.log", "t1.attempt2.log", "t1.attempt3.log", "t1.attempt4.log", "t1.log"])


@unittest.skipUnless(HAS_PYTEST, "pytest and pytest-xdist are not installed")
class Sharing(unittest.TestCase):
    """Which part gets which case."""

    def test_cases_go_longest_first_and_ties_hold_them_together(self) -> None:
        import pytest_parts_plugin as plugin

        self.assertEqual(plugin.share([[0], [1], [2], [3], [4]], [1.0] * 5, 2), [{0, 2, 4}, {1, 3}])
        self.assertEqual(plugin.share([[0], [1], [2], [3]], [1.0, 1.0, 9.0, 2.0], 2), [{2}, {0, 1, 3}])
        self.assertEqual(plugin.share([[0, 3], [1], [2]], [1.0] * 4, 3), [{0, 3}, {1}, {2}])
        self.assertEqual(plugin.share([[0]], [1.0], 3), [{0}, set(), set()])
        self.assertEqual(plugin.groups_of([["x"], [], ["y"], ["x", "y"], ["z"], ["y"]]), [[0, 2, 3, 5], [1], [4]])
        self.assertEqual(plugin.durations(["a", "b", "c"], {"a": 1.0, "c": 3.0}), [1.0, 2.0, 3.0])
        self.assertEqual(plugin.unique(["a", "b", "a"]), ["a", "b", "a #2"])


@unittest.skipUnless(HAS_PYTEST, "pytest and pytest-xdist are not installed")
class Runs(PartsCase):
    """The command line."""

    def test_parts_are_put_back_together(self) -> None:
        """The same cases in the same order with the same outcomes and texts, split or not; fixtures are made once."""
        self.write("test_every.py", EVERY)
        self.write("tests.txt", "test_every.py #: label=one\nwait\ntest_every.py #: label=three split=3\n")
        ran = self.run_command("tests.txt", gpus="0,1,2")
        one, three = (cases_in(ran.path("logs", f"pytest_{name}.xml")) for name in ("one", "three"))
        blurred = re.compile(r"0x[0-9a-f]+")
        self.assertEqual(blurred.sub("", str(three)), blurred.sub("", str(one)), ran.text + ran.err)
        self.assertEqual(sorted(ran.read("made").split()), ["class"] * 2 + ["module"] * 2)
        self.assertEqual((ran.code, ran.failures()), (1, ["one", "three"]))
        self.assertEqual(self.labels(ran), ["one", *(f"three (part {number} of 3)" for number in (1, 2, 3))])
        ends = {record["label"]: record for record in ran.journal("test_end")}
        self.assertEqual(ends["three"]["outcome"], "failed")
        self.assertEqual(ran.journal()[-1]["outcomes"], {"failed": 2})
        parts = [ends[label] for label in ends if "part" in label]
        self.assertAlmostEqual(ends["three"]["seconds"], sum(part["seconds"] for part in parts), 2)
        log = ran.read("logs/pytest_three.log")
        self.assertEqual(re.findall(r"=== run_tests.py: three \(part (\d) of 3\) on GPU", log), ["1", "2", "3"])
        self.assertEqual(sorted(name for name in os.listdir(ran.path("logs")) if name.endswith(".xml")),
                         ["pytest_one.xml", "pytest_three.xml"])
        self.assertRegex(ran.text, r">>> Finished: three on GPU 0,1,2 \[failed, exit 1, .*, 2/2, ")
        slowest, = re.findall("(?m)^slowest: (.*)", ran.text)
        self.assertEqual(sorted(re.sub(r" [\d.]+s\b", "", slowest).split(", ")), self.labels(ran))

    def test_help_tells_of_the_keys(self) -> None:
        ran = self.run_command("--help")
        self.assertEqual(ran.code, 0)
        self.assertRegex(ran.text, r"(?s)\Ausage: pytest_parts.py .* `#: split=8` .*`#: after-crash=go-on`")
        self.write("x.sh", "echo $1\n")
        self.assertIn("\n--help\n", self.run_command("x.sh", "--", "--help").text)

    def test_what_parts_write_goes_with_all_else_that_a_run_keeps(self) -> None:
        """The guard of a run that is killed knows one folder."""
        self.write("test_five.py", FIVE)
        os.mkdir(os.path.join(self.folder, "tmp"))
        ran = self.run_list("export A=1\ntest_five.py #: split=2\nls tmp >seen\n", env={"TMPDIR": self.folder + "/tmp"})
        self.assertEqual((ran.code, len(ran.read("seen").split()), os.listdir(ran.path("tmp"))), (0, 1, []), ran.err)

    def run_on_nodes(self, text: str) -> Ran:
        """Run a list on two nodes with two GPUs each."""
        self.write("tests.txt", text)
        cluster = os.path.join(ROOT, "qa", "cluster.py")
        with mock.patch.object(self, "command", lambda *words: [
                sys.executable, cluster, "--nodes", "n1,n2", "--launch", "env NODE={node}", "--python", sys.executable,
                *words]):
            return self.run_command("tests.txt", gpus="0,1")

    def test_a_lost_node_costs_no_case(self) -> None:
        """The one that ran there runs again elsewhere; those that had ended do not."""
        Fifo(self, "never")
        self.write("test_fall.py", "import os\n" + FIVE.replace("pass", "open(os.environ['RAN'], 'a').write('x')") +
                   "def test_fall():\n    if not os.path.exists(os.environ['RAN'] + '.once'):\n"
                   "        os.mkdir(os.environ['RAN'] + '.once')\n        os.kill(int(os.environ['AGENT']), 9)\n"
                   "        open('never').read()\n")
        for name, keys in ("one", "after-crash=go-on"), ("two", "split=2 gpus=2"):
            ran = self.run_on_nodes(f"RAN={name} AGENT=$PPID test_fall.py #: label={name} {keys}\n")
            self.assertEqual((ran.code, ran.outcomes()[name]), (0, "passed"), ran.text + ran.err)
            self.assertEqual([parts for *_, parts in cases_in(ran.path("logs", f"pytest_{name}.xml"))], [[]] * 6)
            self.assertRegex(ran.text, r"\[crashed \(SIGKILL\), .*its cases go on elsewhere.*\]\n    node n. is lost: ")
            self.assertEqual(ran.read(name), "x" * 5)

    def test_parts_run_on_several_machines(self) -> None:
        self.write("test_five.py", FIVE)
        ran = self.run_on_nodes("test_five.py #: split=4\n")
        self.assertEqual((ran.code, ran.outcomes()["test_five.py"]), (0, "passed"), ran.text + ran.err)
        self.assertEqual(len(cases_in(ran.path("logs", "pytest_test_five.xml"))), 5)
        self.assertRegex(ran.text, r">>> Finished: test_five.py on GPU n1:0,n1:1,n2:0,n2:1 \[passed")

    def test_a_crash_loses_one_case(self) -> None:
        """In a file that is split and in one that is not, at the first case, in the middle, at the last."""
        self.write("test_every.py", EVERY)
        self.write("tests.txt", "#: after-crash=go-on\ntest_every.py #: label=none\nCRASH=first,last test_every.py #: "
                                "label=ends\nHOW=exit CRASH=one test_every.py #: label=exit\nCRASH='b c,last,one' "
                                "test_every.py #: label=split split=3\n")
        ran = self.run_command("tests.txt")
        none = cases_in(ran.path("logs", "pytest_none.xml"))
        names = {"first": "test_it[first]", "last": "test_last", "one": "test_one", "b c": "test_it[b c]"}
        for label, lost, how in (("ends", ("first", "last"), "crashed (SIGABRT)"),
                                 ("exit", ("one",), "ended with exit 0"),
                                 ("split", ("b c", "one", "last"), "crashed (SIGABRT)")):
            found = cases_in(ran.path("logs", f"pytest_{label}.xml"))
            self.assertEqual([case[:2] for case in found], [case[:2] for case in none], label)
            strange = {new[1]: new[2][0] for new, old in zip(found, none)
                       if [part.split(" ")[0] for part in new[2]] != [part.split(" ")[0] for part in old[2]]}
            self.assertEqual(strange.keys(), {names[name] for name in lost}, label)
            for text in strange.values():
                self.assertIn(f"error {how} in this case", text)
                self.assertIn("test session starts", text)
            self.assertIn(f"    {how} in test_every.py::", ran.text)
        self.assertEqual({label: ran.outcomes()[label] for label in ("none", "ends", "exit", "split")},
                         {"none": "failed", "ends": "crashed", "exit": "failed", "split": "crashed"})
        # The process behind the last crash had no case left, which says nothing about the test.
        self.assertEqual({record["label"]: record.get("reason", "") for record in ran.journal("test_end")}["ends"], "")

    def test_a_hang_loses_one_case(self) -> None:
        fifo = Fifo(self, "gate")
        self.write("test_hang.py", f"{FIVE}\ndef test_hung(): open({fifo.path!r}).read()\ndef test_behind(): pass\n")
        ran = self.run_list("test_hang.py #: after-crash=go-on timeout=8s\n")
        found = cases_in(ran.path("logs", "pytest_test_hang.xml"))
        self.assertEqual([name for _, name, parts in found if parts], ["test_hung"])
        self.assertEqual((len(found), ran.code), (7, 1))
        self.assertIn("timeout in test_hang.py::test_hung", ran.text)

    def test_retries_run_a_part_anew(self) -> None:
        """What it lost is no retry; what passes in the end is flaky."""
        self.write("test_flaky.py", FIVE + "import os\ndef test_flaky():\n    attempt = os.environ['RUN_TESTS_ATTEMPT']"
                                           "\n    attempt > '1' or os.abort()\n    assert attempt > '2'\n")
        ran = self.run_list("test_flaky.py #: split=2 retries=1\n")
        self.assertEqual((ran.code, ran.outcomes()["test_flaky.py"]), (0, "flaky"), ran.text)
        part = [label for label in self.labels(ran) if self.labels(ran).count(label) == 3]
        self.assertEqual(len(part), 3)
        # The process behind the crash had no case left, which is not why it runs anew.
        self.assertRegex(ran.text, r"\[failed, exit 1, [\d.]+s, to be retried, at 0:\d\d\]\n"
                                   r"    crashed \(SIGABRT\) in test_flaky.py::test_flaky ")
        self.assertEqual(len(cases_in(ran.path("logs", "pytest_test_flaky.xml"))), 6)
        self.assertIn("crashed (SIGABRT) in this case", ran.read("logs/pytest_test_flaky.xml.attempt1"))
        self.assertIn("Aborted", ran.read("logs/pytest_test_flaky.attempt1.log"))

    def test_maxfail_holds_for_all_parts(self) -> None:
        self.write("test_bad.py", FIVE.replace("pass", "assert 0").replace("5", "20"))
        ran = self.run_list("test_bad.py --maxfail=2 #: split=2 label=bad\n")
        self.assertEqual(ran.outcomes()["bad"], "failed")
        self.assertIn(len(cases_in(ran.path("logs", "pytest_bad.xml"))), (2, 3))

    def test_what_cannot_be_split_runs_whole_and_says_why(self) -> None:
        self.write("test_five.py", FIVE)
        self.write("odd/conftest.py", "import os\ndef pytest_collection_modifyitems(items):\n"
                                      "    if 'part 2' in os.environ['RUN_TESTS_LABEL']: items.reverse()\n")
        self.write("odd/test_odd.py", FIVE)
        lines = ["odd/test_odd.py #: split=2 label=order", "test_five.py --collect-only #: split=2 label=collect",
                 "true #: split=2", "test_five.py #: split=2 lock=a label=lock",
                 "test_five.py #: split=auto label=auto", "test_five.py -n 2 #: split=2 label=xdist",
                 "test_five.py --sw-skip #: split=2 label=step", "test_five.py --lf #: after-crash=go-on label=last"]
        ran = self.run_list("\n".join(lines) + "\n", "--jobs", "1")
        self.assertEqual(ran.code, 0, ran.text)
        self.assertEqual(ran.err, "tests.txt:3: split=2: its line does not call pytest; it runs whole\n"
                                  "tests.txt:4: split=2: only one of its parts could run at a time; it runs whole\n"
                                  "tests.txt:5: split=auto: its cases have not been measured yet; it runs whole\n")
        for why in ("order [its parts collected their cases in different orders]",
                    "collect [--collect-only runs no case]", "xdist [pytest-xdist spreads it",
                    "step [--lf and --sw go by what one pytest has left]", "last [--lf and --sw"):
            self.assertIn(f">>> Whole: {why}", ran.text)
        self.assertIn("ran whole, since its parts collected their cases in different orders: order", ran.text)
        for label in ("order", "lock", "auto", "xdist", "step", "last"):
            self.assertEqual(len(cases_in(ran.path("logs", f"pytest_{label}.xml"))), 5, label)

    def test_a_folder_that_pythonpath_cannot_hold(self) -> None:
        self.write("test_five.py", FIVE)
        os.mkdir(os.path.join(self.folder, "10:00"))
        ran = self.run_list("test_five.py #: split=2 label=five\n", env={"TMPDIR": os.path.join(self.folder, "10:00")})
        self.assertEqual((ran.code, self.labels(ran)), (0, ["five"]), ran.text)
        self.assertRegex(ran.err, r":1: split=2: PYTHONPATH takes no colon, as is in /.*/10:00/.*; it runs whole")

    def test_a_failure_before_the_test_ran_whole(self) -> None:
        """What a part had come to is not lost when another one runs all of them."""
        Fifo(self, "up")
        for how in ("assert 0", "os.kill(os.getpid(), 11)", "os._exit(0)"):
            self.write("test_two.py", "import os, pytest\nslot = os.environ['RUN_TESTS_SLOT']\n"
                                      "if slot == '1': open('up').readline()\n"
                                      "@pytest.mark.parametrize('i', range(2 + int(slot)))\ndef test_a(i):\n"
                                      f"    if slot == '0':\n        open('up', 'w').write('\\n'); {how}\n")
            with self.subTest(how):
                ran = self.run_list("test_two.py #: split=2 label=two\n", gpus="0,1")
                self.assertEqual((ran.code, ran.outcomes()["two"], ran.read("logs/failures")), (1, "failed", "two\n"))
                self.assertRegex(ran.read("logs/pytest_two.xml"), "<failure ")

    def test_a_failure_before_the_part_that_ran_whole_found_no_case(self) -> None:
        """With --skip-code 5 that part is skipped."""
        Fifo(self, "up")
        self.write("test_none.py", "import os, pytest\nif os.environ['RUN_TESTS_SLOT'] == '1': open('up').readline()\n"
                                   "else:\n    @pytest.mark.parametrize('i', range(2))\n    def test_a(i):\n"
                                   "        open('up', 'w').write('\\n')\n        assert 0\n")
        ran = self.run_list("test_none.py #: split=2 label=none\n", "--skip-code", "5", gpus="0,1")
        self.assertEqual((ran.code, ran.outcomes()["none"]), (1, "failed"), ran.text)

    def test_a_test_that_is_known_to_fail_goes_on_too(self) -> None:
        self.write("test_known.py", FIVE.replace("pass", "i or __import__('os')._exit(0)"))
        self.write("known.txt", "known # why\n")
        ran = self.run_list("test_known.py #: after-crash=go-on label=known\n", "--known-failures", "known.txt")
        self.assertEqual((ran.code, ran.outcomes()["known"]), (0, "failed as known"), ran.text)
        self.assertEqual(len(cases_in(ran.path("logs", "pytest_known.xml"))), 5)

    def test_xdist_is_there_to_be_tried(self) -> None:
        """`.ci/run` fails if a test is skipped."""

    def test_an_empty_part_is_no_failure_but_no_case_at_all_is(self) -> None:
        self.write("test_five.py", FIVE)
        ran = self.run_list("test_five.py -k '0 or 1' #: split=4 label=two\ntest_five.py -k x #: split=2 label=none\n")
        self.assertEqual((ran.outcomes()["two"], ran.outcomes()["none"]), ("passed", "failed"))
        self.assertEqual(len(cases_in(ran.path("logs", "pytest_two.xml"))), 2)
        self.assertIn("failed, exit 5", ran.text)

    def test_a_junit_file_is_written_as_pytest_writes_it(self) -> None:
        """Through a link; where that is not possible the test has failed, and others have not."""
        self.write("test_five.py", FIVE)
        self.write("link/real.xml", "")
        os.symlink("real.xml", os.path.join(self.folder, "link/to.xml"))
        ran = self.run_list("pytest test_five.py --junitxml=link/to.xml #: split=2 label=link\n"
                            "pytest test_five.py --junitxml=test_five.py/x.xml #: split=2 label=no\n"
                            "pytest test_five.py -n 1 --junitxml=test_five.py/y.xml #: split=2 label=whole\n"
                            "true #: label=yes\n")
        self.assertEqual(ran.code, 1, ran.text)
        outcomes = {label: outcome for label, outcome in ran.outcomes().items() if "part" not in label}
        self.assertEqual(outcomes, {"link": "passed", "no": "failed", "whole": "failed", "yes": "passed"})
        self.assertIn("failed, exit 0, its JUnit file cannot be written (Not a directory)", ran.text)
        self.assertEqual(len(cases_in(ran.path("link/real.xml"))), 5)
        self.assertTrue(os.path.islink(os.path.join(self.folder, "link/to.xml")))

    def test_what_each_part_says_of_the_suite_is_kept(self) -> None:
        self.write("test_said.py", FIVE.replace("(i): pass", "(i, record_testsuite_property):\n"
                                                "    record_testsuite_property('host', 'a')\n"
                                                "    record_testsuite_property(f'case {i}', i)"))
        ran = self.run_list("test_said.py #: split=2\n")
        said, = ElementTree.parse(ran.path("logs", "pytest_test_said.xml")).findall("testsuite/properties")
        self.assertEqual(sorted(each.get("name", "") for each in said), [*(f"case {i}" for i in range(5)), "host"])

    def test_a_part_that_skips_all_its_cases_is_named_with_its_gpu(self) -> None:
        """It may not see that. A part that has none, and one beside which another ran some there, say nothing."""
        self.write("test_gpu.py", "import os\n" + FIVE.replace("pass", "os.environ['CUDA_VISIBLE_DEVICES'] in "
                                  "os.environ['BAD'] and pytest.skip('no GPU')"))
        self.write("tests.txt", "BAD=1 test_gpu.py #: label=one split=2\nBAD=none test_gpu.py #: label=two split=6\n"
                                "BAD=01 test_gpu.py #: label=all split=2\n")
        ran = self.run_command("tests.txt", gpus="0,1")
        self.assertEqual(ran.code, 0, ran.text)
        self.assertEqual(re.findall("(?m)^ran none of .*", ran.text),
                         ["ran none of its cases on GPU 1: one", "ran none of its cases: all"])

    def test_what_has_ended_stays_so_where_the_run_cannot_go_on(self) -> None:
        self.write("test_five.py", FIVE)
        ran = self.run_list("test_five.py #: split=2 label=five\nwait\n"
                            "rm logs/run_tests.jsonl; mkdir logs/run_tests.jsonl #: label=last\n")
        self.assertEqual((ran.code, len(cases_in(ran.path("logs", "pytest_five.xml")))), (3, 5), ran.text)

    def test_a_case_that_is_not_reported_is_a_failure(self) -> None:
        self.write("test_exit.py", f"{FIVE}\ndef test_exit(): pytest.exit('so', returncode=0)\n"
                                   "def test_behind(): pass\n")
        ran = self.run_list("test_exit.py #: split=2\n")
        self.assertEqual((ran.code, ran.outcomes()["test_exit.py"]), (1, "failed"))
        self.assertIn("collected, and not reported: test_exit.py::test_", ran.text)
        self.assertIn("collected, and not reported", ran.read("logs/pytest_test_exit.xml"))

    def test_a_case_whose_junit_is_no_xml_fails_its_test_alone(self) -> None:
        """As it does without parts."""
        self.write("test_odd.py", f"{FIVE}\ndef test_odd(record_property): record_property('a\\0', 1)\n")
        ran = self.run_list("test_odd.py #: split=2 label=odd\ntrue #: label=other\n")
        self.assertEqual((ran.code, ran.outcomes()["odd"], ran.outcomes()["other"]), (1, "failed", "passed"), ran.text)
        self.assertIn("failed, exit 0, its JUnit file is truncated", ran.text)
        self.assertEqual(len(cases_in(ran.path("logs", "pytest_odd.xml"))), 6)

    def test_durations_of_earlier_runs_decide(self) -> None:
        self.write("test_five.py", FIVE)
        cases = [f"test_five.py::test_it[{number}]" for number in range(5)]
        self.write_cases("pytest_two", {case: 1.0 + 99 * (case == cases[3]) for case in cases})
        self.write_cases("pytest_auto", dict.fromkeys(cases, 100.0))
        self.write("tests.txt", "test_five.py #: label=two split=2\ntest_five.py #: label=auto split=auto\n")
        ran = self.run_command("tests.txt", gpus="0,1,2,3")
        self.assertEqual(ran.code, 0, ran.text)
        self.assertIn("1 passed, 4 deselected", ran.read("logs/pytest_two.parts/1.log"))
        self.assertEqual(sum(label.startswith("auto (part") for label in self.labels(ran)), 4)
        rows = [json.loads(line) for line in ran.read("logs/pytest_two.parts/cases.jsonl").splitlines()]
        self.assertEqual([row["case"] for row in rows[1:]], cases)
        self.assertLess(max(row["seconds"] for row in rows[1:]), 99)

    def test_others_wait_for_all_parts(self) -> None:
        self.write("test_five.py", FIVE + "import os\ndef test_last(): assert not os.path.exists('ran')\n")
        self.write("test_bad.py", FIVE.replace("pass", "assert i"))
        ran = self.run_list("touch ran #: after=good\ntest_five.py #: label=good split=3\n"
                            "test_bad.py #: label=bad split=2\ntouch bad #: after=bad\n")
        outcomes = ran.outcomes()
        self.assertEqual([outcomes[name] for name in ("good", "touch ran", "bad", "touch bad")],
                         ["passed", "passed", "failed", "blocked"], ran.text)

    def test_a_pytest_that_a_test_starts_is_left_alone(self) -> None:
        """And what the line and the list set for pytest is kept."""
        self.write("inner/test_inner.py", FIVE)
        self.write("lib/mine.py", "")
        self.write("conftest.py", "import os\nENVIRONMENT = dict(os.environ)\n")
        self.write("test_outer.py", """
import conftest, os, subprocess, sys
def test_outer():
    import mine
    names = {name: os.environ.get(name) for name in ("RUN_TESTS_PART", "PYTHONPATH", "PYTEST_ADDOPTS")}
    assert names == {"RUN_TESTS_PART": None, "PYTHONPATH": "lib", "PYTEST_ADDOPTS": "-v"}
    for environment in None, conftest.ENVIRONMENT:
        inner = subprocess.run([sys.executable, "-m", "pytest", "inner"], env=environment, stdout=subprocess.PIPE)
        assert b"5 passed" in inner.stdout
def test_two(): pass
""")
        ran = self.run_list("export PYTEST_ADDOPTS=-v\nPYTHONPATH=lib test_outer.py #: split=2 label=a\n")
        self.assertEqual((ran.code, ran.outcomes()["a"]), (0, "passed"), ran.read("logs/pytest_a.log"))


@unittest.skipUnless(HAS_PYTEST, "pytest and pytest-xdist are not installed")
class Interrupted(PartsCase, GatedCase):
    """A run that ends before its parts do."""

    def test_what_has_ended_is_put_together_and_runs_again(self) -> None:
        gate, told = Fifo(self, "gate"), Fifo(self, "told")
        self.write("test_gate.py", f"{FIVE}\ndef test_gate():\n    with open({told.path!r}, 'w') as file:\n"
                                   f"        file.write('here\\n')\n    open({gate.path!r}).readline()\n")
        self.write("tests.txt", "test_gate.py #: split=2\n")
        process = self.start("tests.txt")
        told.lines()
        said = self.read_until(process, b"1 of 2 parts")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        ran = Ran(process.returncode, said + out, err.decode(), self.folder)
        self.assertEqual((ran.code, ran.outcomes()["test_gate.py"]), (130, "interrupted"), ran.text)
        names = [name for _, name, _ in cases_in(ran.path("logs", "pytest_test_gate.xml"))]
        self.assertEqual(names[:5], [f"test_it[{number}]" for number in range(5)])
        self.assertIn("interrupted", ran.read("logs/pytest_test_gate.xml"))
        gate.release()
        again = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual((again.code, again.outcomes()["test_gate.py"]), (0, "passed"), again.text)
        self.assertEqual(self.run_command("--rerun-failed", "tests.txt").code, run_tests.EXIT_NOTHING)


if __name__ == "__main__":
    unittest.main()
