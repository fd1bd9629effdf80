"""Section 7 with real processes: statuses, groups, signals, leftovers, descriptors, JUnit files, ports."""
from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from typing import Any, Dict, List, Optional, Set, Tuple
from unittest import mock

import run_tests
from run_tests import Broken, Exited, Job, Launch, Lease, Process, Reaper, Started, run_job
from tests.support import Ran, RunnerCase, a_test

WAIT_S = 60.0                   # for what takes milliseconds
ENDING = b"run_tests.py: SIGTERM: ending the running tests; once more kills them\n"


class Fifo:
    """A FIFO whose end here never blocks: the process on the other side opens it when it likes."""

    def __init__(self, case: RunnerCase, name: str) -> None:
        self.path = os.path.join(case.folder, name)
        os.mkfifo(self.path)
        self.end = os.open(self.path, os.O_RDWR)
        case.addCleanup(os.close, self.end)

    def lines(self, count: int = 1) -> List[bytes]:
        """The next lines that processes write to it."""
        text = b""
        while text.count(b"\n") < count:
            ready, _, _ = select.select([self.end], [], [], WAIT_S)
            if not ready:
                raise AssertionError(f"nobody writes to {self.path} after {text!r}")
            text += os.read(self.end, 4096)
        return text.splitlines()

    def release(self) -> None:
        """One line for the process that waits for it."""
        os.write(self.end, b"go\n")


class GatedCase(RunnerCase):
    """A test case whose runners wait at FIFOs; where an assertion fails meanwhile, they are ended."""

    def start(self, *arguments: str, **changes: Any) -> "subprocess.Popen[bytes]":
        process = super().start(*arguments, **changes)
        self.addCleanup(self.stop, process)
        return process

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            process.terminate()          # it ends its tests
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()

    def read_until(self, process: "subprocess.Popen[bytes]", text: bytes) -> bytes:
        """What a runner prints, until a text has come."""
        assert process.stdout is not None
        data = b""
        while text not in data:
            ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
            more = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not more:
                self.fail(f"{text!r} never comes after {data!r}")
            data += more
        return data


class Lifeline:
    """A pipe that processes inherit; it is at its end once none of them is left."""

    def __init__(self, case: RunnerCase) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_inheritable(self.write_end, True)
        os.set_blocking(self.read_end, False)
        case.addCleanup(os.close, self.read_end)

    def let_go(self) -> None:
        """We no longer hold it: those who inherited it do."""
        os.close(self.write_end)

    def is_cut(self) -> bool:
        try:
            return os.read(self.read_end, 1) == b""
        except BlockingIOError:
            return False


class ProcessCase(RunnerCase):
    """A test case that is a runner: it has a reaper, to which it gives jobs of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.reaper = Reaper()
        self.reaper.post_guard("a run")
        self.addCleanup(ctypes.CDLL(None).prctl, Reaper.ADOPT, 0, 0, 0, 0)
        self.addCleanup(self.reaper.close)
        self.health = run_tests.Health(run_tests.Machine())

    def job(self, script: str, junit: Optional[str] = None, log: str = "test.log", label: str = "t0",
            **changes: Any) -> Job:
        """A job in this test's folder."""
        environment = {**os.environ, "HERE": self.folder, "RUN_TESTS_RUN": "a run", "RUN_TESTS_LABEL": label,
                       "RUN_TESTS_ATTEMPT": "1"}
        job = Job(shutil.which("bash") or "", ["-c", script, "tests.txt"], environment, os.path.join(self.folder, log),
                  run_tests.oom_kills())
        self.launch = Launch(a_test(label=label, junit=junit), Lease((), 0), 1)
        return job._replace(**changes)

    def process(self, script: str, **job: Any) -> Process:
        """A process for a script; killed if the test fails meanwhile."""
        made = self.job(script, **job)
        log = run_tests.open_log(made.log)
        try:
            process = Process(made, self.reaper, log)
        finally:
            os.close(log)
        self.addCleanup(process.popen.wait)
        self.addCleanup(process.signal, signal.SIGKILL)
        return process

    def log(self, name: str = "test.log") -> bytes:
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def events(self, job: Job) -> List[Any]:
        """What run_job posts."""
        posted: List[Any] = []
        run_job(self.launch, job, self.reaper, self.health, posted.append)
        return posted


