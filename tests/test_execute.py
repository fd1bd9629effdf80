"""Section 7 with real processes: statuses, groups, signals, leftovers, descriptors, JUnit files, ports."""
from __future__ import annotations

import ctypes
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any, Dict, List, Optional, Tuple
from unittest import mock

import run_tests
from run_tests import Attempt, Broken, Exited, Job, Lease, Process, Reaper, Scratch, Snapshot
from tests.support import SOON, WAIT_S, Fifo, GatedCase, Lifeline, RunnerCase, a_test


class ProcessCase(RunnerCase):
    """A test case that is a runner: it has a reaper, and threads that start processes, as those of slots do."""

    def setUp(self) -> None:
        super().setUp()
        self.reaper = Reaper()
        self.addCleanup(resource.setrlimit, resource.RLIMIT_RTTIME, (resource.RLIM_INFINITY,) * 2)
        self.addCleanup(ctypes.CDLL(None).prctl, 36, 0, 0, 0, 0)
        self.addCleanup(self.close)
        self.is_closed = False
        self.threads = ThreadPoolExecutor(16)
        self.addCleanup(self.threads.shutdown)

    def close(self) -> List[int]:
        """End the run, once; the pids of what was left by no attempt."""
        if self.is_closed:
            return []
        self.is_closed = True
        return [info.pid for info in self.reaper.close()]

    def job(self, script: str, log: str = "test.log", **changes: Any) -> Job:
        """A job in this test's folder, whose environment names it by its log."""
        environment = {**os.environb, b"HERE": os.fsencode(self.folder), b"JOB": log.encode(),
                       b"RUN_TESTS_PLACES": f" {self.run_of(log)}/3 ".encode()}
        bash = shutil.which("bash") or ""
        job = Job(bash, [bash, "-c", f"{script}\n\n", "tests.txt"], environment)
        return job._replace(**changes)

    def run_of(self, log: str) -> str:
        """The name of a job's run: that of no other test case, which may run at the same time."""
        return f"{os.path.basename(self.folder)}-{log}"

    def new_log(self, log: str = "test.log") -> int:
        return run_tests.fresh_file(os.path.join(self.folder, log))

    def process(self, script: str, log: str = "test.log") -> Process:
        """The process of a script; killed if the test fails meanwhile."""
        process = Process(self.reaper)
        process.place = f" {self.run_of(log)}/3 "
        job = self.job(f"ulimit -SR {process.mark or 'unlimited'}; {script}", log)
        self.threads.submit(process.spawn, job, self.new_log(log)).result()
        self.addCleanup(lambda: process.is_gone or self.end(process))
        self.addCleanup(process.signal, signal.SIGKILL)
        return process

    def end(self, process: Process) -> Tuple[int, List[str]]:
        """Its exit status, and the names of what it has left, which is gone by then."""
        process.wait()
        leaked = process.sweep()
        return process.close(), sorted(info.name for info in leaked)

    def event(self, job: Job, log: str = "test.log", **values: Any) -> Any:
        """How an attempt ends, whose log is there in this test's folder."""
        attempt = Attempt(a_test(**values), Lease((), 0), 1, 0.0)
        attempt.deadline = 1e9
        attempt.process, attempt.log = Process(self.reaper), os.path.join(self.folder, log)
        host = self.host = run_tests.Host(run_tests.Machine(), self.reaper)
        host.oom_kills = run_tests.oom_kills()
        with mock.patch.object(host, "job", lambda *_: job):
            end = self.threads.submit(host.run_attempt, attempt).result()
        # Whatever takes long behind its end, no signal is due for it.
        self.assertTrue(attempt.deadline == math.inf or isinstance(end, Broken))
        return end

    def read(self, name: str = "test.log") -> bytes:
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()


