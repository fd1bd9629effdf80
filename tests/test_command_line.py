"""The real command line: options, exit codes, signals, streams, breakdowns, and the trace against golden files.

Refresh the golden files after a change of what is printed, and read the difference:

    make golden
"""
from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from unittest import mock

import run_tests
from run_tests import Outcome
from tests.support import ENDING, ROOT, RUNNER, WAIT_S, Fifo, GatedCase, Ran, a_test, remarks
from tests.test_faults import FaultCase

GOLDEN = os.path.join(ROOT, "tests", "golden")
OLD_PYTHON = os.path.expanduser("~/.pyenv/versions/3.7.*/bin/python3")
TWO, FOUR = "0,1", "0,1,2,3"


class CommandLineCase(GatedCase):
    """A GatedCase whose subtests can forget each other's runs."""

    def begin(self, text: str, *arguments: str, gpus: str = TWO, **popen: Any) -> "subprocess.Popen[bytes]":
        """Start the runner on a list."""
        self.write("tests.txt", text)
        return self.start(*arguments, "tests.txt", gpus=gpus, **popen)

    def end(self, process: "subprocess.Popen[bytes]") -> Ran:
        """Wait for the end of a run."""
        out, err = process.communicate(timeout=WAIT_S)
        return Ran(process.returncode, out, remarks(err), self.folder)

    def clean(self) -> None:
        """Forget the run before."""
        shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)


# Exit codes.

class Ends(NamedTuple):
    """A list, arguments, and what comes of them: exit code, and a pattern in stderr where nothing starts."""

    text: str
    arguments: Sequence[str]
    code: int
    error: str = ""
    gpus: Optional[str] = TWO
    env: Mapping[str, str] = {}


EXIT_CODES: Mapping[str, Ends] = {
    "all passed, on as many GPUs as required": Ends("true\necho two\n", ["--require-gpus", "2"], 0),
    "statuses that are not the runner's": Ends("(exit 2)\n(exit 3)\n(exit 5)\n(exit 137)\n", [], 1),
    "one cannot run and another waits for it": Ends("true #: gpus=3\nfalse #: after=true\n", [], 1),
    "a folder as a list": Ends("true\n", ["."], 2, r"^\.: .*directory"),
    "a bad option in the variable": Ends("true\n", [], 2, r"error: .*--jobs.*; \$RUN_TESTS_OPTS is '--jobs none'$",
                                         env={"RUN_TESTS_OPTS": "--jobs none"}),
    "one that does not fit here": Ends("true\n", [], 2, r"error: --gpus 9: .*; \$RUN_TESTS_OPTS is '--gpus 9'$",
                                       env={"RUN_TESTS_OPTS": "--gpus 9"}),
    "fewer GPUs than required": Ends("true\n", ["--require-gpus", "3"], 3,
                                     r"--require-gpus 3: there are 2 \(0 1\); [^$]*$",
                                     env={"RUN_TESTS_OPTS": "--output failures"}),
    "no bash": Ends("true\n", [], 3, r"bash", env={"PATH": "/nonexistent"}),
    "an empty list": Ends("", [], 5, r"^run_tests\.py: nothing to run in tests\.txt$"),
    "only comments and state": Ends("# one\n\n   # two\n#: gpus=0\nA=1\nexport B=2\nwait\n", [], 5, r"tests\.txt"),
}


class ExitCodes(CommandLineCase):
    """One number tells a script what happened."""

    def test_runs(self) -> None:
        for name, case in EXIT_CODES.items():
            with self.subTest(name):
                self.clean()
                ran = self.run_list(case.text, *case.arguments, gpus=case.gpus, env=case.env)
                self.assertEqual(ran.code, case.code, ran.text + ran.err)
                if case.error:
                    self.assertRegex(ran.err, re.compile(case.error, re.M))
                    self.assertEqual((ran.out, os.listdir(self.folder)), (b"", ["tests.txt"]))
                    self.assertNotIn("Traceback", ran.err)
                else:
                    labels = [line.partition(" #:")[0] for line in case.text.splitlines()]
                    self.check(ran, case.code, {label: ran.outcomes()[label] for label in labels})
                    self.assertEqual(ran.err, "")

    def test_what_comes_first(self) -> None:
        """What the machine did, then the user, then the tests."""
        cases: List[Tuple[str, List[int], str, Dict[str, Any], int]] = [
            ("passed,flaky,deferred", [], "", {}, 0), ("passed,flaky", [], "", {"flaky": "fail"}, 1),
            ("deferred,deferred", [], "", {}, 5), ("deferred", [], "", {"is_part": True}, 0),
            ("skipped,deferred", [], "", {}, 5), ("skipped,passed", [], "", {}, 0), ("skipped,failed", [], "", {}, 1),
            ("passed,interrupted", [2], "", {}, 130), ("failed", [15, 2], "", {}, 143), ("passed", [1], "", {}, 129),
            ("failed,interrupted", [2], "no log", {}, 3)]
        cases += [(f"passed,{word}", [], "", {}, 1) for word in (
            "failed", "crashed", "timeout", "blocked", "unrunnable", "interrupted", "not run")]
        for words, signals, failure, options, code in cases:
            with self.subTest(words, signals=signals, failure=failure):
                results = [run_tests.Result(a_test(), Outcome(word)) for word in words.split(",")]
                is_part = options.pop("is_part", False)
                schedule = run_tests.Schedule([], run_tests.Pool([]), run_tests.Options((), **options))
                for signum in signals:
                    schedule.step(run_tests.Interrupt(signum), 0.0)
                schedule.failure = failure
                self.assertEqual(run_tests.verdict_of(results, schedule, is_part)[0], code)

    def test_a_python_that_is_too_old(self) -> None:
        said = io.StringIO()
        with mock.patch.object(sys, "version_info", (3, 7, 16)), contextlib.redirect_stderr(said), \
                mock.patch.object(sys, "version", "3.7.16 (default)"):
            code = run_tests.main()
        self.assertEqual((code, said.getvalue()), (3, "run_tests.py: error: Python 3.7.16 is too old, 3.8 is needed; "
                                                      "name another interpreter\n"))

    @unittest.skipUnless(glob.glob(OLD_PYTHON), "no Python 3.7 here")
    def test_it_can_say_so(self) -> None:
        """Nothing that comes before `main` needs a newer one."""
        for python in glob.glob(OLD_PYTHON):
            ran = subprocess.run([python, run_tests.__file__, "missing.txt"], check=False, stderr=subprocess.PIPE)
            self.assertEqual((ran.returncode, ran.stderr[:32]), (3, b"run_tests.py: error: Python 3.7."))


