#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a list or a script on all GPUs of several machines, in an allocation that you have.

    salloc -N2 --gpus-per-node=8 --exclusive python3 qa/cluster.py --nodes slurm tests.txt
    python3 qa/cluster.py --nodes n1,n2 --launch 'ssh {node}' tests.txt
    python3 qa/cluster.py --nodes pod-0,pod-1 --launch 'kubectl exec -i {node} --' tests.txt

All other options are those of run_tests.py; `--gpus` and `--jobs` say what each node has. The log dir and the
working directory have to be on a file system that all nodes share.

One agent per node is started by the launch prefix. It is this file with --agent, and runs tests by the runner's own
code, as the runner would run them there. A node whose agent ends, or says nothing for a minute, is lost: its tests
run again on another, once. An agent whose runner is gone ends its tests and goes.

Exit codes are the runner's; no node that is left is 3.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import math
import os
import queue
import re
import select
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from typing import (
    IO,
    Any,
    Callable,
    Container,
    Deque,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if not os.path.isfile(os.path.join(HERE, "run_tests.py")):
    sys.path.insert(1, os.path.dirname(HERE))
try:
    import run_tests
except ImportError:
    print(
        f"cluster.py: run_tests.py is neither in {HERE} nor above; copy it, too",
        file=sys.stderr,
    )
    sys.exit(3)
from run_tests import (
    Attempt,
    Broken,
    Device,
    Exited,
    Host,
    Job,
    Lease,
    Machine,
    MachineError,
    Options,
    Pool,
    Reaper,
    Sick,
    Test,
    UsageError,
    to_bytes,
    to_text,
    tell,
    warn,
)

CONNECT_S = 120.0  # until an agent has answered: a busy controller takes its time
FIRST_WAIT_S = 0.1  # for an answer of one node, before the next is looked at
SILENT_S = 10.0  # of which the user hears nothing
LOST_S = 60.0  # without a word from an agent
LOST_LEAST_S = 3.0  # the runner looks after its nodes once a second
LOST_SHARE = 0.75  # of that time, after which an agent gives its runner up: it has swept when others start
LEAVE_S = 30.0  # for an agent to sweep and go
MESSAGE_BYTES = 1 << 16  # read at once
WRITER_MS = 2000  # for the end of a program whose output a test reads
PIPE_BYTES = 1 << 16  # that a pipe holds
TEE_NONBLOCK = 2  # SPLICE_F_NONBLOCK of <fcntl.h>

# What runner and agent say to each other: JSON objects, one a line. `say` is the kind of message. Bytes are text with
# surrogate escapes, times are seconds since the event, as two machines have two clocks.
#
#   to the agent
#   hello   version; directory; nonces, paths of files and what stands in them; environment; umask; gpus, those
#           of --gpus
#   open    run, its id; slots, of all nodes; share, the slots of this node; lost, in seconds: see LOST_SHARE
#   start   id, of the attempt; number; test, see `words_of`; slot; devices, by place; shares; log
#   signal  id; signum; stacks, why the stacks of its Pythons are wanted, if they are
#   beat    the runner is there; is_over, nothing more will start
#   end     sweep, and go
#
#   from the agent
#   ready   host; tokens, of its GPUs; variables, of masks; cores; sick, places of GPUs that are broken already, and
#           reasons
#   refuse  why
#   exited  id; ago; and what Exited has, with the cause as a list, and of what is sick places and reasons
#   broken  id; why
#   beat    the agent is there

# What an agent keeps of its own environment even where the runner has it too. For the rest the runner's counts, as
# srun and mpirun have it; what only the agent has stays, but for what describes its own step to programs that start
# others (`srun`, `mpirun`). What a list itself exports or unsets comes before all that.
OWN_VARIABLES = re.compile(
    rb"HOME|USER|LOGNAME|SHELL|HOSTNAME|TMPDIR|PWD|OLDPWD|SSH_.*|XDG_.*|KUBERNETES_.*|SLURMD_NODENAME"
    rb"|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK"
)
STEP_VARIABLES = re.compile(rb"SLURM_.*|SRUN_.*|PMIX?_.*")
SRUN = "srun --nodes=1 --ntasks=1 --nodelist={node} --overlap --cpu-bind=none --quiet --kill-on-bad-exit=0"
SSH = "ssh -o BatchMode=yes {node}"


def version() -> str:
    """A hash of this file and the runner: both ends of a conversation are to be the same."""
    texts = []
    for path in (__file__, run_tests.__file__):
        with open(path, "rb") as file:
            texts.append(file.read())
    return run_tests.hash_function()(b"\0".join(texts)).hexdigest()[:12]


def words_of(
    test: Test, more: Mapping[str, str], outer: Mapping[bytes, bytes]
) -> Dict[str, Any]:
    """What an agent is to know of a test. `more`: variables that it gets whatever its list has set (`MASTER_ADDR=x`).

    `outer` is the runner's own environment.
    """
    exported = test.shell.environment
    changed: Dict[str, str] = {}
    gone: List[str] = []
    if exported is not os.environb:
        pairs = [pair for pair in exported.items() if outer.get(pair[0]) != pair[1]]
        changed = {to_text(name): to_text(value) for name, value in pairs}
        gone = [to_text(name) for name in outer if name not in exported]
    command = test.command
    if test.program:
        changed.update(more)
    elif more:
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in more.items())
        command = f"{{ export {words}; }} 2>/dev/null; {command}"
    return {
        "label": test.label,
        "file": test.file,
        "line": test.line,
        "command": command,
        "program": test.program and test.program._asdict(),
        "splits": test.splits,
        "preface": to_text(test.preface),
        "junit": test.junit,
        "directory": test.shell.directory,
        "has_environment": exported is not os.environb,
        "changed": changed,
        "gone": gone,
        "prelude": test.shell.prelude,
    }