class StatusTest(ProcessCase):
    def test_exit_status_or_death(self) -> None:
        cases = {
            "true": 0, "exit 3": 3, "false": 1, "no_such_command_at_all": 127, "/": 126, "exit 255": 255,
            "kill -KILL $$": -9, "ulimit -c 0; kill -SEGV $$": -11, "kill -TERM $$": -15,
            "bash -c 'kill -KILL $$'; exit": 137, "(kill -TERM $BASHPID); exit $?": 143, "(exit 200)": 200,
        }
        for script, status in cases.items():
            with self.subTest(script):
                started, exited = self.events(self.job(script))
                self.assertIsInstance(started, Started)
                self.assertIsInstance(exited, Exited)
                self.assertEqual((exited.status, exited.junit_fault), (status, ""))
                self.assertIs(exited.test, started.test)
                self.assertLessEqual(started.at, exited.at)

    def test_closing_the_streams_is_no_end(self) -> None:
        status, leaked, lifeline = self.run_with_lifeline('exec >&- 2>&- <&-; bash -c ": >$HERE/done"; exit 4')
        self.assertEqual((status, leaked, lifeline.is_cut(), self.log(), self.log("done")), (4, [], True, b"", b""))

    def run_with_lifeline(self, script: str) -> Tuple[int, List[str], Lifeline]:
        """Exit status, the names of what was left, and a lifeline of all processes."""
        lifeline = Lifeline(self)
        process = self.process(script)
        lifeline.let_go()
        status, leaked = process.wait()
        return status, sorted(info.name for info in leaked), lifeline

    def test_what_is_left_is_killed_and_named(self) -> None:
        cases = {
            "one": ("sleep 1000 & exit 3", "sleep"),
            "a tree": ("(sleep 1000 & sleep 1000 & wait) & (sleep 1000 &) ; exit 3", "bash sleep sleep sleep"),
            "one that ignores signals": ("(trap '' TERM INT HUP; sleep 1000; sleep 1000) & exit 3", "bash sleep"),
            "one that is stopped": ("sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $!; exit 3",
                                    "sleep"),
            "one in a session of its own": ("setsid sleep 1000 & exit 3", "sleep"),
            "a daemon": ("(setsid bash -c 'sleep 1000 & exit' &) ; exit 3", "sleep"),
            "one without a mark": ("env -i setsid sleep 1000 & exit 3", "sleep"),
        }
        for name, (script, leaked) in cases.items():
            with self.subTest(name):
                self.assertEqual(self.reaper.orphans() & run_tests.process_table().keys(), set())
                self.assertEqual(self.run_with_lifeline(script)[:2], (3, leaked.split()))

    def test_what_is_left_and_ends_by_itself_is_no_leak(self) -> None:
        """A helper of multiprocessing sees the end of its test, and goes: so does this one, by a pipe."""
        status, leaked, lifeline = self.run_with_lifeline("coproc helper { read line; exec 9>&-; }; exit 3")
        self.assertEqual((status, leaked, lifeline.is_cut()), (3, [], True))

    def test_a_job_that_cannot_be_run_is_broken(self) -> None:
        cases = {
            "no place for the log": ({"log": self.write("file", "") + "/x.log"}, "Not a directory.*/file/x"),
            "a folder in the log's place": ({"log": self.folder}, "Is a directory.*" + self.folder),
            "no bash": ({"bash": self.folder + "/bash"}, "No such file .*/bash"),
            "a fault of our own": ({"environment": {"A": 1}}, "TypeError"),
        }
        for name, (changes, reason) in cases.items():
            with self.subTest(name):
                broken, = self.events(self.job("true", **changes))
                self.assertIsInstance(broken, Broken)
                self.assertRegex(broken.reason, reason)
                self.assertEqual("Traceback" in broken.details, name == "a fault of our own")

    def test_a_folder_for_the_log_that_is_gone_comes_back(self) -> None:
        started, exited = self.events(self.job("echo told", log="gone/far/x.log"))
        self.assertEqual((exited.status, self.log("gone/far/x.log")), (0, b"told\n"))

    def test_a_failure_has_its_cause_and_a_pass_has_none(self) -> None:
        for script, cause in (("echo Fatal error; exit 1", "Fatal error"), ("echo Fatal error", ""),
                              ("kill -KILL $$", "killed by SIGKILL"), ("exit 9", "exit status 9, without output")):
            with self.subTest(script):
                self.assertEqual(self.events(self.job(script))[-1].cause.text, cause)


