"""Why tests failed, as section 7 reads it from logs and section 9 sums it up: real lines, real tails, hostile ones."""
from __future__ import annotations

import contextlib
import os
import re
import signal
import unittest
from typing import Any, Dict, Iterator, List, Tuple

import run_tests
from run_tests import SIGNATURES, Blame, Cause, Job, Outcome, Result, diagnose, normalise
from tests.support import ROOT, RunnerCase, a_test

LINES = os.path.join(ROOT, "tests", "fixtures", "causes.tsv")
TAILS = os.path.join(ROOT, "tests", "fixtures", "tails.txt")
CPU_S = 20                       # thousands of times what a log takes
KNOWN = [text for _, text, _ in SIGNATURES]


def recorded() -> Iterator[Tuple[str, str, str]]:
    """Cause, line and source of each line of the fixture."""
    with open(LINES, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("# "):
                cause, said, source = line.rstrip("\n").split("\t")
                yield cause, said, source


class SignatureTest(unittest.TestCase):
    def test_each_cause_is_found_in_what_was_recorded(self) -> None:
        seen = set()
        for cause, said, source in recorded():
            seen.add(cause)
            if cause != "none":
                with self.subTest(said, source=source):
                    self.assertEqual(diagnose(1, f"some\nlines\n{said}\nand more\n").text, cause)
        self.assertEqual(seen, {*KNOWN, "none"})

    def test_what_only_looks_like_one_is_none(self) -> None:
        for cause, said, _ in recorded():
            if cause == "none":
                with self.subTest(said):
                    self.assertNotIn(diagnose(1, said + "\n").text, KNOWN)

    def test_whose_failure_each_is(self) -> None:
        blames = {"uncorrectable ECC error": Blame.DEVICE, "GPU fallen off the bus": Blame.DEVICE,
                  "driver older than the runtime": Blame.MACHINE, "no usable GPU": Blame.MACHINE,
                  "unspecified launch failure": Blame.STARTUP}
        self.assertEqual({text: blame for _, text, blame in SIGNATURES if blame is not Blame.TEST}, blames)
        for cause, said, _ in recorded():
            if cause != "none":
                self.assertIs(diagnose(1, said).blame, blames.get(cause, Blame.TEST), said)

    def test_the_cause_comes_before_what_follows_from_it(self) -> None:
        """Each of two lines alone is a cause; of both, in either order, the first one here is."""
        cases = [
            ("CUDA error: uncorrectable ECC error encountered", "RuntimeError: No CUDA GPUs are available"),
            ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "CUDA error: unspecified launch failure"),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
             "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"),
            ("RuntimeError: CUDA error: device-side assert triggered", "Fatal Python error: Segmentation fault"),
            ("OSError: [Errno 98] Address already in use", "DistStoreError: Timed out after 1801 seconds"),
            ("std::bad_alloc: out_of_memory: CUDA error at: /x.hpp:60: cudaErrorMemoryAllocation out of memory",
             "E   MemoryError"),
            ("E   ModuleNotFoundError: No module named 'flash_attn'", "===== no tests ran in 0.10s ====="),
        ]
        for cause, consequence in cases:
            with self.subTest(cause):
                first, second = diagnose(1, cause), diagnose(1, consequence)
                self.assertNotEqual(first, second)
                for log in (f"{cause}\n{consequence}\n", f"{consequence}\n{cause}\n"):
                    self.assertEqual(diagnose(1, log), first)

    def test_lines_that_quote_are_passed_over(self) -> None:
        said = "CUDA out of memory"
        quotes = (f"test_x.py::test_{said} PASSED [ 3%]", f">       raise RuntimeError('{said}')", f"+ echo {said}",
                  f"MESSAGE='{said}'", f"x.py:3: UserWarning: {said}", f"[       OK ] {said}", f"[ RUN      ] {said}",
                  f"t.py::test_{said} SKIPPED", f"t.py::test_{said} XFAIL")
        for quote in quotes:
            with self.subTest(quote):
                self.assertEqual(diagnose(3, quote).text, "exit status 3, without output")
                self.assertEqual(diagnose(3, f"{quote}\nAssertionError: told\n").text, "AssertionError: told")
        for error in (f"E   {said}", f"E       RuntimeError: {said}", f"FAILED t.py::a - {said}", f"\x1b[1mE {said}"):
            self.assertEqual(diagnose(3, error).text, said)