def test_of(words: Mapping[str, Any]) -> Test:
    """The test of `words_of`, as far as it takes to run it, in this process's environment."""
    environment: Mapping[bytes, bytes] = os.environb
    if words["has_environment"]:
        changed = run_tests.as_environb(words["changed"])
        gone = set(map(to_bytes, words["gone"]))
        kept = {name: value for name, value in os.environb.items() if name not in gone}
        environment = {**kept, **changed}
    program = words["program"] and Job(**words["program"])
    if program:  # as the node has it
        path = run_tests.find_program(program.words[0], environment, words["directory"])
        program = program._replace(bash=path or program.bash)
    shell = run_tests.Snapshot(words["directory"], environment, words["prelude"])
    return Test(
        index=0,
        key="",
        label=words["label"],
        stem="",
        file=words["file"],
        line=words["line"],
        command=words["command"],
        shell=shell,
        preface=to_bytes(words["preface"]),
        attributes=run_tests.Attributes(),
        barrier=0,
        gpus=0,
        timeout=0,
        junit=words["junit"],
        announces=False,
        program=program,
        splits=words["splits"],
    )


class Stray(ValueError):
    """What came in place of a message, and what to do about it."""


def message_of(line: bytes) -> Dict[str, Any]:
    """The message in a line. Raises Stray."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and "say" in message:
            return message
    said = run_tests.plain(line.decode("utf-8", "replace"))[: run_tests.LINE_CHARS]
    raise Stray(
        f"{said!r} came in place of what its agent says; what --launch or a login shell prints has to go to "
        "standard error"
    )


class Lines:
    """Messages from a descriptor, as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.rest = b""
        self.heard_at = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since anything has come."""
        return time.monotonic() - self.heard_at

    def read(self, seconds: float) -> Optional[List[Dict[str, Any]]]:
        """What has come whole within this time; None at the end. Raises Stray for what is no message."""
        if not select.select([self.descriptor], [], [], max(seconds, 0))[0]:
            return []
        data = os.read(self.descriptor, MESSAGE_BYTES)
        if not data:
            return None
        self.heard_at = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [message_of(line) for line in lines]


class Writer:
    """A descriptor for messages, in a thread of its own: nobody waits for a reader that has been stopped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    def send(self, say: str, **fields: Any) -> None:
        self.messages.put(json.dumps({"say": say, **fields}).encode() + b"\n")

    def write(self) -> None:
        """Write what comes, until it is nothing, or the reader is gone: that shows where it is read from."""
        with contextlib.suppress(OSError):
            data = self.messages.get()
            while data:
                data = data[os.write(self.descriptor, data) :] or self.messages.get()

    def close(self) -> None:
        """Write the rest, if the reader takes it."""
        self.messages.put(b"")
        self.thread.join(run_tests.KILLED_S)


# ---------------------------------------------------------------------------------------------------
# The agent: the runner's own Host, told by messages what to start.
# ---------------------------------------------------------------------------------------------------


class Refusal(Exception):
    """Why an agent cannot work here."""


