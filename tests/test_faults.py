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
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence
from xml.etree import ElementTree

import run_tests
from tests.support import ROOT, Ran, compiled_runner
from tests.test_execute import WAIT_S, Fifo, GatedCase

GONE_S = 5.0                    # from the runner's death to the last of its tests' processes
PROBLEMS = {"failed": "failure", "crashed": "error", "timeout": "error", "blocked": "error", "unrunnable": "error",
            "interrupted": "error", "not run": "error"}
RULE = "\u2500" * 56

# What tests do, as `$PY tool.py NAME`.
TOOL = r'''
import ctypes, os, signal, subprocess, sys, threading, time
NAP = os.environ.get("NAP", "").split()

def segfault():
    ctypes.string_at(0)

def hog():
    bytearray(1 << 40)

def storm():
    for number in range(200):
        if os.fork() == 0:
            if number % 2:
                os.setsid()
            os.execvp(NAP[0], NAP)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 3)
            os.execvp(NAP[0], NAP)
        os._exit(0)
    os.wait()

def session():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(pid)) == os.getsid(0) and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGTERM)
        except ProcessLookupError:
            pass
    os.kill(os.getpid(), signal.SIGTERM)

def children(parent):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as command:
                state, ppid = stat.read().rpartition(") ")[2].split()[:2]
                if int(ppid) == int(parent):
                    yield int(pid), state, command.read()
        except OSError:
            pass

def guard(runner):
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        for pid, _, command in children(runner):
            if command.startswith("sweeper"):
                return os.kill(pid, signal.SIGKILL)
    sys.exit("no guard")

def orphans():
    for _ in range(20):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.wait()
    ends = time.monotonic() + 60
    while any(state == "Z" for _, state, _ in children(1)):
        if time.monotonic() > ends:
            sys.exit("zombies stay")
        time.sleep(0.02)

def tell():
    with open("up", "w") as up:
        up.write("up\n")

def hang():
    tell()
    time.sleep(86400)

def inner_wait(): threading.Event().wait()
def first_wait(): inner_wait()
def second_wait(): inner_wait()
def third_wait(): inner_wait()
def fourth_wait(): inner_wait()

def threads(*names):
    for name in names:
        threading.Thread(target=globals()[name], daemon=True).start()
    hang()

def two_pythons():
    subprocess.Popen([sys.executable, __file__, "threads", "third_wait", "fourth_wait"], start_new_session=True)
    threads("first_wait", "second_wait")

def elastic():
    for _ in range(2):
        subprocess.Popen([sys.executable, __file__, "hang"], start_new_session=True)
    hang()

globals()[sys.argv[1]](*sys.argv[2:])
'''

