"""What happens to the runner itself, from a full disk to SIGKILL, and to its machine: as `test_faults.py` has it."""
from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
from typing import Any, Mapping, Tuple
from xml.etree import ElementTree

import run_tests
from tests.support import ENDING, RUNNER, SOON, WAIT_S, Fifo, Lifeline
from tests.test_execute import LEADERLESS
from tests.test_faults import WHEN_READY, Ended, FaultCase, cgroup, is_allowed



class OutputTest(FaultCase):
    """The runner's own output goes where nobody reads it, or where there is no room."""

    def unheard(self, code: int, outcomes: Mapping[str, str], **popen: Any) -> str:
        """A run whose output is lost, but for its verdict, which files tell; returns what it says on stderr."""
        process = self.start("--junit", "junit.xml", "tests.txt", **popen)
        if process.stdout is not None:
            self.read_until(process, b"Starting")
            process.stdout.close()
            process.stdout = None
        err = process.communicate(timeout=WAIT_S)[1].decode()
        self.assertEqual(self.left(), {})
        failed = " ".join(label for label in outcomes if outcomes[label] == "failed")
        last = f"Error in the following test cases: {failed}\n" if failed else "All tests passed\n"
        self.verify(Ended(process.returncode, last.encode(), err, self.folder), code, outcomes)
        return err

    def test_a_pipe_without_a_reader(self) -> None:
        gate = Fifo(self, "gate")
        gate.release()
        self.write("tests.txt", "read line <gate; seq 10000 #: label=a\ntest -e none #: label=b\n")
        self.assertEqual(self.unheard(1, {"a": "passed", "b": "failed"}), "")

    def test_a_full_device(self) -> None:
        self.write("tests.txt", "seq 10000 #: label=a\ntest -e none #: label=b\n")
        for gpus in ("0", "0,1"):
            with self.each(gpus), open("/dev/full", "wb") as full:
                told = self.unheard(1, {"a": "passed", "b": "failed"}, stdout=full, gpus=gpus)
                self.assertIn("standard output cannot be written (No space left on device); going on", told)
        self.write("tests.txt", "true #: label=a\n")
        for options in ((), ("--list",)):
            with self.subTest(options), open("/dev/full", "wb") as full:
                self.assertEqual(self.start(*options, "tests.txt", stdout=full).wait(WAIT_S), 3)

    def test_a_signal_before_the_first_test(self) -> None:
        """No thread that waits keeps the runner from its end."""
        self.drive("import os", "def perform(run):\n"
                   "    run.host.run_attempt = run_tests.time.sleep\n    run.host.attempts.put(86400)\n"
                   "    run_tests.start_thread(run.host.serve)\n"
                   "    os.kill(os.getpid(), 15)", "run_tests.Run.perform = perform")
        self.write("tests.txt", "true\n")
        process = self.start("tests.txt")
        _, err = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, err), (143, b""))

    def test_many_short_tests_need_few_threads(self) -> None:
        """Each serves the next test; that of the standard library's pool starts more and more from Python 3.12 on."""
        self.drive("import threading", "close = run_tests.Host.close", "def tell(host):",
                   "    print('threads:', threading.active_count())", "    close(host)", "run_tests.Host.close = tell")
        ran = self.run_list("true\n" * 400, "--output", "none", gpus="0,1,2,3,4,5,6,7")
        self.assertEqual(ran.code, 0)
        self.assertLessEqual(int(re.findall(r"threads: (\d+)", ran.text)[0]), 8 + 1)

    def test_what_runs_since_before_the_run_goes_on(self) -> None:
        """As a service of the shell that has become the runner, however it goes into the background meanwhile."""
        go = Fifo(self, "go")
        self.write("tests.txt", "echo >go #: label=a\nread <gone #: label=b\n")
        gone = Fifo(self, "gone")
        self.head = ["bash", "-c", 'bash -c "read <go; setsid $NAP & echo >gone" & exec "$@"', "bash", *self.head]
        process = self.start("tests.txt", gpus="0")
        self.assertEqual((process.wait(WAIT_S), len(self.left())), (0, 1))
        del go, gone

    def test_no_streams_at_all(self) -> None:
        self.write("tests.txt", "seq 10 #: label=a\ntest -e none #: label=b\n")
        self.head = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *self.head]
        self.unheard(1, {"a": "passed", "b": "failed"}, stdout=subprocess.DEVNULL)

    def test_endless_logs(self) -> None:
        """They are replayed, in no more memory than any other, be they many lines or one."""
        size = 60_000_000
        self.write("tests.txt", f"(yes FAILED; tr '\\0' x </dev/zero) | head -c {size}; exit 3 #: label=a\n"
                                f"tr '\\0' x </dev/zero | head -c {size} #: label=b\n")
        process = self.start("--junit", "junit.xml", "tests.txt")
        length, peak, end = self.drain(process, size)
        err = process.communicate(timeout=WAIT_S)[1].decode()
        self.assertEqual((process.returncode, self.left(), length > 2 * size), (1, {}, True))
        self.assertLess(peak, 100_000)
        for name in ("logs/a.log", "logs/b.log"):
            os.unlink(os.path.join(self.folder, name))
        ran = Ended(process.returncode, end[end.rindex(b"Error in"):], err, self.folder)
        self.verify(ran, 1, {"a": "failed", "b": "passed"}, ["logs/a.log", "logs/b.log"])

    def drain(self, process: "subprocess.Popen[bytes]", size: int) -> Tuple[int, int, bytes]:
        """The length of what a runner prints, the memory (KiB) that it has needed by the middle of it, and its end."""
        assert process.stdout is not None
        length, peak, end = 0, 0, b""
        while True:
            data = os.read(process.stdout.fileno(), 1 << 20)
            length, end = length + len(data), (end + data)[-4096:]
            if not data:
                return length, peak, end
            if length > size / 2 and not peak:
                with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
                    peak = int(file.read().split("VmHWM:")[1].split()[0])

    def on_small_disk(self, text: str, *arguments: str) -> Ended:
        """Run a list whose folder `logs` is a file system of 300 KB; its files are kept."""
        if not is_allowed("unshare", "-m", "mount", "-t", "tmpfs", "none", self.folder):
            self.skipTest("we may not mount a file system")
        self.write("tests.txt", text)
        os.makedirs(os.path.join(self.folder, "logs"))
        script = 'mount -t tmpfs -o size=300k none logs && { "$@"; code=$?; cp -r logs kept; exit $code; }'
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", *self.command(*arguments, "tests.txt")],
                                   cwd=self.folder, env=self.environment("0,1", {}), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=WAIT_S)
        os.rmdir(os.path.join(self.folder, "logs"))
        os.rename(os.path.join(self.folder, "kept"), os.path.join(self.folder, "logs"))
        ran = Ended(process.returncode, out, err.decode(), self.folder)
        self.assertEqual((ran.code, self.left(), "Traceback" in ran.text + ran.err), (3, {}, False), ran.text + ran.err)
        return ran

    def test_no_room_for_a_log(self) -> None:
        ran = self.on_small_disk("true #: label=a\nwait\n[ -e again ] || { touch again; head -c 1M /dev/zero; } "
                                 "#: label=b\nwait\ntrue #: label=c\n", "--journal", "j.jsonl")
        self.assertRegex(ran.text.splitlines()[-1], r"^Stopped, the machine failed: cannot run b: .*No space left on "
                         r"device: 'logs/b\.log': 2 not run$")
        events = ran.journal("test_end", path="j.jsonl")
        self.assertEqual([record["outcome"] for record in events], ["passed", "not run", "not run"])
        process = self.start("--rerun-failed", "--journal", "j.jsonl", "tests.txt")
        process.communicate(timeout=WAIT_S)
        owed = {record["label"]: record["outcome"] for record in ran.journal("test_end", path="j.jsonl")}
        self.assertEqual((process.returncode, owed), (0, {"b": "passed", "c": "passed"}))

    def test_no_room_for_the_journal(self) -> None:
        self.drive(SOON)
        self.write("fill.sh", "setsid $NAP & [ -e again ] || cat /dev/zero >logs/x 2>/dev/null; true")
        labels = [f"{number:0190}" for number in range(9)]       # more than is left of the journal's page
        ran = self.on_small_disk("bash fill.sh #: label=a\n" + "".join(f"wait\ntest -d logs #: label={label}\n"
                                                                       for label in labels))
        self.assertRegex(ran.text.splitlines()[-1], r"^Stopped, the machine failed: .*(logs/run_tests\.jsonl|"
                         r"a file, perhaps in TMPDIR,) cannot be written \(No space left on device\): [1-9] ")
        done = ran.outcomes()
        self.assertEqual(set(done.values()), {"passed"})
        os.unlink(ran.path("logs/x"))
        self.write("again", "")
        owed = {label: "passed" for label in labels if label not in done}
        self.suffer(ran.read("tests.txt"), 0, owed, "--rerun-failed")

    def test_no_journal_any_more(self) -> None:
        """No JUnit file of a test that the run has ended, or not begun, says that all is well."""
        Fifo(self, "up")
        green = '<testsuite tests="1"><testcase name="x"/></testsuite>'
        self.write("green.sh", f"echo '{green}' >${{1#*=}}; echo up >up; $NAP")
        self.write("tests.txt", "bash green.sh --junitxml=logs/a.xml #: label=a\n"
                                "read x <up; rm logs/run_tests.jsonl; mkdir logs/run_tests.jsonl #: label=b\n"
                                "wait\ntrue --junitxml=logs/c.xml #: label=c\n")
        process = self.start("tests.txt")
        process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, self.left()), (3, {}))
        ends = [case.get("type") for name in ("a", "c")
                for case in ElementTree.parse(os.path.join(self.folder, f"logs/{name}.xml")).iter("error")]
        self.assertEqual(ends, ["interrupted", "not run"])

    def test_no_journal_for_a_script(self) -> None:
        """All that it has started has ended before the run does."""
        self.drive("over = run_tests.threading.Event()",
                   "sweep, run = run_tests.Process.sweep, run_tests.ScriptShell.run",
                   "give_up, close = run_tests.Run.give_up, run_tests.Host.close",
                   "def late(process):", "    over.wait()", "    return sweep(process)",
                   "def ran(shell, jobs):", "    run(shell, jobs)", "    print('swept', flush=True)",
                   "def gave_up(run, why):", "    give_up(run, why)", "    over.set()",
                   "def closed(host):", "    print('closed', flush=True)", "    close(host)",
                   "run_tests.Process.sweep, run_tests.ScriptShell.run = late, ran",
                   "run_tests.Run.give_up, run_tests.Host.close = gave_up, closed")
        self.write("test.sh", "setsid $NAP &\nrm logs/run_tests.jsonl; mkdir logs/run_tests.jsonl\n"
                              "bash -c true || test_fail a\n")
        process = self.start("test.sh", gpus="0")
        out, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, self.left(), out.split()[:2]), (3, {}, [b"swept", b"closed"]))

    def test_no_way_to_answer_a_script(self) -> None:
        self.drive("import errno, os", "opened = os.open", "def none_left(path, *flags, **named):",
                   "    if str(path).endswith('/shell'):", "        raise OSError(errno.EMFILE, 'Too many open files')",
                   "    return opened(path, *flags, **named)", "os.open = none_left")
        self.write("test.sh", "bash -c true || test_fail a\n")
        process = self.start("test.sh")
        out, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, self.left()), (3, {}))
        self.assertRegex(out, rb"\nStopped, the machine failed: .*\(Too many open files\)")

    def test_no_memory_for_what_a_script_prints(self) -> None:
        self.drive("def none_left(shell):", "    raise MemoryError", "run_tests.ScriptShell.keep = none_left")
        self.write("test.sh", "echo begins\nbash -c true || test_fail a\n")
        process = self.start("test.sh")
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, self.left(), b"Traceback" in out + err), (3, {}, False))
        self.assertRegex(out, rb"\nStopped, the machine failed: internal error, MemoryError")

    def test_no_room_for_the_end_of_the_journal(self) -> None:
        self.drive("def none_left(*_):", "    raise OSError(28, 'No space left on device')",
                   "run_tests.Record.run_end = none_left")
        self.write("tests.txt", "true\n")
        process = self.start("tests.txt")
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, out.splitlines()[-2]), (3, b"All tests passed"))
        self.assertIn(b"not whole: exit code 3", out.splitlines()[-1])
        self.assertIn(b"error: cannot write a file (No space left on device)", err)

    def test_no_room_for_what_a_script_tells_of_a_test(self) -> None:
        """The test does not run, and the script does not look at its status."""
        self.head = ["env", f"TMPDIR={self.folder}/logs", *self.head]
        ran = self.on_small_disk("#!/bin/bash\nexport A=$(printf %0100000d 1)\n"
                                 "for i in 1 2 3 4; do bash -c : tests/$i; done\nexit 0\n", "--log-dir", "other")
        self.assertRegex(ran.text, "Stopped, the machine failed: a file, perhaps in TMPDIR, cannot be written")

    def test_no_room_for_the_state_of_the_shell(self) -> None:
        self.head = ["env", f"TMPDIR={self.folder}/logs", *self.head]
        ran = self.on_small_disk("A=$(printf %0200000d 1)\nset -u\necho $none\n")
        self.assertRegex(ran.err, r"^run_tests\.py: error: .*No space left on device.* in TMPDIR")

    def test_no_room_to_read_a_list_or_a_script(self) -> None:
        """One page is left in TMPDIR: that is the machine's fault, and neither the list's nor the journal's."""
        fill = 'head -c 303104 /dev/zero >logs/x; exec "$@"'
        self.head = ["env", f"TMPDIR={self.folder}/logs", "sh", "-c", fill, "sh", *self.head]
        ran = self.on_small_disk("true\n", "--log-dir", "other")
        self.assertRegex(ran.err, r"^run_tests\.py: error: .*No space left on device.* in TMPDIR")
        shutil.rmtree(os.path.join(self.folder, "logs"))
        ran = self.on_small_disk("#!/bin/bash\n./test_a || test_fail a\n", "--log-dir", "other")
        self.assertRegex(ran.text, r"\nStopped, the machine failed: a file, perhaps in TMPDIR, cannot be written "
                                   r"\(No space left on device\): ")

    def test_a_test_that_cleans_tmpdir(self) -> None:
        """Those below have lost their shell state, and fail, with a word why."""
        self.write("tmp/x", "")
        ran = self.run_list("set -o pipefail\nrm -rf tmp/* #: label=a\nwait\nfalse | true #: label=b\n",
                            env={"TMPDIR": "tmp"})
        self.check(ran, 1, {"a": "passed", "b": "failed"})
        self.assertIn("the shell state for this test is gone", ran.read("logs", "b.log"))

    def test_a_limit_of_file_size(self) -> None:
        self.write("logs/run_tests.jsonl", '{"event": 0}\n' * 5040)
        self.write("tests.txt", "setsid $NAP & wait $!\n")
        self.head = ["bash", "-c", 'ulimit -f 64; exec "$@"', "bash", *self.head]
        process = self.start("tests.txt")
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, self.left(), b"Traceback" in out + err), (3, {}, False), out + err)
        self.assertRegex(out.decode().splitlines()[-1], r"the machine failed: .*run_tests\.jsonl.*: 1 not run$")


