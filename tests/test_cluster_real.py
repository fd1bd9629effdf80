"""qa/cluster.py on a real Slurm and over a real ssh, both on this host: what is killed, and what is left then.

It takes root and Debian's slurm-wlm, munge and openssh-server: CLUSTER_LAB=1 says that they are here, as .ci/run does.
CLUSTER_SEED chooses other moments at which something dies.
"""
from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Dict, List, Mapping, Set

import run_tests
from tests.support import ROOT, WAIT_S, GatedCase, Ran, remarks

CLUSTER = os.path.join(ROOT, "qa", "cluster.py")
NODES = ("n1", "n2")
GPUS = 4                    # of each node
SLURM = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
KillWait=5
{nodes}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
SetEnv HOME={home}
"""
SSHD_PROGRAM = "/usr/sbin/sshd"
SSH = """
Host {node}
HostName 127.0.0.1
Port {port}
User root
IdentityFile {folder}/key
UserKnownHostsFile /dev/null
StrictHostKeyChecking no
LogLevel ERROR
"""


def free_ports(count: int) -> List[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until something that has no file to wait for is so; returns it."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


class Daemons:
    """Programs of the lab, which end with it."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="lab.")
        self.started: List["subprocess.Popen[bytes]"] = []

    def start(self, *words: str, **popen: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **popen)
        self.started.append(process)
        return process

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def close(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Slurm(Daemons):
    """One controller and two nodes, whose GPUs are null devices: Slurm takes no plain files."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("state", "spool/n1", "spool/n2", "munge"):
            os.makedirs(os.path.join(self.folder, name))
        os.chmod(self.folder, 0o755)
        self.authenticate()
        host = socket.gethostname().partition(".")[0]
        port, *ports = free_ports(3)
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs={GPUS} Boards=1 "
                          f"SocketsPerBoard=1 CoresPerSocket={GPUS} ThreadsPerCore=1 Gres=gpu:{GPUS}"
                          for node, own in zip(NODES, ports))
        devices = ""
        for node in NODES:
            for number in range(GPUS):
                subprocess.run(["mknod", f"{self.folder}/{node}-{number}", "c", "1", "3"], check=True)
            devices += f"NodeName={node} Name=gpu File={self.folder}/{node}-[0-{GPUS - 1}]\n"
        self.write("gres.conf", devices)
        conf = self.write("slurm.conf", SLURM.format(folder=self.folder, host=host, port=port, nodes=nodes))
        self.variables = {"SLURM_CONF": conf}
        self.start("slurmctld", "-D", env={**os.environ, **self.variables}, stderr=subprocess.DEVNULL)
        self.nodes: Dict[str, "subprocess.Popen[bytes]"] = {}
        for node in NODES:
            self.start_node(node)
        self.wait_until_idle()

    def authenticate(self) -> None:
        """Start munge, with a key of its own."""
        folder = os.path.join(self.folder, "munge")
        with open(f"{folder}/key", "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(f"{folder}/key", 0o600)
        own = (f"--{name}={folder}/{name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file",
                                                                          "seed-file"))
        self.start("munged", "--foreground", "--force", *own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(f"{folder}/socket"), "munge listens")

    def start_node(self, node: str) -> None:
        self.nodes[node] = self.start("slurmd", "-D", "-N", node, env={**os.environ, **self.variables},
                                      stderr=subprocess.DEVNULL)

    def ask(self, *words: str) -> str:
        return subprocess.run(words, env={**os.environ, **self.variables}, check=False, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()

    def wait_until_idle(self) -> None:
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2\n", "both nodes are idle")


class Ssh(Daemons):
    """Two nodes with homes of their own."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.folder}/{name}"], check=True)
        os.makedirs("/run/sshd", exist_ok=True)
        config = ""
        for node, port in zip(NODES, free_ports(2)):
            home = os.path.join(self.folder, f"home-{node}")
            os.mkdir(home)
            conf = self.write(f"sshd-{node}", SSHD.format(folder=self.folder, port=port, home=home))
            self.start(SSHD_PROGRAM, "-D", "-f", conf, stderr=subprocess.DEVNULL)
            config += SSH.format(node=node, port=port, folder=self.folder)
        self.launch = f"ssh -F {self.write('config', config)} {{node}}"
        for node in NODES:
            wait_for(lambda node=node: not subprocess.run(  # type: ignore[misc]
                [*self.launch.format(node=node).split(), "true"], check=False, stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL).returncode, f"{node} answers")