# Scripts that end with 3 and leave something: what is named as left.
LEAVERS = {
    "one": ("sleep 1000 & exit 3", "sleep"),
    "a tree": ("(sleep 1000 & sleep 1000 & wait) & (sleep 1000 &) ; exit 3", "bash sleep sleep sleep"),
    "one that ignores signals": ("(trap '' TERM INT HUP; sleep 1000; sleep 1000) & exit 3", "bash sleep"),
    "one that is stopped": ("sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $!; exit 3",
                            "sleep"),
    "one in a session of its own": ("setsid sleep 1000 & exit 3", "sleep"),
    "a daemon": ("(setsid bash -c 'sleep 1000 & exit' &) ; exit 3", "sleep"),
    "one without an environment": ("env -i setsid sleep 1000 & exit 3", "sleep"),
    "a daemon without an environment": ("(env -i setsid setsid -f sleep 1000 &); exit 3", "sleep"),
    "a helper that sees the end of its test": ("coproc helper { read line; exec 9>&-; }; exit 3", ""),
}


class AttemptTest(ProcessCase):
    def test_exit_status_or_death(self) -> None:
        cases = {
            "true": 0, "exit 3": 3, "false": 1, "no_such_command_at_all": 127, "/": 126, "exit 255": 255,
            "kill -KILL $$": -9, "ulimit -c 0; kill -SEGV $$": -11, "kill -TERM $$": -15,
            "bash -c 'kill -KILL $$'; exit": 137, "(kill -TERM $BASHPID); exit $?": 143, "(exit 200)": 200,
        }
        for script, status in cases.items():
            with self.subTest(script):
                exited = self.event(self.job(script))
                self.assertEqual((type(exited), exited.status, exited.junit_fault), (Exited, status, ""))

    def test_closing_the_streams_is_no_end(self) -> None:
        lifeline = Lifeline(self)
        process = self.process('exec >&- 2>&- <&-; bash -c ": >$HERE/done"; exit 4')
        lifeline.let_go()
        self.assertEqual((self.end(process), lifeline.is_cut()), ((4, []), True))
        self.assertEqual((self.read(), self.read("done")), (b"", b""))

    def test_what_is_left_is_killed_and_named(self) -> None:
        """All leave at once: each is told whose it is, whatever it has left, be it group, session or environment."""
        lifeline = Lifeline(self)
        processes = []
        for name, (script, _) in LEAVERS.items():
            gate = os.path.join(self.folder, name + ".gate")         # a process has its mark when it has been spawned
            os.mkfifo(gate)
            processes.append(self.process(f'read -r <"$HERE/$JOB.gate"; {script}', log=name))
            with open(gate, "wb"):
                pass
        lifeline.let_go()
        ends = dict(zip(LEAVERS, self.threads.map(self.end, processes)))
        self.assertEqual(ends, {name: (3, leaked.split()) for name, (_, leaked) in LEAVERS.items()})
        self.assertTrue(lifeline.is_cut())

    @mock.patch.object(run_tests, "LINGER_S", 0.1)
    def test_without_marks_the_environment_tells_whose_it_is(self) -> None:
        self.reaper.mark = 0
        processes = [self.process(f"setsid sleep {number} & exit", log=number) for number in ("1000", "1001")]
        inner = f"env RUN_TESTS_PLACES=' {self.run_of('1002')}/3  inner/0 '"
        processes.append(self.process(f"{inner} setsid sleep 1002 & exit", log="1002"))
        self.assertEqual(list(self.threads.map(self.end, processes)), [(0, ["sleep"])] * 3)

    @mock.patch.object(run_tests, "LINGER_S", 0.1)
    def test_the_time_of_a_test_ends_with_its_shell(self) -> None:
        exited = self.event(self.job("sleep 1000 & exit 3"))
        self.assertEqual((exited.status, time.monotonic() - exited.ended >= 0.1), (3, True))
        self.assertRegex(" ".join(exited.leaked), r"^sleep \(pid \d+\)$")

    def test_a_job_that_cannot_be_run_is_broken(self) -> None:
        os.mkfifo(os.path.join(self.folder, "fifo"))
        cases = {
            "no place for the log": (self.write("file", "") + "/x.log", {}, "Not a directory.*/file/x"),
            "a folder in the log's place": (self.folder, {}, "is no regular file.*" + self.folder),
            "a FIFO in the log's place": ("fifo", {}, "is no regular file.*/fifo"),
            "no bash": ("test.log", {"bash": self.folder + "/bash"}, "No such file .*/bash"),
            "a fault of our own": ("test.log", {"environment": {b"A": 1}}, "expected str, bytes"),
        }
        for name, (log, changes, reason) in cases.items():
            with self.subTest(name):
                broken = self.event(self.job("true", **changes), log)
                self.assertIsInstance(broken, Broken)
                self.assertRegex(broken.reason, reason)
                crash = os.path.join(self.folder, "run_tests.traceback")
                self.assertEqual(os.path.exists(crash), name == "a fault of our own")

    def test_a_failure_has_its_cause_and_a_pass_has_none(self) -> None:
        for script, cause in (("echo Fatal error; exit 1", "Fatal error"), ("echo Fatal error", ""),
                              ("kill -ABRT $$", "killed by SIGABRT"), ("exit 9", "exit status 9, without output")):
            with self.subTest(script):
                self.assertEqual(self.event(self.job(script)).cause.text, cause)

    def test_a_junit_file_is_looked_at(self) -> None:
        path = os.path.join(self.folder, "x.xml")
        for script, fault, failures in (
                ("true", "missing", 0), ("echo '<a>' >$HERE/x.xml", "truncated", 0),
                ("echo '<a/>' >$HERE/x.xml", "", 0), ("true", "stale, from an earlier run", 0),
                ("echo '<a><testcase><error/></testcase></a>' >$HERE/x.xml", "", 1)):
            exited = self.event(self.job(script), junit=path)
            self.assertEqual((exited.junit_fault, exited.junit_failures), (fault, failures), script)