class RunnerTest(FaultCase):
    """The runner itself is killed, stopped, interrupted, or another's child."""

    TREE = """
        setsid $NAP &
        env -i $(which setsid) $NAP &
        bash tool.sh daemon
        ($NAP & $NAP & wait) &
        trap '' TERM HUP INT
        echo up >up
        wait
    """

    def start_tree(self, *arguments: str, attributes: str = "", **changes: Any) -> "subprocess.Popen[bytes]":
        """A runner in the middle of a run: `a` has passed, `b` has failed, `tree` and `deaf` run, `e` waits."""
        self.up = Fifo(self, "up")
        self.write("tree.sh", self.TREE)
        self.write("deaf.sh", "trap '' TERM HUP INT; echo up >up; while :; do $NAP; done")
        self.write("tests.txt", "true #: label=a\nexit 1 #: label=b\nwait\nbash tree.sh #: label=tree\n"
                                f"bash deaf.sh #: label=deaf\nwait\ntrue #: label=e {attributes}\n")
        process = self.start(*arguments, "tests.txt", **changes)
        self.up.lines(2)
        return process

    def killed(self, process: "subprocess.Popen[bytes]") -> None:
        """The runner has just been killed: what it ran is gone, and another run does exactly what is owed."""
        self.assert_swept()
        self.assertEqual(process.wait(WAIT_S), -signal.SIGKILL)
        for name in ("tree.sh", "deaf.sh"):
            self.write(name, "true")
        self.suffer(self.read_list(), 1, {"b": "failed", "tree": "passed", "deaf": "passed", "e": "passed"},
                    "--rerun-failed")

    def read_list(self) -> str:
        with open(os.path.join(self.folder, "tests.txt"), encoding="utf-8") as file:
            return file.read()

    def test_killed_by_its_command_line(self) -> None:
        """As `pkill -9 -f run_tests.py` would, but for a runner of our own."""
        path = shutil.copy(RUNNER, self.folder)
        self.head = [sys.executable, path]
        process = self.start_tree()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                if path.encode() in file.read():
                    os.kill(int(pid), signal.SIGKILL)
        self.killed(process)

    def guard_of(self, process: "subprocess.Popen[bytes]") -> int:
        """The pid of a runner's guard, once it has one."""
        ask = ["bash", "tool.sh", "guard", str(process.pid)]
        return int(self.wait_for(lambda: subprocess.run(ask, cwd=self.folder, check=False, stdout=subprocess.PIPE,
                                                        stderr=subprocess.DEVNULL).stdout))

    def test_a_guard_that_is_killed_is_replaced(self) -> None:
        """And none heeds how the user's own shells are set."""
        self.write("env.sh", "kill() { :; }\n")
        process = self.start_tree(env={"SHELLOPTS": "errexit", "BASH_ENV": os.path.join(self.folder, "env.sh")})
        first = self.guard_of(process)
        os.kill(first, signal.SIGKILL)
        self.wait_for(lambda: self.guard_of(process) != first)
        process.kill()
        self.killed(process)

    def test_killed_with_daemons_that_leave_just_then(self) -> None:
        """Each leaves session, group, parent and environment, from 0 to 30 times, once the runner has been killed."""
        gate, up = Fifo(self, "gate"), Fifo(self, "up")
        self.write("hop.sh", '[ "$1" = 0 ] && exec "${@:2}"; exec "$(which setsid)" -f env -i bash hop.sh $(($1 - 1)) '
                             '"${@:2}"')
        self.write("leave.sh", "for n in {0..30}; do (echo up >up; read <gate; exec bash hop.sh $n $NAP) & done; wait")
        self.write("tests.txt", "bash leave.sh #: label=a\n")
        process = self.start("tests.txt")
        up.lines(31)
        process.kill()
        os.write(gate.end, b"\n" * 31)
        self.assert_swept()

    def test_killed_with_a_daemon_that_it_has_adopted(self) -> None:
        """One without environment, whose parent is gone."""
        up = Fifo(self, "up")
        self.write("daemon.sh", "(env -i $(which setsid) $NAP &); echo up >up; while :; do $NAP; done")
        self.write("tests.txt", "bash daemon.sh #: label=a\ntrue #: label=b\n")
        process = self.start("tests.txt", gpus="0,1")
        up.lines()
        self.wait_for(lambda: sum(command.startswith("sleep") for command in self.left().values()) == 2)
        process.kill()
        self.assert_swept()

    def test_killed_with_a_process_whose_first_thread_has_ended(self) -> None:
        """The kernel calls it a zombie, and its other threads run on."""
        up, hold, lifeline = Fifo(self, "up"), Fifo(self, "hold"), Lifeline(self)
        self.write("threads.py", LEADERLESS)
        self.write("tests.txt", "python3 threads.py <hold >up #: label=a\n")
        process = self.start("tests.txt", pass_fds=[lifeline.write_end])
        lifeline.let_go()
        up.lines()
        process.kill()
        self.wait_for(lifeline.is_cut)
        del hold

    def test_killed_at_the_start(self) -> None:
        """As soon as there is a guard, and as soon as there is a test."""
        text = "[ -e ready ] || { trap '' TERM; setsid $NAP & $NAP; } #: label=a\ntrue #: label=b gpus=2\n"
        plain = self.head
        for name in ("Reaper.post_guard", "Process.spawn"):
            with self.each(name):
                self.drive("import os", f"start = run_tests.{name}", "def killed(*args):", "    start(*args)",
                           "    os.kill(os.getpid(), 9)", f"run_tests.{name} = killed")
                self.write("tests.txt", text)
                process = self.start("tests.txt")
                self.assertEqual(process.wait(WAIT_S), -signal.SIGKILL)
                self.assert_swept()
                self.write("ready", "")
                self.head = plain
                self.suffer(text, 0, {"a": "passed", "b": "passed"}, "--rerun-failed")
                os.unlink(os.path.join(self.folder, "ready"))

    def test_killed_in_the_replay(self) -> None:
        text = "[ -e again ] || seq 100000 #: label=a\n[ -e again ] #: label=b\ntrue #: label=c\n"
        self.write("tests.txt", text)
        process = self.start("tests.txt")
        self.read_until(process, b"=== Per-test output")          # the rest does not fit into the pipe
        process.kill()
        self.assert_swept()
        self.assertEqual(process.wait(WAIT_S), -signal.SIGKILL)
        self.write("again", "")
        self.suffer(text, 0, {"b": "passed"}, "--rerun-failed")

    def test_ended_in_the_replay(self) -> None:
        """The rest of the logs is not shown; the verdict is, on a line of its own, whatever of a log is out."""
        size = 3_000_000
        self.write("tests.txt", f"head -c {size} /dev/zero | tr '\\0' x #: label=a\ntest -e none #: label=b\n")
        for signum in (signal.SIGTERM, signal.SIGINT):
            with self.each(signum.name):
                process = self.start("--junit", "junit.xml", "tests.txt")
                self.read_until(process, b"=== Per-test output")      # the rest does not fit into the pipe
                process.send_signal(signum)
                out, err = process.communicate(timeout=WAIT_S)
                self.assertEqual((process.returncode, err, self.left()), (128 + signum, b"", {}))
                self.assertTrue(out.endswith(b"\nError in the following test cases: b\n"), out[-200:])
                self.assertLess(len(out), size)
                ran = Ended(process.returncode, out, "", self.folder)
                self.assertEqual((ran.outcomes(), ran.failures()), ({"a": "passed", "b": "failed"}, ["b"]))

    def test_killed_by_its_test(self) -> None:
        self.write("tests.txt", "setsid $NAP & [ -e again ] || { kill -KILL $PPID; $NAP; } #: label=a\n"
                                "true #: label=b gpus=2\n")
        process = self.start("tests.txt")
        self.assertEqual(process.wait(WAIT_S), -signal.SIGKILL)
        self.assert_swept()
        self.write("again", "")
        self.drive(SOON)
        self.suffer(self.read_list(), 0, {"a": "passed"}, "--rerun-failed")

    def test_asked_to_end_by_its_test(self) -> None:
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                ran = self.suffer("true #: label=a gpus=all\nsetsid $NAP & kill -TERM $PPID; $NAP #: label=b gpus=all\n"
                                  "true #: label=c\n", 143, {"a": "passed", "b": "interrupted", "c": "not run"},
                                  "--order", "file", gpus=gpus)
                self.assertEqual(ran.text.splitlines()[-1], "Interrupted by SIGTERM: 1 interrupted, 1 not run")

    def test_interrupted_twice(self) -> None:
        """Those who do not listen, and those who have left their session, are gone all the same."""
        process = self.start_tree("--grace", "1h")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        self.assertEqual(process.stderr.readline(), ENDING)
        process.send_signal(signal.SIGINT)
        ran = self.settle(process, 143, {"a": "passed", "b": "failed", "tree": "interrupted", "deaf": "interrupted",
                                         "e": "not run"})
        self.assertIn("\nInterrupted by SIGTERM: 2 interrupted, 1 not run\n", ran.text)

    def test_a_stopped_test_is_interrupted(self) -> None:
        up = Fifo(self, "up")
        self.write("tests.txt", "trap 'echo heard; exit 1' HUP; echo $$ >up; kill -STOP $$; read <&- #: label=a\n")
        process = self.start("--grace", "1h", "tests.txt")
        pid, = up.lines()
        self.wait_for(lambda: f"{int(pid)} (bash) T " in self.stat(int(pid)))
        process.send_signal(signal.SIGHUP)
        ran = self.settle(process, 129, {"a": "interrupted"})
        self.assertEqual(ran.read("logs/a.log"), "heard\n")

    def stat(self, pid: int) -> str:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read()

    def test_the_first_process(self) -> None:
        """Of a container: orphans are its children, and it lets dead ones go."""
        space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if not is_allowed(*space, "true"):
            self.skipTest("we may not make a PID namespace")
        self.drive(SOON)
        self.head = [*space, *self.head]
        ran = self.suffer("bash tool.sh orphans #: label=a\n(setsid $NAP & setsid $NAP & test -d logs) "
                          "#: label=b\n[ $PPID = 1 ] #: label=c\n", 0, dict.fromkeys("abc", "passed"), gpus="0")
        self.assertEqual([len(record.get("leaked", ())) for record in ran.journal("test_end")], [0, 2, 0])

    def test_the_guard_spares_whom_it_cannot_read(self) -> None:
        """The first process, of another user, comes after the marked one, which is the last that was read."""
        space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if not is_allowed(*space, "bash", "-c", "setpriv --reuid 65534 true && echo 1 >/proc/sys/kernel/ns_last_pid"):
            self.skipTest("we may not make a PID namespace, or become another user")
        self.write("all.sh", "cd /\nother() { exec setpriv --reuid 65534 --clear-groups env \"$@\"; }\n"
                             "echo 989 >/proc/sys/kernel/ns_last_pid\n"
                             "other RUN_TESTS_RUN=the-run sleep 1000 & marked=$!\n"
                             "echo 98 >/proc/sys/kernel/ns_last_pid\nother sleep 1000 & bystander=$!\n"
                             "until [ \"$(cat /proc/{$marked,$bystander}/comm)\" = $'sleep\\nsleep' ]; do :; done\n"
                             "(other bash -c \"$1\" sweeper the-run 0 '')\n"
                             "kill -0 $bystander; echo $?; kill -0 $marked; echo $?")
        ended = subprocess.run([*space, "bash", "all.sh", run_tests.GUARD], cwd=self.folder, check=False,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.assertEqual(ended.stdout, b"0\n1\n")

    def nested(self, inner: str) -> str:
        """A line that runs the runner on another list."""
        self.write("inner.txt", inner)
        return "$PY $RUNNER --grace 1h --log-dir inner inner.txt"

    def test_a_runner_in_a_runner_that_is_killed(self) -> None:
        line = self.nested("setsid $NAP & env -i $(which setsid) $NAP & kill -KILL $PPID; $NAP")
        self.suffer(f"{line} #: label=a\ntrue #: label=b\n", 1, {"a": "crashed", "b": "passed"})

    def test_a_runner_in_a_runner_that_times_out(self) -> None:
        env = self.when_ready()
        for inner in ("setsid $NAP & echo up >up; wait $!",
                      "trap '' TERM; setsid $NAP & echo up >up; while :; do $NAP; done"):
            with self.each(inner):
                line = self.nested(inner)
                self.suffer(f"{line} #: label=a timeout=100ms\ntrue #: label=b\n", 1, {"a": "timeout", "b": "passed"},
                            env=env)

    def test_a_runner_in_a_runner_that_is_killed_itself(self) -> None:
        up = Fifo(self, "up")
        line = self.nested("trap '' TERM; setsid $NAP & bash tool.sh daemon; echo up >up; $NAP")
        self.write("tests.txt", f"{line} #: label=a\n")
        process = self.start("tests.txt")
        up.lines()
        process.kill()
        self.assert_swept()

    def test_what_shell_state_leaves(self) -> None:
        """It holds up neither the reading nor the end; it serves all tests, and is a leak of none."""
        self.write("env.sh", "$NAP & export P=$!\n(setsid $NAP >/dev/null 2>&1 &)\n")
        text = ". ./env.sh\nkill -0 $P #: label=a\nkill -0 $P #: label=b after=a\n"
        self.write("tests.txt", text)
        listed = self.start("--list", "tests.txt")
        out, _ = listed.communicate(timeout=WAIT_S)
        self.assertEqual((listed.returncode, out[:2], self.left()), (0, b"a\t", {}))
        ran = self.suffer(text, 0, {"a": "passed", "b": "passed"})
        self.assertEqual([record.get("leaked") for record in ran.journal("test_end")], [None, None])

    def test_a_signal_while_the_list_is_read(self) -> None:
        up = Fifo(self, "up")
        self.write("tests.txt", "export X=$(echo up >up; $NAP)\ntrue\n")
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.each(signum.name):
                process = self.start("tests.txt")
                up.lines()
                process.send_signal(signum)
                out, err = process.communicate(timeout=WAIT_S)
                self.assertEqual((process.returncode, out, err, self.left()), (128 + signum, b"", b"", {}))

    def test_a_second_signal_while_the_reaper_works(self) -> None:
        """Whoever sends two at once, as make does at Ctrl-C, leaves nothing either."""
        up = Fifo(self, "up")
        self.drive("import os", "kill_all = run_tests.kill_all", "def again(look):", "    os.kill(os.getpid(), 15)",
                   "    return kill_all(look)", "run_tests.kill_all = again")
        self.write("tests.txt", "export X=$(echo up >up; $NAP)\ntrue\n")
        process = self.start("tests.txt", env={"TMPDIR": self.folder})
        up.lines()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual((process.returncode, out, err, self.left()), (130, b"", b"", {}))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("run_tests.py.")], [])