class GroupTest(ProcessCase):
    def test_a_test_leads_a_session_and_a_group_of_its_own(self) -> None:
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.process('echo $$ >"$HERE/up"; read line <"$HERE/gate"')
        self.assertEqual(up.lines(), [b"%d" % process.pid])
        self.assertEqual((os.getpgid(process.pid), os.getsid(process.pid)), (process.pid, process.pid))
        gate.release()
        self.assertEqual(process.wait(), (0, []))

    def test_a_signal_reaches_the_whole_group(self) -> None:
        up = Fifo(self, "up")
        process = self.process("""
            (trap 'echo inner; exit 0' TERM; sleep 1000 & echo up >"$HERE/up"; wait) &
            trap 'echo outer; wait; exit 7' TERM
            echo up >"$HERE/up"
            wait
        """)
        self.assertEqual(up.lines(2), [b"up", b"up"])
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(), (7, []))
        self.assertEqual(sorted(self.log().splitlines()), [b"inner", b"outer"])

    def test_what_was_asked_to_end_may_take_its_time(self) -> None:
        up, lifeline = Fifo(self, "up"), Lifeline(self)
        process = self.process("""
            (trap 'for ((n = 0; n < 20000; n++)); do :; done; echo ended; exit 0' TERM
             sleep 1000 & echo up >"$HERE/up"; wait) &
            wait
        """)
        lifeline.let_go()
        self.assertEqual(up.lines(), [b"up"])
        process.signal(signal.SIGTERM)       # the outer shell is dead long before the inner one is
        self.assertEqual((process.wait(), lifeline.is_cut()), ((-15, []), True))
        self.assertEqual(self.log(), b"ended\n")

    def test_sigkill_ends_what_does_not_listen(self) -> None:
        cases = {
            "the shell": ("trap '' TERM; echo up >$HERE/up; while :; do sleep 1000; done", -9),
            "its child": ("(trap '' TERM; echo up >$HERE/up; while :; do sleep 1000; done) & wait", -15),
        }
        up = Fifo(self, "up")
        for name, (script, status) in cases.items():
            with self.subTest(name):
                lifeline, statuses = Lifeline(self), []
                process = self.process(script)
                lifeline.let_go()
                self.assertEqual(up.lines(), [b"up"])
                waiter = threading.Thread(target=lambda p=process, s=statuses: s.append(p.wait()), daemon=True)
                waiter.start()
                process.signal(signal.SIGTERM)
                if status == -15:
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                self.assertFalse(lifeline.is_cut())
                process.signal(signal.SIGKILL)
                waiter.join(WAIT_S)
                self.assertEqual((statuses, lifeline.is_cut()), ([(status, [])], True))

    def test_a_signal_after_the_end_is_sent_to_nobody(self) -> None:
        process = self.process("exit 5")
        self.assertEqual(process.wait(), (5, []))
        with mock.patch("os.killpg") as killpg:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGKILL)
        killpg.assert_not_called()

    def test_a_signal_between_the_end_and_wait_is_harmless(self) -> None:
        process = self.process("exit 5")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(), (5, []))


LIE = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b") Z 0 (a\\nb\\x1b", 0, 0, 0)     # PR_SET_NAME
print("named", flush=True)
sys.stdin.read()
"""
LEADERLESS = """
import ctypes, sys, threading
def stay():
    with open("/proc/self/stat", "rb") as file:      # of the whole process, whose first thread is gone by then
        while file.seek(0) or file.read().rpartition(b") ")[2][:1] != b"Z":
            pass
    print("alone", flush=True)
    sys.stdin.read()
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


