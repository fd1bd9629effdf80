"""What tests do to themselves and to their runner: real faults, real processes, and nothing left of them.

Each fault is held against verdict, exit code, journal, `failures`, logs, replay and JUnit at once, and afterwards no
process may bear the test's mark. What happens to the runner itself is in `test_faults_runner.py`; GPUs, JUnit files,
and options that judge faults are in `test_faults_gpu.py`.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence
from xml.etree import ElementTree

import run_tests
from tests.support import WAIT_S, Fifo, GatedCase, Ran, compiled_runner, remarks

PROBLEMS = {"failed": "failure", "crashed": "error", "timeout": "error", "blocked": "error", "unrunnable": "error",
            "interrupted": "error", "not run": "error"}

# What tests do, as `bash tool.sh NAME`.
TOOL = r'''
tell() { echo up >up; }
storm() { for n in {1..50}; do $NAP & setsid $NAP & done; }
daemon() { cd /; setsid setsid -f $NAP <&- >&- 2>&-; }
guard() {       # that of the runner of this pid; prints its own pid
  for pid in $(cat /proc/$1/task/*/children); do
    read -r -d '' name </proc/$pid/cmdline && [[ $name != sweeper ]] || echo $pid
  done
}
orphans() {     # a runner that is the first process lets the dead ones go
  for n in {1..20}; do (true & true); done
  while cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z 1 '; do :; done
}
"$@"
'''
# Pythons that wait for ever in threads of these names, the first one with another such Python in another session.
WAITERS = r'''
import subprocess, sys, threading
def inner(): threading.Event().wait()
def first(): inner()
def second(): inner()
def third(): inner()
def fourth(): inner()
names = sys.argv[1:]
for name in names[-2:]:
    threading.Thread(target=globals()[name], daemon=True).start()
if len(names) > 2:
    subprocess.Popen([sys.executable, __file__, *names[:2]], start_new_session=True)
with open("up", "w") as up:
    up.write("up\n")
inner()
'''

# Timeouts count from when the test has told, by so many lines through the FIFO `up`, that it is ready.
WHEN_READY = """
import os, time
launch = run_tests.Run.launch
def launched(run, attempt):
    launch(run, attempt)
    if attempt.test.timeout:
        with open("up") as up:
            for _ in range(int(os.environ["LINES"])):
                up.readline()
        attempt.deadline = attempt.due = time.monotonic() + attempt.test.timeout
run_tests.Run.launch = launched
"""


# The time of the run ends as soon as its first test has told that it is ready.
OVER_WHEN_READY = """
import time
launch = run_tests.Run.launch
def launched(run, attempt):
    launch(run, attempt)
    with open("up") as up:
        up.readline()
    run.schedule.end_at = time.monotonic()