class Agent:
    """What runs on a node: attempts by the number that the runner gives them."""

    def __init__(self, lines: Lines, writer: Writer) -> None:
        self.lines = lines
        self.writer = writer
        self.attempts: Dict[int, Attempt] = {}
        self.ids: Dict[Test, int] = {}
        self.is_ending = False
        self.lost_s = 2 * CONNECT_S  # until all nodes are there
        self.is_open = False  # attempts may come

    def serve(self) -> None:
        """Answer until the runner says that it is over, or is gone. Raises OSError, Stray, Refusal."""
        messages = self.messages()
        self.greet(next(messages))
        try:
            for message in messages:
                getattr(self, "on_" + message.pop("say"))(**message)
                if self.is_ending:
                    return
        finally:
            self.close()

    def messages(self) -> Iterator[Dict[str, Any]]:
        """What the runner says, until it is gone; does what is due meanwhile."""
        chores_at = time.monotonic()
        while True:
            messages = self.lines.read(run_tests.CHORES_S)
            if messages is None:
                return
            if self.lines.silent_s() > self.lost_s:
                tell(f"no word from the runner for {self.lost_s:g} s")
                return
            now = time.monotonic()
            if now >= chores_at:
                chores_at = now + run_tests.CHORES_S
                self.writer.send("beat")
                if self.is_open:
                    self.host.do_chores()
            yield from messages

    def greet(self, hello: Dict[str, Any]) -> None:
        """See that all is as the runner needs it. Raises Refusal."""
        if hello["version"] != version():
            raise Refusal(
                f"{os.path.abspath(__file__)} or its run_tests.py is another version than the runner's; "
                "copy both files anew"
            )
        if sys.version_info < run_tests.OLDEST_PYTHON:
            raise Refusal(
                f"Python {sys.version.split()[0]} is too old; name another by --agent-python"
            )
        try:
            for path, text in hello["nonces"].items():
                self.check_nonce(path, text)
            os.chdir(hello["directory"])
        except OSError as error:
            raise Refusal(
                f"{error.filename}: {error.strerror}; all nodes have to share the log dir, with leave to write, and "
                "the working directory"
            ) from None
        if run_tests.find_program("bash") is None:
            raise Refusal("there is no bash")
        self.adopt(hello["environment"])
        os.umask(hello["umask"])
        try:
            self.machine = run_tests.find_machine(hello["gpus"], os.environ)
        except UsageError as error:
            raise Refusal(str(error)) from None
        self.cores = len(os.sched_getaffinity(0))
        self.reaper = Reaper()
        self.host = Host(self.machine, self.reaper)
        self.writer.send(
            "ready",
            host=socket.gethostname(),
            tokens=self.machine.tokens,
            variables=[reader.variable for reader in self.machine.readers],
            cores=self.cores,
            sick=[[sick.device.index, sick.reason] for sick in self.host.health.sick],
        )

    def check_nonce(self, path: str, text: str) -> None:
        """See that a folder is the runner's own, and that files can be made there. Raises OSError, Refusal."""
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                raise Refusal(
                    f"{path} is another file here; all nodes have to share its folder"
                )
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path)):
            pass

    def adopt(self, environment: Mapping[str, str]) -> None:
        """Take the runner's environment over, but for what is this node's."""
        theirs = run_tests.as_environb(environment)
        for name in filter(OWN_VARIABLES.fullmatch, list(theirs)):
            del theirs[name]
        for name in filter(STEP_VARIABLES.fullmatch, list(os.environb)):
            del os.environb[name]
        os.environb.update(theirs)

    def on_open(self, run: str, slots: int, share: int, lost: float) -> None:
        """Prepare for the run's attempts. Processes of other agents on this host bear another mark."""
        self.lost_s = lost
        if slots > 1:
            os.environb.setdefault(b"OMP_NUM_THREADS", b"%d" % max(1, self.cores // share))
        self.host.open(run, slots, self.note)
        self.host.do_chores()
        self.is_open = True

    def on_start(
        self,
        id: int,
        number: int,
        test: Mapping[str, Any],
        slot: int,
        devices: Sequence[int],
        shares: int,
        log: str,
    ) -> None:
        places = self.machine.devices or (Device(0, ""),)
        lease = Lease(tuple(places[place] for place in devices), slot, shares)
        attempt = Attempt(test_of(test), lease, number, time.monotonic())
        self.attempts[id] = attempt
        self.ids[attempt.test] = id
        attempt.log = log
        self.host.start(attempt)

    def on_signal(self, id: int, signum: int, stacks: str) -> None:
        attempt = self.attempts.get(id)
        if attempt is not None:  # to ask for stacks takes time
            threading.Thread(
                target=attempt.process.signal, args=(signum, stacks), daemon=True
            ).start()

    def on_beat(self, is_over: bool) -> None:
        """The runner is there; its run may have to end."""
        if is_over:
            self.host.health.over.set()

    def on_end(self) -> None:
        self.is_ending = True

    def note(self, event: Any) -> None:
        """Tell the runner what has happened to an attempt. Called in threads."""
        id = self.ids[event.test]
        now = time.monotonic()
        del self.ids[event.test], self.attempts[id]
        if self.is_ending:
            return  # that we have ended it ourselves says nothing about it
        if isinstance(event, Broken):
            self.writer.send("broken", id=id, why=event.reason)
            return
        fields = event._asdict()
        for name in ("test", "ended"):
            del fields[name]
        fields["cause"] = [event.cause.text, event.cause.blame.value, event.cause.line]
        fields["sick"] = [[sick.device.index, sick.reason] for sick in event.sick]
        self.writer.send("exited", id=id, ago=now - event.ended, **fields)

    def close(self) -> None:
        """End all that runs, and what it has left."""
        self.is_ending = True
        if not self.is_open:
            self.reaper.close()
            return
        running = list(self.attempts.values())
        for attempt in running:
            attempt.process.signal(signal.SIGKILL)
        give_up = time.monotonic() + run_tests.STUCK_S
        while self.attempts and time.monotonic() < give_up:
            time.sleep(run_tests.SWEEP_POLL_S)
        self.host.close()


def agent() -> int:
    """`--agent`: the exit code, once the runner is gone."""
    # Messages have standard output for themselves: what else is printed goes to standard error.
    writer = Writer(os.dup(1))
    os.dup2(2, 1)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, lambda signum, _: sys.exit(run_tests.EXIT_SIGNAL + signum))
    try:
        Agent(Lines(0), writer).serve()
    except StopIteration:  # nobody has said a word
        return run_tests.EXIT_MACHINE
    except Refusal as refusal:
        writer.send("refuse", why=str(refusal))
        return run_tests.EXIT_MACHINE
    finally:
        writer.close()
    return run_tests.EXIT_OK


# ---------------------------------------------------------------------------------------------------
# The runner's side: nodes, the pool of all their devices, and a Host whose attempts run on them.
# ---------------------------------------------------------------------------------------------------


class Remote:
    """An attempt's process on a node, as far as the runner asks for it."""

    pid = 1  # that it has started needs no telling
    sent: Tuple[Any, ...] = ()  # the last signal, and why stacks are wanted

    def __init__(self, node: Node, id: int) -> None:
        self.node = node
        self.id = id

    @property
    def is_gone(self) -> bool:
        return self.id not in self.node.attempts

    def signal(self, signum: int, stacks: str = "") -> None:
        self.sent = signum, stacks
        self.node.writer.send("signal", id=self.id, signum=signum, stacks=stacks)


class Node:
    """One machine, and the conversation with its agent, in a thread of its own.

    The thread that starts the agent lives as long: the kernel takes the children of one that has ended for the main
    thread's, and those end with the tests.
    """

    def __init__(self, name: str, rank: int, launch: Launch) -> None:
        self.name = name
        self.rank = rank
        self.launch = launch
        self.command = launch.command(name, rank)
        self.facts: Dict[str, Any] = {}  # of `ready`
        self.fault = ""  # why it is not there
        self.has_started = threading.Event()  # its launch, or it could not
        self.has_answered = threading.Event()  # the one or the other
        self.is_open = threading.Event()  # the run may begin
        self.first = 0  # the index of its first device among those of all nodes
        self.places: Tuple[Device, ...] = ()  # its devices, as the run knows them
        self.pool = Pool([])
        self.agent: Optional["subprocess.Popen[bytes]"] = None
        self.attempts: Dict[int, Attempt] = {}
        self.guests: Dict[int, Remote] = {}  # attempts of other nodes that need this one, too
        self.lock = threading.Lock()  # for `attempts` and `fault`
        # What it has said on standard error.
        self.errors: Deque[str] = collections.deque(maxlen=100)
        self.post: Callable[[Any], None] = print
        self.is_over = False  # it has been told to go

    def converse(self, hello: Mapping[str, Any]) -> None:
        """Start the agent, hear what it has, and post what it tells, until it ends. Called in its thread."""
        try:
            self.greet(hello)
        except OSError as error:
            self.fault = f"{self.command[0]}: {error.strerror}"
        except Stray as stray:
            self.fault = str(stray)
        self.has_started.set()
        self.has_answered.set()
        if self.fault:
            return
        self.is_open.wait()
        assert self.agent is not None
        try:
            why = self.listen(self.agent)
        except Stray as stray:
            why = str(stray)
        except Exception as error:  # a thread that dies in silence would hang the run
            why = f"{error!r} in what its agent says"
        if not self.is_over:
            self.lose(why)
            self.drop()

    def greet(self, hello: Mapping[str, Any]) -> None:
        """Start the agent and hear what it has. Raises OSError, and Stray for what is no answer."""
        agent = self.agent = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the runner's to tell
        )
        self.has_started.set()
        assert agent.stdin and agent.stdout and agent.stderr
        self.reader = threading.Thread(
            target=self.read_errors, args=[agent.stderr], daemon=True
        )
        self.reader.start()
        self.writer = Writer(agent.stdin.fileno())
        self.lines = Lines(agent.stdout.fileno())
        self.writer.send("hello", **hello)
        give_up = time.monotonic() + CONNECT_S
        while not self.facts and not self.fault:
            messages = self.lines.read(give_up - time.monotonic())
            if messages is None:
                self.fault = self.last_words(agent)
            elif not messages and time.monotonic() >= give_up:
                self.fault = f"its agent did not answer in {CONNECT_S:.0f} s"
            for message in messages or ():
                if message["say"] == "refuse":
                    self.fault = message.get("why") or "it refuses"
                elif message["say"] == "ready":
                    self.facts = message

    def read_errors(self, stream: IO[bytes]) -> None:
        """Keep what the agent and its launch say, until they end."""
        for line in stream:
            self.errors.append(run_tests.plain(line.decode("utf-8", "replace")))

    def last_words(self, agent: "subprocess.Popen[bytes]") -> str:
        """How the agent has ended, and what it said last."""
        try:
            status = agent.wait(run_tests.KILLED_S)
        except subprocess.TimeoutExpired:
            return "its agent has closed its output"
        self.reader.join(run_tests.KILLED_S)  # unless something holds the pipe
        said = [line for line in list(self.errors) if line][-1:]
        how = f"exit {status}"
        if status < 0:
            how = run_tests.death_of(status)
        return ": ".join([f"its agent has ended ({how})", *said])

    def start(self, id: int, attempt: Attempt, words: Callable[[], Mapping[str, Any]]) -> None:
        """Let the agent run an attempt; if the node is lost, so is the attempt. Raises OSError.

        `words` says what it is to know of the test.
        """
        lease = attempt.lease
        assert isinstance(lease, NodeLease)
        process = attempt.process = Remote(self, id)
        with self.lock:
            self.attempts[id] = attempt
        for node, _ in lease.parts[1:]:
            node.guests[id] = process
        if self.fault:
            self.lose(self.fault)
            return
        mine = lease.parts[0][1]
        fields = {
            "id": id,
            "number": attempt.number,
            "slot": lease.slot,
            "devices": [device.index for device in mine.devices],
            "shares": lease.shares,
            "log": os.path.abspath(attempt.log),
        }
        program = attempt.test.program
        if program and program.stdin:
            run_tests.start_thread(self.start_reader, attempt, words, fields)
        else:
            self.writer.send("start", test=words(), **fields)

    def start_reader(
        self, attempt: Attempt, words: Callable[[], Mapping[str, Any]], fields: Dict[str, Any]
    ) -> None:
        """Start a test that has an input, in a thread: what writes that may have to ask the runner meanwhile."""
        test, process = attempt.test, attempt.process
        try:
            self.writer.send("start", test=words(), **fields)
        except Exception as error:  # a thread that dies in silence would hang the run
            with self.lock:
                self.attempts.pop(fields["id"], None)
            self.post(Broken(test, f"cannot run {test.label}: {error}"))
        if process.sent:  # before the agent knew of the attempt
            process.signal(*process.sent)

    def listen(self, agent: "subprocess.Popen[bytes]") -> str:
        """Post what the agent tells, until it ends; returns why it is no more there."""
        limit_s = self.launch.lost_s
        while True:
            messages = self.lines.read(limit_s - self.lines.silent_s())
            if messages is None:
                return self.last_words(agent)
            for message in messages:
                self.hear(**message)
            if not messages and self.lines.silent_s() >= limit_s:
                return f"no word from its agent for {limit_s:g} s"

    def hear(self, say: str, id: int = 0, ago: float = 0.0, **fields: Any) -> None:
        """Make an event of a message."""
        at = time.monotonic() - ago
        attempt = self.attempts.get(id)
        if attempt is None:
            return  # it was abandoned, or this is no word of an attempt
        if say == "broken":  # by the node: another may be able to
            self.lose(fields["why"])
            return
        lease = attempt.lease
        assert isinstance(lease, NodeLease)
        text, blame, line = fields.pop("cause")
        leaked = tuple(fields.pop("leaked"))
        sick = [Sick(self.places[place], reason) for place, reason in fields.pop("sick")]
        cause = run_tests.Cause(text, run_tests.Blame(blame), line)
        for node, _ in lease.parts[1:]:
            node.guests.pop(id, None)
            if node.fault:
                sick += node.loss()
                if fields["status"]:
                    cause = node.cause()
        with self.lock:
            if self.attempts.pop(id, None) is None:
                return
        self.post(
            Exited(
                at,
                attempt.test,
                cause=cause,
                leaked=leaked,
                sick=tuple(sick),
                **fields,
            )
        )

    def loss(self) -> List[Sick]:
        """All that is lost with the node: where it has no devices, one that stands for it."""
        return [
            Sick(device, self.cause().text)
            for device in self.places or (Device(-1 - self.rank, self.name),)
        ]

    def cause(self) -> run_tests.Cause:
        """Why tests have failed that ran there."""
        reason = f"node {self.name} is lost: {self.fault}"
        return run_tests.Cause(reason, line=reason)

    def lose(self, why: str) -> None:
        """Give the node up: its devices, and what ran there, which may run again elsewhere."""
        with self.lock:
            self.fault = self.fault or why
            lost = list(self.attempts.values())
            self.attempts.clear()
        for process in list(self.guests.values()):
            process.signal(signal.SIGKILL)
        # So they end behind the Tick: if that ends the run, for want of nodes, it has interrupted them. They took no
        # longer for that.
        ended = time.monotonic() + run_tests.KILLED_S
        sick = tuple(self.loss())
        self.post(run_tests.Tick(sick))
        for attempt in lost:
            attempt.began += run_tests.KILLED_S
            end = Exited(ended, attempt.test, -signal.SIGKILL, "left open", cause=self.cause())
            self.post(end._replace(sick=sick))

    def drop(self) -> None:
        """End the launch, and what it has started here: the agent's guard ends what the agent has started."""
        self.has_started.wait(run_tests.KILLED_S)
        if self.agent is not None and self.agent.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.agent.pid, signal.SIGKILL)

    def leave(self, give_up: float) -> None:
        """Wait for the agent's end until this time, then end it."""
        assert self.agent is not None
        for end in (self.agent.terminate, self.drop):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.agent.wait(max(give_up - time.monotonic(), 1))
                return
            end()
        self.agent.wait()

    def tell_errors(self) -> None:
        """Show what a node that is there says on standard error."""
        while self.errors and not self.fault:
            tell(f"{self.name}: {self.errors.popleft()}")