class ProcessTableTest(RunnerCase):
    """The live processes as /proc shows them."""

    def python(self, program: str) -> "subprocess.Popen[bytes]":
        """A Python that has printed a line and waits for its input to end."""
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None and child.stdout is not None
        for cleanup in (child.stdout.close, child.wait, child.stdin.close):
            self.addCleanup(cleanup)
        child.stdout.readline()
        return child

    def test_what_it_says_of_this_process(self) -> None:
        me = run_tests.process_table()[os.getpid()]
        self.assertEqual((me.pid, me.parent), (os.getpid(), os.getppid()))
        self.assertEqual((me.group, me.session), (os.getpgrp(), os.getsid(0)))
        self.assertEqual(str(me), f"{me.name} (pid {os.getpid()})")
        pid = self.python("import sys; print(flush=True); sys.stdin.read()").pid
        child = run_tests.process_table()[pid]
        self.assertEqual(child.parent, os.getpid())
        self.assertGreaterEqual(child.began, me.began)
        self.assertLessEqual(child.began, time.clock_gettime(time.CLOCK_BOOTTIME))

    def test_a_name_cannot_lie(self) -> None:
        child = self.python(LIE)
        info = run_tests.process_table()[child.pid]
        self.assertEqual((info.name, info.parent, info.group), (") Z 0 (a?b?", os.getpid(), os.getpgrp()))

    def test_the_dead_are_not_in_it(self) -> None:
        child = subprocess.Popen(["true"])
        self.addCleanup(child.wait)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.assertTrue(os.path.exists(f"/proc/{child.pid}/stat"))
        self.assertNotIn(child.pid, run_tests.process_table())

    def test_one_whose_first_thread_has_ended_lives(self) -> None:
        self.assertIn(self.python(LEADERLESS).pid, run_tests.process_table())

    def test_descendants(self) -> None:
        parents = {1: 0, 10: 1, 11: 10, 12: 11, 13: 10, 20: 1, 21: 20, 30: 31, 31: 30}       # pids come round: a circle
        table = {pid: run_tests.ProcessInfo(pid, "x", parent, pid, pid, 0.0) for pid, parent in parents.items()}
        cases = {(): [], (12,): [12], (10,): [10, 11, 12, 13], (11, 10): [10, 11, 12, 13], (13, 20): [13, 20, 21],
                 (99,): [], (99, 21): [21], (30,): [30, 31], (1,): [1, 10, 11, 12, 13, 20, 21]}
        for pids, found in cases.items():
            with self.subTest(pids=pids):
                self.assertEqual([info.pid for info in run_tests.with_descendants(table, pids)], found)


