"""Section 9: the exact bytes of a trace, what is shown and when, and how much memory that takes."""
from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
import unittest
from typing import Any, List, Optional, Sequence
from unittest import mock

import run_tests
from run_tests import Cause, Device, Lease, Outcome, Result, Test
from tests.support import GatedCase, RunnerCase, a_test

LINE = "\u2500" * 56
HEAD = "\n=== Per-test output (replayed from parallel execution) ===\n"
FOOT = "\n=== End of per-test output ===\n"
LOG_BYTES = 64 << 20
MOST_BYTES = 60 << 20            # the runner may take: less than the log alone

MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
count, data = 0, b"x"
while data:
    data = os.read(process.stdout.fileno(), 1 << 20)
    count += len(data)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = status
print(count, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), os.WEXITSTATUS(status))
"""


def frame(title: str, log: str = "") -> str:
    """A replayed log, as DESIGN 5 shows it."""
    return f"\n{LINE}\n>>> {title}\n{LINE}\n{log}"


def lease_on(*tokens: str) -> Lease:
    return Lease(tuple(Device(index, token) for index, token in enumerate(tokens)), 0)


class TraceTest(RunnerCase):
    def setUp(self) -> None:
        super().setUp()
        self.out = io.BytesIO()
        self.trace = run_tests.Trace(self.out)

    def test_a_line_of_the_runner_begins_a_line(self) -> None:
        for data in (b"", b"a\n", b"b", b""):
            self.trace.write(data)
            self.trace.line(f"line {data!r}")
        self.trace.line("")
        self.trace.line("ü \udcff")
        self.assertEqual(self.out.getvalue(), b"line b''\na\nline b'a\\n'\nb\nline b'b'\nline b''\n\n\xc3\xbc \xff\n")

    def test_the_block_is_drawn_in_its_own_place(self) -> None:
        """Not as long as it is the same, nor at once again, nor behind a line that has no end, nor behind `&`."""
        with mock.patch.object(self.trace, "has_terminal", side_effect=[True, True, False]):
            for lines, pause_s in ((["a"], 0.0), (["a"], 0.0), (["b"], 0.0), (["c"], 9.0)):
                with mock.patch.object(run_tests, "REDRAW_S", pause_s):
                    self.trace.draw(lines)
            for data in (b"open", b"\n"):
                self.trace.write(data)
                with mock.patch.object(run_tests, "REDRAW_S", 0.0):
                    self.trace.draw(["d"])
        clear, block = b"\r\x1b[1A\x1b[J", b"\x1b[?7l%s\r\n\x1b[?7h"
        self.assertEqual(self.out.getvalue(), block % b"a" + clear + block % b"b" + clear + b"open\n")

    def test_copy_is_byte_for_byte_from_any_offset(self) -> None:
        log = os.path.join(self.folder, "x.log")
        for text in (b"", b"\0\377\r\n", b"no end", b"x" * (run_tests.COPY_BYTES + 1),
                     b"y" * (2 * run_tests.COPY_BYTES) + b"\n"):
            with open(log, "wb") as file:
                file.write(text)
            for start in (0, 1, len(text) // 2, len(text)):
                with self.subTest(size=len(text), start=start):
                    self.out.seek(0)
                    self.out.truncate()
                    self.assertEqual(self.trace.copy(log, start), len(text))
                    self.assertEqual(self.out.getvalue(), text[start:])
        self.assertEqual(self.trace.copy(log, len(text) + 1), len(text), "all of it, since it has been cut")
        self.assertTrue(self.out.getvalue().endswith(text))

    def test_copy_does_not_chase_a_file_that_grows_as_fast(self) -> None:
        """Else the run would look at no deadline and no signal while a test prints faster than our reader reads."""
        log = os.path.join(self.folder, "x.log")

        def grow(data: bytes) -> None:
            if os.path.getsize(log) < 1 << 26:
                with open(log, "ab") as file:
                    file.write(data)

        self.trace.stream = mock.Mock(write=grow)
        with open(log, "wb") as file:
            file.write(b"x" * (run_tests.COPY_BYTES + 1))
        self.assertEqual(self.trace.copy(log), 2 * run_tests.COPY_BYTES)
        self.assertEqual(self.trace.copy(log, 1, most=2), 1 + run_tests.COPY_BYTES, "not much more than it may")

    def test_copy_of_no_file_raises(self) -> None:
        os.mkfifo(os.path.join(self.folder, "pipe"))
        for name in ("none", "pipe", "."):
            with self.subTest(name), self.assertRaises(OSError):
                self.trace.copy(os.path.join(self.folder, name))

    def test_a_label_gives_a_ci_no_orders(self) -> None:
        """Neither in the trace nor on stderr."""
        text = "##vso[task.complete result=Failed] ##[error] ##teamcity[testFailed name='x'] ## a ##b"
        mild = "# #vso[task.complete result=Failed] # #[error] # #teamcity[testFailed name='x'] ## a ##b\n"
        self.trace.line(text)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            run_tests.warn(text)
        self.assertEqual((self.out.getvalue().decode(), errors.getvalue()), (mild, "run_tests.py: " + mild))
        self.assertEqual(run_tests.without_ci_commands("a\n  ::error::x ::y"), "a\n  : :error::x ::y")

    def test_where_a_reader_goes_away_the_rest_goes_nowhere(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        self.addCleanup(os.close, null)
        read_end, write_end = os.pipe()
        os.close(read_end)
        with open(write_end, "wb") as stream:
            trace = run_tests.Trace(stream)
            trace.line("buffered")
            trace.flush()
            self.assertTrue(os.path.sameopenfile(stream.fileno(), null))
            trace.line("into the void")
            trace.flush()


class ConsoleCase(RunnerCase):
    """A console on a BytesIO and a Record in this test's folder."""

    def setUp(self) -> None:
        super().setUp()
        self.out = io.BytesIO()
        self.trace = run_tests.Trace(self.out)
        self.logs = os.path.join(self.folder, "logs")
        self.machine = run_tests.Machine(["0", "1"], [run_tests.CUDA])

    def console(self, output: str, tests: Sequence[Test], total: int, has_markers: bool,
                sums_up: bool = True, fold: Optional[run_tests.Fold] = run_tests.NO_FOLD) -> run_tests.Console:
        options = run_tests.Options((), log_dir=self.logs, output=output)
        self.record = run_tests.Record(options, "a run")
        os.close(self.record.lock)
        schedule = run_tests.Schedule(tests, run_tests.Pool(self.machine.devices, 1, not has_markers), options)
        estimates = run_tests.estimate(tests, run_tests.History(run_tests.Options(())))
        selection = run_tests.Selection(list(tests), {}, {}, estimates)
        console = run_tests.Console(self.trace, self.record, selection, schedule, sums_up)
        console.total, console.fold = total, fold or console.fold
        return console

    def parallel(self, output: str = "replay", tests: Sequence[Test] = ()) -> run_tests.Console:
        return self.console(output, tests, 30, has_markers=True)

    def told(self) -> str:
        """What has been printed since the last call."""
        text = self.out.getvalue().decode("utf-8", "surrogateescape")
        self.out.seek(0)
        self.out.truncate()
        return re.sub(r", at \d:\d\d\]", ", at M:SS]", text).replace(self.logs, "logs")

    def launch(self, console: run_tests.Console, test: Test, *tokens: str) -> None:
        """A test starts; its process is there."""
        console.launched(self.attempt(test, *tokens))

    def attempt(self, test: Test, *tokens: str, seconds: float = 0.0) -> run_tests.Attempt:
        """One that has run for so long."""
        attempt = run_tests.Attempt(test, lease_on(*tokens), 1, time.monotonic() - seconds)
        attempt.process, attempt.log = mock.Mock(pid=7), self.record.log_path(test)
        return attempt

    def append(self, test: Test, data: bytes) -> None:
        """A running test writes to its log."""
        with open(self.record.log_path(test), "ab") as file:
            file.write(data)

    def passed(self, test: Test) -> Result:
        return Result(test, Outcome.PASSED, 1.0, 0, lease_on("0"))