class NodeLease(Lease):
    """A lease on places of one node or of several. `parts` are these nodes, and their own leases."""

    parts: List[Tuple[Node, Lease]]

    @property
    def place(self) -> str:
        """`GPU n1:0,n1:1`, or `CPU n1`."""
        if self.devices and self.parts[0][0].facts["tokens"]:
            return super().place
        return f"CPU {self.parts[0][0].name}"


class ClusterPool(Pool):
    """What is free of all nodes: each has a pool of its own. A test gets the devices of one, or of as many as it says.

    Where no node has a GPU, each is one place for a test.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__([device for node in nodes for device in node.places])
        self.nodes = nodes

    @property
    def size(self) -> int:
        return len(self.devices) - sum(index >= 0 for index in self.quarantined)

    @property  # type: ignore[override]
    def cpus(self) -> int:
        return sum(node.pool.cpus for node in self.there())

    @cpus.setter
    def cpus(self, _count: int) -> None:
        """The nodes count for themselves."""

    def there(self) -> List[Node]:
        """The nodes that are not lost."""
        return [node for node in getattr(self, "nodes", ()) if not node.fault]

    def holds(self, need: float) -> bool:
        if need in (0, run_tests.ALL_GPUS):
            return True
        nodes, need = spread(need)
        rooms = [node.pool.size for node in self.there() if node.places or not need]
        return sum(need <= room for room in rooms) >= nodes

    def lack(self, test: Test) -> str:
        nodes, _ = spread(test.gpus)
        there = len(self.there())
        if 1 < nodes > there:
            most = "there are" if there == len(self.nodes) else "are left"
            return f"needs {nodes} nodes, more than {most}"
        lack = super().lack(test)
        return lack and f"{lack} on one node, or on as many as its nodes= says"

    def take(self, need: float, avoid: Container[int] = ()) -> Optional[Lease]:
        """A lease on the node with the fewest GPUs free, so that large tests find room; on the CPU, the most cores."""
        count, share = spread(need)
        parts: List[Tuple[Node, Lease]] = []
        by_room = sorted(self.there(), key=lambda node: -node.pool.cpus)
        if need:
            by_room.sort(key=lambda node: node.pool.room.count(run_tests.SHARES))
        for node in by_room:
            if need and not node.places:
                continue
            avoided = [
                place for place in range(len(node.places)) if node.first + place in avoid
            ]
            part = node.pool.take(share, avoided)
            if part is not None:
                parts.append((node, part))
            if len(parts) == count:
                return self.lease(parts)
        for node, part in parts:
            node.pool.give(part)
        return None

    def lease(self, parts: List[Tuple[Node, Lease]]) -> Lease:
        """One lease from those of nodes."""
        devices = [node.places[device.index] for node, part in parts for device in part.devices]
        lease = NodeLease(tuple(devices), self.take_slot(), parts[0][1].shares)
        lease.parts = parts
        return lease

    def give(self, lease: Lease) -> None:
        assert isinstance(lease, NodeLease)
        for node, part in lease.parts:
            node.pool.give(part)
        self.slots.remove(lease.slot)

    def quarantine(self, device: Device) -> None:
        self.quarantined.add(device.index)
        for node in self.nodes:
            if device in node.places:
                node.pool.quarantine(node.pool.devices[device.index - node.first])


class Span(float):
    """A number of GPUs that are spread evenly over several nodes: of `gpus=16 nodes=2`."""

    def __new__(cls, gpus: float, nodes: int) -> Span:
        span = super().__new__(cls, gpus)
        span.nodes = nodes
        return span

    nodes: int

    def __eq__(self, other: object) -> bool:
        return float(self) == other and getattr(other, "nodes", 1) == self.nodes

    def __hash__(self) -> int:
        return hash((float(self), self.nodes))


def spread(need: float) -> Tuple[int, float]:
    """On how many nodes a need is to be met, and what it is on each."""
    nodes = getattr(need, "nodes", 1)
    if nodes == 1:
        return 1, need
    return nodes, int(need) // nodes


def input_at(path: str) -> bytes:
    """What a test of a script would read from `/proc/PID/fd/0`, which keeps it. Raises OSError.

    A loop may have the same pipe: nothing is taken out of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:  # its shell has ended
        return b""
    with open(descriptor, "rb") as file:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return file.read()
        writers = select.poll()
        writers.register(descriptor, 0)
        if not writers.poll(WRITER_MS):
            run_tests.warn_once(
                "a test reads what another program still writes: on its node it has what is there"
            )
        import ctypes

        reader, writer = os.pipe()
        with open(reader, "rb") as copy:
            ctypes.CDLL(None).tee(descriptor, writer, PIPE_BYTES, TEE_NONBLOCK)
            os.close(writer)
            return copy.read()