class ReaperTest(ProcessCase):
    """Whose a process is that has left its test."""

    def setUp(self) -> None:
        super().setUp()
        self.up, self.gate = Fifo(self, "up"), Fifo(self, "gate")

    def start(self, label: str, *orphans: str) -> Process:
        """A test that has left these behind, each of which has told its pid, and runs on."""
        leave = "".join(f"({each} bash -c 'echo $$ >$0/up; exec sleep 1000' \"$HERE\" &)\n" for each in orphans)
        process = self.process(leave + 'read line <"$HERE/gate"', label=label, log=label + ".log")
        self.pids = [int(line) for line in self.up.lines(len(orphans))] if orphans else []
        while any(run_tests.process_table()[pid].parent != os.getpid() for pid in self.pids):
            pass                         # those who have started them have still to end
        for pid in self.pids:
            self.addCleanup(run_tests.send, signal.SIGKILL, [run_tests.ProcessInfo(pid, "", 0, 0, 0, 0.0)])
        return process

    def owners(self, *pids: int) -> List[Optional[Process]]:
        table = run_tests.process_table()
        return [self.reaper.owner(table[pid]) for pid in pids]

    def test_one_that_bears_a_mark_is_that_tests(self) -> None:
        first = self.start("a", "setsid", "")
        marked = self.pids
        second = self.start("b", "setsid")
        self.assertEqual(self.owners(*marked, *self.pids), [first, first, second])
        self.assertEqual(self.reaper.unclaimed, set())

    def test_one_without_a_mark_is_that_of_the_only_test_there_was(self) -> None:
        first = self.start("a", "env -i setsid")
        unmarked = self.pids
        self.assertEqual(self.owners(*unmarked), [first])
        self.assertEqual(self.members(first), {first.pid, *unmarked})

    def test_where_it_may_be_of_two_tests_it_is_of_none(self) -> None:
        first, second = self.start("a"), self.start("b", "env -i setsid")
        unmarked, = self.pids
        self.assertEqual((self.owners(unmarked), self.reaper.unclaimed), ([None], {unmarked}))
        self.assertEqual((self.members(first), self.members(second)), ({first.pid}, {second.pid}))

    def test_a_test_that_began_later_has_not_left_it(self) -> None:
        first = self.start("a", "env -i setsid")
        began = run_tests.process_table()[self.pids[0]].began
        second = self.process("read line <$HERE/gate", label="b", log="b.log")
        second.began = began + 1.0       # as it is where tests do not start within one tick of the clock
        self.assertEqual(self.owners(*self.pids), [first])

    def test_another_attempt_of_the_same_test_is_another(self) -> None:
        first = self.start("a", "setsid")
        second = self.process("read line <$HERE/gate", log="b.log")
        second.job = first.job._replace(environment={**first.job.environment, "RUN_TESTS_ATTEMPT": "2"})
        self.assertEqual(self.owners(*self.pids), [first])

    def test_members_are_all_that_came_from_a_test(self) -> None:
        first = self.start("a", "setsid", "env -i setsid", "", "nohup setsid -f")
        self.assertEqual(self.members(first), {first.pid, *self.pids})

    def members(self, process: Process) -> Set[int]:
        """The pids of a test's processes."""
        return {info.pid for info in self.reaper.members(process)}

    def test_what_nobody_claims_is_ended_at_the_close(self) -> None:
        reaper = Reaper()
        reaper.post_guard("another run")
        self.reaper.own |= reaper.own
        attempts = [self.start("a"), self.start("b", "env -i setsid")]
        for attempt in attempts:
            reaper.attempts[attempt.pid] = attempt
            attempt.reaper = reaper
        self.members(attempts[1])
        for attempt in attempts:
            attempt.signal(signal.SIGKILL)
            self.assertEqual(attempt.wait(), (-9, []))
        self.assertEqual([info.pid for info in reaper.close()], self.pids)
        self.assertNotIn(self.pids[0], run_tests.process_table())

    def test_the_guard_is_no_orphan(self) -> None:
        self.assertFalse(self.reaper.has_orphans())
        self.assertEqual(self.process("exit 3").wait(), (3, []))


class StreamsTest(ProcessCase):
    def test_stdin_is_the_null_device(self) -> None:
        self.events(self.job('[ /dev/stdin -ef /dev/null ] && echo null; read line || echo end; cat'))
        self.assertEqual(self.log(), b"null\nend\n")

    def test_the_test_itself_writes_its_log(self) -> None:
        self.events(self.job('cd "$HERE"; [ /dev/stdout -ef test.log ] && [ /dev/stderr -ef test.log ] && echo same'))
        self.assertEqual(self.log(), b"same\n")

    def test_both_streams_come_in_the_order_of_writing(self) -> None:
        self.events(self.job("for n in 1 2 3; do echo out $n; echo err $n >&2; (echo sub $n); done"))
        self.assertEqual(self.log(), b"".join(b"out %d\nerr %d\nsub %d\n" % (n, n, n) for n in (1, 2, 3)))

    def test_bytes_stay_as_they_are(self) -> None:
        self.events(self.job(r"printf '\0\377\r\033[0m\303'"))
        self.assertEqual(self.log(), b"\0\377\r\033[0m\303")

    def test_a_log_of_before_is_replaced(self) -> None:
        for script, expected in (("echo a long first run", b"a long first run\n"), ("echo b", b"b\n"), ("", b"")):
            self.events(self.job(script))
            self.assertEqual(self.log(), expected)

    def test_the_list_is_named_as_bash_names_it(self) -> None:
        self.events(self.job("\n\nno_such_command_at_all; echo $0"))
        self.assertEqual(self.log(), b"tests.txt: line 3: no_such_command_at_all: command not found\ntests.txt\n")