class ParallelTest(ConsoleCase):
    """With markers, and logs after their tests."""

    def test_the_first_line_names_the_gpus(self) -> None:
        for tokens, expected in {"6 2": "Detected 2 GPU(s): 6 2\n", "": "Detected 0 GPU(s):\n"}.items():
            self.parallel().begin(run_tests.Machine(tokens.split(), [run_tests.CUDA]))
            self.assertEqual(self.told(), expected)

    def test_what_history_expects(self) -> None:
        """Above all GPUs' share and the longest test; nothing is guessed where most tests are unknown."""
        for seconds, expected in (("600 1200 30 30", "about 20 min"), ("600 600 600 600", "about 20 min"),
                                  ("6 6 6 6", "under 1 min"), ("9000 9000 1 1", "about 151 min"),
                                  ("600 600 - -", ""), ("600 600 600 -", "about 18 min")):
            times = [None if word == "-" else float(word) for word in seconds.split()]
            tests = [a_test(index, attributes=run_tests.Attributes(time=time)) for index, time in enumerate(times)]
            with self.subTest(seconds):
                console = self.parallel(tests=tests)
                console.look_ahead()
                console.begin(self.machine)
                expected = expected and f"30 tests, {expected} by earlier runs\n"
                self.assertEqual(self.told(), "Detected 2 GPU(s): 0 1\n" + expected)

    def test_nothing_is_expected_of_no_tests(self) -> None:
        console = self.parallel(tests=[a_test(0, attributes=run_tests.Attributes(time=6.0))])
        console.total = 0                # an empty shard
        console.look_ahead()
        console.begin(self.machine)
        self.assertEqual(self.told(), "Detected 2 GPU(s): 0 1\n")

    def test_gpus_that_were_not_looked_for_are_as_given(self) -> None:
        console = self.parallel()
        console.options = console.options._replace(gpus="2")
        console.begin(self.machine)
        self.assertEqual(self.told(), "Detected 2 GPU(s): 0 1 [as given]\n")

    def test_no_gpu_is_told_where_a_test_may_want_one(self) -> None:
        tools = ", ".join(command[0] for command, *_ in run_tests.TOOLS)
        asked = f"no GPU found (asked: pynvml, {tools})"
        for gpus, expected in ((1.0, asked), (0.0, "")):
            for has_markers, how in ((True, ""), (False, ": tests run one by one")):
                console = self.console("replay", [a_test(gpus=gpus)], 1, has_markers=has_markers)
                with self.subTest(expected, has_markers=has_markers), \
                        contextlib.redirect_stderr(io.StringIO()) as errors:
                    console.begin(run_tests.Machine())
                    self.assertEqual(errors.getvalue(), expected and f"run_tests.py: {expected}{how}\n")
        console = self.console("replay", [a_test()], 1, has_markers=True)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            console.begin(run_tests.Machine(readers=[run_tests.CUDA]))
        self.assertIn("CUDA_VISIBLE_DEVICES or --gpus shows no GPU", errors.getvalue())

    def test_a_silent_run_says_that_it_is_alive(self) -> None:
        console = self.parallel()
        console.tick()
        self.assertEqual(self.told(), "")
        self.trace.wrote_at -= run_tests.SILENCE_S
        console.tick()
        console.tick()
        self.assertEqual(self.told().replace("0:00", "M:SS"), ">>> Running: 0/30, at M:SS\n")

    def test_clocks(self) -> None:
        self.assertEqual([run_tests.clock(seconds) for seconds in (0, 59.9, 60, 3599, 3600, 36061)],
                         ["0:00", "0:59", "1:00", "59:59", "1:00:00", "10:01:01"])

    def test_immediate_shows_the_end_of_a_failed_log_at_once(self) -> None:
        console = self.parallel("immediate")
        for label, log, end in (("x.py", b"far\n" + b"y" * run_tests.TAIL_BYTES + b"\n", "yyy"),
                                ("z.py", b"a\n", "a\n")):
            self.append(a_test(label=label), log)
            console.concluded(Result(a_test(label=label), Outcome.FAILED, 1.0, 1, lease_on("0")))
            text = self.told()
            self.assertIn(frame(f"{label} [{label}: failed, exit 1, 1.0s]", end), text)
            self.assertNotIn("far", text)

    def test_the_start_of_a_test(self) -> None:
        console, test = self.parallel(), a_test(label="test_sanity.py")
        cases = {("0",): "GPU 0", ("0", "1"): "GPU 0,1", (): "CPU", ("",): "CPU", ("MIG-a", "MIG-b"): "GPU MIG-a,MIG-b"}
        for tokens, place in cases.items():
            self.launch(console, test, *tokens)
            self.assertEqual(self.told(), f">>> Starting: test_sanity.py on {place}\n")

    def test_the_end_of_a_test(self) -> None:
        console = self.parallel()
        cases = [  # outcome, status, seconds, the lines
            (Outcome.PASSED, 0, 0.04, ">>> Finished: x.py on GPU 1 [passed, 0.0s, 1/30, at M:SS]\n"),
            (Outcome.CRASHED, -11, 9.96, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [crashed (SIGSEGV), 10.0s, 2/30, at M:SS]\n"
             "    crashed (SIGSEGV) \u2192 logs/x.py.log\n"),
            (Outcome.FAILED, 1, 12.34, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [failed, exit 1, 12.3s, 3/30, at M:SS]\n"
             "    assert 2 == 3 \u2192 logs/x.py.log\n"),
            (Outcome.TIMEOUT, -15, 1800.0, "Error: sub-test failed: x.py\n"
             ">>> Finished: x.py on GPU 1 [timeout, 1800.0s, 4/30, at M:SS]\n    timeout \u2192 logs/x.py.log\n"),
            (Outcome.INTERRUPTED, -2, 3.0, ">>> Finished: x.py on GPU 1 [interrupted, 3.0s, 5/30, at M:SS]\n"),
            (Outcome.BLOCKED, None, 0.0, "Error: sub-test failed: x.py\n>>> Blocked: x.py [so it is, 6/30]\n"),
            (Outcome.UNRUNNABLE, None, 0.0, "Error: sub-test failed: x.py\n>>> Unrunnable: x.py [so it is, 7/30]\n"),
            (Outcome.NOT_RUN, None, 0.0, ""),
            (Outcome.DEFERRED, None, 0.0, ""),
            (Outcome.SKIPPED, 77, 1.0, ">>> Finished: x.py on GPU 1 [skipped, exit 77, 1.0s, 8/30, at M:SS]\n"),
            (Outcome.SKIPPED, None, 0.0, ">>> Skipped: x.py [so it is, 9/30]\n"),
            (Outcome.PASSED, 0, 1.0, ">>> Finished: x.py on GPU 1 [passed, 1.0s, 10/30, at M:SS]\n"),
        ]
        for index, (outcome, status, seconds, expected) in enumerate(cases):
            with self.subTest(outcome=outcome):
                reason = "so it is" * (status is None)
                cause = Cause("assert N == N", line="assert 2 == 3") if outcome is Outcome.FAILED else Cause()
                console.concluded(Result(a_test(index, "x.py"), outcome, seconds, status, lease_on("1"), reason=reason,
                                         cause=cause))
                self.assertEqual(self.told(), expected)
        console.ended(Result(a_test(9), Outcome.FAILED, 1.0, 1, lease_on("1")), "to be retried")
        console.announced(self.attempt(self.slow_test(), "0", seconds=90.0))
        console.remark("Quarantined: GPU 1 [lost]")
        self.assertEqual(self.told(), ">>> Finished: t9 on GPU 1 [failed, exit 1, 1.0s, to be retried, at M:SS]\n"
                         "    failed, exit 1 \u2192 logs/t9.log\n"
                         ">>> Slow: slow [1:30; step 2]\n>>> Quarantined: GPU 1 [lost]\n")

    def test_a_test_is_announced_after_each_span(self) -> None:
        """Unless it is being ended."""
        console = self.parallel()
        attempts = [self.attempt(test, "0", seconds=90.0) for test in (self.slow_test(), a_test(11, "ends"))]
        console.schedule.running.update((attempt.test, attempt) for attempt in attempts)
        for slow_s, told in ((100.0, ""), (0.0, ""), (60.0, ">>> Slow: slow [1:30; step 2]\n")):
            console.options = console.options._replace(slow=slow_s)
            for attempt in attempts:
                console.launched(attempt)
            attempts[1].ending = Outcome.INTERRUPTED
            self.told()
            for _ in range(2):
                console.tick()
            self.assertEqual(self.told(), told)
            self.assertEqual(attempts[0].slow_at - time.monotonic() > 59, slow_s != 100.0)

    def slow_test(self) -> Test:
        test = a_test(10, "slow")
        self.append(test, b"step 1\n\033[1mstep 2\033[0m\n\n")
        return test

    def test_the_replay(self) -> None:
        logs = [b"text\n", b"", b"no final newline", b"\n", b"NUL \0\0 and \377\376\r\033[31m\n", b"\n\nlast\0"]
        console, results = self.parallel(), []
        for index, log in enumerate(logs):
            test = a_test(index, f"test_{index}.py", stem=f"pytest_test_{index}")
            self.append(test, log)
            results.append(self.passed(test))
        lost = Result(a_test(6, "lost.py", stem="pytest_lost"), Outcome.FAILED, 1.0, 1, lease_on("0"))
        console.finish([*results, lost], ["summed up", "so"])
        ends = ["", "", "\n", "", "\033\\\033[0m\n", "\n"]     # after escapes a terminal is as it was
        expected = HEAD + "".join(frame(f"pytest_test_{index} [test_{index}.py: passed, 1.0s]",
                                        log.decode("utf-8", "surrogateescape") + end)
                                  for index, (log, end) in enumerate(zip(logs, ends)) if log)
        lost = "(its log cannot be read: No such file or directory)\n"
        expected += frame("pytest_lost [lost.py: failed, exit 1, 1.0s]", lost)
        self.assertEqual(self.told(), expected + FOOT + "summed up\nso\n")

    def test_what_each_output_shows(self) -> None:
        verdicts = {"PASSED": "passed", "FAILED": "failed, exit 1", "INTERRUPTED": "interrupted", "FLAKY": "flaky"}
        for output, frames in (("replay", "PASSED FAILED INTERRUPTED FLAKY"), ("failures", "FAILED INTERRUPTED"),
                               ("immediate", ""), ("none", "")):
            with self.subTest(output):
                shutil.rmtree(self.logs, ignore_errors=True)
                console, results = self.parallel(output), []
                for index, (outcome, status) in enumerate([
                        (Outcome.PASSED, 0), (Outcome.FAILED, 1), (Outcome.INTERRUPTED, -2), (Outcome.NOT_RUN, None),
                        (Outcome.FLAKY, 0)]):
                    results.append(Result(a_test(index, outcome.name), outcome, 1.0, status, lease_on("0")))
                    self.append(results[-1].test, b"log\n")
                console.finish(results, [])
                expected = "".join(frame(f"{name} [{name}: {verdicts[name]}, 1.0s]", "log\n")
                                   for name in frames.split())
                self.assertEqual(self.told(), expected and HEAD + expected + FOOT)

    def test_ordered_shows_a_log_when_its_turn_has_come(self) -> None:
        tests = [a_test(index, letter) for index, letter in enumerate("abcd")]
        console = self.parallel("ordered", tests)
        for test, log in zip(tests, (b"of a", b"of b\n", b"", b"of d\n")):
            self.append(test, log)

        def end(index: int, number: int) -> str:
            console.concluded(self.passed(tests[index]))
            text = self.told()
            marker = f">>> Finished: {tests[index].label} on GPU 0 [passed, 1.0s, {number}/30, at M:SS]\n"
            self.assertTrue(text.startswith(marker), text)
            return text[len(marker):]

        self.assertEqual(end(1, 1), "")
        console.concluded(Result(tests[2], Outcome.NOT_RUN))
        self.assertEqual(end(0, 2), frame("a [a: passed, 1.0s]", "of a\n") + frame("b [b: passed, 1.0s]", "of b\n"))
        self.assertEqual(end(3, 3), frame("d [d: passed, 1.0s]", "of d\n"))
        console.finish([], ["summed up"])
        self.assertEqual(self.told(), "summed up\n")