# Timeouts count from when the test has told, by so many lines through the FIFO `up`, that it is ready.
WHEN_READY = """
import os, threading
mine = threading.local()
run, spawn = run_tests.run_job, run_tests.Process.__init__
def noted(launch, *rest):
    mine.timeout = launch.test.timeout
    run(launch, *rest)
def held(process, *rest):
    spawn(process, *rest)
    if mine.timeout:
        with open("up") as up:
            for _ in range(int(os.environ["LINES"])):
                up.readline()
run_tests.run_job, run_tests.Process.__init__ = noted, held
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
        self.head: Sequence[str] = [sys.executable, compiled_runner()]
        self.write("tool.py", TOOL)
        self.addCleanup(self.kill_left)      # before the folder is removed

    def kill_left(self) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def environment(self, gpus: Optional[str], extra: Mapping[str, str]) -> Dict[str, str]:
        return super().environment(gpus, {"FAULT": self.mark.decode()[6:], "NAP": f"sleep 86400.{self.number}",
                                          "PY": sys.executable, "RUNNER": compiled_runner(), **extra})

    def command(self, *arguments: str) -> List[str]:
        return [*self.head, *arguments]

    def drive(self, *patches: str) -> None:
        """Run the command line from a script that first changes what `patches` say of `run_tests`."""
        start = f"import sys; sys.path.insert(0, {ROOT!r}); import run_tests"
        self.head = [sys.executable, self.write("driver.py", "\n".join(
            [start, *patches, "sys.exit(run_tests.main())\n"]))]

    def when_ready(self, lines: int = 1) -> Mapping[str, str]:
        """Let timeouts count from when tests are ready; returns an environment."""
        Fifo(self, "up")
        self.drive(WHEN_READY)
        return {"LINES": str(lines)}

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

    def wait_for(self, condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
        """Look until it is so."""
        give_up = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), give_up, f"{condition} never comes; {self.left()}")
            time.sleep(0.01)

    def assert_swept(self) -> None:
        """The runner has been killed just now: soon nothing is left."""
        self.wait_for(lambda: not self.left(), GONE_S)

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
        ran = Ended(process.returncode, out, err.decode("utf-8", "replace"), self.folder)
        self.verify(ran, code, outcomes, lost)
        return ran

    def verify(self, ran: Ended, code: int, outcomes: Mapping[str, str], lost: Sequence[str] = ()) -> None:
        self.assertEqual(ran.code, code, ran.text + ran.err)
        self.check_replay(ran, outcomes)
        for name in lost:
            path = ran.path(name)
            self.assertFalse(os.path.isfile(path), path)
            if os.path.isdir(path):
                os.rmdir(path)
            self.write(name, "")             # now the common check may have it
        self.check(ran, code, outcomes)
        self.assertNotIn("Traceback", ran.text.partition("=== Per-test")[0])
        if os.path.exists(ran.path("junit.xml")):
            self.check_summary(ran, outcomes)

    def check_summary(self, ran: Ran, outcomes: Mapping[str, str]) -> None:
        """`--junit` has one case per test, and says of each what the outcome says."""
        suite, = ElementTree.parse(ran.path("junit.xml")).getroot()
        problems = {case.get("name"): {child.tag for child in case} & {"failure", "error"} for case in suite}
        self.assertEqual(problems, {run_tests.xml_text(label): {PROBLEMS[outcome]} if outcome in PROBLEMS else set()
                                    for label, outcome in outcomes.items()})
        counted = [sum(tag in tags for tags in problems.values()) for tag in ("failure", "error")]
        self.assertEqual([suite.get(name) for name in ("tests", "failures", "errors")],
                         [str(count) for count in (len(outcomes), *counted)])

    def check_replay(self, ran: Ended, labels: Iterable[str]) -> None:
        """Where the trace has a replay, it has each log in its frame, byte for byte, whatever is in it."""
        start = b"\n=== Per-test output (replayed from parallel execution) ===\n"
        if start not in ran.out:
            return
        ended = {record["label"] for record in ran.journal("test_end") if record["status"] is not None}
        logs = {record["label"]: record["log"] for record in ran.journal("test_start")}
        expected = start + b"".join(framed(ran.path(logs[label])) for label in labels if label in ended)
        shown = ran.out[ran.out.index(start):]
        if not shown.startswith(expected + b"\n=== End of per-test output ===\n"):
            self.fail(f"the replay is {shown[:4000]!r}, not {expected[:4000]!r}")


def framed(path: str) -> bytes:
    """What the replay shows of a log."""
    stem = os.path.basename(path)[:-len(".log")]
    text = f"\n{RULE}\n>>> {stem}\n{RULE}\n".encode()
    try:
        with open(path, "rb") as file:
            log = file.read()
    except OSError as error:
        log = f"(its log cannot be read: {error.strerror})".encode()
    calm = b"\x1b\\\x1b[0m" if b"\x1b" in log else b""
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
    lost: bool = False                   # it has no log afterwards


FAULTS: Dict[str, Fault] = {
    "a segfault": Fault("ulimit -c 0; $PY tool.py segfault", "crashed", 139, "segmentation fault"),
    "an abort": Fault("ulimit -c 0; $PY -c 'import os; os.abort()'", "crashed", 134, "killed by SIGABRT"),
    "exit 139 by hand": Fault("exit 139", "crashed", 139, "segmentation fault"),
    "a limit of memory": Fault("ulimit -v 400000; $PY tool.py hog", "failed", 1, "out of memory (of the machine)"),
    "a limit of file size": Fault("ulimit -c 0; ulimit -f 1; yes", "crashed", -25, "killed by SIGXFSZ"),
    "its group killed": Fault("$NAP & $NAP & kill -KILL 0", "crashed", -9, "killed by SIGKILL"),
    "its group asked to end": Fault("trap '' TERM; $NAP & trap - TERM; kill -TERM 0; wait", "crashed", -15,
                                    "killed by SIGTERM", leaks=1),
    "its session asked to end": Fault("$NAP & $PY tool.py session; wait", "crashed", -15, "killed by SIGTERM"),
    "its streams closed": Fault("exec <&- >&- 2>&-; exit 3", "failed", 3, "exit status 3, without output"),
    "its descriptors closed": Fault("for n in {0..255}; do eval \"exec $n>&-\"; done; exit 4", "failed", 4,
                                    "exit status 4, without output"),
    "its log deleted": Fault("echo bye; rm logs/fault.log; exit 6", "failed", 6, "exit status 6, without output",
                             lost=True),
    "its log a folder": Fault("rm logs/fault.log; mkdir logs/fault.log; exit 7", "failed", 7,
                              "exit status 7, without output", lost=True),
    "a background process": Fault("$NAP & (trap '' TERM HUP; exec $NAP) & true", "passed", 0, leaks=2),
    "a session of its own": Fault("setsid $NAP & kill -STOP $!", "passed", 0, leaks=1),
    "a daemon": Fault("$PY tool.py daemon", "passed", 0, leaks=1),
    "a daemon without environment": Fault("env -i $(which setsid) $NAP & disown; exit 8", "failed", 8,
                                          "exit status 8, without output", leaks=1),
    "its log held open": Fault("exec 7>&1; env -i $(which setsid) $NAP >&7 2>&7 & echo end", "passed", 0, leaks=1),
    "a fork storm": Fault("$PY tool.py storm", "passed", 0, leaks=200),
    "a runner without guard": Fault("$PY tool.py guard $PPID && (setsid $NAP & env -i $(which setsid) $NAP & true)",
                                    "passed", 0, leaks=2),
}
STUCK: Dict[str, Fault] = {              # those end by a timeout
    "no ear for SIGTERM": Fault("trap '' TERM; tell; while :; do $NAP; done", "timeout", -9, "timeout"),
    "stopped": Fault("tell; kill -STOP $$", "timeout", -15, "timeout"),
    "workers in sessions of their own": Fault("$PY tool.py elastic", "timeout", -15, "timeout"),
    "a pipe that nobody ends": Fault("mkfifo p; env -i $(which setsid) $NAP <>p >p & tell; cat p", "timeout", -15,
                                     "timeout"),
}


class TestFaultTest(FaultCase):
    """A test that does something bad to itself: another one beside it, and one after it, see nothing of it."""

    def hold(self, fault: Fault, attributes: str, **changes: Any) -> None:
        alone = " gpus=2" if "env -i" in fault.command else ""       # else it could be of either test
        ran = self.suffer(f"{fault.command} #: label=fault {attributes}{alone}\ntrue #: label=beside\nwait\n"
                          "true #: label=below", fault.outcome != "passed",
                          {"fault": fault.outcome, "beside": "passed", "below": "passed"},
                          lost=["logs/fault.log"] * fault.lost, **changes)
        end = next(record for record in ran.journal("test_end") if record["label"] == "fault")
        self.assertEqual((end["status"], end.get("cause", ""), len(end.get("leaked", ()))), fault[2:5])
        self.assertEqual(f" by cause:\n    1 x {fault.cause}: fault\n" in ran.text, fault.outcome != "passed")
        self.assertEqual("leaked: " in ran.text, fault.leaks > 0)

    def test_what_a_test_can_do_to_itself(self) -> None:
        for name, fault in FAULTS.items():
            with self.each(name):
                self.hold(fault, "")

    def test_what_only_a_timeout_ends(self) -> None:
        ready = {**self.when_ready(), "BASH_ENV": self.write("tell.sh", "tell() { echo up >up; }\n")}
        for name, fault in STUCK.items():
            with self.each(name):
                lines = {"LINES": "3"} if "elastic" in fault.command else {}
                self.hold(fault, "timeout=100ms", env={**ready, **lines})

    def test_a_kernel_that_kills_for_want_of_memory(self) -> None:
        group = cgroup(self, "memory", limit_in_bytes="32M")
        ran = self.suffer(f"(echo $BASHPID >{group}/cgroup.procs; exec $PY -c 'bytearray(1 << 28)') #: label=a\n"
                          "kill -KILL $$ #: label=b after=c\ntrue #: label=c\n", 1,
                          {"a": "crashed", "b": "crashed", "c": "passed"}, gpus="0")
        self.assertEqual([record.get("reason") for record in ran.journal("test_end")], ["OOM killer", None, None])

    def test_stacks_of_every_thread_of_every_python(self) -> None:
        env = self.when_ready()
        ran = self.suffer("$PY tool.py two_pythons #: timeout=100ms label=a\ntrue #: label=b\n", 1,
                          {"a": "timeout", "b": "passed"}, env={**env, "LINES": "2"})
        log = ran.read("logs/a.log")
        for name in ("first_wait", "second_wait", "third_wait", "fourth_wait"):
            self.assertEqual(len(re.findall(rf"line \d+ in {name}$", log, re.MULTILINE)), 1, log)
        self.assertEqual(len(re.findall(r"^  File .*, line \d+ in hang$", log, re.MULTILINE)), 2, log)
        self.assertEqual(log.count("asked by SIGFPE for the stacks of python"), 2, log)

    def test_a_python_without_faulthandler(self) -> None:
        env = self.when_ready()
        for option in ("-I", "-E"):
            with self.each(option):
                ran = self.suffer(f"NAP= $PY {option} tool.py hang #: timeout=100ms label=a\n", 1, {"a": "timeout"},
                                  gpus="0", env=env)
                self.assertRegex(ran.read("logs/a.log"), r"there is no faulthandler in python\S* \(pid \d+\) ===\n$")


class OwnFilesTest(FaultCase):
    """A test that writes to, cuts or deletes what the runner writes."""

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
        ran = Ended(process.returncode, out, err.decode(), self.folder)
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

    def test_a_folder_in_the_place_of_a_log(self) -> None:
        self.suffer("rm -rf logs/a.log; mkdir logs/a.log; [ -e again ] || { touch again; exit 1; } #: label=a\n"
                    "true #: label=b\n", 0, {"a": "flaky", "b": "passed"}, "--retries", "1", lost=["logs/a.log"])

    def test_a_junit_file_for_a_test_without_a_log(self) -> None:
        self.write("gone.sh", "rm -r logs; exit 9")
        self.suffer("bash gone.sh --junitxml=logs/a.xml #: label=a\n", 1, {"a": "failed"}, lost=["logs/a.log"])
        case, = ElementTree.parse(os.path.join(self.folder, "logs/a.xml")).iter("testcase")
        self.assertEqual([child.tag for child in case], ["error", "system-out"])


HOSTILE = {
    "an unfinished title": b"\x1b]0;a title without end", "a colour": b"\x1b[31mred", "half an escape": b"x\x1b",
    "an alternate screen": b"\x1b[?1049h\x1b[2J\x1b[1;1H", "GitHub's commands": b"::error::boom\n::stop-commands::y\n",
    "Azure's commands": b"##vso[task.complete result=Failed;]no\n", "GitLab's": b"section_start:1:x\r\x1b[0Kx\n",
    "CR": b"100%\rdone\r", "NUL": b"\0\0", "U+2028": "\u2028\u2029\x85".encode(), "CDATA's end": b"]]>]]&gt;<a>&",
    "lone surrogates": b"\xed\xb2\x80\xed\xa0\x80", "no UTF-8": bytes(range(128, 256)),
    "our own frame": "\n{0}\n>>> b\n{0}\n\n=== End of per-test output ===\nAll tests passed".format(RULE).encode(),
}


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
            self.assertEqual([child.tag for child in case], ["error", "system-out"])
        ran = self.suffer("\n".join(lines), 1, outcomes, "--output", "ordered")
        for number in range(len(HOSTILE)):
            self.assertIn(framed(ran.path(f"logs/junit{number}.log")), ran.out)

    def test_labels(self) -> None:
        """They are one line each, without control characters, wherever they are shown."""
        labels = {"\x1b]0;evil": "]0;evil", "::error::boom": None, "a\rb": "a b", "a\u2028b": "a b",
                  "]]></testcase>": None, "\udcff\udced\udcb2": None, "\x9b31m": "31m", "../../../etc/x": None,
                  "-": None, "$(false)": None, "x" * 300: None, "\x7f\x08c": "c"}
        shown = [told or label for label, told in labels.items()]
        lines = [f"exit 1 #: label='{label}'" for label in labels]
        ran = self.suffer("\n".join(lines), 1, {label if shown.index(label) == number else f"{label} #2": "failed"
                                                for number, label in enumerate(shown)})
        self.assertNotIn(b"\x1b", ran.out)
        self.assertEqual(len(ran.out.splitlines()), len(ran.text.split("\n")) - 1)
        self.assertEqual(sorted(os.listdir(self.folder)), ["junit.xml", "logs", "tests.txt", "tool.py"])
        process = self.start("-", stdin=subprocess.PIPE)
        out, _ = process.communicate(b"exit 1 #: label='##vso[task.complete result=Succeeded;]'\n", WAIT_S)
        self.assertEqual((process.returncode, out.count(b"##vso"), out.count(b"# #vso[") > 1), (1, 0, True), out)

    def test_the_last_line_of_a_slow_one(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "printf '\\033]0;x\\007\\033[1;31m::error::\\r\\0 50%%\\n'; read line <gate "
                                "#: label=a\ntrue #: label=b\n")
        process = self.start("--slow", "50ms", "tests.txt")
        self.addCleanup(gate.release)
        before = self.read_until(process, b"50%]\n")
        gate.release()
        self.assertRegex(before.decode(), r"\n>>> Slow: a \[\d+\.\ds; [ -~]*50%\]\n$")
        self.settle(process, 0, {"a": "passed", "b": "passed"})


if __name__ == "__main__":
    unittest.main()
