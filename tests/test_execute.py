"""Section 7 with real processes: statuses, groups, signals, leftovers, descriptors, JUnit files, ports."""
from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import unittest
from typing import Any, Dict, List, Optional, Tuple
from unittest import mock

import run_tests
from run_tests import Broken, Exited, Process, Started, run_job
from tests.support import RunnerCase, a_test

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
    def job(self, script: str, junit: Optional[str] = None, log: str = "test.log", **changes: Any) -> run_tests.Job:
        """A job in this test's folder."""
        environment = {**os.environ, "HERE": self.folder}
        job = run_tests.Job(a_test(junit=junit), shutil.which("bash") or "", script, environment,
                            os.path.join(self.folder, log))
        return job._replace(**changes)

    def process(self, script: str) -> Process:
        """A process for a script; killed if the test fails meanwhile."""
        process = Process(self.job(script))
        self.addCleanup(process.popen.wait)
        self.addCleanup(process.signal, signal.SIGKILL)
        return process

    def log(self, name: str = "test.log") -> bytes:
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def events(self, job: run_tests.Job) -> List[Any]:
        """What run_job posts."""
        posted: List[Any] = []
        run_job(job, posted.append)
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
        status, lifeline = self.run_with_lifeline('exec >&- 2>&- <&-; bash -c ": >$HERE/done"; exit 4')
        self.assertEqual((status, lifeline.is_cut(), self.log(), self.log("done")), (4, True, b"", b""))

    def run_with_lifeline(self, script: str) -> Tuple[int, Lifeline]:
        lifeline = Lifeline(self)
        process = self.process(script)
        lifeline.let_go()
        return process.wait(), lifeline

    def test_a_background_process_is_killed_at_once(self) -> None:
        cases = {
            "one": "sleep 1000 & exit 3",
            "a tree": "(sleep 1000 & sleep 1000 & wait) & (sleep 1000 &) ; exit 3",
            "one that ignores signals": "(trap '' TERM INT HUP; sleep 1000; sleep 1000) & exit 3",
            "one that is stopped": "sleep 1000 & kill -STOP $!; exit 3",
        }
        for name, script in cases.items():
            with self.subTest(name):
                status, lifeline = self.run_with_lifeline(script)
                self.assertEqual((status, lifeline.is_cut()), (3, True))

    def test_a_job_that_cannot_be_run_is_broken(self) -> None:
        cases = {
            "no folder for the log": ({"log": self.folder + "/none/x.log"}, r"No such file .*/none/x\.log"),
            "a folder in the log's place": ({"log": self.folder}, "Is a directory.*" + self.folder),
            "no bash": ({"bash": self.folder + "/bash"}, "No such file .*/bash"),
            "a fault of our own": ({"environment": {"A": 1}}, "TypeError"),
        }
        for name, (changes, reason) in cases.items():
            with self.subTest(name):
                broken, = self.events(self.job("true", **changes))
                self.assertIsInstance(broken, Broken)
                self.assertRegex(broken.reason, reason)


class GroupTest(ProcessCase):
    def test_a_test_leads_a_session_and_a_group_of_its_own(self) -> None:
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.process('echo $$ >"$HERE/up"; read line <"$HERE/gate"')
        self.assertEqual(up.lines(), [b"%d" % process.pid])
        self.assertEqual((os.getpgid(process.pid), os.getsid(process.pid)), (process.pid, process.pid))
        gate.release()
        self.assertEqual(process.wait(), 0)

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
        self.assertEqual(process.wait(), 7)
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
        self.assertEqual((process.wait(), lifeline.is_cut()), (-15, True))
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
                self.assertEqual((statuses, lifeline.is_cut()), ([status], True))

    def test_a_signal_after_the_end_is_sent_to_nobody(self) -> None:
        process = self.process("exit 5")
        self.assertEqual(process.wait(), 5)
        with mock.patch("os.killpg") as killpg:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGKILL)
        killpg.assert_not_called()

    def test_a_signal_between_the_end_and_wait_is_harmless(self) -> None:
        process = self.process("exit 5")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(), 5)


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
                ran = self.run_list("rm -r logs  #: label=a\nwait\ntrue  #: label=b\ntrue  #: label=c\n",
                                    "--journal", f"{gpus}.jsonl", gpus=gpus)
                self.assertEqual(ran.code, 3)
                self.assertNotIn("Traceback", ran.err)
                self.assertRegex(ran.text.splitlines()[-1], r"^Stopped, the machine failed: .*\b[bc]\b.*"
                                 r"No such file or directory.*logs/[bc]\.log.*: 2 not run$")
                ends = ran.journal("test_end", path=f"{gpus}.jsonl")
                self.assertEqual({end["label"]: end["outcome"] for end in ends},
                                 {"a": "passed", "b": "not run", "c": "not run"})


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
                self.assertEqual(run_tests.junit_fault(path, signature), fault)

    def test_a_test_without_a_junit_file_has_no_fault(self) -> None:
        self.assertIsNone(run_tests.file_signature(None))
        self.assertEqual(run_tests.junit_fault(None, None), "")

    def test_a_folder_in_its_place_is_unreadable(self) -> None:
        self.assertEqual(run_tests.junit_fault(self.folder, None), "unreadable (Is a directory)")

    def test_a_file_in_any_encoding_is_no_fault_of_the_runner(self) -> None:
        for encoding in ("shift_jis", "utf-7", "no-such-encoding", "hex"):
            with self.subTest(encoding):
                path = self.write("x.xml", f'<?xml version="1.0" encoding="{encoding}"?><a/>')
                self.assertIsInstance(run_tests.junit_fault(path, None), str)

    def test_run_job_tells_it(self) -> None:
        path = os.path.join(self.folder, "x.xml")
        for script, fault in (("true", "missing"), ("echo '<a>' >$X", "truncated"), ("echo '<a/>' >$X", ""),
                              ("true", "stale, from an earlier run")):
            posted: List[Any] = []
            run_job(run_tests.Job(a_test(junit=path), shutil.which("bash") or "", script, {**os.environ, "X": path},
                                  path + ".log"), posted.append)
            self.assertEqual(posted[-1].junit_fault, fault, script)


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