# Options.

OPTIONS: Sequence[Tuple[str, str, Mapping[str, Any]]] = (     # $RUN_TESTS_OPTS, arguments, values
    ("", "", {"slow": 300.0, "deadline": 0, "flaky": "pass", "leaks": "report", "junit": "", "require_gpus": 0,
              "log_dir": "logs", "fail_dir": "", "handlers": ["test_fail"], "lists": ["tests.txt"]}),
    ("", "--slow 5m --deadline 1.5h", {"slow": 300.0, "deadline": 5400.0}), ("", "--deadline=90", {"deadline": 90.0}),
    ("", "--flaky fail --flaky pass --leaks fail", {"flaky": "pass", "leaks": "fail"}),
    ("", "--junit a/b.xml --require-gpus 8", {"junit": "a/b.xml", "require_gpus": 8}),
    ("", "--gpus-per-test all --gpus 2,", {"gpus_per_test": run_tests.parse_gpus("all"), "gpus": "2,"}),
    ("", "--fail-function no --fail-function oh", {"handlers": ["test_fail", "no", "oh"]}),
    ("--gpus 2 --log-dir 'my logs'", "", {"gpus": "2", "log_dir": "my logs"}),
    ("--gpus 2 --timeout 0.1s", "--gpus 3 --timeout 0", {"gpus": "3", "timeout": 0.0}),
    ("", "a.txt --gpus 2 b.txt --jobs 3", {"gpus": "2", "jobs": 3, "lists": ["a.txt", "b.txt", "tests.txt"]}),
    ("--gpus 2", "-- -a.txt", {"gpus": "2", "lists": ["-a.txt", "tests.txt"]}),
    ("--history a", "--history b b.txt", {"history": ["a", "b"], "lists": ["b.txt", "tests.txt"]}),
)
BAD_OPTIONS: Mapping[Tuple[str, ...], str] = {
    ("--gpus", "x"): r"--gpus.*'x' is not a count from 1", ("--gpus", ""): r"--gpus.*''",
    ("--gpus", "0"): r"--gpus.*'0'",
    ("--gpus", ","): r"--gpus.*','", ("--gpus", "-1"): r"--gpus", ("--gpus", "0 1"): r"--gpus.*'0 1'",
    ("--gpus-per-test", "1.5"): r"--gpus-per-test.*'1\.5'", ("--jobs", "0"): r"--jobs.*'0'",
    ("--jobs", "two"): r"--jobs.*'two'", ("--jobs", "-3"): r"--jobs",
    ("--timeout", "5x"): r"--timeout.*'5x'",
    ("--timeout", "-5"): r"--timeout", ("--timeout", "inf"): r"--timeout.*'inf'", ("--grace", ""): r"--grace.*''",
    ("--slow", "often"): r"--slow.*'often' is not a duration", ("--deadline", "-1"): r"--deadline",
    ("--flaky", "maybe"): r"--flaky.*'maybe'.*pass.*fail", ("--leaks", "pass"): r"--leaks.*'pass'.*report.*fail",
    ("--require-gpus", "0"): r"--require-gpus.*'0' is not a whole number from 1",
    ("--retries", "-1"): r"--retries.*'-1'", ("--pytest-args=it's",): r'--pytest-args.*"it\'s"',
    ("--pytest-args", "-q"): r"--pytest-args: expected one argument \(OPTION=-x if it begins with a dash\)$",
    ("--output", "all"): r"--output.*'all'.*replay", ("--shard", "5/4"): r"--shard.*'5/4' is not K/N",
    ("--max-gpus", "all"): r"--max-gpus.*'all'", ("--order", "size"): r"--order.*'size'.*failed-first",
    ("-k", "a b"): r"-k.*'a b' is not names", ("--only", "none"): r"--only: none: cannot be read",
    ("--bogus",): r"--bogus",
    ("--retry", "2"): r"--retry", ("-x",): r"-x", ("--plan",): r"--plan",
    # An abbreviation would change its meaning with the next option of a similar name.
    ("--gpu", "2"): r"--gpu\b", ("--time", "3"): r"--time\b", ("--lis",): r"--lis\b", ("--rerun",): r"--rerun\b",
}