class TailTest(unittest.TestCase):
    """The ends of real logs, and the line of each that a human would call the cause."""

    def test_what_a_human_would_say(self) -> None:
        with open(TAILS, encoding="utf-8") as file:
            tails = re.findall(r"^#### (.*) \| (\d+) \| (.*)\n((?:(?!####).*\n)*)", file.read(), re.MULTILINE)
        self.assertGreater(len(tails), 12)
        for name, status, cause, log in tails:
            with self.subTest(name):
                self.assertEqual(diagnose(int(status), log).text, cause)

    def test_a_death_is_told_where_the_log_does_not(self) -> None:
        cases = {(-11, ""): "segmentation fault", (139, "Error: x"): "segmentation fault",
                 (-6, ""): "killed by SIGABRT", (137, "all well"): "killed by SIGKILL",
                 (-9, "CUDA out of memory"): "CUDA out of memory",
                 (1, ""): "exit status 1, without output", (5, " \n\x1b[0m\n"): "exit status 5, without output",
                 (0, ""): "exit status 0, without output"}
        for (status, log), cause in cases.items():
            with self.subTest(status=status, log=log):
                self.assertEqual(diagnose(status, log), Cause(cause))

    def test_a_line_is_read_beyond_what_is_shown_of_it(self) -> None:
        far = "x" * run_tests.LINE_CHARS + " RuntimeError: CUDA error: uncorrectable ECC error encountered"
        self.assertEqual(diagnose(1, far).blame, Blame.DEVICE)
        self.assertLessEqual(len(diagnose(1, "Error " + "x " * 10_000).text), run_tests.LINE_CHARS)


class NormaliseTest(unittest.TestCase):
    def test_two_runs_of_one_failure_are_one_cause(self) -> None:
        cases = [
            ("No such file: '/tmp/tmpab1_x/out.txt'", "No such file: '/tmp/pytest-of-root/pytest-17/out0.txt'"),
            ("cannot open ./build/a.so", "cannot open ../out-2/a.so"), ("in ~/a/b.py", "in ~/c/d.py"),
            ("<Tensor at 0x7f036ec19b80> is gone", "<Tensor at 0x55b017570c40> is gone"),
            ("Process 4101543 has 39.37 GiB in use", "Process 812 has 5.4 GiB in use"),
            ("worker (pid 325) exited", "worker (pid 46794) exited"),
            ("E1016 03:31:38.928 lost", "E0102 23:00:01.000 lost"),
            ("relative error 1.5e-05 (limit 0.001)", "relative error 0.3 (limit 0.001)"),
            ("commit 3f2a9c1b77 differs", "commit 0b1c2d3e4f5a differs"),
            ("at localhost:29500", "at localhost:41234"), ("took 12.3s", "took 9s"),
            ("GPU-004f693d-767b-b215-b4a9-a18af0ffd643 is busy", "GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7 is busy"),
            ("key 550e8400-e29b-41d4-a716-446655440000", "key 1f0c2a9e-0b1c-4d2e-8f3a-9b8c7d6e5f40"),
        ]
        for one, other in cases:
            with self.subTest(one):
                self.assertNotEqual(one, other)
                self.assertEqual(normalise(one), normalise(other))

    def test_different_failures_are_two(self) -> None:
        cases = [("KeyError: 'a'", "KeyError: 'b'"), ("assert a == b", "assert a != b"),
                 ("AssertionError: x", "ValueError: x"), ("loss is nan", "loss is inf"),
                 ("no module named flash_attn", "no module named apex"), ("failed in test_a.py", "failed in test_b.py"),
                 ("the feed failed", "the face failed"), ("cannot read x", "cannot write x")]
        for one, other in cases:
            with self.subTest(one):
                self.assertNotEqual(normalise(one), normalise(other))

    def test_what_it_makes_of_a_line(self) -> None:
        cases = {"": "", "plain words": "plain words", "a/b stays": "a/b stays", "(/tmp/x)": "(PATH)", "/": "/",
                 "x=1.25, y=-3": "x=N, y=-N", "v1.2.3": "vN", "0xdeadbeef": "ID", "deadbeef": "deadbeef",
                 "file:///tmp/x:12": "file:///tmp/x:N", "tests/a.py:7: x": "tests/a.py:N: x"}
        for line, expected in cases.items():
            with self.subTest(line):
                self.assertEqual(normalise(line), expected)

    def test_once_is_enough(self) -> None:
        for _, said, _ in recorded():
            self.assertEqual(normalise(normalise(said)), normalise(said))