class CommandLineTest(GatedCase):
    def test_each_end_has_its_outcome(self) -> None:
        ran = self.run_list("""
            true           #: label=pass
            exit 3         #: label=three
            kill -KILL $$  #: label=dead
            bash -c 'kill -KILL $$'; exit $?  #: label=dead-within
            sleep 1000     #: label=slow timeout=100ms
            kill -STOP $$  #: label=stopped timeout=100ms
            exec >&- 2>&-  #: label=shut
            read line      #: label=reader
        """, "--grace", "200ms")
        self.check(ran, 1, {"pass": "passed", "three": "failed", "dead": "crashed", "dead-within": "crashed",
                            "slow": "timeout", "stopped": "timeout", "shut": "passed", "reader": "failed"})
        ends = {record["label"]: (record["status"], record["signal"]) for record in ran.journal("test_end")}
        self.assertEqual({label: ends[label] for label in ("pass", "three", "dead", "dead-within", "reader")},
                         {"pass": (0, None), "three": (3, None), "dead": (-9, "SIGKILL"),
                          "dead-within": (137, "SIGKILL"), "reader": (1, None)})

    def test_a_leftover_is_gone_before_the_next_test_starts(self) -> None:
        os.mkfifo(os.path.join(self.folder, "hold"))
        # A FIFO that nobody reads cannot be opened for writing without waiting; the first test's child reads this one.
        self.write("held.py", "import os; os.open('hold', os.O_WRONLY | os.O_NONBLOCK)")
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list(f"""
                    exec 9<>hold; sleep 1000 & exec 9>&-; {sys.executable} held.py  #: label=leaver gpus=all
                    ! {sys.executable} held.py 2>held.err                           #: label=next gpus=all
                """, gpus=gpus)
                self.check(ran, 0, {"leaver": "passed", "next": "passed"})
                self.assertIn("OSError", ran.read("held.err"))

    def test_the_runners_own_input_is_not_the_tests(self) -> None:
        self.write("tests.txt", "cat; echo end\n")
        ran = self.run_command("tests.txt", gpus="0", stdin=b"not for you\n")
        self.assertEqual(ran.out, b"end\nAll tests passed\n")

    def test_descriptors_are_inherited_as_under_bash(self) -> None:
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        self.write("tests.txt", f"echo told >&{write_end}\n")
        process = self.start("tests.txt", pass_fds=[write_end])
        os.close(write_end)
        out, err = process.communicate()
        self.assertEqual((process.returncode, err), (0, b""), out)
        self.assertEqual(os.read(read_end, 100), b"told\n")

    def test_a_change_of_directory_stays_in_its_test(self) -> None:
        os.makedirs(os.path.join(self.folder, "sub"))
        ran = self.run_list("cd sub && pwd  #: label=one\npwd  #: label=two\ncd sub\npwd #: label=three\n")
        self.check(ran, 0, {"one": "passed", "two": "passed", "three": "passed"})
        here = os.path.realpath(self.folder)
        for name, expected in (("one", here + "/sub"), ("two", here), ("three", here + "/sub")):
            self.assertEqual(os.path.realpath(ran.read("logs", name + ".log").strip()), expected)
        self.assertEqual(os.listdir(ran.path("sub")), [])

    def test_an_interrupt_ends_all_that_runs(self) -> None:
        up, lifeline = Fifo(self, "up"), Lifeline(self)
        self.write("tests.txt", "echo up >up; sleep 1000  #: label=a\necho up >up; sleep 1000  #: label=b\ntrue\n")
        process = self.start("tests.txt", pass_fds=[lifeline.write_end])
        lifeline.let_go()
        up.lines(2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
        self.assertEqual((process.returncode, b"Traceback" in err), (128 + signal.SIGTERM, False), err)
        self.assertTrue(out.endswith(b"\nInterrupted by SIGTERM: 2 interrupted, 1 not run\n"), out)
        self.assertTrue(lifeline.is_cut())

    def test_a_second_interrupt_does_not_wait(self) -> None:
        up, lifeline = Fifo(self, "up"), Lifeline(self)
        Fifo(self, "gate")
        self.write("tests.txt", "trap 'echo asked >up; read line <gate' TERM; sleep 1000 & echo up >up; wait\n")
        process = self.start("--grace", "1h", "tests.txt", gpus="0", pass_fds=[lifeline.write_end])
        lifeline.let_go()
        self.assertEqual(up.lines(), [b"up"])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(up.lines(), [b"asked"])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        self.assertEqual((process.returncode, b"Traceback" in err), (128 + signal.SIGTERM, False), err)
        self.assertEqual(out.splitlines()[-1:], [b"Interrupted by SIGTERM: 1 interrupted"])
        self.assertTrue(lifeline.is_cut())

    def test_a_log_that_cannot_be_opened_ends_the_run(self) -> None:
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.run_list("rm -r logs; touch logs  #: label=a\nwait\ntrue  #: label=b\ntrue  #: label=c\n",
                                    "--journal", f"{gpus}.jsonl", gpus=gpus)
                self.assertEqual(ran.code, 3)
                self.assertNotIn("Traceback", ran.err)
                self.assertRegex(ran.text.splitlines()[-1], r"^Stopped, the machine failed: .*\b[bc]\b.*"
                                 r"Not a directory: 'logs/[bc]\.log'.*: 2 not run$")
                os.unlink(ran.path("logs"))
                ends = ran.journal("test_end", path=f"{gpus}.jsonl")
                self.assertEqual({end["label"]: end["outcome"] for end in ends},
                                 {"a": "passed", "b": "not run", "c": "not run"})


    def test_a_retry_that_does_not_come_is_journaled_once(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "false #: label=d lock=x after=e\ntrue #: label=e\n"
                                "read line <gate; false #: label=a lock=x retries=1\n")
        process = self.start("--fail-fast", "--order", "file", "--junit", "sum.xml", "tests.txt")
        self.read_until(process, b">>> Finished: e")     # d waits for the lock now, before a
        gate.release()
        _, err = process.communicate(timeout=WAIT_S)
        ran = Ran(process.returncode, b"", err.decode(), self.folder)
        ends = [(record["label"], record["outcome"], record["attempt"]) for record in ran.journal("test_end")]
        self.assertEqual(ends, [("e", "passed", 1), ("a", "failed", 1), ("d", "failed", 1)])
        self.assertEqual((ran.code, sorted(ran.failures())), (1, ["a", "d"]))
        self.assertEqual((ran.read("sum.xml").count("<failure"), ran.read("sum.xml").count("<rerun")), (2, 0))


class JUnitFaultTest(RunnerCase):
    def test_faults(self) -> None:
        whole = '<?xml version="1.0"?><testsuites><testsuite/></testsuites>'
        cases: Dict[str, Tuple[Optional[str], Optional[str], str]] = {     # before, after (None: no file), fault
            "written": (None, whole, ""),
            "written anew": (whole, whole + "\n", ""),
            "missing": (None, None, "missing"),
            "taken away": (whole, None, "missing"),
            "stale": (whole, whole, "stale, from an earlier run"),
            "empty": (None, "", "truncated"),
            "truncated": (None, whole[:-5], "truncated"),
            "truncated anew": (whole, whole[:40], "truncated"),
            "two roots": (None, whole + "<a/>", "truncated"),
            "not XML": (None, "All tests passed\n", "truncated"),
            "control characters": (None, "<a>\x01</a>", "truncated"),
        }
        for name, (before, after, fault) in cases.items():
            with self.subTest(name):
                path = os.path.join(self.folder, name + ".xml")
                if before is not None:
                    self.write(name + ".xml", before)
                signature = run_tests.file_signature(path)
                if after is None and before is not None:
                    os.unlink(path)
                elif after is not None and after != before:
                    self.write(name + ".xml", after)
                self.assertEqual(run_tests.junit_fault(path, signature), (fault, 0))

    def test_failures_are_counted_as_far_as_it_goes(self) -> None:
        case = "<testcase>{}</testcase>".format
        failed, error, passed = case('<failure message="x"/>'), case("<error/>"), case("")
        skipped, told = case('<skipped type="pytest.xfail"/>'), case("<system-out>failure</system-out>")
        cases = {
            "none": ("<testsuites/>", ("", 0)),
            "passes": (f"<testsuite>{passed}{skipped}{told}</testsuite>", ("", 0)),
            "one of each": (f"<a><testsuite>{failed}{passed}</testsuite><testsuite>{error}</testsuite></a>", ("", 2)),
            "both in one case": ("<testsuite>" + case("<failure/><error/>") + "</testsuite>", ("", 1)),
            "what the suite says does not count": (f'<testsuite failures="3">{passed}</testsuite>', ("", 0)),
            "before it breaks off": (f"<testsuites><testsuite>{failed}{passed}<testcase><fail", ("truncated", 1)),
            "the case that it breaks off in does not count": ("<testsuite><testcase><failure/>", ("truncated", 0)),
        }
        for name, (text, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(run_tests.junit_fault(self.write("x.xml", text), None), expected)

    def test_a_test_without_a_junit_file_has_no_fault(self) -> None:
        self.assertIsNone(run_tests.file_signature(None))
        self.assertEqual(run_tests.junit_fault(None, None), ("", 0))

    def test_a_folder_in_its_place_is_unreadable(self) -> None:
        self.assertEqual(run_tests.junit_fault(self.folder, None), ("unreadable (Is a directory)", 0))

    def test_a_file_in_any_encoding_is_no_fault_of_the_runner(self) -> None:
        for encoding in ("shift_jis", "utf-7", "no-such-encoding", "hex"):
            with self.subTest(encoding):
                path = self.write("x.xml", f'<?xml version="1.0" encoding="{encoding}"?><a/>')
                fault, failures = run_tests.junit_fault(path, None)
                self.assertRegex(fault, "^$|^truncated$|^unreadable [(].+[)]$")
                self.assertEqual(failures, 0)


class JUnitJobTest(ProcessCase):
    def test_run_job_tells_it(self) -> None:
        path = os.path.join(self.folder, "x.xml")
        for script, fault, failures in (
                ("true", "missing", 0), ("echo '<a>' >$HERE/x.xml", "truncated", 0),
                ("echo '<a/>' >$HERE/x.xml", "", 0), ("true", "stale, from an earlier run", 0),
                ("echo '<a><testcase><error/></testcase></a>' >$HERE/x.xml", "", 1)):
            exited = self.events(self.job(script, junit=path))[-1]
            self.assertEqual((exited.junit_fault, exited.junit_failures), (fault, failures), script)


class PortTest(unittest.TestCase):
    def test_a_port_in_use_is_skipped(self) -> None:
        for address in ("", "127.0.0.1"):
            with self.subTest(address=address), socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken = run_tests.free_port(3, 7)
                listener.bind((address, taken))
                listener.listen()
                port = run_tests.free_port(3, 7)
                self.assertGreater(port, taken)
                self.assertEqual((port - taken) % 7, 0)

    def test_slots_draw_from_different_ports(self) -> None:
        ports = [run_tests.free_port(slot, 16) for slot in range(16)]
        self.assertEqual(len({port % 16 for port in ports}), 16)
        self.assertTrue(all(run_tests.PORT_FIRST <= port <= run_tests.PORT_LAST for port in ports), ports)

    def test_it_can_be_bound(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", run_tests.free_port(0, 1)))
            self.assertGreater(listener.getsockname()[1], 0)


if __name__ == "__main__":
    unittest.main()