class OptionsTest(unittest.TestCase):
    """Options as values; those of $RUN_TESTS_OPTS come first."""

    def mistake(self, *argv: str, variable: str = "") -> str:
        """What is said of a command line that is refused, behind its usage."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(run_tests.UsageError) as caught:
            run_tests.parse_command_line(argv, {"RUN_TESTS_OPTS": variable})
        self.assertEqual(said.getvalue()[:7], "usage: ")
        return f"run_tests.py: error: {caught.exception}"

    def test_values(self) -> None:
        for variable, arguments, values in OPTIONS:
            with self.subTest(arguments, variable=variable):
                options = run_tests.parse_command_line([*arguments.split(), "tests.txt"], {"RUN_TESTS_OPTS": variable})
                self.assertEqual({name: getattr(options, name) for name in values}, values)

    def test_a_mistake_is_named(self) -> None:
        for argv, pattern in BAD_OPTIONS.items():
            with self.subTest(argv):
                self.assertRegex(self.mistake(*argv, "tests.txt"), r"^run_tests\.py: error: .*" + pattern)
        self.assertRegex(self.mistake(), r"error: .*LIST")
        self.assertRegex(self.mistake("x", variable="--log-dir 'x"), r"error: .*quote.*RUN_TESTS_OPTS")

    def test_what_other_runners_call_an_option_is_translated(self) -> None:
        self.assertEqual(self.mistake("--lf", "-n4", "tests.txt", "--maxfail=1"),
                         "run_tests.py: error: unrecognized arguments (a script's own stand behind `--`): --lf -n4 "
                         "--maxfail=1; --lf is --rerun-failed here; -n is --gpus N (CPU tests: --jobs N) here; "
                         "--maxfail is --fail-fast here")
        own = {option for action in run_tests.build_parser()._actions for option in action.option_strings}
        for group in run_tests.FOREIGN_OPTIONS.splitlines():
            names, _, ours = group.partition(": ")
            self.assertEqual((own & {*names.split()}, ours.split()[0] in own), (set(), True), group)

    def test_the_nearest_option_is_named(self) -> None:
        for argument, told in {"--gpu=2": "; --gpu is --gpus here", "--time-out": "; --time-out is --timeout here",
                               "--junit-xml": "; --junit-xml is --junit FILE here", "--bogus": "",
                               "-vv": "; -v is --output replay (of a script, --verbose) here"}.items():
            self.assertEqual(self.mistake(argument, "tests.txt"),
                             "run_tests.py: error: unrecognized arguments (a script's own stand behind `--`): "
                             f"{argument}{told}")
        self.assertEqual(self.mistake("--pytest-args", "-x -m 'not slow", "tests.txt"),
                         "run_tests.py: error: argument --pytest-args: a quote in \"-x -m 'not slow\" is never closed")


class Information(CommandLineCase):
    """Options that run nothing."""

    def test_version_has_the_hash_of_this_very_file(self) -> None:
        path = shutil.copy(RUNNER, self.folder)
        with open(path, "a+b") as file:
            file.write(b"# changed\n")
            file.seek(0)
            digest = hashlib.sha256(file.read()).hexdigest()[:12]
        ran = subprocess.run([sys.executable, path, "--version"], stdout=subprocess.PIPE, check=True)
        self.assertRegex(ran.stdout.decode(), rf"^run_tests\.py \d+\.\d+\.\d+ \({digest}\)\n$")

    def test_list_prints_and_runs_nothing(self) -> None:
        """Nor does it look for GPUs, or for what tests need."""
        text = ("#: gpus=0\ntouch ran\n#:\n\ntouch ran || test_fail 'my label'\n"
                "A=1\ntouch ran #: gpus=all label=\"b $A\"\nCUDA_VISIBLE_DEVICES=0,1,2 touch ran\n"
                "for i in 1 2; do\ntouch ran\ndone\npkg/test_x.py::test_y -k z\ntouch ran #: gpus=9\n")
        ran = self.run_list(text, "--list", "--require-gpus", "99", "--python", "none", gpus=None)
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertEqual([line.split("\t") for line in ran.text.splitlines()], [
            ["touch ran", "0", "touch_ran", "tests.txt:2"], ["my label", "1", "my_label", "tests.txt:5"],
            ["b 1", "all", "b_1", "tests.txt:7"], ["touch ran #2", "3", "touch_ran_2", "tests.txt:8"],
            ["for i in 1 2; do touch ran done", "1", "for_i_in_1_2_do_touch_ran_done", "tests.txt:9"],
            ["pkg/test_x.py::test_y -k z", "1", "pytest_pkg_test_x_test_y_-k_z", "tests.txt:12"],
            ["touch ran #3", "9", "touch_ran_3", "tests.txt:13"]])
        self.assertEqual(os.listdir(self.folder), ["tests.txt"])

    def test_an_option_that_changes_nothing_is_told(self) -> None:
        """It may stand in $RUN_TESTS_OPTS, for all calls, and so is no mistake."""
        self.write("garbage", "one\n\xff\n{}\n")
        self.write("empty", "")
        ran = self.run_list("true\n", "--list", "--history", "garbage", "--history", "empty", "--message", "[ci x]",
                            env={"RUN_TESTS_OPTS": "--fail-function my_fail --calm log --one-by-one"})
        self.assertEqual((ran.code, ran.text.count("\n")), (0, 1))
        self.assertEqual(ran.err.replace("run_tests.py: ", "").splitlines(), [
            "--fail-function is for scripts (.sh or #!); for a list it does nothing",
            "--calm is for scripts (.sh or #!); for a list it does nothing",
            "--one-by-one is for scripts (.sh or #!); for a list it does nothing",
            "--history garbage: no line of it is a journal's; name a run_tests.jsonl",
            "--message adds to what --only names; without --only, all tests run"])


# Golden output.

GOLDEN_LIST = """\
# The list behind tests/golden: one test of each kind, in an order that nothing can change.
echo first; echo to stderr >&2
read x <hold; echo second on another GPU; false || test_fail "the second"
wait
printf 'no end of line' #: gpus=2 label='on two GPUs'
wait
export WHO=state
echo "said by $WHO" #: gpus=0
wait
kill -ABRT $$ #: label=killed
wait
sleep 1000 #: timeout=0.1s label='too slow'
wait
for status in 2 3; do
  (exit $status)