class CostTest(unittest.TestCase):
    """Logs that backtracking would choke on, as large as what is read of a log."""

    PIECES = ["x", "\n", " ", "a/", "/a", "/", "::", ":", ".", "..", "A.", "A", "Error", "Error ", "E   ", "E   \n",
              "0", "1.", "1e", "a1", "0x", "\x1b[", "\x1b]", "\x1b", "\x1b[0m", "NCCL ", "NCCL time", "_", "- ", "(",
              "é", "\0", "\r", "CUDA ", "Resource exhausted: ", "Cuda failure ", "\u2028", "=", "A.B.", "\t", "+ ",
              "cudaErrorMemoryAllocation ", "x" * 199 + "\n", "E       \n", "Segmentation fault", "error\n", "a.A::",
              "1 failed ", ": line 1: ", "E assert ", "12345678-"]

    def setUp(self) -> None:
        self.piece = ""

        def give_up(_signum: int, _frame: Any) -> None:
            raise AssertionError(f"many of {self.piece!r} take for ever")
        before = signal.signal(signal.SIGVTALRM, give_up)
        self.addCleanup(signal.signal, signal.SIGVTALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_VIRTUAL, 0)

    def test_no_log_costs_much(self) -> None:
        for piece in self.PIECES:
            self.piece, log = piece, piece * (run_tests.CAUSE_BYTES // len(piece.encode()))
            for text in (log, log + "\nError", "Error " + log):
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
                cause = diagnose(1, text)
                self.assertEqual(re.findall(r"^$|[\x00-\x1f\x7f]", cause.text), [], piece)
                self.assertLessEqual(len(run_tests.last_line(text)), run_tests.LINE_CHARS)
                normalise(text)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class FindCauseTest(RunnerCase):
    def job(self, log: str, oom_kills: int) -> Job:
        return Job("bash", [], {}, log, oom_kills)

    def test_only_the_end_of_a_log_counts(self) -> None:
        most = run_tests.CAUSE_BYTES
        for size, cause in ((most - 100, "no space left on device"), (most, "exit status 1, last line: the end")):
            log = self.write("x.log", "No space left on device\n" + "x" * size + "\nthe end\n")
            self.assertEqual(run_tests.find_cause(1, self.job(log, 0)).text, cause)

    def test_a_log_that_is_gone_or_no_text(self) -> None:
        gone = self.job(os.path.join(self.folder, "gone"), 0)
        self.assertEqual(run_tests.find_cause(3, gone).text, "exit status 3, without output")
        with open(os.path.join(self.folder, "x.log"), "wb") as file:
            file.write(b"\377\376 error \0 \303\n")
        self.assertIn("error", run_tests.find_cause(3, self.job(file.name, 0)).text)

    def test_the_oom_killer_has_killed_since(self) -> None:
        log, now = self.write("x.log", "CUDA out of memory\n"), run_tests.oom_kills()
        cases = {(-9, now - 1): run_tests.OOM_KILLED.text, (137, now - 1): run_tests.OOM_KILLED.text,
                 (-9, now + 1000): "CUDA out of memory", (1, now - 1): "CUDA out of memory"}
        for (status, before), cause in cases.items():
            with self.subTest(status=status):
                self.assertEqual(run_tests.find_cause(status, self.job(log, before)).text, cause)

    def test_kills_are_counted_in_files_of_each_form(self) -> None:
        files = {"vmstat": ("pgfault 12\noom_kill 5\nnuma_hit 7\n", 5),
                 "memory.events": ("low 0\noom 9\noom_kill 3\noom_group_kill 1\n", 3),
                 "memory.oom_control": ("oom_kill_disable 0\nunder_oom 1\noom_kill 2\n", 2),
                 "of an old kernel": ("oom_kill_disable 0\nunder_oom 0\n", 0), "empty": ("", 0)}
        paths = [self.write(name, text) for name, (text, _) in files.items()]
        for path, (_, count) in zip(paths, files.values()):
            with self.subTest(path):
                self.assertEqual(run_tests.oom_kills([path]), count)
        self.assertEqual(run_tests.oom_kills([*paths, self.folder, self.folder + "/gone"]), 10)

    def test_the_files_of_this_cgroup(self) -> None:
        for path in run_tests.own_cgroup_files():
            self.assertRegex(path, r"^/sys/fs/cgroup(/.*)?/memory\.(events|oom_control)$")
        self.assertGreaterEqual(run_tests.oom_kills(), 0)

    def test_room_on_a_disk(self) -> None:
        self.assertFalse(run_tests.is_full(os.path.join(self.folder, "x.log")))
        self.assertFalse(run_tests.is_full(os.path.join(self.folder, "gone", "x.log")))
        with contextlib.suppress(FileNotFoundError):
            self.assertFalse(run_tests.is_full("/proc/self/status"), "a file system without blocks is not full")


class SummaryTest(unittest.TestCase):
    """`N failures by cause:` at the end of a trace."""

    def lines(self, *ends: Tuple[str, Outcome, str, str]) -> List[str]:
        """From label, outcome, cause and reason."""
        return list(run_tests.causes(Result(a_test(index, label), outcome, cause=Cause(cause), reason=reason)
                                     for index, (label, outcome, cause, reason) in enumerate(ends)))

    def failed(self, label: str, cause: str) -> Tuple[str, Outcome, str, str]:
        return label, Outcome.FAILED, cause, ""

    def test_nothing_where_nothing_failed(self) -> None:
        self.assertEqual(self.lines(), [])
        others = (Outcome.PASSED, Outcome.FLAKY, Outcome.DEFERRED, Outcome.INTERRUPTED, Outcome.NOT_RUN)
        self.assertEqual(self.lines(*((outcome.value, outcome, "why", "") for outcome in others)), [])

    def test_the_most_frequent_comes_first_and_of_equals_the_first_in_the_list(self) -> None:
        self.assertEqual(self.lines(self.failed("a", "x"), self.failed("b", "y"), self.failed("c", "z"),
                                    self.failed("d", "y"), ("e", Outcome.PASSED, "", ""), self.failed("f", "z")),
                         ["5 failures by cause:", "    2 x y: b d", "    2 x z: c f", "    1 x x: a"])

    def test_one_failure_is_one(self) -> None:
        self.assertEqual(self.lines(self.failed("a", "x")), ["1 failure by cause:", "    1 x x: a"])

    def test_where_there_is_no_cause_the_reason_is_one(self) -> None:
        self.assertEqual(self.lines(("w", Outcome.UNRUNNABLE, "", "needs 9 GPUs, more than there are"),
                                    ("b", Outcome.BLOCKED, "", "waits for w, which did not pass"),
                                    ("t", Outcome.TIMEOUT, "timeout", "did not end in 5s"),
                                    ("u", Outcome.TIMEOUT, "timeout", "did not end in 9s")),
                         ["4 failures by cause:", "    2 x timeout: t u",
                          "    1 x needs 9 GPUs, more than there are: w", "    1 x waits for w, which did not pass: b"])

    def test_ten_are_named(self) -> None:
        names = [f"t{number}" for number in range(12)]
        for count, tail in ((10, ""), (11, " \u2026 with 1 more"), (12, " \u2026 with 2 more")):
            with self.subTest(count=count):
                self.assertEqual(self.lines(*(self.failed(name, "x") for name in names[:count]))[1],
                                 f"{count:5} x x: {' '.join(names[:10])}{tail}")

    def test_the_last_line_of_a_log(self) -> None:
        cases: Dict[str, str] = {
            "": "", "\n\n": "", "one\ntwo": "two", "one\n \n\x1b[0m\n\n": "one", "  a\tb \r\n": "a b",
            "\x1b[1;31mred\x1b(B\x1b[m and \x1b]0;a title\x07plain": "red and plain", "\x1b]2;t\x1b\\x\x1b7y\x1b": "xy",
            "50%\r100%": "100%", "a\x00\x01b\x9b": "a b", "x" * 999: "x" * run_tests.LINE_CHARS,
            "\udcff é": "\udcff é"}
        for text, said in cases.items():
            with self.subTest(text):
                self.assertEqual(run_tests.last_line(text), said)


if __name__ == "__main__":
    unittest.main()