class GroupTest(ProcessCase):
    def test_a_test_leads_a_session_and_a_group_of_its_own(self) -> None:
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.process('echo $$ >"$HERE/up"; read line <"$HERE/gate"')
        self.assertEqual(up.lines(), [b"%d" % process.pid])
        self.assertEqual((os.getpgid(process.pid), os.getsid(process.pid)), (process.pid, process.pid))
        gate.release()
        self.assertEqual(self.end(process), (0, []))

    def test_a_signal_reaches_the_whole_group(self) -> None:
        up = Fifo(self, "up")
        process = self.process("""
            (trap 'echo inner; exit 0' TERM; sleep 1000 & echo up >"$HERE/up"; wait) &
            trap 'echo outer; wait; exit 7' TERM
            echo up >"$HERE/up"
            wait
        """)
        up.lines(2)
        process.signal(signal.SIGTERM)
        self.assertEqual(self.end(process), (7, []))
        self.assertEqual(sorted(self.read().splitlines()), [b"inner", b"outer"])

    def test_what_was_asked_to_end_may_take_its_time(self) -> None:
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.process("""
            (trap 'echo asked >"$HERE/up"; read line <"$HERE/gate"; echo ended; exit' TERM
             sleep 1000 & echo up >"$HERE/up"; wait) &
            wait
        """)
        up.lines()
        process.signal(signal.SIGTERM)
        up.lines()
        end = self.threads.submit(self.end, process)     # the outer shell is dead, the inner one is not
        process.wait()
        gate.release()
        self.assertEqual((end.result(WAIT_S), self.read()), ((-15, []), b"ended\n"))

    def test_a_signal_that_comes_before_the_process_waits_for_it(self) -> None:
        process, job = Process(self.reaper), self.job("sleep 1000")
        process.signal(signal.SIGKILL)
        self.threads.submit(process.spawn, job, self.new_log()).result()
        self.assertEqual(self.end(process), (-9, []))

    def test_a_signal_after_the_end_is_sent_to_nobody(self) -> None:
        process = self.process("exit 5")
        process.wait()
        process.signal(signal.SIGTERM)       # its number is ours still
        self.assertEqual(self.end(process), (5, []))
        with mock.patch("os.killpg") as killpg:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGKILL)
        killpg.assert_not_called()

    def test_stacks_that_come_too_late_go_into_no_other_file(self) -> None:
        """The number of the log is another file's by then."""
        process = self.process("exit 5")
        self.end(process)
        other = os.open(self.write("other", ""), os.O_WRONLY)
        for number in {other, os.dup2(other, process.output)}:
            self.addCleanup(os.close, number)
        process.signal(signal.SIGTERM, "why")
        self.assertEqual(self.read("other"), b"")


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

    def python(self, program: str) -> int:
        """The pid of a Python that has printed a line and waits for its input to end."""
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None and child.stdout is not None
        for cleanup in (child.stdout.close, child.wait, child.stdin.close):
            self.addCleanup(cleanup)
        child.stdout.readline()
        return child.pid

    def table(self, pid: int) -> List[run_tests.ProcessInfo]:
        """What it says of a process."""
        return [info for info in run_tests.process_table() if info.pid == pid]

    def test_what_it_says_of_this_process(self) -> None:
        me, = self.table(os.getpid())
        self.assertEqual(me, (os.getpid(), me.name, os.getpgrp(), os.getsid(0)))
        self.assertEqual(str(me), f"{me.name} (pid {os.getpid()})")

    def test_a_name_cannot_lie(self) -> None:
        pid = self.python(LIE)
        self.assertEqual(self.table(pid), [(pid, ") Z 0 (a?b?", os.getpgrp(), os.getsid(0))])

    def test_the_dead_are_not_in_it(self) -> None:
        child = subprocess.Popen(["true"])
        self.addCleanup(child.wait)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.assertTrue(os.path.exists(f"/proc/{child.pid}/stat"))
        self.assertEqual(self.table(child.pid), [])

    def test_one_whose_first_thread_has_ended_lives(self) -> None:
        self.assertEqual(len(self.table(self.python(LEADERLESS))), 1)