done #: gpus=all label='exit 3'
true #: gpus=9 label='too wide'
wait
[ $RUN_TESTS_ATTEMPT = 2 ] #: retries=1 label='at the second try'
"""
GOLDEN_OUTCOMES = {
    "echo first; echo to stderr >&2": "passed", "the second": "failed", "on two GPUs": "passed",
    'echo "said by state"': "passed", "killed": "crashed", "too slow": "timeout", "exit 3": "failed",
    "too wide": "unrunnable", "at the second try": "flaky"}


class Golden(CommandLineCase):
    """The whole trace of one list, for each value of --output. Seconds are blurred."""

    maxDiff = None

    def test_traces(self) -> None:
        """Each marker is there when it happens. Under `-X dev` Python would tell what is left open."""
        hold = Fifo(self, "hold")
        for output in ("replay", "ordered", "failures", "none"):
            with self.subTest(output):
                self.clean()
                process = self.begin(GOLDEN_LIST, "--output", output, gpus=FOUR, env={"PYTHONDEVMODE": "1"})
                begun = self.read_until(process, b"2/9, at 0:")
                hold.release()
                ran = self.end(process)
                ran = ran._replace(out=begun + ran.out)
                self.check(ran, 1, GOLDEN_OUTCOMES)
                self.assertEqual(ran.err, "")
                self.compare_golden(f"parallel_{output}.txt", ran.text)

    def test_one_gpu(self) -> None:
        """Standard output is what the script would print; the rest is on stderr."""
        Fifo(self, "hold").release()
        process = self.begin(GOLDEN_LIST, gpus="0")
        out, err = process.communicate(timeout=WAIT_S)
        self.compare_golden("one_gpu.txt", f"{out.decode()}=== stderr ===\n{err.decode()}")

    def test_nothing_else_is_in_the_folder(self) -> None:
        parallel = [f"parallel_{output}.txt" for output in ("failures", "none", "ordered", "replay")]
        self.assertEqual(sorted(os.listdir(GOLDEN)), ["one_gpu.txt", *parallel, "terminal.txt"])


class Repeated(CommandLineCase):
    def test_each_test_runs_so_often(self) -> None:
        text = "echo $RUN_TESTS_LABEL >>ran; ! grep -q 3 ran #: label=a\ntrue #: label=b gpus=5\nfalse #: label=c\n"
        self.write("known.txt", "a # now and then\nc # always\n")
        self.write("few.txt", "a\nb\n")
        ran = self.run_list(text, "--repeat", "3", "--only", "few.txt", "--max-gpus", "4", gpus="0")
        runs = ["a", "a (run 2)", "a (run 3)"]
        deferred = {name + run: "deferred" for name in "bc" for run in ("", " (run 2)", " (run 3)")}
        self.check(ran, 1, {**deferred, **dict(zip(runs, ["passed", "passed", "failed"]))})
        self.assertEqual((ran.read("ran").splitlines(), ran.read("logs/deferred.txt")), (runs, "b\nc\n"))
        self.assertNotIn("few.txt", ran.err, "nothing in it is lost or new")
        ran = self.run_list(text, "--repeat", "2", "--rerun-failed", "--only", "few.txt", "--max-gpus", "4",
                            "--known-failures", "known.txt")
        self.assertEqual({label: how for label, how in ran.outcomes().items() if how != "deferred"},
                         {**dict.fromkeys(runs[:2], "failed as known"), runs[2]: "failed"})


class Excuses(CommandLineCase):
    """Tests that do not pass, and do not fail the run."""

    def test_a_test_may_say_that_it_cannot_run_here(self) -> None:
        """What waits for it is skipped too; a JUnit file of each says so. Alone they are no green run."""
        text = ("exit 77 #: label=a\ntrue --junitxml=logs/b.xml #: label=b after=a\ntrue #: label=c\n"
                "f() { return 77; }\nf --junitxml=logs/d.xml #: label=d\n")
        for gpus in ("0,1", "0"):
            self.clean()
            ran = self.run_list(text, "--skip-code", "77", "--junit", "all.xml", gpus=gpus)
            self.check(ran, 0, {"a": "skipped", "b": "skipped", "c": "passed", "d": "skipped"})
            self.assertEqual(ran.text.splitlines()[-1], "All tests passed; 3 skipped")
            if gpus == "0,1":
                self.assertIn(">>> Skipped: b [waits for a, which did not pass, ", ran.text)
            for name, count in (("logs/b.xml", 1), ("logs/d.xml", 1), ("all.xml", 3)):
                self.assertEqual((ran.read(name).count("<skipped "), 'failures="0" errors="0"' in ran.read(name)),
                                 (count, True), name)
        ran = self.run_list(text, "--skip-code", "77", "--rerun-failed")
        self.assertEqual(ran.code, 5, "nothing is owed")
        self.clean()
        ran = self.run_list(text, "--skip-code", "77", "-k", "not c")
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (5, "No test ran; 3 skipped"))
        self.assertEqual(self.run_list(text).code, 1, "without the option it has failed")

    def test_a_known_failure_fails_nothing_and_is_named(self) -> None:
        self.write("known.txt", "\ufeff# of this machine\n\na b # issue 7 # of ours\nc # issue 8\ngone # issue 9\n")
        text = "false #: label='a b'\ntrue #: label=c\nfalse --junitxml=logs/d.xml #: label=d\n"
        ran = self.run_list(text, "--known-failures", "known.txt")
        self.check(ran, 1, {"a b": "failed as known", "c": "passed", "d": "failed"})
        self.assertEqual(ran.err, "run_tests.py: 1 label of --only or --known-failures without a test here: gone; "
                                  "--list shows labels\n")
        self.assertIn("a b on GPU 0 [failed as known, exit 1, issue 7 # of ours, known.txt:3, ", ran.text)
        self.assertIn("\npasses, though known to fail (issue 8, known.txt:4): c\n", ran.text)
        self.write("known.txt", "a b # issue 7\nd # issue 8\n")
        self.clean()
        ran = self.run_list(text, "--known-failures", "known.txt", gpus="0")
        self.check(ran, 0, {"a b": "failed as known", "c": "passed", "d": "failed as known"})
        self.assertEqual(ran.text.splitlines()[-1], "All tests passed; 2 failed as known")
        self.assertIn("<skipped ", ran.read("logs/d.xml"))

    def test_a_known_failure_without_a_reason_is_a_mistake(self) -> None:
        self.write("known.txt", "a\nb # x\nc #\n")
        ran = self.run_list("true\n", "--known-failures", "known.txt")
        self.assertEqual((ran.code, ran.err.splitlines()[-1]), (
            2, "run_tests.py: error: argument --known-failures: known.txt:1: a has no reason; write `label # reason`"))
        self.assertEqual(self.run_list("true\n", "--known-failures", "none").code, 2)


# What runs, seen from inside the tests.

class Running(CommandLineCase):
    def test_what_only_a_companion_does_is_told(self) -> None:
        ran = self.run_list("true #: nodes=2 split=2\ntrue #: label=b nodes=3\n")
        self.check(ran, 0, {"true": "passed", "b": "passed"})
        told = "= is for a companion that imports the runner; here it changes nothing\n"
        self.assertEqual(ran.err, f"tests.txt:1: split{told}tests.txt:1, tests.txt:2: nodes{told}")

    def test_gpu_and_cpu_tests_at_the_same_time(self) -> None:
        """From several lists, one of them standard input. `--jobs 2` gives two slots even beside two GPU tests."""
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        line = "echo up >up; read x <hold #: label=same gpus={}\n"
        self.write("a.txt", f"export WHO=a\ntest $WHO = a && {line.format(1)}")
        self.write("b.txt", f"test -z \"$WHO\" && {line.format(1)}" + line.format(0))
        process = self.start("--jobs", "2", "a.txt", "b.txt", "-", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(line.format(0).encode())
        process.stdin.close()
        process.stdin = None
        up.lines(4)
        for _ in range(4):
            hold.release()
        ran = self.end(process)
        self.check(ran, 0, dict.fromkeys(["same", "same #2", "same #3", "same #4"], "passed"))
        self.assertEqual(ran.journal("run_start")[0]["lists"], ["a.txt", "b.txt", "-"])
        self.assertEqual(sorted((record["gpus"], record["slot"]) for record in ran.journal("test_start")),
                         [([], 2), ([], 3), (["0"], 0), (["1"], 1)])

    def test_fail_fast(self) -> None:
        """What runs goes on, nothing more starts."""
        hold = Fifo(self, "hold")
        process = self.begin("false\nread x <hold #: label=runs\ntouch third\nfalse #: label=fourth\n", "--fail-fast")
        begun = self.read_until(process, b"Finished: false")
        hold.release()
        ran = self.end(process)
        self.check(ran._replace(out=begun + ran.out), 1,
                   {"false": "failed", "runs": "passed", "touch third": "not run", "fourth": "not run"})
        self.assertFalse(os.path.exists(ran.path("third")))


    def test_sigusr1_tells_what_runs(self) -> None:
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        for gpus, mark in ((TWO, b">>> "), ("0", b"run_tests.py: ")):
            with self.subTest(gpus=gpus):
                self.clean()
                process = self.begin("echo so far; echo >up; read x <hold #: label=runs\n", gpus=gpus,
                                     stderr=subprocess.STDOUT)
                up.lines()
                process.send_signal(signal.SIGUSR1)
                self.read_until(process, mark + b"Running: 0/1, at 0:")
                hold.release()
                self.assertEqual(process.wait(WAIT_S), 0)


# Pytest targets.

STUB = """#!{python}
import json, os, sys
with open(os.path.join({folder!r}, "calls.jsonl"), "a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ.get("A"), os.getcwd()]) + "\\n")
junit = next(argument[11:] for argument in sys.argv if argument.startswith("--junitxml="))
with open(junit, "w") as file:
    file.write("<testsuites/>")
"""
TARGETS = """\
test_a.py
A='1 2' sub/test_b.py::TestX::test_y[1-a] -k 'a b'
sub/
test_c.py --junitxml=own.xml
run_test "A=3" "mine.xml" "test_d.py -v" "my label"
cd sub
export A=held
CUDA_VISIBLE_DEVICES=0,1 test_b.py #: label='two GPUs'
"""


class PytestTargets(CommandLineCase):
    """A path to a test file or a folder is run by pytest; here by a stub that writes down how it was called."""

    def test_the_calls(self) -> None:
        here = os.path.realpath(self.folder)
        for name in ("test_a.py", "sub/test_b.py", "test_c.py", "test_d.py"):
            self.write(name, "")
        stub = self.stub("some python", STUB.format(python=sys.executable, folder=self.folder))
        ran = self.run_list(TARGETS, "--python", os.path.join(stub, "some python"), "--pytest-args=-x -m 'not slow'")
        target, stem = "sub/test_b.py::TestX::test_y[1-a]", "pytest_sub_test_b_TestX_test_y_1-a_-k_a_b"
        self.check(ran, 0, dict.fromkeys(("test_a.py", f"{target} -k 'a b'", "sub/", "test_c.py --junitxml=own.xml",
                                          "my label", "two GPUs"), "passed"))
        junit, first, more = "--junitxml=" + os.path.join(here, "logs", "{}.xml"), "-u -m pytest --tb=auto".split(), \
            ["-x", "-m", "not slow"]
        expected = [([*first, junit.format("pytest_test_a"), *more, "test_a.py"], None, here),
                    ([*first, junit.format(stem), *more, target, "-k", "a b"], "1 2", here),
                    ([*first, junit.format("pytest_sub"), *more, "sub/"], None, here),
                    ([*first, *more, "test_c.py", "--junitxml=own.xml"], None, here),
                    ([*first, junit.format("mine"), *more, "test_d.py", "-v"], "3", here),
                    ([*first, junit.format("pytest_two_GPUs"), *more, "test_b.py"], "held", os.path.join(here, "sub"))]
        calls = [tuple(json.loads(line)) for line in ran.read("calls.jsonl").splitlines()]
        self.assertEqual(sorted(calls, key=str), sorted(expected, key=str))
        self.assertEqual(sorted(record["log"] for record in ran.journal("test_start")), sorted(
            f"logs/{name}.log" for name in ("pytest_test_a", stem, "pytest_sub", "own", "mine", "pytest_two_GPUs")))


# Signals.

# A shell that waits for a signal: it runs its traps between two commands. In `read` or `wait` it can miss one that
# comes just before it blocks.
TRAPS = """\
for name in INT TERM HUP USR2; do trap "echo $name >trapped; exit 0" $name; done
echo up >up
while :; do sleep 0.01; done 2>/dev/null
"""


def ignoring(signum: int) -> Callable[[], Any]:
    """What a child does at its start, to ignore a signal."""
    return lambda: signal.signal(signum, signal.SIG_IGN)


class Signals(CommandLineCase):
    """A signal ends the run: the tests get it, nothing more starts, all files are whole."""

    def test_each_reaches_the_tests(self) -> None:
        up = Fifo(self, "up")
        self.write("traps.sh", TRAPS)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 140)):
            with self.subTest(number):
                self.clean()
                process = self.begin("bash traps.sh #: label=traps\necho up >up; sleep 1000 #: label='does not'\n"
                                     "wait\ntouch started\ntouch started #: gpus=0\n", "--grace", "1h")
                up.lines(2)
                process.send_signal(number)
                ran = self.end(process)
                self.check(ran, code, {"traps": "interrupted", "does not": "interrupted", "touch started": "not run",
                                       "touch started #2": "not run"})
                self.assertEqual(ran.read("trapped"), number.name[3:] + "\n")
                self.assertEqual(ran.err.encode(), ENDING.replace(b"SIGTERM", number.name.encode()))
                self.assertEqual(ran.text.splitlines()[-1], f"Interrupted by {number.name}: 2 interrupted, 2 not run")
                self.assertFalse(os.path.exists(ran.path("started")))

    def test_a_hangup_that_is_ignored_stays_ignored(self) -> None:
        """As under nohup: for the runner and for its tests."""
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        process = self.begin("echo up >up; read x <hold; kill -HUP $$; [ -d logs ] #: label=survives\n",
                             preexec_fn=ignoring(signal.SIGHUP))
        up.lines()
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            ignored = int(re.findall(r"^SigIgn:\s*(\w+)$", file.read(), re.M)[0], 16)
        self.assertTrue(ignored & 1 << (signal.SIGHUP - 1))
        process.send_signal(signal.SIGHUP)
        hold.release()
        self.check(self.end(process), 0, {"survives": "passed"})

    def test_children_that_the_caller_ignores(self) -> None:
        """Where SIGCHLD is ignored the kernel drops exit statuses, unless the runner takes care."""
        ran = self.end(self.begin("true\nfalse\n(exit 7)\n", preexec_fn=ignoring(signal.SIGCHLD)))
        self.check(ran, 1, {"true": "passed", "false": "failed", "(exit 7)": "failed"})
        self.assertEqual({record["label"]: record["status"] for record in ran.journal("test_end")},
                         {"true": 0, "false": 1, "(exit 7)": 7})


# Streams.

class InboxTest(unittest.TestCase):
    def test_a_timeout_that_passes_at_once(self) -> None:
        """A SimpleQueue may then wait for ever."""
        inbox = run_tests.Inbox()
        for _ in range(1000):
            inbox.put(run_tests.Tick())
            inbox.get(0)
            self.assertIsNone(inbox.get(1e-6))


class Streams(CommandLineCase):
    """Standard input, output and error, or what is left of them; on a full device and with none: test_faults_runner."""

    def redirected(self, redirection: str, *arguments: str, gpus: str = TWO) -> Ran:
        """Run the command line below a shell's `redirection`."""
        ran = subprocess.run(["bash", "-c", f'exec "$@" {redirection}', "bash", *self.command(*arguments)],
                             cwd=self.folder, env=self.environment(gpus, {}), check=False, timeout=WAIT_S,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return Ran(ran.returncode, ran.stdout, remarks(ran.stderr), self.folder)

    def test_a_reader_that_goes_away_on_one_gpu(self) -> None:
        """`| head -1`: the run goes on, and ends as it would have."""
        hold = Fifo(self, "hold")
        process = self.begin("echo one; read x <hold && echo two #: label=a\necho three; false\ntouch ran\n", gpus="0")
        self.read_until(process, b"one\n")
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        hold.release()
        self.assertEqual((remarks(process.stderr.read()), process.wait(WAIT_S)), ("", 1))
        ran = Ran(1, b"Error in the following test cases: echo three; false", "", self.folder)
        self.check(ran, 1, {"a": "passed", "echo three; false": "failed", "touch ran": "passed"})
        self.assertEqual((ran.read("logs/a.log"), os.path.exists(ran.path("ran"))), ("one\ntwo\n", True))

    def test_a_pipe_that_ceases_to_block(self) -> None:
        """Another program that has it too may do so at any time; what its reader does not take at once must wait."""
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        for gpus in ("0", TWO):
            with self.subTest(gpus=gpus):
                self.clean()
                reader, writer = os.pipe()
                process = self.begin("echo up >up; read x <hold; seq 99999 #: label=a\n", gpus=gpus, stdout=writer)
                up.lines()
                os.set_blocking(writer, False)
                hold.release()
                while select.select([], [writer], [], 0)[1]:        # it has room
                    time.sleep(0.01)
                os.close(writer)
                with open(reader, "rb") as pipe:
                    out = pipe.read()
                self.assertGreater(out.count(b"\n"), 99999)
                self.check(self.end(process)._replace(out=out), 0, {"a": "passed"})

    def test_some_are_closed_from_the_start(self) -> None:
        self.write("tests.txt", "echo one; echo err >&2 #: label=a\ncat; false #: label=b\n")
        last = "Error in the following test cases: b"
        for redirection, gpus in ((">&-", TWO), ("<&- >&-", "0"), ("2>&-", "0"), ("<&-", TWO)):
            with self.subTest(redirection, gpus=gpus):
                self.clean()
                ran = self.redirected(redirection, "tests.txt", gpus=gpus)
                self.assertEqual(ran.text.splitlines()[-1:], [last] if ">&-" not in redirection.split() else [])
                self.check(ran._replace(out=last.encode()), 1, {"a": "passed", "b": "failed"})
                self.assertEqual((ran.err, ran.read("logs/a.log"), ran.read("logs/b.log")), ("", "one\nerr\n", ""))

    def test_mistakes_when_stderr_is_closed(self) -> None:
        """They have no place to go; they must not land among the results."""
        ran = self.redirected("2>&-", "missing.txt")
        self.assertEqual((ran.code, ran.out), (2, b""))

    def test_a_list_from_a_closed_standard_input(self) -> None:
        """A list that cannot be read, like any other."""
        ran = self.redirected("<&-", "-")
        self.assertEqual((ran.code, ran.out), (2, b""))
        self.assertRegex(ran.err, r"\A-: .*\n\Z")


# When the runner itself fails.

class Breakdown(FaultCase):
    """An internal error or a limit of the machine: exit code 3, tests ended, files whole, never a traceback."""

    def begin(self, target: str, error: str = "ValueError('boom')") -> "subprocess.Popen[bytes]":
        """Start a runner in which calling `target` raises, and which never gives up a test that has not ended."""
        self.drive("def broken(*arguments, **named):", f"    raise {error}", f"run_tests.{target} = broken",
                   "run_tests.STUCK_S = 1e9")
        return self.start("tests.txt")

    def end(self, process: "subprocess.Popen[bytes]", said: str) -> Ran:
        """What is left of a run that ended by itself and left no process, and `said` why."""
        out, err = process.communicate(timeout=WAIT_S)
        ran = Ran(process.returncode, out, err.decode(), self.folder)
        self.assertEqual((ran.code, self.left()), (3, {}), ran.text + ran.err)
        self.assertRegex(ran.text + ran.err, re.compile(said, re.M))
        self.assertNotIn("Traceback", ran.text + ran.err)
        self.assertFalse(os.path.exists(ran.path("started")))
        return ran

    def test_an_error_while_tests_run(self) -> None:
        """Its traceback is kept beside the logs."""
        up, hold = Fifo(self, "up"), Fifo(self, "hold")
        self.write("tests.txt", "setsid $NAP & echo up >up; $NAP #: label=runs\nread x <hold; false #: label=ends\n"
                                "wait\ntouch started\n")
        for target in ("Record.test_end", "Schedule.on_exited", "Console.concluded", "junit_fault"):
            with self.each(target):
                process = self.begin(target)
                up.lines()
                hold.release()
                ran = self.end(process, "^Stopped, the machine failed: .*internal error, .*boom")
                events = ran.journal()
                self.assertEqual((events[0]["event"], events[-1]["event"]), ("run_start", "run_end"))
                self.assertEqual((events[-1]["exit"], sum(events[-1]["outcomes"].values())), (3, 3))
                crash, = (name for name in os.listdir(ran.path("logs")) if f"details are in logs/{name}" in ran.text)
                self.assertRegex(ran.read("logs", crash), r"(?s)^Traceback .*ValueError: boom")

    def test_an_error_of_which_nothing_can_be_kept(self) -> None:
        """For want of memory, it may be."""
        self.drive("import traceback", "def broken(*arguments):", "    raise MemoryError",
                   "traceback.format_exc = run_tests.junit_fault = broken")
        self.write("tests.txt", "false\nwait\ntouch started\n")
        self.end(self.start("tests.txt"), "^Stopped, the machine failed: internal error, MemoryError")

    def test_an_error_that_names_a_test(self) -> None:
        """Its environment, in which there may be secrets, stands neither in the message nor in what is kept."""
        self.write("tests.txt", "export SECRET=hidden\ntrue\n")
        ran = self.end(self.begin("Console.concluded", "KeyError(arguments)"), "internal error, KeyError")
        crash, = (name for name in os.listdir(ran.path("logs")) if f"logs/{name}" in ran.text)
        self.assertIn("KeyError", ran.read("logs", crash))
        self.assertNotIn("hidden", ran.text + ran.err + ran.read("logs", crash))

    def test_an_error_before_any_test(self) -> None:
        self.write("tests.txt", "touch started\n")
        for target in ("parse_lists", "find_machine", "Run.__init__", "Record.run_start"):
            with self.each(target):
                self.end(self.begin(target), "internal error, .*boom")

    def test_a_limit_of_threads(self) -> None:
        self.drive("def broken(thread):", "    raise RuntimeError('no thread')",
                   "run_tests.threading.Thread.start = broken")
        why = "no thread; raise `ulimit -u` or `ulimit -v`"
        self.write("tests.txt", "touch started\n")
        self.end(self.start("tests.txt"), f"the machine failed: cannot run touch started: {why}: 1 not run$")
        self.write("test.sh", "touch started\n")
        self.end(self.start("test.sh"), f"the machine failed: {why}: ")

    def test_a_limit_of_threads_beside_a_test(self) -> None:
        """A thread that becomes free does not run the test that has not got one."""
        Fifo(self, "hold")
        self.drive("start = run_tests.threading.Thread.start", "started = []", "def second(thread):", "    if started:",
                   "        raise RuntimeError('no second one')", "    started.append(thread)", "    start(thread)",
                   "run_tests.threading.Thread.start = second", "close = run_tests.Host.close", "def drained(host):",
                   "    host.idle.acquire()", "    close(host)", "run_tests.Host.close = drained")
        self.write("tests.txt", "read x <hold #: label=runs\ntouch started\n")
        self.end(self.start("tests.txt"), "^Stopped, the machine failed: cannot run touch started: no second one; ")

    def test_a_limit_of_descriptors(self) -> None:
        """Python itself needs some of them."""
        self.write("tests.txt", "true\nwait\ntouch started\n")
        for limit in (7, 8):
            with self.each(str(limit)):
                self.head = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *self.head[-3:]]
                self.end(self.start("tests.txt"), r"\(Too many open files\)")


if __name__ == "__main__":
    unittest.main()