class FoldTest(ConsoleCase):
    """A CI service folds what passed; what failed stands open below it, and no log can forge or end a fold."""

    FORGERIES = {
        "GITHUB_ACTIONS": ["::group::x", "  ::endgroup::", "a ##[group]x", "##[endgroup]", "::stop-commands::x"],
        "GITLAB_CI": ["\x1b[0Ksection_start:1:a\r\x1b[0Kx", "section_end:1:a"],
        "BUILDKITE": ["--- x", "+++ x", "~~~ x", "^^^ +++"], "TF_BUILD": ["##[group]x", "##[endgroup]"],
        "TEAMCITY_VERSION": ["##teamcity[blockOpened name='x']", "a ##teamcity[blockClosed name='x']"]}
    HARMLESS = ["::error file=a.py,line=1::x", "##[warning]x", "##teamcity[testStarted name='x']", "---", "a --- b",
                "a::b"]

    def test_each_service(self) -> None:
        tests = [a_test(0, "bad"), a_test(1, "good one", stem="A=1_good")]
        title = "A=1_good [good one: passed, 1.0s]"
        for fold in run_tests.FOLDS:
            with self.subTest(fold.variable):
                shutil.rmtree(self.logs, ignore_errors=True)
                with mock.patch.dict(os.environ, {fold.variable: "true"}):
                    console = self.console("replay", tests, 2, has_markers=True, fold=None)
                for test in tests:
                    self.append(test, b"log\n")
                console.finish([Result(tests[0], Outcome.FAILED, 1.0, 1), self.passed(tests[1])], [])
                text = self.told()
                begin, end = (re.escape(form.format(title=title, test=tests[1])) for form in fold[1:3])
                self.assertRegex(text, f"{begin}\nlog\n{end}\n?.*\n{LINE}\n.*>>> bad .*\n{LINE}\nlog\n")
                if fold.variable == "GITLAB_CI":
                    self.assertRegex(text, r"section_start:0:([\w.-]+)\[collapsed=true\]\r(.|\n)*section_end:0:\1\r")

    def test_a_log_cannot_forge_one(self) -> None:
        for fold in run_tests.FOLDS:
            for line in self.FORGERIES[fold.variable]:
                log = f"before\n{line}\nafter\n"
                with self.subTest(line):
                    tamed = self.copied(log)
                    self.assertNotEqual(tamed, log)
                    self.assertEqual(self.copied(tamed), tamed)
        for line in self.HARMLESS:
            self.assertEqual(self.copied(line), line)

    def copied(self, log: str) -> str:
        """What a log becomes where a CI service shows it."""
        self.trace.copy(self.write("x.log", log), is_tamed=True)
        return self.told()

    def test_a_log_of_several_pieces_is_tamed_whole(self) -> None:
        test = a_test(0, "good")
        console = self.console("replay", [test], 1, has_markers=True, fold=run_tests.FOLDS[0])
        filler = b"x" * (run_tests.COPY_BYTES - 4) + b"\n"
        self.append(test, filler + b"::group::forged\n")
        console.finish([self.passed(test)], [])
        self.assertNotIn("\n::group::forged", self.told())