class Cluster(Host):
    """Nodes, as a run sees them: one Host with the devices of all."""

    heeds = ("nodes",)

    def __init__(self, nodes: Sequence[Node], machine: Machine, reaper: Reaper) -> None:
        super().__init__(Machine(), reaper)  # what there is of devices here is no matter
        self.machine = machine
        has_gpus = [node for node in nodes if node.facts["tokens"]]
        self.health.sick = [
            Sick(node.places[place], reason)
            for node in has_gpus
            for place, reason in node.facts["sick"]
        ]
        self.outer = dict(os.environb)  # what the agents know
        self.over = threading.Event()
        self.nodes = nodes
        self.count = 0  # of attempts

    def make_pool(self, _tests: Sequence[Test], options: Options) -> Pool:
        for node in self.nodes:
            own = [Device(place, token) for place, token in enumerate(node.facts["tokens"])]
            node.pool = Pool(own, options.jobs or node.facts["cores"])
        return ClusterPool(self.nodes)

    def fitted(self, test: Test) -> Test:
        count = test.attributes.nodes
        is_guess = test.program and test.attributes.gpus is None
        if count < 2 and is_guess and test.gpus != run_tests.ALL_GPUS:
            # What a script's words seem to ask for (`mpirun -np 16`): no more than a node has.
            most = max(len(node.places) for node in self.nodes)
            return test._replace(gpus=min(test.gpus, max(most, 1)))
        if count < 2:
            return test
        if test.gpus % count or test.gpus == run_tests.ALL_GPUS:
            raise run_tests.ListError(
                f"{test.where}: gpus={test.need} cannot be spread evenly over nodes={count}; write gpus=N, N a "
                f"multiple of {count}"
            )
        return test._replace(gpus=Span(test.gpus, count))

    def open(self, run: str, slots: int, post: Callable[[Any], None]) -> None:
        super().open(run, slots, post)  # for a script's shell, which runs here
        share = math.ceil(slots / len(self.nodes))
        for node in self.nodes:
            node.post = post
            # What it has warned of is shown, greetings of its launch are not.
            warnings = [
                line for line in list(node.errors) if line.startswith(run_tests.PROGRAM)
            ]
            node.errors.clear()
            node.errors.extend(warnings)
            own = f"{run}.{node.rank}."
            lost_s = node.launch.lost_s * LOST_SHARE
            node.writer.send("open", run=own, slots=slots, share=share, lost=lost_s)
            node.is_open.set()
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        """Let the agents know that the runner is there, whatever its main thread waits for. Called in a thread."""
        while not self.over.wait(run_tests.CHORES_S):
            for node in self.nodes:
                if not node.fault:
                    node.writer.send("beat", is_over=self.health.over.is_set())

    def do_chores(self) -> None:
        super().do_chores()
        for node in self.nodes:
            node.tell_errors()

    def start(self, attempt: Attempt) -> None:
        lease = attempt.lease
        assert isinstance(lease, NodeLease)
        self.count += 1
        lease.parts[0][0].start(self.count, attempt, lambda: self.words(attempt.test, lease))

    def words(self, test: Test, lease: NodeLease) -> Dict[str, Any]:
        """What an agent is to know of a test. Raises OSError."""
        if test.program:
            test = test._replace(program=self.sent(test.program))
        return words_of(test, self.introduction(lease), self.outer)

    def sent(self, job: Job) -> Job:
        """The program of a script's test, with its input where its node can read it. Raises OSError."""
        if not job.stdin:
            return job
        path = os.path.realpath(job.stdin)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISCHR(os.stat(path).st_mode):  # /dev/zero: the node has its own
                return job._replace(stdin=path)
        return job._replace(stdin=self.reaper.scratch.write(to_text(input_at(job.stdin))))

    def introduction(self, lease: NodeLease) -> Dict[str, str]:
        """Variables that tell a test on several nodes which they are. Raises OSError."""
        if len(lease.parts) == 1:
            return {}
        names = [node.name for node, _ in lease.parts]
        hosts = "".join(
            f"{node.name} slots={len(part.devices) or 1}\n" for node, part in lease.parts
        )
        return {
            "RUN_TESTS_NODES": ",".join(names),
            "RUN_TESTS_HOSTFILE": self.reaper.scratch.write(hosts),
            "MASTER_ADDR": lease.parts[0][0].facts["host"],
        }

    def close(self) -> None:
        self.over.set()
        for node in self.nodes:
            node.is_over = True
            node.writer.send("end")
        give_up = time.monotonic() + LEAVE_S
        for node in self.nodes:
            node.leave(time.monotonic() if node.fault else give_up)
            node.reader.join(run_tests.KILLED_S)
            node.tell_errors()
        left = self.reaper.close()
        if left:
            warn(f"ended what was left behind here: {run_tests.first_of(left)}")