class ReaperTest(ProcessCase):
    """Orphans that are of no running attempt."""

    def orphan(self) -> int:
        """The pid of an orphan, whose starter, once it has ended, is not asked what it has left."""
        up = Fifo(self, "up")
        process = self.process("(setsid bash -c 'echo $$ >$0/up; exec sleep 1000' \"$HERE\" &)")
        pid, = map(int, up.lines())
        process.wait()
        process.close()
        return pid

    def test_they_are_ended_at_the_close(self) -> None:
        pid = self.orphan()
        self.assertEqual((self.reaper.sees_orphans, self.reaper.orphans()), (True, {pid}))
        self.assertEqual(self.close(), [pid])
        self.assertIsNone(run_tests.process_info(pid))

    def test_what_is_of_no_attempt_outlives_them_and_ends_with_the_run(self) -> None:
        pid = self.orphan()
        self.assertEqual(self.end(self.process("exit 3", log="other.log")), (3, []))
        self.assertIsNotNone(run_tests.process_info(pid))
        self.close()
        self.assertIsNone(run_tests.process_info(pid))

    def test_the_guard_is_no_orphan_and_one_stays_at_its_post(self) -> None:
        bash = shutil.which("bash") or ""
        guards = []
        for _ in range(2):
            self.reaper.post_guard(bash)
            assert self.reaper.guard is not None
            guards.append(self.reaper.guard)
        self.assertIs(*guards)
        self.assertEqual((self.reaper.sees_orphans, self.reaper.orphans()), (True, set()))
        guards[0].kill()
        os.waitid(os.P_PID, guards[0].pid, os.WEXITED | os.WNOWAIT)
        self.reaper.collect()            # before the guard is looked after, as the run does
        self.reaper.post_guard(bash)
        self.assertIsNot(self.reaper.guard, guards[0])
        self.assertEqual((self.reaper.sees_orphans, self.reaper.orphans()), (True, set()))
        assert guards[0].stdin is not None
        self.assertTrue(guards[0].stdin.closed)