class LiveTest(ConsoleCase):
    """Without markers: logs as they grow, and what neither they nor the status tell on stderr."""

    def live(self, output: str) -> run_tests.Console:
        return self.console(output, [], 1, has_markers=False)

    def test_output_comes_as_it_grows(self) -> None:
        shown = ["", "one", " two\n", "cut", "\0\udcff"]
        for output, expected in (("replay", shown), ("ordered", shown), ("none", [""] * 5),
                                 ("failures", [""] * 5)):
            with self.subTest(output):
                console, test, seen = self.live(output), a_test(label=output), []
                self.append(test, b"")
                console.begin(self.machine)
                self.launch(console, test, "0")
                for data in (b"", b"one", b" two\n"):
                    self.append(test, data)
                    console.tick()
                    seen.append(self.told())
                self.write(f"logs/{output}.log", "cut")          # by `>/dev/stderr` of the test
                console.tick()
                seen.append(self.told())
                self.append(test, b"\0\377")
                console.concluded(self.passed(test))
                seen.append(self.told())
                self.append(test, b"from a daemon")
                console.tick()
                with contextlib.redirect_stderr(io.StringIO()) as errors:
                    console.finish([], ["summed up"])
                self.assertEqual((self.told(), errors.getvalue(), seen), ("", "summed up\n", expected))

    def test_failures_are_shown_and_announced(self) -> None:
        for output, log in (("replay", "log\n"), ("ordered", "log\n"), ("failures", "log\n"), ("none", "")):
            for announces in (True, False):
                with self.subTest(output=output, announces=announces):
                    console = self.live(output)
                    test = a_test(label="x.py", stem=f"{output}{announces}", announces=announces)
                    self.append(test, b"log\n")
                    self.launch(console, test, "0")
                    console.concluded(Result(test, Outcome.FAILED, 1.0, 1, lease_on("0")))
                    self.assertEqual(self.told(), log + "Error: sub-test failed: x.py\n" * announces)

    def test_what_the_log_does_not_tell_is_on_stderr(self) -> None:
        """For a script; what a list runs is summed up there."""
        console = self.console("none", [], 1, has_markers=False, sums_up=False)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            console.concluded(Result(a_test(1), Outcome.UNRUNNABLE, reason="needs 3 GPUs"))
            console.concluded(Result(a_test(3), Outcome.FAILED, 1.0, 1))
            console.announced(self.attempt(a_test(5), "0", seconds=5.0))
        self.assertEqual(re.sub("(?m)^run_tests.py: ", "", errors.getvalue()), (
            "tests.txt:2: t1 unrunnable: needs 3 GPUs\nSlow: t5 [5.0s; its log is empty]\n"))
        self.assertEqual(self.told(), "")