# ---------------------------------------------------------------------------------------------------
# The command line.
# ---------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """How agents are started, by the command line."""

    prefix: str
    python: str
    lost_s: float

    def command(self, node: str, rank: int) -> List[str]:
        """The words that start the agent of a node. Raises UsageError."""
        prefix: List[str] = []
        with contextlib.suppress(ValueError, LookupError, AttributeError, TypeError):
            prefix = [word.format(node=node, rank=rank) for word in shlex.split(self.prefix)]
        if not prefix:
            raise UsageError(
                f"--launch {self.prefix}: is no command with {{node}} or {{rank}} in it, such as 'ssh {{node}}'"
            )
        words = [self.python, os.path.abspath(__file__), "--agent"]
        programs = map(os.path.basename, prefix)
        if "ssh" in programs:  # it joins its words for a shell; `timeout 5 ssh` does
            words = [shlex.quote(word) for word in words]
        return [*prefix, *words]


def slurm_nodes(environ: Mapping[str, str]) -> List[str]:
    """The nodes of the allocation that we are in. Raises UsageError, MachineError."""
    if "SLURM_JOB_NODELIST" not in environ:
        raise UsageError(
            "--nodes slurm: this is no allocation (there is no SLURM_JOB_NODELIST); type: "
            "salloc -N2 --gpus-per-node=8 --exclusive python3 qa/cluster.py --nodes slurm tests.txt"
        )
    try:
        said = run_tests.call_tool(
            "scontrol", "show", "hostnames", environ["SLURM_JOB_NODELIST"]
        )
    except run_tests.ToolError as error:
        raise MachineError(f"scontrol {error}") from None
    return said.split()