run_tests.Run.launch = launched
"""


class Ended(Ran):
    """A run whose journal may hold earlier runs, and what a test has written there: also before a line, without end."""

    def journal(self, event: Optional[str] = None, path: str = "logs/run_tests.jsonl") -> List[Dict[str, Any]]:
        events = []
        for line in self.read(path).split("\n"):
            with contextlib.suppress(ValueError):
                record = json.loads(line[max(line.rfind('{"event"'), 0):])
                if isinstance(record, dict) and "run" in record:
                    events.append(record)
        return [record for record in events
                if record["run"] == events[-1]["run"] and event in (None, record["event"])]


class FaultCase(GatedCase):
    """Runs that go wrong: whatever happens, there is a verdict everywhere, and no process anywhere.

    A test's processes bear its mark in their environment; `$NAP`, a command that never ends, has it in its arguments,
    for those whose environment is cleared.
    """

    def setUp(self) -> None:
        super().setUp()
        mark = uuid.uuid4()
        self.mark, self.number = f"FAULT={mark.hex}".encode(), str(mark.int)[-15:]
        self.write("tool.sh", TOOL)
        self.addCleanup(self.kill_left)      # before the folder is removed

    def kill_left(self) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def environment(self, gpus: Optional[str], extra: Mapping[str, str]) -> Dict[str, str]:
        return super().environment(gpus, {"FAULT": self.mark.decode()[6:], "NAP": f"sleep 86400.{self.number}",
                                          "PY": f"{sys.executable} -S", "RUNNER": compiled_runner(), **extra})

    def when_ready(self, lines: int = 1) -> Mapping[str, str]:
        """Let timeouts count from when tests are ready; returns an environment."""
        Fifo(self, "up")
        self.drive(WHEN_READY)
        return {"LINES": str(lines)}

    def over_when_ready(self) -> None:
        """Let `--deadline` come when a test has told that it is ready."""
        Fifo(self, "up")
        self.drive(OVER_WHEN_READY)

    def left(self) -> Dict[int, str]:
        """The live processes that this test has started: pid to command line. Zombies are dead."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                texts = {}
                for name in ("stat", "cmdline", "environ"):
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        texts[name] = file.read()
                is_dead = texts["stat"].rpartition(b") ")[2][:1] in (b"Z", b"X")
                is_mine = self.mark in texts["environ"].split(b"\0") or self.number.encode() in texts["cmdline"]
                if is_mine and not is_dead:
                    found[int(pid)] = texts["cmdline"].replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    @contextlib.contextmanager
    def each(self, name: str) -> Iterator[None]:
        """A subtest that leaves nothing to the next."""
        with self.subTest(name):
            try:
                yield
            finally:
                self.kill_left()
                shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Look until it is so; returns what is."""
        give_up = time.monotonic() + WAIT_S
        while True:
            found = condition()
            if found:
                return found
            self.assertLess(time.monotonic(), give_up, f"{condition} never comes; {self.left()}")
            time.sleep(0.01)

    def assert_swept(self) -> None:
        """The runner has been killed just now: soon nothing is left."""
        self.wait_for(lambda: not self.left())

    def suffer(self, text: str, code: int, outcomes: Mapping[str, str], *arguments: str, gpus: str = "0,1",
               env: Mapping[str, str] = {}, lost: Sequence[str] = ()) -> Ended:  # noqa: B006
        """Run a list that does something bad, and look at all that it leaves. `outcomes` are in list order."""
        self.write("tests.txt", text)
        process = self.start("--junit", "junit.xml", "--grace", "200ms", *arguments, "tests.txt", gpus=gpus, env=env)
        return self.settle(process, code, outcomes, lost)

    def settle(self, process: "subprocess.Popen[bytes]", code: int, outcomes: Mapping[str, str],
               lost: Sequence[str] = ()) -> Ended:
        """The end of a run, held against what it should be; `lost` are logs that it is not to have."""
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual(self.left(), {}, err)
        ran = Ended(process.returncode, out, remarks(err), self.folder)
        self.verify(ran, code, outcomes, lost)
        return ran

    def verify(self, ran: Ended, code: int, outcomes: Mapping[str, str], lost: Sequence[str] = ()) -> None:
        self.assertEqual(ran.code, code, ran.text + ran.err)
        self.check_replay(ran, outcomes)
        for name in lost:
            path = ran.path(name)
            self.assertFalse(os.path.isfile(path), path)
            if os.path.lexists(path):
                (os.rmdir if os.path.isdir(path) else os.unlink)(path)
            self.write(name, "")             # now the common check may have it
        self.check(ran, code, outcomes)
        self.assertNotIn("Traceback", ran.text.partition("=== Per-test")[0])
        if os.path.exists(ran.path("junit.xml")):
            self.check_summary(ran, outcomes)

    def check_summary(self, ran: Ran, outcomes: Mapping[str, str]) -> None:
        """`--junit` has one case per test, and says of each what the outcome says."""
        suite, = ElementTree.parse(ran.path("junit.xml")).getroot()
        problems = {case.get("name"): {child.tag for child in case} & {"failure", "error"}
                    for case in suite.iter("testcase")}
        self.assertEqual(problems, {run_tests.xml_text(label): {PROBLEMS[outcome]} if outcome in PROBLEMS else set()
                                    for label, outcome in outcomes.items()})
        counted = [sum(tag in tags for tags in problems.values()) for tag in ("failure", "error")]
        self.assertEqual([suite.get(name) for name in ("tests", "failures", "errors")],
                         [str(count) for count in (len(outcomes), *counted)])

    def check_replay(self, ran: Ended, outcomes: Mapping[str, str]) -> None:
        """Where the trace has a replay, it has each log in its frame, byte for byte, whatever is in it.

        A log without a byte is left out where its test has passed.
        """
        start = b"\n=== Per-test output (replayed from parallel execution) ===\n"
        if start not in ran.out:
            return
        ended = {record["label"] for record in ran.journal("test_end") if record["status"] is not None}
        if ran.code > 128:      # after a signal, failures alone
            ended &= {label for label, outcome in outcomes.items() if outcome in ("failed", "crashed", "timeout")}
        logs = {record["label"]: record["log"] for record in ran.journal("test_start")}
        expected = start + b"".join(framed(ran.path(logs[label]), outcomes[label] in ("passed", "flaky"))
                                    for label in outcomes if label in ended)
        shown = re.sub(rb"(?m)^(>>> \S+) \[.*\]$", rb"\1", ran.out[ran.out.index(start):])
        if not shown.startswith(expected + b"\n=== End of per-test output ===\n"):
            self.fail(f"the replay is {shown[:4000]!r}, not {expected[:4000]!r}")


def framed(path: str, is_ok: bool) -> bytes:
    """What the replay shows of a log."""
    stem = os.path.basename(path)[:-len(".log")]
    text = f"\n{run_tests.RULE}\n>>> {stem}\n{run_tests.RULE}\n".encode()
    try:
        with run_tests.open_regular(path) as file:
            log = file.read()
        if is_ok and not log:
            return b""
    except OSError as error:
        if is_ok:
            return b""
        log = f"(its log cannot be read: {error.strerror})".encode()
    calm = b"\x1b\\\x1b[0m" if b"\x1b" in log[-run_tests.TAIL_BYTES:] else b""
    return text + log + calm + (b"" if (log + calm).endswith(b"\n") or not log else b"\n")


def is_allowed(*command: str) -> bool:
    """Whether we have the right to do this."""
    try:
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def cgroup(case: FaultCase, kind: str, **settings: str) -> str:
    """The folder of a new cgroup (version 1), emptied and removed afterwards; skips the test where there is none."""
    folder = f"/sys/fs/cgroup/{kind}/run_tests-{case.number}"
    try:
        os.mkdir(folder)
        case.addCleanup(lambda: case.wait_for(lambda: is_allowed("rmdir", folder)))
        for name, value in settings.items():
            with open(f"{folder}/{kind}.{name}", "w") as file:
                file.write(value)
    except OSError as error:
        case.skipTest(f"no {kind} cgroup of version 1 that we may use ({error})")
    return folder


class Fault(NamedTuple):
    """What one line of a list does, and what is to be said of it."""

    command: str
    outcome: str
    status: int
    cause: str = ""
    leaks: int = 0


ALONE = "env -i $(which setsid) $NAP"    # it has left group, session and environment
LOG = "logs/$RUN_TESTS_LABEL.log"
FAULTS: Dict[str, Fault] = {
    "a_segfault": Fault("ulimit -c 0; $PY -c 'import ctypes; ctypes.string_at(0)'", "crashed", 139,
                        "segmentation fault"),
    "an_abort": Fault("ulimit -c 0; $PY -c 'import os; os.abort()'", "crashed", 134, "killed by SIGABRT"),
    "a_division": Fault("kill -FPE $$; echo survived; [ -d logs ]", "crashed", -8, "killed by SIGFPE"),
    "exit_139_by_hand": Fault("exit 139", "crashed", 139, "segmentation fault"),
    "a_limit_of_memory": Fault("ulimit -v 400000; $PY -c 'bytearray(1 << 40)'", "failed", 1,
                               "out of memory (of the machine)"),
    "a_limit_of_file_size": Fault("ulimit -c 0; ulimit -f 1; yes", "crashed", -25, "killed by SIGXFSZ"),
    "its_group_killed": Fault("$NAP & $NAP & kill -USR1 0", "crashed", -10, "killed by SIGUSR1"),
    "its_group_asked_to_end": Fault("trap '' TERM; $NAP & trap - TERM; kill -TERM 0; wait $!", "crashed", -15,
                                    "killed by SIGTERM", leaks=1),
    "its_streams_closed": Fault("exec <&- >&- 2>&-; exit 3", "failed", 3, "exit status 3, without output"),
    "its_descriptors_closed": Fault("for n in {0..255}; do eval \"exec $n>&-\"; done; exit 4", "failed", 4,
                                    "exit status 4, without output"),
    "its_log_deleted": Fault(f"echo bye; rm {LOG}; exit 6", "failed", 6, "exit status 6, without output"),
    "its_log_a_folder": Fault(f"rm {LOG}; mkdir {LOG}; exit 7", "failed", 7, "exit status 7, without output"),
    "its_log_a_pipe": Fault(f"rm {LOG}; mkfifo {LOG}; exit 7", "failed", 7, "exit status 7, without output"),
    "its_log_a_device": Fault(f"ln -sf /dev/zero {LOG}; exit 7", "failed", 7, "exit status 7, without output"),
    "a_background_process": Fault("$NAP & (trap '' TERM HUP; exec $NAP) & test -d logs", "passed", 0, leaks=2),
    "a_session_of_its_own": Fault("setsid $NAP & kill -STOP $!", "passed", 0, leaks=1),
    "a_daemon": Fault("bash tool.sh daemon", "passed", 0, leaks=1),
    "a_daemon_without_environment": Fault(f"{ALONE} & disown; exit 8", "failed", 8, "exit status 8, without output",
                                          leaks=1),
    "its_log_held_open": Fault(f"exec 7>&1; {ALONE} >&7 2>&7 & test -d logs", "passed", 0, leaks=1),
    "a_fork_storm": Fault("bash tool.sh storm", "passed", 0, leaks=100),
}
STUCK: Dict[str, Fault] = {              # those end by a timeout
    "no_ear_for_SIGTERM": Fault("trap '' TERM; bash tool.sh tell; while :; do $NAP; done", "timeout", -9, "timeout"),
    "a_child_without_ear": Fault("(trap '' TERM; bash tool.sh tell; while :; do $NAP; done) & wait $!", "timeout", -15,
                                 "timeout"),
    "stopped": Fault("bash tool.sh tell && kill -STOP $$", "timeout", -15, "timeout"),
    "a_pipe_that_nobody_ends": Fault(f"mkfifo p; {ALONE} <>p >p & bash tool.sh tell && cat p", "timeout", -15,
                                     "timeout"),
}


class TestFaultTest(FaultCase):
    """Tests that do something bad to themselves: the others see nothing of it."""

    def hold(self, faults: Mapping[str, Fault], attributes: str = "", **changes: Any) -> None:
        """All faults at once, with one test beside them and one below."""
        lines = [f"{fault.command} #: label={name} {attributes}" for name, fault in faults.items()]
        outcomes = {**{name: fault.outcome for name, fault in faults.items()}, "beside": "passed", "below": "passed"}
        lost = [f"logs/{name}.log" for name, fault in faults.items() if LOG in fault.command]
        ran = self.suffer("\n".join([*lines, "true #: label=beside", "wait", "true #: label=below"]), 1, outcomes,
                          gpus=",".join(map(str, range(len(faults) + 1))), lost=lost, **changes)
        ends = {record["label"]: (record["status"], record.get("cause", ""), len(record.get("leaked", ())))
                for record in ran.journal("test_end") if record["label"] in faults}
        self.assertEqual(ends, {name: fault[2:] for name, fault in faults.items()})

    def test_what_a_test_can_do_to_itself(self) -> None:
        self.hold(FAULTS)

    def test_what_only_a_timeout_ends(self) -> None:
        self.hold(STUCK, "timeout=100ms", env=self.when_ready())

    def test_a_kernel_that_kills_for_want_of_memory(self) -> None:
        group = cgroup(self, "memory", limit_in_bytes="32M")
        ran = self.suffer(f"(echo $BASHPID >{group}/cgroup.procs; exec $PY -c 'bytearray(1 << 28)') #: label=a\n"
                          "kill -KILL $$ #: label=b after=c\ntrue #: label=c\n", 1,
                          {"a": "crashed", "b": "crashed", "c": "passed"}, gpus="0")
        self.assertEqual([record.get("reason") for record in ran.journal("test_end")], ["OOM killer", None, None])


class StacksTest(FaultCase):
    """What the log of a test that is ended has of its Pythons."""

    HANDLER = ("import signal, sys, time; signal.signal(signal.SIGTERM, {}); open('up', 'w').write('up\\n'); "
               "time.sleep(86400)")

    def time_out(self, line: str, lines: int = 1, grace: str = "200ms") -> str:
        """The log of a line that is ended as soon as it is ready."""
        ran = self.suffer(f"{line} #: timeout=100ms label=a\n", 1, {"a": "timeout"}, "--grace", grace, gpus="0",
                          env=self.when_ready(lines))
        return ran.read("logs/a.log")

    def test_every_thread_of_every_python(self) -> None:
        """No core is left of those that end by it, whatever their limit was."""
        self.write("waiters.py", WAITERS)
        log = self.time_out("ulimit -c unlimited; $PY waiters.py first second third fourth", lines=2)
        for name in ("first", "second", "third", "fourth"):
            self.assertEqual(len(re.findall(rf"line \d+ in {name}$", log, re.MULTILINE)), 1, log)
        self.assertEqual(len(re.findall(r"^  File .*, line \d+ in <module>$", log, re.MULTILINE)), 2, log)
        self.assertEqual(len(re.findall(r"=== run_tests\.py: the stacks of python\S* \(pid \d+\) ===", log)), 2, log)
        self.assertNotIn("core dumped", log)
        self.assertFalse([name for name in os.listdir(self.folder) if "core" in name])

    def test_a_python_that_handles_sigterm_is_left_to_it(self) -> None:
        line = f'$PY -c "{self.HANDLER.format("lambda *_: sys.exit(print(`tidied`))")}"'.replace("`", "'")
        log = self.time_out(line, grace="1h")
        self.assertRegex(log, r"^\n=== run_tests\.py: did not end in 0\.1s ===\ntidied\n$")

    def test_one_that_does_not_end_by_it_is_asked_before_sigkill(self) -> None:
        log = self.time_out(f'$PY -c "{self.HANDLER.format("lambda *_: print(`told`)")}"'.replace("`", "'"))
        self.assertRegex(log, r"(?s)\ntold\n.*the stacks of python.*\n  File \"<string>\", line 1 in <module>\n")

    def test_a_python_without_faulthandler(self) -> None:
        self.write("waiters.py", WAITERS)
        for option in ("-I", "-E"):
            with self.each(option):
                log = self.time_out(f"$PY {option} waiters.py first")
                self.assertEqual(log, "\n=== run_tests.py: did not end in 0.1s ===\n")
                os.unlink(os.path.join(self.folder, "up"))


class OwnFilesTest(FaultCase):
    """A test that writes to, cuts or deletes what the runner writes, or has put something else there before."""

    def test_garbage(self) -> None:
        """What a test writes costs nothing but itself, be it a line, or the beginning of one."""
        lines = ["not json", '{"event": "test_end"', "[]", "7", '{"event": "test_end", "run": 3, "label": {}}']
        self.write("garbage", "\n".join(lines))       # its last line is open
        self.write("b.sh", "cat garbage >>logs/run_tests.jsonl; printf junk >>logs/failures; exit 1")
        text = "exit 1 #: label=a\nbash b.sh #: label=b\nexit 1 #: label=c\ntrue #: label=d\n"
        self.write("tests.txt", text)
        process = self.start("tests.txt", gpus="0")
        process.communicate(timeout=WAIT_S)
        ran, outcomes = Ended(process.returncode, b"", "", self.folder), dict.fromkeys("abc", "failed")
        self.assertEqual((ran.code, ran.outcomes(), self.left()), (1, {**outcomes, "d": "passed"}, {}))
        self.assertEqual(ran.failures(), ["a", "junk", "b", "c"])
        self.write("b.sh", "exit 1")
        self.suffer(text, 1, outcomes, "--rerun-failed", gpus="0")

    def test_cut(self) -> None:
        """What is lost is lost; the verdict is not."""
        text = ("exit 1 #: label=a\n[ -e again ] || for x in run_tests.jsonl failures; do cp /dev/null logs/$x; done "
                "#: label=b\nexit 2 #: label=c\n")
        self.write("tests.txt", text)
        process = self.start("--junit", "junit.xml", "tests.txt", gpus="0")
        out, err = process.communicate(timeout=WAIT_S)
        ran = Ended(process.returncode, out, remarks(err), self.folder)
        self.assertEqual((ran.code, self.left()), (1, {}))
        self.assertEqual(ran.text.splitlines()[-1], "Error in the following test cases: a c")
        self.assertEqual([ran.failures()[-1], ran.outcomes()["c"]], ["c", "failed"])
        self.assertEqual(ran.journal()[-1]["outcomes"], {"failed": 2, "passed": 1})
        self.check_summary(ran, {"a": "failed", "b": "passed", "c": "failed"})
        self.write("again", "")
        self.suffer(text, 1, {"a": "failed", "b": "passed", "c": "failed"}, gpus="0")

    def test_deleted(self) -> None:
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                self.suffer("exit 1 #: label=a\nwait\nrm -r logs #: label=b\nwait\nexit 3 #: label=c\n", 1,
                            {"a": "failed", "b": "passed", "c": "failed"}, gpus=gpus, lost=["logs/a.log", "logs/b.log"])

    def test_nobody_else_gets_a_folder_that_came_back(self) -> None:
        gate, logs = Fifo(self, "gate"), os.path.join(self.folder, "logs")
        self.write("tests.txt", "read line <gate; rm -r logs; read line <gate #: label=a\n")
        process = self.start("--junit", "junit.xml", "tests.txt")
        self.read_until(process, b"Starting")
        held = self.inode(logs)
        gate.release()
        self.wait_for(lambda: self.inode(logs) not in (0, held) and self.is_locked(logs))
        other = self.start("tests.txt", env={"RUN_TESTS_RUN": "else it waits for the end"})
        _, err = other.communicate(timeout=WAIT_S)
        self.assertEqual((other.returncode, b" is writing to logs; give this one a --log-dir" in err), (3, True), err)
        gate.release()
        self.settle(process, 0, {"a": "passed"}, lost=["logs/a.log"])

    def inode(self, path: str) -> int:
        """Its number; 0 if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(path).st_ino
        return 0

    def is_locked(self, folder: str) -> bool:
        with open("/proc/locks", encoding="ascii") as file:
            return f":{self.inode(folder)} " in file.read()

    def test_something_else_in_the_place_of_a_log_at_a_retry(self) -> None:
        for change in ("mkdir {0}", "mkfifo {0}", "ln -s /dev/zero {0}"):
            with self.each(change):
                change = change.format("logs/a.log")
                self.suffer(f"rm -rf logs/a.log; {change}; [ $RUN_TESTS_ATTEMPT = 2 ] #: label=a\n"
                            "true #: label=b\n", 0, {"a": "flaky", "b": "passed"}, "--retries", "1",
                            lost=["logs/a.log"])

    def test_a_junit_file_for_a_test_without_a_log(self) -> None:
        self.write("gone.sh", "rm -r logs; exit 9")
        self.suffer("bash gone.sh --junitxml=logs/a.xml #: label=a\n", 1, {"a": "failed"}, lost=["logs/a.log"])
        case, = ElementTree.parse(os.path.join(self.folder, "logs/a.xml")).iter("testcase")
        self.assertEqual([(child.tag, child.text) for child in case][:-1], [("failure", None)])

    def test_links_of_before(self) -> None:
        """They are replaced, and never followed; the names of our temporary files cannot be known before."""
        victim = self.write("victim", "mine")
        os.mkdir(os.path.join(self.folder, "logs"))
        names = ["logs/" + name for name in ("a.log", "b.log", "b.attempt1.log", "b.xml", "b.xml.tmp", "b.xml.attempt1",
                                             "failures", "deferred.txt")]
        for name in [*names, "junit.xml.tmp"]:
            os.symlink(victim, os.path.join(self.folder, name))
        ran = self.suffer("echo a #: label=a\nbash -c 'exit 1' bash --junitxml=logs/b.xml #: label=b\n"
                          "true #: label=c gpus=2\n", 1, {"a": "passed", "b": "failed", "c": "deferred"},
                          "--retries", "1", "--max-gpus", "1")
        self.assertEqual(ran.read("victim"), "mine")
        self.assertEqual([name for name in names if os.path.islink(ran.path(name))],
                         ["logs/b.xml.tmp", "logs/b.xml.attempt1"])
        for name in ("junit.xml", "logs/run_tests.jsonl"):       # these are the user's to move
            os.unlink(ran.path(name))
            os.symlink(victim, ran.path(name))
            refused = self.run_command("--junit", "junit.xml", "tests.txt")
            self.assertEqual((refused.code, refused.out, ran.read("victim")), (3, b"", "mine"))
            self.assertIn(f"cannot write {name} (", refused.err)
            os.unlink(ran.path(name))
            self.write(name, "")


