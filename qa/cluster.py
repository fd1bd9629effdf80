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
import heapq
import json
import math
import os
import queue
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import (
    Any,
    Callable,
    Collection,
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
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import run_tests
from run_tests import (
    Attempt,
    Broken,
    Device,
    Ended,
    Exited,
    Host,
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
    warn,
)

CONNECT_S = 120.0  # until an agent has answered: a busy controller takes its time
LOST_S = 60.0  # without a word from an agent
LOST_LEAST_S = 3.0  # the runner looks after its nodes once a second
LEAVE_S = 30.0  # for an agent to sweep and go
MESSAGE_BYTES = 1 << 16  # read at once

# What runner and agent say to each other: JSON objects, one a line. `say` is the kind of message. Bytes are text with
# surrogate escapes, times are seconds since the event, as two machines have two clocks.
#
#   to the agent
#   hello   version; directory; nonce, the path of a file and what stands in it; environment; gpus, those of --gpus
#   open    run, its id; slots, of all nodes; share, the slots of this node
#   start   id, of the attempt; number; test, see `words_of`; slot; devices, by place; shares; log
#   signal  id; signum; stacks, why the stacks of its Pythons are wanted, if they are
#   beat    the runner is there
#   end     sweep, and go
#
#   from the agent
#   ready   host; tokens, of its GPUs; variables, of masks; cores; memory, MiB of its smallest GPU, 0 if not known
#   refuse  why
#   ended   id; ago
#   exited  id; ago; status; fault; failures; cause; leaked; sick, places of devices and reasons; memory; peak
#   broken  id; why; details
#   beat    the agent is there
#   left    processes that it had to end, in words

# What an agent keeps of its own environment even where the runner has it too. For the rest the runner's counts, as
# srun and mpirun have it; what only the agent has stays, but for what describes its own step to programs that start
# others (`srun`, `mpirun`).
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


def words_of(test: Test, before: str) -> Dict[str, Any]:
    """What an agent is to know of a test, with some bash to run before it."""
    shell = test.shell
    exported = shell.environment
    if exported is not None:
        exported = {to_text(name): to_text(value) for name, value in exported.items()}  # type: ignore[misc]
    return {
        "label": test.label,
        "file": test.file,
        "line": test.line,
        "command": test.command,
        "preface": to_text(test.preface),
        "junit": test.junit,
        "directory": shell.directory,
        "exported": exported,
        "prelude": shell.prelude,
        "before": "; ".join(filter(None, [before, shell.before])),
        "after": shell.after,
    }


def test_of(words: Mapping[str, Any]) -> Test:
    """The test of `words_of`, as far as it takes to run it."""
    exported = words["exported"]
    if exported is not None:
        exported = {to_bytes(name): to_bytes(value) for name, value in exported.items()}
    shell = run_tests.Snapshot(
        words["directory"], exported, words["prelude"], words["before"], words["after"]
    )
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
        timeout=None,
        junit=words["junit"],
        announces=False,
    )