class StreamsTest(ProcessCase):
    def test_stdin_is_the_null_device(self) -> None:
        self.event(self.job('[ /dev/stdin -ef /dev/null ] && echo null; read line || echo end; cat'))
        self.assertEqual(self.read(), b"null\nend\n")

    def test_the_test_itself_writes_its_log(self) -> None:
        self.event(self.job('cd "$HERE"; [ /dev/stdout -ef test.log ] && [ /dev/stderr -ef test.log ] && echo same'))
        self.assertEqual(self.read(), b"same\n")

    def test_both_streams_come_in_the_order_of_writing_as_they_are(self) -> None:
        self.event(self.job(
            r"for n in 1 2 3; do echo out $n; echo err $n >&2; (echo sub); done; printf '\0\377\r\33['"))
        self.assertEqual(self.read(), b"".join(b"out %d\nerr %d\nsub\n" % (n, n) for n in (1, 2, 3)) + b"\0\xff\r\x1b[")

    def test_a_log_of_before_is_replaced_and_begins_with_what_state_has_printed(self) -> None:
        for script, log in (("echo a long first run", b"a long first run\n"), ("echo b", b"b\n"), ("", b"")):
            self.event(self.job(script))
            self.assertEqual(self.read(), log)
        self.event(self.job("echo b"), preface=b"of before\n")
        self.assertEqual(self.read(), b"of before\nb\n")

    def test_a_folder_for_the_log_that_is_gone_comes_back(self) -> None:
        exited = self.event(self.job("echo told"), "gone/far/x.log")
        self.assertEqual((exited.status, self.read("gone/far/x.log")), (0, b"told\n"))

    def test_the_oom_killer_has_killed_since(self) -> None:
        """A kill is taken for this test's own, and for no other test's."""
        cases = {("kill -9 $$", 1): run_tests.OOM_KILLED.text, ("exit 137", 1): run_tests.OOM_KILLED.text,
                 ("kill -9 $$", 0): "CUDA out of memory", ("exit 1", 1): "CUDA out of memory"}
        for (script, kills), cause in cases.items():
            counts = chain([5], repeat(5 + kills))
            with self.subTest(script=script, kills=kills), \
                    mock.patch.object(run_tests, "oom_kills", lambda counts=counts: next(counts)):
                exited = self.event(self.job(f"echo CUDA out of memory; {script}"))
                told = cause == run_tests.OOM_KILLED.text
                self.assertEqual((exited.cause.text, self.host.oom_kills), (cause, 5 + kills * told))


class BashTextTest(ProcessCase):
    def log(self, scratch: Scratch, **test: Any) -> bytes:
        """What a test prints."""
        text = run_tests.bash_text(a_test(**test), {"OWN": "it's", "B": "own"}, {}, scratch, 0)
        self.event(self.job("", words=[shutil.which("bash") or "", "-c", text, "tests.txt"]))
        return self.read()

    def test_bash_names_the_list_and_its_lines(self) -> None:
        told = b"tests.txt: line 3: no_such_command_at_all: command not found\ntests.txt 3\n"
        self.assertEqual(self.log(Scratch(), index=2, command="no_such_command_at_all; echo $0 $LINENO"), told)
        self.assertEqual(self.log(Scratch(), command='echo "$BASH_SOURCE"'), b"tests.txt\n")

    def test_what_is_the_tests_own_comes_after_what_its_shell_state_has_set(self) -> None:
        shell = Snapshot("", {}, self.write("state's own", "A=state B=state; greet() { echo $A $B $OWN; }\nset -x"))
        self.assertEqual(self.log(Scratch(), shell=shell, command="greet"), b"+ greet\n+ echo state own \"it's\"\n"
                         .replace(b'"it\'s"', b"'it'\\''s'") + b"state own it's\n")

    def test_a_long_command(self) -> None:
        scratch = Scratch()
        for words in ("x" * run_tests.ARGUMENT_BYTES, "\u65e5" * 50_000):      # 150,000 bytes
            log = self.log(scratch, command=f"printf %s {words}")
            self.assertEqual(log.decode(), words)
        shutil.rmtree(scratch.folder)