@unittest.skipUnless(os.environ.get("CLUSTER_LAB"), "no Slurm and ssh to try: see CLUSTER_LAB")
class LabCase(GatedCase):
    """Runs of qa/cluster.py whose tests, if they hang, do it in processes that show in /proc."""

    lab: Any

    @classmethod
    def tearDownClass(cls) -> None:
        cls.lab.close()

    def setUp(self) -> None:
        super().setUp()
        self.nap = f"sleep {86400 + int.from_bytes(os.urandom(3), 'big')}"
        self.random = random.Random(os.environ.get("CLUSTER_SEED", "1") + self.id())

    def naps(self) -> Set[int]:
        """The processes that tests have started and that live."""
        found = set()
        for pid, *_ in run_tests.process_table():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if file.read().rstrip(b"\0").replace(b"\0", b" ") == self.nap.encode():
                        found.add(pid)
            except OSError:
                pass
        return found

    def agents(self, *node: bytes) -> List[int]:
        """The processes of agents of this test's folder, of a node or of all."""
        found = []
        for pid, *_ in run_tests.process_table():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    is_agent = file.read().rstrip(b"\0").endswith(b"cluster.py\0--agent")
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = file.read().split(b"\0")
                if is_agent and all(b"SLURMD_NODENAME=" + name in environ for name in node):
                    found.append(pid)
            except OSError:
                pass
        return found

    def ended(self, process: "subprocess.Popen[bytes]") -> Ran:
        out, err = process.communicate()
        return Ran(process.returncode, out, remarks(err), self.folder)

    def after_starts(self, count: int) -> None:
        """Wait until the journal tells of so many starts."""
        journal = os.path.join(self.folder, "logs", "run_tests.jsonl")

        def starts() -> bool:
            if not os.path.exists(journal):
                return False
            with open(journal, encoding="utf-8") as file:
                return file.read().count('"test_start"') >= count

        wait_for(starts, f"{count} tests have started")

    def mixed(self) -> str:
        """Forty tests with different needs; one fails."""
        needs = ["", "", "", " #: gpus=2", " #: gpus=4", " #: gpus=0", " #: gpus=0.5", ""]
        lines = [f"sleep 0.05 || test_fail t{number:02d}{needs[number % 8]}\n" for number in range(39)]
        return "".join(lines) + "false || test_fail t39\n"

    def check_records(self, ran: Ran, is_over: bool = True) -> Mapping[str, str]:
        """The journal is whole, and no GPU was held by more than it has; returns the last outcomes."""
        with open(ran.path("logs/run_tests.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        held: Dict[str, List[str]] = {gpu: [] for gpu in records[0]["gpus"]}
        for record in records:
            label = record.get("label", "")
            if record["event"] == "test_start":
                for gpu in record["gpus"]:
                    held[gpu].append(label)
                    has_halves = all(int(other[1:]) % 8 == 6 for other in held[gpu])
                    self.assertLessEqual(len(held[gpu]), 1 + has_halves, held)
            elif record["event"] == "test_end":
                for labels in held.values():
                    if label in labels:
                        labels.remove(label)
        if is_over:
            self.assertEqual(records[-1]["event"], "run_end")
        return {record["label"]: record["outcome"] for record in records if record["event"] == "test_end"}


class SlurmTest(LabCase):
    lab: Slurm

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Slurm()

    def setUp(self) -> None:
        super().setUp()
        self.lab.wait_until_idle()

    def command(self, *arguments: str) -> List[str]:
        return ["salloc", "--quiet", "--nodes=2", f"--gpus-per-node={GPUS}", "--exclusive", "--no-kill",
                sys.executable, CLUSTER, "--nodes", "slurm", *arguments]

    def environment(self, _gpus: Any, extra: Mapping[str, str]) -> Dict[str, str]:
        return super().environment(None, {**self.lab.variables, **extra})

    def test_forty_tests(self) -> None:
        ran = self.run_list(self.mixed())
        self.assertEqual(ran.code, 1, ran.text + ran.err)
        self.assertIn("Detected 8 GPU(s): n1:0 n1:1 n1:2 n1:3 n2:0 n2:1 n2:2 n2:3\n", ran.text)
        outcomes = self.check_records(ran)
        self.assertEqual(len(outcomes), 40)
        self.assertEqual({label for label, outcome in outcomes.items() if outcome != "passed"}, {"t39"})
        self.assertEqual(self.agents(), [])

    def test_a_test_on_both_nodes_starts_its_ranks(self) -> None:
        ran = self.run_list("set -o pipefail\nsrun -N2 -w $RUN_TESTS_NODES sh -c 'echo $SLURMD_NODENAME' | sort "
                            "#: label=a gpus=8 nodes=2\n")
        self.assertEqual(ran.code, 0, ran.text + ran.err)
        with open(ran.path("logs/a.log")) as log:
            self.assertEqual(log.read(), "n1\nn2\n")

    def test_outside_an_allocation(self) -> None:
        self.write("t.txt", "true\n")
        ran = subprocess.run(self.command("t.txt")[6:], cwd=self.folder, env=self.environment(None, {}), check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(ran.returncode, 2)
        self.assertIn(b"type: salloc ", ran.stderr)

    def suffer(self, blow: Callable[["subprocess.Popen[bytes]"], None]) -> Ran:
        """A run of forty tests, of which some hang until something is struck at a moment chosen by chance."""
        gate = os.path.join(self.folder, "gate")
        text = self.mixed().replace("sleep 0.05", f"{{ [ -e {gate} ] || ! {self.nap}; }}")
        self.write("tests.txt", text)
        process = self.start("tests.txt")
        self.after_starts(self.random.randint(1, 4))
        with open(gate, "w", encoding="utf-8"):
            pass
        blow(process)
        ran = self.ended(process)
        self.assertNotIn("Traceback", ran.err)
        wait_for(lambda: not self.naps() and not self.agents(), "nothing is left")
        return ran

    def check_elsewhere(self, ran: Ran) -> None:
        """One node is lost: its tests have run on the other."""
        self.assertEqual(ran.code, 1, ran.text + ran.err)
        self.assertEqual({label for label, outcome in self.check_records(ran).items() if outcome != "passed"}, {"t39"})
        self.assertRegex(ran.text, r"quarantined: GPU n1:0 \(node n1 is lost")

    def strike(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the agent of n1, and wake what naps elsewhere."""
        for pid in self.agents(b"n1"):
            os.kill(pid, signal.SIGKILL)

        def wake() -> None:
            while process.poll() is None:
                run_tests.send(signal.SIGTERM, filter(None, map(run_tests.process_info, self.naps())))
                time.sleep(0.02)

        threading.Thread(target=wake, daemon=True).start()

    def test_an_agent_is_killed(self) -> None:
        self.check_elsewhere(self.suffer(self.strike))

    def test_a_node_dies(self) -> None:
        """Its slurmd and its agent: the step daemon outlives them, and ends with its task."""
        def blow(process: "subprocess.Popen[bytes]") -> None:
            self.lab.nodes["n1"].kill()
            self.lab.nodes["n1"].wait()
            self.strike(process)

        try:
            self.check_elsewhere(self.suffer(blow))
        finally:
            self.lab.start_node("n1")
            self.lab.wait_until_idle()

    def check_rest(self, ran: Ran) -> None:
        """What did not pass runs again with --rerun-failed, and nothing else does."""
        passed = {label for label, outcome in self.check_records(ran, is_over=False).items() if outcome == "passed"}
        self.lab.wait_until_idle()
        again = self.run_command("--rerun-failed", "tests.txt")
        self.assertEqual(again.code, 1, again.text + again.err)
        started = set(re.findall(r"Starting: (\w+)", again.text))
        self.assertEqual(started, {f"t{number:02d}" for number in range(40)} - passed)

    def test_the_runner_is_killed(self) -> None:
        self.check_rest(self.suffer(lambda process: os.kill(self.runner(process), signal.SIGKILL)))

    def runner(self, process: "subprocess.Popen[bytes]") -> int:
        """The process of qa/cluster.py below salloc."""
        parent = f"PPid:\t{process.pid}\n".encode()
        return wait_for(lambda: [pid for pid, *_ in run_tests.process_table()
                                 if parent in run_tests.read_proc(f"{pid}/status")], "the runner runs")[0]

    def test_the_job_is_cancelled(self) -> None:
        self.check_rest(self.suffer(lambda _: [self.lab.ask("scancel", job) for job in
                                               self.lab.ask("squeue", "-h", "-o", "%i").split()][0]))


class SshTest(LabCase):
    lab: Ssh

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Ssh()

    def command(self, *arguments: str) -> List[str]:
        return [sys.executable, CLUSTER, "--nodes", ",".join(NODES), "--gpus", str(GPUS), "--launch", self.lab.launch,
                "--agent-python", "/usr/bin/python3", *arguments]

    def test_forty_tests(self) -> None:
        ran = self.run_list(self.mixed() + "echo $HOME; touch ~/here #: label=home gpus=0\n", gpus=None)
        self.assertEqual(ran.code, 1, ran.text + ran.err)
        outcomes = self.check_records(ran)
        self.assertEqual({label for label, outcome in outcomes.items() if outcome != "passed"}, {"t39"})
        homes = [os.listdir(os.path.join(self.lab.folder, f"home-{node}")) for node in NODES]
        self.assertEqual(sorted(name for home in homes for name in home if name == "here"), ["here"])

    def test_a_killed_runner_leaves_nothing(self) -> None:
        self.write("tests.txt", f"{self.nap}\n{self.nap} #: label=b\n")
        process = self.start("tests.txt", gpus=None)
        wait_for(lambda: len(self.naps()) == 2, "both tests run")
        process.kill()
        process.wait()
        wait_for(lambda: not self.naps() and not self.agents(), "nothing is left")