class Lines:
    """Messages from a descriptor, as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.rest = b""

    def read(self, seconds: float) -> Optional[List[Dict[str, Any]]]:
        """What has come within this time; None at the end of the file. Raises ValueError for what is no message."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return []
        data = os.read(self.descriptor, MESSAGE_BYTES)
        if not data:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


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
        self.lost_s = LOST_S
        self.is_open = False  # attempts may come

    def serve(self) -> None:
        """Answer until the runner says that it is over, or is gone. Raises OSError, ValueError, Refusal."""
        self.greet(next(self.messages()))
        try:
            for message in self.messages():
                getattr(self, "on_" + message.pop("say"))(**message)
                if self.is_ending:
                    return
        finally:
            self.close()

    def messages(self) -> Iterator[Dict[str, Any]]:
        """What the runner says, until it is gone; does what is due meanwhile."""
        heard_at = chores_at = time.monotonic()
        while True:
            messages = self.lines.read(run_tests.CHORES_S)
            now = time.monotonic()
            if messages is None or now > heard_at + self.lost_s:
                return
            if messages:
                heard_at = now
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
        path, text = hello["nonce"]
        try:
            with open(path, encoding="utf-8") as file:
                seen = file.read()
            os.chdir(hello["directory"])
        except OSError as error:
            raise Refusal(
                f"{error.filename}: {error.strerror}; log dir and working directory have to be shared by all nodes"
            ) from None
        if seen != text:
            raise Refusal(
                f"{path} is another file here; the log dir has to be shared by all nodes"
            )
        if run_tests.find_program("bash") is None:
            raise Refusal("there is no bash")
        self.lost_s = hello["lost"]
        self.adopt(hello["environment"])
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
            tokens=[device.token for device in self.machine.devices],
            variables=self.machine.variables,
            cores=self.cores,
            memory=self.host.health.least,
        )

    def adopt(self, environment: Mapping[str, str]) -> None:
        """Take the runner's environment over, but for what is this node's."""
        theirs = {to_bytes(name): to_bytes(value) for name, value in environment.items()}
        for name in filter(OWN_VARIABLES.fullmatch, list(theirs)):
            del theirs[name]
        for name in filter(STEP_VARIABLES.fullmatch, list(os.environb)):
            del os.environb[name]
        self.own = {name: value for name, value in os.environb.items() if name not in theirs}
        os.environb.update(theirs)

    def on_open(self, run: str, slots: int, share: int) -> None:
        """Prepare for the run's attempts. Processes of other agents on this host bear another mark."""
        threads = b"OMP_NUM_THREADS"
        if threads not in os.environb and slots > 1:
            os.environb[threads] = b"%d" % max(1, self.cores // share)
            self.own[threads] = os.environb[threads]
        self.host.open(run, slots, [], self.note)
        self.host.environment.update(self.own)
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
        self.host.start(attempt, log)

    def on_signal(self, id: int, signum: int, stacks: str) -> None:
        attempt = self.attempts.get(id)
        if attempt is not None:  # to ask for stacks takes time
            threading.Thread(
                target=attempt.process.signal, args=(signum, stacks), daemon=True
            ).start()

    def on_beat(self) -> None:
        """The runner is there."""

    def on_end(self) -> None:
        self.is_ending = True

    def note(self, event: Any) -> None:
        """Tell the runner what has happened to an attempt. Called in threads."""
        id = self.ids[event.test]
        now = time.monotonic()
        if isinstance(event, Ended):
            self.writer.send("ended", id=id, ago=now - event.at)
            return
        del self.ids[event.test], self.attempts[id]
        if isinstance(event, Broken):
            self.writer.send("broken", id=id, why=event.reason, details=event.details)
            return
        assert isinstance(event, Exited)
        cause = event.cause
        self.writer.send(
            "exited",
            id=id,
            ago=now - (event.ended or event.at),
            status=event.status,
            fault=event.junit_fault,
            failures=event.junit_failures,
            cause=[cause.text, cause.blame.value, cause.line],
            leaked=event.leaked,
            sick=[[sick.device.index, sick.reason] for sick in event.sick],
            memory=event.memory,
            peak=event.peak,
        )

    def close(self) -> None:
        """End all that runs, and what it has left. A runner that is still there is told."""
        if not self.is_open:
            self.reaper.close()
            return
        running = list(self.attempts.values())
        for attempt in running:
            attempt.process.signal(signal.SIGKILL)
        give_up = time.monotonic() + run_tests.STUCK_S
        while self.attempts and time.monotonic() < give_up:
            time.sleep(run_tests.SWEEP_POLL_S)
        self.host.has_stuck = bool(self.attempts)
        self.host.close()
        self.writer.send("left")


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

    def __init__(self, node: Node, id: int) -> None:
        self.node = node
        self.id = id

    @property
    def is_gone(self) -> bool:
        return self.id not in self.node.attempts

    def signal(self, signum: int, stacks: str = "") -> None:
        self.node.writer.send("signal", id=self.id, signum=signum, stacks=stacks)


class Node:
    """One machine, and the conversation with its agent."""

    def __init__(self, name: str, rank: int, launch: Launch) -> None:
        self.name = name
        self.launch = launch
        self.command = launch.command(name, rank)
        self.facts: Dict[str, Any] = {}  # of `ready`
        self.fault = ""  # why it is not there
        self.first = 0  # the index of its first device among those of all nodes
        self.places: Tuple[Device, ...] = ()  # its devices, as the run knows them
        self.pool = Pool([])
        self.attempts: Dict[int, Attempt] = {}
        self.lock = threading.Lock()  # for `attempts` and `fault`
        self.errors: Deque[str] = collections.deque(
            maxlen=100
        )  # what it has said on standard error
        self.post: Callable[[Any], None] = print
        self.is_over = False  # it has been told to go

    def connect(self, hello: Mapping[str, Any]) -> None:
        """Start the agent and hear what it has. Called in a thread of its own: the runner's other children end with
        the tests, as the kernel tells them apart by the thread that has started them."""
        try:
            self.agent = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the runner's to tell
            )
        except OSError as error:
            self.fault = f"{self.command[0]}: {error.strerror}"
            return
        assert self.agent.stdin and self.agent.stdout and self.agent.stderr
        self.reader = threading.Thread(target=self.read_errors, daemon=True)
        self.reader.start()
        self.writer = Writer(self.agent.stdin.fileno())
        self.lines = Lines(self.agent.stdout.fileno())
        self.writer.send("hello", **hello)
        give_up = time.monotonic() + CONNECT_S
        try:
            while not self.facts and not self.fault:
                messages = self.lines.read(max(give_up - time.monotonic(), 0))
                if not messages:
                    self.fault = f"its agent did not answer in {CONNECT_S:.0f} s"
                    if messages is None:
                        self.fault = self.last_words()
                    return
                for message in messages:
                    if message["say"] == "refuse":
                        self.fault = message["why"]
                    elif message["say"] == "ready":
                        self.facts = message
        except ValueError:
            self.fault = "something else than an agent answers: what a login shell prints has to go to standard error"

    def read_errors(self) -> None:
        """Keep what the agent and its launch say, until they end."""
        assert self.agent.stderr
        for line in self.agent.stderr:
            self.errors.append(run_tests.plain(line.decode("utf-8", "replace")))

    def last_words(self) -> str:
        """How the agent has ended, and what it said last."""
        status = self.agent.wait()
        self.reader.join(run_tests.KILLED_S)  # unless something holds the pipe
        said = [line for line in self.errors if line][-1:]
        how = f"exit {status}" if status >= 0 else signal.Signals(-status).name
        return ": ".join([f"its agent has ended ({how})", *said])

    def start(self, id: int, attempt: Attempt, log: str, before: str) -> None:
        """Let the agent run an attempt; if the node is lost, so is the attempt."""
        lease = attempt.lease
        assert isinstance(lease, NodeLease)
        attempt.process = Remote(self, id)
        with self.lock:
            self.attempts[id] = attempt
        if self.fault:
            self.lose(self.fault)
            return
        mine = lease.parts[0][1]
        self.writer.send(
            "start",
            id=id,
            number=attempt.number,
            test=words_of(attempt.test, before),
            slot=lease.slot,
            devices=[device.index for device in mine.devices],
            shares=lease.shares,
            log=os.path.abspath(log),
        )

    def listen(self) -> None:
        """Post what the agent tells, until it ends. Called in a thread."""
        why = ""
        try:
            while not why:
                messages = self.lines.read(self.launch.lost_s)
                if messages is None:
                    why = self.last_words()
                elif not messages:
                    why = f"no word from its agent for {self.launch.lost_s:g} s"
                for message in messages or ():
                    self.hear(**message)
        except Exception as error:  # a thread that dies in silence would hang the run
            why = f"{error!r} in what its agent says"
        if not self.is_over:
            self.lose(why)
            self.leave(time.monotonic())

    def hear(self, say: str, id: int = 0, ago: float = 0.0, **fields: Any) -> None:
        """Make an event of a message."""
        at = time.monotonic() - ago
        attempt = self.attempts.get(id)
        if attempt is None:
            return  # it was abandoned, or this is no word of an attempt
        if say == "ended":
            self.post(Ended(at, attempt.test))
            return
        with self.lock:
            del self.attempts[id]
        if say == "broken":
            why = f"{self.name}: {fields['why']}"
            self.post(Broken(at, attempt.test, why, fields["details"]))
            return
        text, blame, line = fields["cause"]
        self.post(
            Exited(
                time.monotonic(),
                attempt.test,
                fields["status"],
                fields["fault"],
                fields["failures"],
                run_tests.Cause(text, run_tests.Blame(blame), line),
                tuple(fields["leaked"]),
                tuple(Sick(self.places[place], reason) for place, reason in fields["sick"]),
                at,
                fields["memory"],
                fields["peak"],
            )
        )

    def lose(self, why: str) -> None:
        """Give the node up: its devices, and what ran there, which may run again elsewhere."""
        with self.lock:
            self.fault = self.fault or why
            lost = list(self.attempts.values())
            self.attempts.clear()
        now = time.monotonic()
        reason = f"node {self.name} is lost: {self.fault}"
        sick = tuple(Sick(device, reason) for device in self.places)
        self.post(run_tests.Lost(now, sick))
        for attempt in lost:
            cause = run_tests.Cause(reason, line=reason)
            self.post(
                Exited(now, attempt.test, -signal.SIGKILL, "left open", cause=cause, sick=sick)
            )

    def leave(self, give_up: float) -> None:
        """Wait for the agent's end until this time, then end it: its guard ends what it has started."""
        for end in (self.agent.terminate, self.agent.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.agent.wait(max(give_up - time.monotonic(), 1))
                return
            end()
        self.agent.wait()


class NodeLease(Lease):
    """A lease on places of one node or of several. `parts` are these nodes, and their own leases."""

    parts: List[Tuple[Node, Lease]]

    @property
    def place(self) -> str:
        """`GPU n1:0,n1:1`, or `CPU n1`."""
        tokens = [
            device.token
            for node, _ in self.parts
            if node.facts["tokens"]
            for device in self.devices
        ]
        if tokens:
            return "GPU " + ",".join(self.tokens)
        return f"CPU {self.parts[0][0].name}"


class ClusterPool(Pool):
    """What is free of all nodes: each has a pool of its own. A test gets the devices of one, or of as many as it says.

    Where no node has a GPU, each is one place for a test.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__([device for node in nodes for device in node.places])
        self.nodes = nodes

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
        return (
            sum(node.places != () and need <= node.pool.size for node in self.there()) >= nodes
        )

    def most(self) -> str:
        return f"{super().most()} on one node; a test of several says nodes="

    def has_room(self, need: float) -> bool:
        nodes, need = spread(need)
        return sum(node.pool.has_room(need) for node in self.there()) >= nodes

    def take(self, need: float, avoid: Container[int] = ()) -> Optional[Lease]:
        """A lease on the node that has the least room for others, so that large tests find room."""
        count, share = spread(need)
        parts: List[Tuple[Node, Lease]] = []
        for node in sorted(
            self.there(), key=lambda node: (len(node.pool.whole), -node.pool.cpus)
        ):
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
        slot = heapq.heappop(self.slots)
        if not self.slots:
            self.slots.append(slot + 1)
        devices = [node.places[device.index] for node, part in parts for device in part.devices]
        lease = NodeLease(tuple(devices), slot, parts[0][1].shares)
        lease.parts = parts
        return lease

    def give(self, lease: Lease) -> None:
        assert isinstance(lease, NodeLease)
        for node, part in lease.parts:
            node.pool.give(part)
        heapq.heappush(self.slots, lease.slot)

    def quarantine(self, device: Device) -> None:
        self.lost.add(device.index)
        for node in self.nodes:
            if device in node.places:
                node.pool.quarantine(node.pool.devices[device.index - node.first])


class Span(float):
    """A number of GPUs that are spread evenly over several nodes: of `gpus=16 nodes=2`."""

    nodes = 1

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


class Cluster(Host):
    """Nodes, as a run sees them: one Host with the devices of all."""

    heeds = ("nodes",)

    def __init__(self, nodes: Sequence[Node], machine: Machine, reaper: Reaper) -> None:
        super().__init__(Machine(), reaper)  # what there is of devices here is no matter
        self.machine = machine
        self.health.least = min((node.facts["memory"] for node in nodes), default=0)
        self.nodes = nodes
        self.count = 0  # of attempts

    def make_pool(self, _tests: Sequence[Test], options: Options) -> Pool:
        for node in self.nodes:
            own = [Device(place, token) for place, token in enumerate(node.facts["tokens"])]
            node.pool = Pool(own, options.jobs or node.facts["cores"])
        return ClusterPool(self.nodes)

    def fitted(self, test: Test, options: Options) -> Test:
        count = test.attributes.nodes
        if count < 2:
            return super().fitted(test, options)
        if test.gpus % count or test.gpus == run_tests.ALL_GPUS:
            raise run_tests.ListError(
                f"{test.where}: gpus={test.need} cannot be spread evenly over nodes={count}; write gpus=N, N a "
                f"multiple of {count}"
            )
        need = Span(test.gpus)
        need.nodes = count
        return test._replace(gpus=need)

    def open(
        self, run: str, slots: int, kept: Collection[int], post: Callable[[Any], None]
    ) -> None:
        self.run = run
        self.kept = [*kept]
        self.environment = run_tests.test_environment(os.environb, slots, run)
        share = math.ceil(slots / len(self.nodes))
        for rank, node in enumerate(self.nodes):
            node.post = post
            node.errors.clear()  # greetings of its launch
            node.writer.send("open", run=f"{run}.{rank}.", slots=slots, share=share)
            threading.Thread(target=node.listen, daemon=True).start()

    def allow(self, slots: int) -> None:
        """The agents have as many threads as they need."""

    def do_chores(self) -> None:
        super().do_chores()
        for node in self.nodes:
            while node.errors and not node.is_over and not node.fault:
                warn(f"{node.name}: {node.errors.popleft()}", name="")
            node.writer.send("beat")

    def start(self, attempt: Attempt, log: str) -> None:
        lease = attempt.lease
        assert isinstance(lease, NodeLease)
        self.count += 1
        lease.parts[0][0].start(self.count, attempt, log, self.introduction(lease))

    def introduction(self, lease: NodeLease) -> str:
        """Bash that tells a test on several nodes which they are."""
        if len(lease.parts) == 1:
            return ""
        names = [node.name for node, _ in lease.parts]
        hosts = "".join(
            f"{node.name} slots={len(part.devices)}\n" for node, part in lease.parts
        )
        variables = {
            "RUN_TESTS_NODES": ",".join(names),
            "RUN_TESTS_HOSTFILE": self.reaper.scratch.write(hosts),
            "MASTER_ADDR": lease.parts[0][0].facts["host"],
        }
        return "export " + " ".join(
            f"{name}={shlex.quote(value)}" for name, value in variables.items()
        )

    def abandon(self) -> None:
        """An agent has threads for others."""

    def close(self) -> None:
        for node in self.nodes:
            node.is_over = True
            node.writer.send("end")
        give_up = time.monotonic() + LEAVE_S
        for node in self.nodes:
            if node.fault:
                give_up = min(give_up, time.monotonic() + 1)
            node.leave(give_up)
            for line in node.errors if not node.fault else ():
                warn(f"{node.name}: {line}", name="")
        self.reaper.close()


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
        try:
            prefix = [word.format(node=node, rank=rank) for word in shlex.split(self.prefix)]
        except (ValueError, KeyError, IndexError):
            raise UsageError(
                f"--launch {self.prefix}: is no command with {{node}} or {{rank}} in it, such as 'ssh {{node}}'"
            ) from None
        words = [self.python, os.path.abspath(__file__), "--agent"]
        if os.path.basename(prefix[0]) == "ssh":  # which joins its words for a shell
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


def connect(nodes: Sequence[Node], options: Options) -> None:
    """Start all agents at once, and wait for their answers. Raises MachineError, a line for each that is not there."""
    log_dir = os.path.abspath(options.log_dir)
    nonce = os.urandom(8).hex()
    descriptor, path = tempfile.mkstemp(dir=log_dir, prefix="run_tests.py.", text=True)
    try:
        os.write(descriptor, nonce.encode())
        os.close(descriptor)
        hello = {
            "version": version(),
            "directory": os.getcwd(),
            "nonce": (path, nonce),
            "environment": {
                to_text(name): to_text(value) for name, value in os.environb.items()
            },
            "gpus": options.gpus,
            "lost": nodes[0].launch.lost_s,
        }
        threads = [
            threading.Thread(target=node.connect, args=(hello,), daemon=True) for node in nodes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.unlink(path)
    faults = [f"{node.name}: {node.fault}" for node in nodes if node.fault]
    if faults:
        raise MachineError("no run without all nodes\n" + "\n".join(faults))


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
    devices = tuple(device for node in nodes for device in node.places if has_gpus)
    machine = Machine(devices, tuple(nodes[0].facts["variables"]))
    run_tests.check_gpus(machine, options)
    return Cluster(nodes, machine, reaper)


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
    if options.gpu_locks:
        raise UsageError(
            "--gpu-locks is for the runners of one machine; an allocation is nobody else's"
        )
    names = own.nodes.split(",")
    prefix = own.launch or SSH
    if own.nodes == "slurm":
        names = slurm_nodes(environ)
        os.environ.setdefault(
            "SLURM_OVERLAP", "1"
        )  # an srun of a test's own need not wait for the agent's step
        prefix = own.launch or SRUN
    if len(set(names)) < len(names) or "" in names:
        raise UsageError(f"--nodes {own.nodes}: give each node one name")
    if options.deadline is None and "SLURM_JOB_END_TIME" in environ:
        left_s = max(int(environ["SLURM_JOB_END_TIME"]) - time.time(), 1.0)
        options = options._replace(deadline=left_s)
    launch = Launch(prefix, own.agent_python, own.lost_after)
    try:
        os.makedirs(options.log_dir, exist_ok=True)
    except OSError as error:
        raise MachineError(f"--log-dir {options.log_dir}: {error.strerror}") from None
    tempfile.tempdir = os.path.abspath(
        options.log_dir
    )  # what tests read has to be seen by all nodes

    def find(options: Options, _environ: Mapping[str, str], reaper: Reaper) -> Host:
        return find_cluster(names, launch, options, reaper)

    return run_tests.run_lists(options, environ, find)


if __name__ == "__main__":
    run_tests.leave(run_tests.exit_code_of(lambda: run(sys.argv[1:], os.environ)))