class SummaryTest(ConsoleCase):
    maxDiff = None

    def test_all_kinds_of_lines(self) -> None:
        self.parallel()
        tests = [a_test(index, f"{letter}.py", stem=letter) for index, letter in enumerate("abcdefghijkl")]
        oom = Cause("CUDA out of memory", line="CUDA out of memory. Tried to allocate 2 GiB")
        results = [
            self.passed(tests[0]),
            Result(tests[1], Outcome.FAILED, 12.34, 1, lease_on("0"), cause=oom),
            Result(tests[2], Outcome.CRASHED, 2.0, 139, lease_on("0"), cause=Cause("segmentation fault")),
            Result(tests[3], Outcome.TIMEOUT, 60.0, -9, lease_on("0"), cause=Cause("timeout")),
            Result(tests[4], Outcome.UNRUNNABLE, reason="needs 4 GPUs, more than there are"),
            Result(tests[5], Outcome.INTERRUPTED, 0.5, -2, lease_on("0")),
            Result(tests[6], Outcome.NOT_RUN),
            Result(tests[7], Outcome.PASSED, 1.0, 0, lease_on("0"), reason="without its JUnit file (truncated)"),
            Result(tests[8], Outcome.FLAKY, 1.0, 0, lease_on("0"), 2, leaked=("sleep (pid 7)",)),
            Result(tests[9], Outcome.FAILED, 1.0, 5, lease_on("0"), cause=oom, leaked=("a (pid 8)", "b (pid 9)")),
            Result(tests[10], Outcome.CRASHED, 1.0, -9, lease_on("0"), reason="OOM killer", cause=run_tests.OOM_KILLED),
            Result(tests[11], Outcome.BLOCKED, reason="waits for b.py, which did not pass"),
            Result(a_test(12), Outcome.DEFERRED, reason="--only"),      # another line accounts for these
            Result(a_test(14, "o.py", stem="o"), Outcome.KNOWN, 1.0, 1, lease_on("0"), reason="issue 7, k:1"),
            self.passed(a_test(15, "p.py"))._replace(reason="passes, though known to fail (so)"),
            Result(a_test(13, "n.py", stem="n"), Outcome.SKIPPED, 1.0, 77, lease_on("0"), junit_fault="missing"),
        ]
        schedule = run_tests.Schedule([], run_tests.Pool(self.machine.devices, 1),
                                      run_tests.Options(("t",)))
        schedule.results = {result.test: [result] for result in results}
        schedule.sick = [run_tests.Sick(Device(1, "4"), "uncorrectable ECC error in b.py")]
        lines = run_tests.summary([[result] for result in results], 61.0, schedule, self.record)
        lines = [line for line in lines if not line.startswith(("Rerun: ", "Alone: "))]
        self.assertEqual("\n".join(lines) + "\n", f"""\
failed, exit 1, 12.3s: b.py ({self.logs}/b.log)
    CUDA out of memory. Tried to allocate 2 GiB
crashed (SIGSEGV), 2.0s: c.py ({self.logs}/c.log)
    segmentation fault
timeout, 60.0s: d.py ({self.logs}/d.log)
unrunnable: e.py
    needs 4 GPUs, more than there are
interrupted, 0.5s: f.py ({self.logs}/f.log)
without its JUnit file (truncated): h.py
flaky, 1.0s: i.py ({self.logs}/i.attempt1.log)
leaked: 1 process: i.py left sleep (pid 7)
failed, exit 5, 1.0s: j.py ({self.logs}/j.log)
    CUDA out of memory. Tried to allocate 2 GiB
leaked: 2 processes: j.py left a (pid 8), b (pid 9)
crashed (SIGKILL, OOM killer), 1.0s: k.py ({self.logs}/k.log)
blocked: l.py
    waits for b.py, which did not pass
failed as known, exit 1, issue 7, k:1, 1.0s: o.py ({self.logs}/o.log)
passes, though known to fail (so): p.py
skipped, exit 77, 1.0s: n.py ({self.logs}/n.log)
7 failures by cause:
    2 x CUDA out of memory: b.py, j.py
    1 x segmentation fault: c.py
    1 x timeout: d.py
    1 x needs 4 GPUs, more than there are: e.py
    1 x out of memory (the kernel's OOM killer): k.py
    1 x waits for b.py, which did not pass: l.py
quarantined: GPU 4 (uncorrectable ECC error in b.py)
slowest: d.py 1:00, b.py 12.3s, c.py 2.0s, a.py 1.0s, h.py 1.0s
15 tests in 61.0s on 2 GPU(s): 3 passed, 1 flaky, 1 skipped, 1 failed as known, \
2 failed, 2 crashed, 1 timeout, 1 blocked, 1 unrunnable, \
1 interrupted, 1 not run
""")

    def last(self, words: str, signals: Sequence[int] = (), failure: str = "", flaky: str = "pass") -> List[str]:
        """The last lines of a run with these outcomes."""
        results = [Result(a_test(index, f"t{index}.py"), Outcome(word)) for index, word in enumerate(words.split(","))]
        schedule = run_tests.Schedule([], run_tests.Pool([]), run_tests.Options((), flaky=flaky))
        for signum in signals:
            schedule.step(run_tests.Interrupt(signum), 0.0)
        schedule.failure, schedule.is_overdue = failure, failure == "--deadline"
        if schedule.is_overdue:
            schedule.failure = ""
        return run_tests.verdict_of(results, schedule)[1]

    def test_the_last_lines(self) -> None:
        error = "Error in the following test cases: "
        cases: List[Any] = [
            ("passed,flaky,deferred", [], "", ["All tests passed"]), ("deferred,deferred", [], "", ["No test ran"]),
            ("passed,skipped,deferred", [], "", ["All tests passed; 1 skipped"]),
            ("skipped,skipped,deferred", [], "", ["No test ran; 2 skipped"]),
            ("skipped,failed", [], "", [error + "t1.py"]),
            ("failed,passed,crashed,timeout,blocked,unrunnable,not run", [], "",
             [error + "t0.py t2.py t3.py t4.py t5.py"]),
            ("interrupted,not run,not run", [2], "", ["Interrupted by SIGINT: 1 interrupted, 2 not run"]),
            ("passed,interrupted,interrupted", [15, 2], "", ["Interrupted by SIGTERM: 2 interrupted"]),
            ("passed", [1], "", ["Interrupted by SIGHUP: no test was running or waiting"]),
            ("failed,interrupted", [2], "", ["Interrupted by SIGINT: 1 interrupted", error + "t0.py"]),
            ("failed,not run", [], "no log\nno", ["Stopped, the machine failed: no log: 1 not run", error + "t0.py"]),
            ("passed,interrupted,not run", [], "--deadline", ["Ended by --deadline: 1 interrupted, 1 not run"]),
        ]
        for words, signals, failure, expected in cases:
            with self.subTest(words, signals=signals):
                self.assertEqual(self.last(words, signals, failure), expected)
        self.assertEqual(self.last("passed,flaky", flaky="fail"), [error + "t1.py"])

    def test_a_wait_is_part_of_the_bound(self) -> None:
        """What stands above it and below it has to run one after the other, however many GPUs there are."""
        above, below, beside = (a_test(number, barrier=barrier) for number, barrier in enumerate((0, 1, 1)))
        self.assertEqual(run_tests.shortest({above: 2.0, below: 3.0, beside: 1.0}, 4, 1), 5.0)

    def test_no_bound_is_told_where_a_gpu_was_lost(self) -> None:
        """For two tests of 1 s in 1 s, what is left of two GPUs would take 2 s."""
        devices = [Device(0, "0"), Device(1, "1")]
        pool = run_tests.Pool(devices)
        attempts = [[Result(a_test(number), Outcome.PASSED, 1.0, 0, Lease((devices[number],), number))]
                    for number in (0, 1)]
        self.assertIn("no order takes less than 1.0s", "".join(run_tests.figures(attempts, 1.0, pool)))
        pool.quarantine(devices[1])
        self.assertNotIn("no order", "".join(run_tests.figures(attempts, 1.0, pool)))

    def test_no_test_had_all_gpus_where_one_was_lost(self) -> None:
        """With two of three GPUs it ran beside others, until the third was lost."""
        devices = [Device(number, str(number)) for number in range(3)]
        pool = run_tests.Pool(devices)
        attempts = [[Result(a_test(number), Outcome.PASSED, 1.0, 0, Lease(tuple(devices[:number]), number))]
                    for number in (1, 2, 3)]
        self.assertIn("had all GPUs: t3", [*run_tests.figures(attempts, 1.0, pool)])
        pool.quarantine(devices[2])
        self.assertEqual(len([*run_tests.figures(attempts, 1.0, pool)]), 1)

    def test_no_gain_is_told_where_there_is_none(self) -> None:
        """Tests of milliseconds say nothing of what many GPUs are good for."""
        pool = run_tests.Pool([Device(0, "0"), Device(1, "1")])
        for test_s in (0.01, 0.04):
            attempts = [[Result(a_test(number), Outcome.PASSED, test_s, 0)] for number in (0, 1)]
            self.assertNotIn("times as fast", "".join(run_tests.figures(attempts, 0.05, pool)))

    def test_a_list_from_a_pipe_cannot_be_had_again(self) -> None:
        for word, count in (("tests.txt", 2), ("-", 0), ("/dev/fd/63", 0), ("--only=/dev/fd/63", 0), ("/dev/stdin", 0)):
            options = run_tests.Options(lists=(), command=("run_tests.py", word))
            self.assertEqual(len([*run_tests.again([Result(a_test(), Outcome.FAILED, status=1)], options)]), count)

    def test_it_is_called_as_it_was(self) -> None:
        """Of what pip has installed, another Python may know nothing."""
        installed = os.path.join(self.folder, "b in")
        os.symlink("/bin/true", installed)
        for program, called in (("qa/run_tests.py", "python3 qa/run_tests.py "), (installed, f"'{installed}' "),
                                ("ci/runner", "python3 ci/runner ")):
            options = run_tests.Options(lists=(), command=(program, "tests.txt"))
            said = run_tests.again([Result(a_test(), Outcome.FAILED, status=1)], options)
            self.assertEqual([f": {called}" in line for line in said], [True, True])
            with mock.patch.dict(os.environ, XML_LOG_DIR="x ml"):    # where the records of the run are
                said = run_tests.again([Result(a_test(), Outcome.FAILED, status=1)], options)
                self.assertEqual([f": XML_LOG_DIR='x ml' {called}" in line for line in said], [True, True])

    def test_what_fail_fast_has_left_out_is_told(self) -> None:
        schedule = run_tests.Schedule([], run_tests.Pool([]), run_tests.Options((), fail_fast=True))
        schedule.stop()
        results = [Result(a_test(0), Outcome.FAILED), Result(a_test(1), Outcome.NOT_RUN)]
        self.assertEqual(run_tests.verdict_of(results, schedule)[1][0], "Stopped by --fail-fast: 1 not run")


class ReplayTest(GatedCase):

    def test_a_large_log_takes_no_memory(self) -> None:
        """On one GPU; on several, where logs are replayed: `test_faults_runner.py`."""
        self.write("tests.txt", f"head -c {LOG_BYTES} /dev/zero\n")
        # A process of its own starts the runner: a child's peak counts from its fork, in our size.
        ran = subprocess.run([sys.executable, "-S", "-c", MEASURE, *self.command("tests.txt")], cwd=self.folder,
                             env=self.environment("0", {}), check=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE)
        count, peak, code = map(int, ran.stdout.split())
        self.assertEqual(code, 0)
        self.assertGreater(count, LOG_BYTES)
        self.assertLess(peak, MOST_BYTES)


if __name__ == "__main__":
    unittest.main()