HOSTILE = {
    "an unfinished title": b"\x1b]0;a title without end", "a colour": b"\x1b[31mred", "half an escape": b"x\x1b",
    "an alternate screen": b"\x1b[?1049h\x1b[2J\x1b[1;1H", "GitHub's commands": b"::error::boom\n::stop-commands::y\n",
    "Azure's commands": b"##vso[task.complete result=Failed;]no\n", "GitLab's": b"section_start:1:x\r\x1b[0Kx\n",
    "CR": b"100%\rdone\r", "NUL": b"\0\0", "U+2028": "\u2028\u2029\x85".encode(), "CDATA's end": b"]]>]]&gt;<a>&",
    "lone surrogates": b"\xed\xb2\x80\xed\xa0\x80", "no UTF-8": bytes(range(128, 256)),
    "our own frame": "\n{0}\n>>> b\n{0}\n\n=== End of per-test output ===\nAll tests passed"
                     .format(run_tests.RULE).encode(),
}
COMMANDS = ("##vso[task.complete result=Succeeded;]", "##[error]", "##teamcity[testFailed]")


class HostileTest(FaultCase):
    def test_logs(self) -> None:
        """The replay has them as they are, and its frame is whole; causes and JUnit have what they may have."""
        self.write("show.sh", "cat $1; exit 1")
        lines, outcomes = [], {f"log{number}": "failed" for number in range(len(HOSTILE))}
        for number, data in enumerate(HOSTILE.values()):
            with open(os.path.join(self.folder, f"data{number}"), "wb") as file:
                file.write(data)
            lines.append(f"bash show.sh data{number} --junitxml=logs/junit{number}.xml #: label=log{number}")
        ran = self.suffer("\n".join(lines), 1, outcomes)
        start = ran.out.rindex(b"=== End of per-test output ===\n")
        self.assertNotRegex(ran.out[start:].decode(), r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
        for number in range(len(HOSTILE)):
            case, = ElementTree.parse(ran.path(f"logs/junit{number}.xml")).iter("testcase")
            self.assertEqual([child.tag for child in case], ["failure", "system-out"])
        ran = self.suffer("\n".join(lines), 1, outcomes, "--output", "ordered")
        for number in range(len(HOSTILE)):
            log = framed(ran.path(f"logs/junit{number}.log"), False)
            self.assertIn(log, re.sub(rb"(?m)^(>>> \S+) \[.*\]$", rb"\1", ran.out))

    def test_labels(self) -> None:
        """They are one line each, without control characters, wherever they are shown."""
        labels = {"\x1b]0;evil": "0;evil", "::error::boom": None, "a\rb": "a b", "a\u2028b": "a b",
                  "]]></testcase>": None, "\udcff\udced\udcb2": None, "\x9b31m": "31m", "../../../etc/x": None,
                  "-": None, "$(false)": None, "x" * 300: "x" * 199 + "\u2026", "\x7f\x08c": "c"}
        shown = [told or label for label, told in labels.items()]
        lines = [f"exit 1 #: label='{label}'" for label in labels]
        ran = self.suffer("\n".join(lines), 1, {label if shown.index(label) == number else f"{label} #2": "failed"
                                                for number, label in enumerate(shown)})
        self.assertNotIn(b"\x1b", ran.out)
        self.assertEqual(len(ran.out.splitlines()), len(ran.text.split("\n")) - 1)
        self.assertEqual(sorted(os.listdir(self.folder)), ["junit.xml", "logs", "tests.txt", "tool.sh"])

    def test_commands_to_a_ci(self) -> None:
        """No line of our own has one, in whatever a test, a list or an option has it; logs are shown as they are."""
        lines = [f"echo 'Error: {command}' && exit 1 #: label='{command}'" for command in COMMANDS]
        self.write("mistake.txt", "".join(f"true #: label=a after='{command}'\n" for command in COMMANDS))
        self.write("only", "".join(f"{command}\n" for command in COMMANDS) + "strange ##[error]\n")
        for arguments in (["tests.txt"], ["--only", "only", "tests.txt"], ["--list", "tests.txt"], ["mistake.txt"],
                          ["-k", COMMANDS[0], "tests.txt"]):
            self.write("tests.txt", "\n".join(lines))
            ran = self.run_command(*arguments)
            said = "\n".join(line for line in ran.text.splitlines() if not line.startswith("Error: ##")) + ran.err
            self.assertNotEqual((ran.code, said), (0, ""), arguments)
            self.assertNotRegex(said, r"##(vso)?\[|##teamcity\[", arguments)
            self.assertRegex(said, r"# #(vso)?\[|# #teamcity\[", arguments)

    def test_the_last_line_of_a_slow_one(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "printf '\\033]0;x\\007\\033[1;31m::error::\\r\\0 50%%\\n'; read line <gate "
                                "#: label=a\ntrue #: label=b\n")
        process = self.start("--slow", "50ms", "tests.txt")
        self.addCleanup(gate.release)
        before = self.read_until(process, b"50%]\n")
        gate.release()
        self.assertRegex(before.decode(), r"(?m)^>>> Slow: a \[\d+\.\ds; [ -~]*50%\]$")
        self.settle(process, 0, {"a": "passed", "b": "passed"})


if __name__ == "__main__":
    unittest.main()