class CommandLineTest(GatedCase):
    def test_no_signal_is_inherited_as_ignored(self) -> None:
        """Beyond those that a child of this process ignores, such as SIGHUP under `nohup`."""
        own = subprocess.run(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, check=True).stdout
        ran = self.run_list("grep SigIgn /proc/self/status #: label=a\n")
        self.assertEqual(int(ran.read("logs/a.log").split()[1], 16) & ~int(own.split()[1], 16), 0)

    def test_a_leftover_is_gone_before_the_next_test_starts(self) -> None:
        self.drive(SOON)
        os.mkfifo(os.path.join(self.folder, "hold"))
        # A FIFO that nobody reads cannot be opened for writing without waiting; the first test's child reads this one.
        self.write("held.py", "import os; os.open('hold', os.O_WRONLY | os.O_NONBLOCK)")
        ran = self.run_list(f"""
            exec 9<>hold; sleep 1000 & exec 9>&-; {sys.executable} held.py  #: label=leaver gpus=all
            ! {sys.executable} held.py 2>held.err                           #: label=next gpus=all
        """)
        self.check(ran, 0, {"leaver": "passed", "next": "passed"})
        self.assertIn("OSError", ran.read("held.err"))

    def test_the_runners_own_input_is_not_the_tests(self) -> None:
        self.write("tests.txt", "cat && echo end\n")
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

    def test_directories(self) -> None:
        """A change stays in its test, unless it is state; one that a test takes away is missed by those below alone."""
        os.makedirs(os.path.join(self.folder, "sub"))
        ran = self.run_list("cd sub && pwd  #: label=one\npwd  #: label=two\nwait\ncd sub\n"
                            'pwd && rmdir "$PWD"  #: label=three\n'
                            "wait\ntrue  #: label=four\ncd ..\npwd  #: label=five\n")
        self.check(ran, 1, {"one": "passed", "two": "passed", "three": "passed", "four": "failed", "five": "passed"})
        here = os.path.realpath(self.folder)
        for name, expected in (("one", here + "/sub"), ("two", here), ("three", here + "/sub"), ("five", here)):
            self.assertEqual(os.path.realpath(ran.read("logs", name + ".log").strip()), expected)
        self.assertRegex(ran.read("logs/four.log"),
                         r"^\n=== run_tests\.py: /.*/sub: No such file or directory; so this test cannot start ")

    def test_a_log_dir_that_a_test_takes_away_comes_back(self) -> None:
        ran = self.run_list("rm -r logs; until [ -d logs ]; do sleep 0.02; done #: timeout=60s\n",
                            "--journal", "x.jsonl")
        self.assertEqual((ran.code, ran.err), (0, ""))

    def test_a_log_that_cannot_be_opened_ends_the_run(self) -> None:
        """It may be told while the first test still runs: the folder is looked after every second."""
        os.makedirs(os.path.join(self.folder, "real/logs"))
        self.write("other/logs", "")
        here = os.path.join(self.folder, "here")
        for more in ("", "; sleep 60"):      # which is ended
            with self.subTest(more):
                os.symlink("real", here)
                ran = self.run_list(f"ln -s other new; mv -T new here{more}  #: label=a\nwait\ntrue  #: label=b\n"
                                    "true  #: label=c\n", "--journal", f"x{more[:1]}", "--log-dir", "here/logs")
                os.unlink(here)
                self.assertEqual(ran.code, 3)
                self.assertRegex(ran.err, r"^run_tests\.py: error: cannot write here/logs \((Not a directory|File "
                                          r"exists)\); name a place with --log-dir, .*\n$")
                self.assertRegex(ran.text.splitlines()[-1], r"^Stopped, the machine failed: (cannot run [bc]: .*"
                                 r"Not a directory: 'here/logs/[bc]\.log'|"
                                 r"here/logs cannot be written \((Not a directory|File exists)\)): "
                                 r"(1 interrupted, )?2 not run$")
                ends = {record["label"]: record["outcome"] for record in ran.journal("test_end", path=f"x{more[:1]}")}
                self.assertIn(ends.pop("a"), ("passed", "interrupted")[bool(more):])
                self.assertEqual(ends, {"b": "not run", "c": "not run"})


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
                self.assertEqual(run_tests.junit_fault(path, signature), (fault, 0, fault == ""))

    def test_failures_are_counted_as_far_as_it_goes(self) -> None:
        case = '<testcase name="x">{}</testcase>'.format
        failed, error, passed = case('<failure message="x"/>'), case("<error/>"), case("")
        xfail, told = case('<skipped type="pytest.xfail"/>'), case("<system-out>failure</system-out>")
        skip = case('<skipped type="pytest.skip" message="no GPU"/>')
        cases = {
            "none": ("<testsuites/>", ("", 0, True)),
            "passes": (f"<testsuite>{passed}{xfail}{told}</testsuite>", ("", 0, False)),
            "one of each": (f"<a><testsuite>{failed}{passed}</testsuite><testsuite>{error}</testsuite></a>",
                            ("", 2, False)),
            "in a namespace": (f'<testsuite xmlns="urn:x">{failed}</testsuite>', ("", 1, False)),
            "with a prefix": (
                '<j:testsuite xmlns:j="urn:x"><j:testcase name="x"><j:error/></j:testcase></j:testsuite>',
                ("", 1, False)),
            "by the suite alone": (f'<testsuites><testsuite failures="1" errors="2">{passed}</testsuite></testsuites>',
                                   ("", 3, False)),
            "by case and suite": (f'<testsuite failures="1" errors="0">{failed}</testsuite>', ("", 1, False)),
            "by no number": ('<testsuite failures="none" errors=""/>', ("", 0, True)),
            "skips alone": (f"<testsuite>{skip}{skip}</testsuite>", ("", 0, True)),
            "behind pytest.exit": ('<testsuite><testcase time="0.000" /></testsuite>', ("", 0, True)),
            "a skip": (f"<testsuite>{skip}{passed}</testsuite>", ("", 0, False)),
            "an expected failure": (f"<testsuite>{skip}{xfail}</testsuite>", ("", 0, False)),
            "a failure of that type": (
                '<testsuite><testcase><failure type="pytest.xfail"/></testcase></testsuite>', ("", 1, False)),
            "before the first case": ("<testsuites><testsuite>", ("truncated", 0, False)),
            "before it breaks off": (f"<testsuites><testsuite>{failed}{passed}<testcase><fail",
                                     ("truncated", 1, False)),
        }
        for name, (text, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(run_tests.junit_fault(self.write("x.xml", text), ""), expected)

    def test_what_is_no_file_is_not_opened(self) -> None:
        os.mkfifo(os.path.join(self.folder, "fifo"))
        os.symlink("/dev/zero", os.path.join(self.folder, "device"))
        for path in (self.folder, self.folder + "/fifo", self.folder + "/device"):
            self.assertEqual(run_tests.junit_fault(path, ""), ("unreadable (is no regular file)", 0, False))
            self.assertEqual(run_tests.tail_of(path), "")
        self.assertEqual(run_tests.junit_fault(None, ""), ("", 0, False))

    def test_a_file_in_any_encoding_is_no_fault_of_the_runner(self) -> None:
        for encoding in ("shift_jis", "utf-7", "no-such-encoding", "hex"):
            with self.subTest(encoding):
                path = self.write("x.xml", f'<?xml version="1.0" encoding="{encoding}"?><a/>')
                fault, failures, _ = run_tests.junit_fault(path, "")
                self.assertRegex(fault, "^$|^truncated$|^unreadable [(].+[)]$")
                self.assertEqual(failures, 0)


class PortTest(unittest.TestCase):
    def test_each_slot_has_a_port_of_its_own(self) -> None:
        ports = [run_tests.port_of(slot) for slot in range(512)]
        self.assertEqual(len(set(ports)), 512)
        self.assertTrue(all(20_000 <= port < 32_768 for port in ports), ports)
        with mock.patch("os.getpid", return_value=os.getpid() + 1):
            self.assertTrue(set(ports).isdisjoint(run_tests.port_of(slot) for slot in range(512)))


if __name__ == "__main__":
    unittest.main()