def seconds_left(environ: Mapping[str, str]) -> float:
    """Until the allocation ends, less what agents take to start; 0 if it does not end, or nobody says when."""
    end = environ.get("SLURM_JOB_END_TIME", "")
    if not end:  # from Slurm 23 on it is there
        with contextlib.suppress(run_tests.ToolError, ValueError):
            job = environ.get("SLURM_JOB_ID", "")
            said = run_tests.call_tool("squeue", "-h", "-j", job, "-o", "%e").strip()
            end = str(int(time.mktime(time.strptime(said, "%Y-%m-%dT%H:%M:%S"))))
    if not end.isdigit():
        return 0
    left_s = max(int(end) - time.time() - LEAVE_S, 1.0)
    warn(f"--deadline {run_tests.show_duration(left_s)}, since the allocation ends then")
    return left_s


def connect(nodes: Sequence[Node], options: Options) -> None:
    """Start all agents at once, and wait for their answers. Raises MachineError, a line for each that is not there."""
    folders = {os.path.abspath(options.log_dir): None}
    if os.path.commonpath([os.getcwd(), *folders]) != os.getcwd() and os.access(".", os.W_OK):
        folders[os.getcwd()] = None
    try:
        with contextlib.ExitStack() as stack:
            nonces = {}
            for folder in folders:
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", dir=folder))
                nonces[file.name] = os.urandom(8).hex()
                file.write(nonces[file.name])
                file.flush()
            environment = {to_text(name): to_text(value) for name, value in os.environb.items()}
            hello = {
                "version": version(),
                "directory": os.getcwd(),
                "nonces": nonces,
                "environment": environment,
                "umask": run_tests.proc_number("self/status", rb"\nUmask:\s*(\d+)", 8),
                "gpus": options.gpus,
            }
            greet_all(nodes, hello)
    except OSError as error:
        raise MachineError(
            f"--log-dir {options.log_dir} cannot be written ({error.strerror})"
        ) from None
    faults = [f"{node.name}: {node.fault}" for node in nodes if node.fault]
    if faults:
        for node in nodes:
            node.drop()
        raise MachineError("no run without all nodes\n" + "\n".join(faults))