class MachineTest(FaultCase):
    def test_a_clock_that_runs_backwards(self) -> None:
        self.drive("import itertools, time", "clock = itertools.count(2_000_000_000, -3600)",
                   "time.time = lambda: next(clock)")
        text = "true #: label=a\ntest -e none #: label=b retries=1\n(exec $NAP) #: label=c timeout=300ms\n"
        ran = self.suffer(text, 1, {"a": "passed", "b": "failed", "c": "timeout"})
        self.assertTrue(all(0 <= record["seconds"] < WAIT_S for record in ran.journal("test_end")))
        self.suffer(text, 1, {"b": "failed", "c": "timeout"}, "--rerun-failed", "--shard", "1/1")

    def test_events_that_come_faster_than_they_are_handled(self) -> None:
        """As those of many short tests do on a large machine; here they are of a test that was abandoned."""
        self.drive("get = run_tests.Inbox.get", "def flood(inbox, _):",
                   "    return get(inbox, 0) or run_tests.Exited(0.0, None, 0)", "run_tests.Inbox.get = flood")
        for option in ("--timeout", "--deadline"):
            with self.each(option):
                self.write("tests.txt", "exec $NAP #: label=a\n")
                process = self.start(option, "300ms", "tests.txt")
                self.settle(process, 1, {"a": "timeout" if option == "--timeout" else "interrupted"})

    def frozen(self) -> str:
        """Bash that freezes itself: no signal ends it, as with one that waits in a broken driver."""
        self.cell = cgroup(self, "freezer")
        self.addCleanup(self.thaw)
        self.drive("run_tests.KILLED_S = run_tests.STUCK_S = 0.3", SOON, WHEN_READY)
        Fifo(self, "up")
        return f"echo $BASHPID >{self.cell}/cgroup.procs; echo up >up; echo FROZEN >{self.cell}/freezer.state; $NAP"

    def thaw(self) -> None:
        with open(f"{self.cell}/freezer.state", "w") as file:
            file.write("THAWED")

    def outlive(self, text: str, code: int, outcomes: Mapping[str, str], gpus: str = "0,1") -> Ended:
        """A run that a frozen process outlives: nothing else does, nor does that, once it has thawed."""
        self.write("tests.txt", text)
        process = self.start("--junit", "junit.xml", "--grace", "100ms", "tests.txt", gpus=gpus, env={"LINES": "1"})
        out, err = process.communicate(timeout=WAIT_S)
        with open(f"{self.cell}/cgroup.procs") as file:
            self.assertEqual(sorted(self.left()), sorted(map(int, file)))
        self.thaw()
        self.wait_for(lambda: not self.left())
        ran = Ended(process.returncode, out, err.decode(), self.folder)
        self.verify(ran, code, outcomes)
        return ran

    def test_a_bash_that_runs_nothing(self) -> None:
        """All would pass."""
        self.write("ends.sh", "exit 0\n")
        for env in ({"BASH_ENV": "ends.sh"}, {"SHELLOPTS": "noexec"}, {"PATH": self.folder}):
            for name in ("tests.txt", "test.sh"):
                ran = self.run_list("false\n", name=name, env=env)
                self.assertEqual((ran.code, ran.text), (3, ""))
                self.assertRegex(ran.err, "error: bash (runs no commands here; look at|cannot be run .*; put it)")

    def test_a_bash_that_is_killed(self) -> None:
        """The list is not to blame, whichever bash it is that reads it."""
        os.mkdir(os.path.join(self.folder, "bin"))
        self.write("bin/bash", "#!/bin/sh\nkill -KILL $$\n", 0o755)
        self.write("memory.sh", "kill -KILL $$\n")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        for text, env in (("true\n", {"PATH": path}), (". ./memory.sh\ntrue\n", {})):
            ran = self.run_list(text, env=env)
            self.assertEqual((ran.code, ran.text), (3, ""))
            self.assertRegex(ran.err, "error: bash was killed")

    def test_a_job_of_the_shell_state(self) -> None:
        """It is ended with the run, and no test is blamed."""
        self.write("job.sh", "$NAP &\n")
        ran = self.run_list(". ./job.sh\ntrue\n")
        self.assertEqual((ran.code, self.left()), (0, {}))
        self.assertRegex(ran.err, r"run_tests\.py: ended what still ran: \w+ \(pid \d+\)\n")

    def test_a_shell_that_cannot_be_killed(self) -> None:
        ran = self.outlive(f"{self.frozen()} #: label=a timeout=100ms retries=2\ntrue #: label=b\nwait\n"
                           "true #: label=c gpus=2\ntrue #: label=d\n", 1,
                           {"a": "timeout", "b": "passed", "c": "unrunnable", "d": "passed"})
        gpu, = ran.journal("run_end")[0]["quarantined"]
        self.assertIn(f">>> Quarantined: GPU {gpu} [a cannot be killed]\n", ran.text)

    def test_a_child_that_cannot_be_killed(self) -> None:
        ran = self.outlive(f"({self.frozen()}) & until grep -q FROZEN {self.cell}/freezer.state; do :; done; "
                           "test -d logs #: label=a\ntrue #: label=b\n", 0, {"a": "passed", "b": "passed"})
        (gpu, reason), = ran.journal("run_end")[0]["quarantined"].items()
        self.assertRegex(reason, r"^(bash|sleep) \(pid \d+\) cannot be killed$")

    def test_another_namespace_without_its_proc(self) -> None:
        if not is_allowed("unshare", "--pid", "--fork", "true"):
            self.skipTest("we may not make a PID namespace")
        self.head = ["unshare", "--pid", "--fork", *self.head]
        ran = self.run_list("true\n")
        self.assertEqual((ran.code, ran.err), (3, "run_tests.py: error: /proc is missing, or of another PID namespace; "
                                                  "mount it (only Linux has one)\n"))

    def test_a_root_without_dev_fd(self) -> None:
        """What a script prints is shown all the same."""
        root = os.path.join(self.folder, "root")
        os.mkdir(root)
        text = ('mount --rbind / "$0" && mount -t tmpfs none "$0/dev" && mknod "$0/dev/null" c 1 3 && '
                'mknod "$0/dev/zero" c 1 5 && exec chroot "$0" sh -c \'cd "$0" && exec "$@"\' "$@"')
        space = ["unshare", "-m", "sh", "-c", text, root, self.folder]
        if not is_allowed(*space, "true"):
            self.skipTest("we may not mount a file system")
        self.head = [*space, *self.head]
        self.write("test.sh", "echo one; /bin/false || echo two\n")
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                self.assertEqual(self.run_command("test.sh", gpus=gpus).text.splitlines()[-2:], ["one", "two"])


if __name__ == "__main__":
    unittest.main()