def greet_all(nodes: Sequence[Node], hello: Mapping[str, Any]) -> None:
    """Start all agents, and wait until each has answered. Whatever ends the wait, no launch is left behind."""
    tell_at = time.monotonic() + SILENT_S
    late = [node.name for node in nodes]
    try:
        for node in nodes:
            threading.Thread(target=node.converse, args=(hello,), daemon=True).start()
        while late:
            # A signal that comes just before a wait begins is handled when it ends: none is long.
            late = [node.name for node in nodes if not node.has_answered.wait(FIRST_WAIT_S)]
            if late and time.monotonic() >= tell_at:
                warn(f"waiting for {', '.join(late)}: at most {CONNECT_S:.0f} s")
                tell_at = math.inf
    except BaseException:
        for node in nodes:
            node.drop()
        raise


def find_cluster(
    names: Sequence[str], launch: Launch, options: Options, reaper: Reaper
) -> Cluster:
    """The nodes, each with an agent that waits. Raises UsageError, MachineError."""
    nodes = [Node(name, rank, launch) for rank, name in enumerate(names)]
    connect(nodes, options)
    has_gpus = any(node.facts["tokens"] for node in nodes)
    first = 0
    for node in nodes:
        tokens = [f"{node.name}:{token}" for token in node.facts["tokens"]]
        node.first = first
        shown = tokens or [node.name] * (not has_gpus)
        node.places = tuple(Device(first + place, token) for place, token in enumerate(shown))
        first += len(node.places)
        if has_gpus and not tokens:
            warn(f"{node.name} shows no GPU: only tests with gpus=0 run there")
    tell_twins(nodes)
    tokens = [device.token for node in nodes for device in node.places if has_gpus]
    readers = [
        reader
        for variable in nodes[0].facts["variables"]
        for reader in run_tests.READERS
        if reader.variable == variable
    ]
    machine = Machine(tokens, readers)
    cluster = Cluster(nodes, machine, reaper)
    run_tests.check_gpus(cluster, options)
    return cluster


def share_scratch(log_dir: str) -> None:
    """Let what tests read lie where all nodes see it. Raises MachineError."""
    try:
        run_tests.make_log_dir(log_dir)
    except OSError as error:
        raise MachineError(f"--log-dir {log_dir}: {error.strerror}") from None
    tempfile.tempdir = os.path.abspath(log_dir)


def tell_twins(nodes: Sequence[Node]) -> None:
    """Say which nodes are one machine, and have the same GPUs."""
    seen: Dict[Tuple[str, str], Node] = {}
    for node in nodes:
        for token in node.facts["tokens"]:
            first = seen.setdefault((node.facts["host"], token), node)
            if first is not node:
                warn(
                    f"{first.name} and {node.name} are one machine, {node.facts['host']}: tests share its GPUs"
                )
                break


def parse_lost(text: str) -> float:
    """Seconds, not too few. Raises BadValue."""
    seconds = run_tests.parse_duration(text)
    if not seconds or seconds < LOST_LEAST_S:
        raise run_tests.BadValue(f"{text!r} is not {LOST_LEAST_S:g}s or more")
    return seconds


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="cluster.py --nodes slurm|N1,N2,... [--launch PREFIX] [option of run_tests.py ...] LIST ...",
        description=__doc__,
    )
    parser.add_argument(
        "--nodes",
        metavar="slurm|N1,N2",
        help="the nodes: those of the Slurm allocation, or these names",
    )
    parser.add_argument(
        "--launch",
        metavar="PREFIX",
        help="what comes before the agent's command; {node} and {rank} are filled in (default: srun or ssh)",
    )
    parser.add_argument(
        "--agent-python",
        default=sys.executable,
        metavar="PROGRAM",
        help="the Python of the agents (default: the one that runs this)",
    )
    parser.add_argument(
        "--lost-after",
        type=parse_lost,
        default=LOST_S,
        metavar="TIME",
        help="without a word from its agent a node is lost (default: 60s)",
    )
    parser.add_argument("--agent", action="store_true", help=argparse.SUPPRESS)
    return parser


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """From the command line to the exit code. Raises UsageError, ListError, MachineError."""
    parser = build_parser()
    own, rest = parser.parse_known_args(argv)
    if own.agent:
        return agent()
    if not own.nodes:
        parser.error("--nodes is missing: slurm, or the names of machines")
    options = run_tests.parse_command_line(rest, environ)
    options = options._replace(command=(sys.argv[0], *argv))
    names = own.nodes.split(",")
    prefix = own.launch or SSH
    if own.nodes == "slurm":
        names = slurm_nodes(environ)
        # An srun of a test's own need not wait for the agent's step.
        os.environ.setdefault("SLURM_OVERLAP", "1")
        prefix = own.launch or SRUN
    if len(set(names)) < len(names) or "" in names:
        raise UsageError(f"--nodes {own.nodes}: give each node one name")
    launch = Launch(prefix, own.agent_python, own.lost_after)
    if not options.list:
        share_scratch(options.log_dir)
    if own.nodes == "slurm" and not options.deadline:
        options = options._replace(deadline=seconds_left(environ))

    def find(options: Options, reaper: Reaper) -> Host:
        return find_cluster(names, launch, options, reaper)

    if importlib.util.find_spec("pytest_parts"):  # which may not have been copied
        import pytest_parts

        return pytest_parts.run_lists(options, find)
    return run_tests.run_lists(options, find)


if __name__ == "__main__":
    run_tests.leave(run_tests.exit_code_of(lambda: run(sys.argv[1:], os.environ)))
