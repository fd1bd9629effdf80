"""qa/cluster.py: lists and scripts on two nodes, which are two agents on this host; what happens where one is lost."""
from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest
from typing import Any, Dict, List, Tuple
from unittest import mock

import run_tests
from tests import test_script_equivalence
from tests.support import ROOT, Fifo, GatedCase, Lifeline, a_test
from tests.test_script_equivalence import Case

sys.path.insert(0, os.path.join(ROOT, "qa"))
import cluster

CLUSTER = os.path.join(ROOT, "qa", "cluster.py")


class ClusterCase(GatedCase):
    launch = "env NODE={node}"

    def wait_for_end(self, pid: int) -> None:
        """Wait until a process is gone."""
        while run_tests.process_info(pid):
            os.sched_yield()

    def command(self, *arguments: str) -> List[str]:
        return [sys.executable, CLUSTER, "--nodes", "n1,n2", "--launch", self.launch, *arguments]


class RunTest(ClusterCase):
    def test_a_list_uses_the_gpus_of_all_nodes(self) -> None:
        ran = self.run_list("export SHARED=yes\nshow() { echo $NODE $CUDA_VISIBLE_DEVICES $SHARED; }\n"
                            "show || test_fail a\nshow || test_fail b #: gpus=2\nshow || test_fail c\n"
                            "show || test_fail d #: gpus=0\nfalse || test_fail e\ntrue || test_fail f #: gpus=3\n")
        self.check(ran, 1, {"a": "passed", "b": "passed", "c": "passed", "d": "passed", "e": "failed",
                            "f": "unrunnable"})
        self.assertIn("Detected 4 GPU(s): n1:0 n1:1 n2:0 n2:1\n", ran.text)
        for start in ran.journal("test_start"):
            with self.subTest(start["label"]), open(ran.path(start["log"])) as log:
                if start["label"] != "e":
                    node, *gpus = log.read().split()
                    self.assertEqual(gpus.pop(), "yes")
                    shown = [f"{node}:{gpu}" for gpu in "".join(gpus).split(",") if gpu]
                    self.assertEqual(start["gpus"], shown)
        self.assertRegex(ran.text, r"\nunrunnable: f\n    needs 3 GPUs, more than there are on one node")
        self.assertEqual(os.listdir(os.path.join(self.folder, "logs")).count("failures"), 1)
        self.assertEqual([name for name in os.listdir(os.path.join(self.folder, "logs")) if "run_tests.py" in name], [])

    def test_a_test_on_two_nodes_knows_them(self) -> None:
        ran = self.run_list("MASTER_ADDR=localhost\n"
                            "echo $NODE $CUDA_VISIBLE_DEVICES $RUN_TESTS_NODES $MASTER_ADDR && cat $RUN_TESTS_HOSTFILE"
                            " #: label=wide gpus=4 nodes=2\ntrue #: label=wider gpus=6 nodes=2\n"
                            "cat $RUN_TESTS_HOSTFILE #: label=cpu gpus=0 nodes=2\n")
        self.check(ran, 1, {"wide": "passed", "wider": "unrunnable", "cpu": "passed"})
        self.assertEqual(ran.read("logs/cpu.log"), "n1 slots=1\nn2 slots=1\n")     # MPI starts nothing on 0
        with open(ran.path("logs/wide.log")) as log:
            self.assertEqual(log.read(), f"n1 0,1 n1,n2 {socket.gethostname()}\nn1 slots=2\nn2 slots=2\n")
        self.assertEqual(ran.journal("test_start")[0]["gpus"], ["n1:0", "n1:1", "n2:0", "n2:1"])
        ran = self.run_list("true #: gpus=3 nodes=2\n")
        self.assertEqual(ran.code, 2)
        self.assertEqual(ran.err.splitlines(), [
            f"run_tests.py: n1 and n2 are one machine, {socket.gethostname()}: tests share its GPUs",
            "tests.txt:1: gpus=3 cannot be spread evenly over nodes=2; write gpus=N, N a multiple of 2"])

    def test_without_gpus_a_node_is_a_place(self) -> None:
        ran = self.run_list("true || test_fail a\ntrue || test_fail b\n", gpus="")
        self.check(ran, 0, {"a": "passed", "b": "passed"})
        self.assertRegex(ran.text, r"Starting: a on CPU n[12]\n")

    def test_what_a_node_warns_of_is_shown(self) -> None:
        """What its launch says before the run is not."""
        self.launch = "sh -c 'echo Welcome >&2; exec \"$@\"' {node}"
        ran = self.run_list("true || test_fail a\n", gpus="0 1")
        self.check(ran, 0, {"a": "passed"})
        for node in ("n1", "n2"):
            self.assertIn(f"{node}: run_tests.py: CUDA_VISIBLE_DEVICES=0 1: '0 1' is read as 0; ", ran.err)
        self.assertNotIn("Welcome", ran.err)

    def test_a_script_runs_its_tests_on_nodes(self) -> None:
        text = ("RET=0\ntest_fail() { RET=1; echo \"failed: $1\"; }\nshared=yes\n"
                "for i in 1 2 3; do\n  A=$shared sh -c 'echo $0 $A; [ $0 != 2 ]' $i || test_fail \"t$i\"\n"
                "done\nexit $RET\n")
        expected = self.bash(text, name="test.sh").decode()
        ran = self.run_command("test.sh")
        self.assertEqual(ran.code, 1)
        own = re.sub(r"(?m)^(Detected|>>>|    .* \u2192) .*\n", "", ran.text)
        self.assertEqual(own, expected)
        places = " ".join(start["gpus"][0] for start in ran.journal("test_start"))
        self.assertRegex(places, r"^(n[12]:[01] ?){3}$")

    def test_what_a_scripts_words_ask_for_is_no_more_than_a_node_has(self) -> None:
        self.write("test.sh", "test_fail() { exit 1; }\nsh -c : --nproc-per-node=4 || test_fail four\n")
        ran = self.run_command("test.sh")
        self.assertEqual((ran.code, ran.outcomes()), (0, {"four": "passed"}), ran.text)
        self.assertEqual(len(ran.journal("test_start")[0]["gpus"]), 2)

    def test_a_scripts_test_reads_and_writes_what_it_does_under_bash(self) -> None:
        """Its input, a file of its errors, umask, environment; and a loop around it still has its input."""
        text = ("RET=0\ntest_fail() { RET=1; echo \"failed: $1\"; }\nold=$(umask)\numask 027\necho file >in\n"
                "sh <<'END' || test_fail document\necho said; exit 3\nEND\n"
                "each() { \"$@\" || test_fail each; }\neach sh <<'END'\necho too; exit 4\nEND\n"
                "cat <<<word || test_fail word\ncat <in || test_fail file\nsh -c umask || test_fail umask\n"
                "sh -c 'head -c 3 | od' </dev/zero || test_fail device\n"
                "for x in 1 2 3; do echo $x; done | sh -c cat || test_fail pipe\n"
                "sh -c cat < <(echo a; sleep 0.3; echo b) || test_fail process\n"
                "sh -c 'echo out; echo err >&2' 2>err || test_fail apart\ncat err\numask $old\n"
                "while read x; do sh -c \"echo $x\" || test_fail $x; done < <(echo 1; echo 2)\n"
                "export IFS=:; env | grep ^IFS || test_fail env\nexit $RET\n")
        expected = self.bash(text, name="test.sh").decode()
        ran = self.run_command("test.sh")
        own = re.sub(r"(?m)^(Detected|>>>|    .* \u2192) .*\n", "", ran.text)
        self.assertEqual((ran.code, own), (1, expected))
        self.assertEqual(ran.read("err"), "err\n")

    def test_a_script_may_run_more_tests_than_there_are_gpus(self) -> None:
        """They wait for each other."""
        up = Fifo(self, "up")
        hold = Fifo(self, "hold")
        self.write("test.sh", "test_fail() { RET=1; }\nfor i in 1 2 3 4 5 6 7 8; do\n"
                              "  CUDA_VISIBLE_DEVICES= sh waits.sh || test_fail $i\ndone\nexit $RET\n")
        self.write("waits.sh", "echo up >up; read x <hold")
        process = self.start("--jobs", "4", "test.sh")
        up.lines(8)
        for _ in range(8):
            hold.release()
        process.communicate()
        self.assertEqual(process.returncode, 0)

    def test_what_a_list_exports_counts_on_all_nodes(self) -> None:
        ran = self.run_list("export NODE=mine HOME=/ TMPDIR=/ OMP_NUM_THREADS=7\nunset LANG\n"
                            "echo $NODE $HOME $TMPDIR $OMP_NUM_THREADS ${LANG-unset} #: label=a\n",
                            env={"LANG": "C.UTF-8"})
        with open(ran.path("logs/a.log")) as log:
            self.assertEqual(log.read(), "mine / / 7 unset\n")

    def test_words_may_come_in_pieces(self) -> None:
        """A relay cuts them; many leaked processes make a long one."""
        self.write("relay.py", "import os, subprocess, sys\n"
                               "agent = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
                               "for data in iter(lambda: os.read(agent.stdout.fileno(), 40), b''):\n"
                               "    os.write(1, data)\n")
        self.launch = f"{sys.executable} {self.folder}/relay.py env NODE={{node}}"
        ran = self.run_list("for i in 1 2 3 4 5 6 7 8 9; do setsid sleep 1000 & done || true #: label=leaky\n")
        self.check(ran, 0, {"leaky": "passed"})
        self.assertEqual(len(ran.journal("test_end")[0]["leaked"]), 9)

    def test_an_interrupt_reaches_all_nodes(self) -> None:
        up = Fifo(self, "up")
        line = Lifeline(self)
        self.write("t.txt", "".join(f"echo up >up && read <never || test_fail t{number}\n" for number in range(4)))
        Fifo(self, "never")
        process = self.start("t.txt", pass_fds=[line.write_end])
        line.let_go()
        up.lines(4)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertTrue(out.endswith(b"Interrupted by SIGINT: 4 interrupted\n"), out)

    def test_a_killed_runner_leaves_nothing(self) -> None:
        up = Fifo(self, "up")
        self.write("t.txt", "".join(f"setsid bash -c 'echo $$ >up; read <never' || test_fail t{number}\n"
                                    for number in range(4)))
        Fifo(self, "never")
        process = self.start("t.txt")
        pids = up.lines(4)
        process.kill()
        process.wait()
        for pid in map(int, pids):
            self.wait_for_end(pid)


class ScriptTest(test_script_equivalence.ScriptEquivalence):
    """Random scripts say and do on a node what they do under bash. With one GPU, too, there would be markers."""

    def runner(self) -> List[str]:
        return [sys.executable, CLUSTER, "--nodes", "n1", "--launch", "env"]

    def check(self, number: int, case: Case) -> Tuple[List[str], int]:
        return super().check(number | 1, case)      # on two slots, or four


class LostNodeTest(ClusterCase):
    def test_its_tests_run_again_elsewhere(self) -> None:
        """A test ends its own agent the first time."""
        Fifo(self, "never")
        ran = self.run_list("if mkdir once; then kill -KILL $PPID; read <never; fi #: label=a gpus=2\n"
                            "true #: label=b gpus=0\n")
        self.check(ran, 0, {"a": "passed", "b": "passed"})
        first, second = (end for end in ran.journal("test_end") if end["label"] == "a")
        self.assertEqual([first["attempt"], second["attempt"]], [1, 2])
        began = next(start["time"] for start in ran.journal("test_start") if start["label"] == "a")
        self.assertLessEqual(first["seconds"], first["time"] - began + 0.1)
        self.assertRegex(ran.text, r"\nquarantined: GPU (n[12]):0 \(node \1 is lost: its agent has ended \(SIGKILL\)")

    def test_an_agent_that_is_told_to_end_says_nothing_of_its_tests(self) -> None:
        Fifo(self, "never")
        ran = self.run_list("if mkdir once; then kill -TERM $PPID; read <never; fi #: label=a\n")
        self.check(ran, 0, {"a": "passed"})
        self.assertRegex(ran.text, r"is lost: its agent has ended \(exit 143\)")

    def test_what_a_launch_prints_meanwhile_is_quoted(self) -> None:
        for name in ("print", "never"):
            Fifo(self, name)
        self.write("launch.sh", '[ $1 = n2 ] || { read _ <print; echo slurmstepd: error; } &\n'
                                'export NODE=$1; shift; exec "$@"\n')
        self.launch = "sh launch.sh {node}"
        ran = self.run_list("if [ $NODE = n1 ]; then echo >print; read <never; fi #: label=a gpus=2\n")
        self.check(ran, 0, {"a": "passed"})
        self.assertIn("is lost: 'slurmstepd: error' came in place of what its agent says; what --launch ", ran.text)

    def test_a_node_without_gpus(self) -> None:
        Fifo(self, "never")
        self.write("launch.sh", '[ $1 = n1 ] || export CUDA_VISIBLE_DEVICES=\nexport NODE=$1; shift; exec "$@"\n')
        self.launch = "sh launch.sh {node}"
        ran = self.run_list("true #: label=gpu\n" + "".join(
            f"if [ $NODE = n2 ] && mkdir once; then kill -KILL $PPID; read <never; fi #: label={label} gpus=0\n"
            for label in "abcd"), "--jobs", "2")
        self.check(ran, 0, dict.fromkeys(["gpu", *"abcd"], "passed"))
        self.assertIn("quarantined: GPU n2 (node n2 is lost", ran.text)
        self.assertIn("run_tests.py: n2 shows no GPU: only tests with gpus=0 run there\n", ran.err)

    def test_one_that_says_nothing_is_lost(self) -> None:
        """Nobody waits for it until then, though what it is told is more than a pipe holds."""
        Fifo(self, "never")
        long = "echo " + "x" * 20_000
        ran = self.run_list("if mkdir once; then kill -STOP $PPID; read <never; fi #: label=a gpus=0\n"
                            + "".join(f"{long} #: label=b{number} gpus=0\n" for number in range(20)),
                            "--lost-after", "3s", "--jobs", "12")
        self.check(ran, 0, dict.fromkeys(["a", *(f"b{number}" for number in range(20))], "passed"))
        self.assertIn("is lost: no word from its agent for 3 s", ran.text)

    def test_no_node_left(self) -> None:
        ran = self.run_list("kill -KILL $PPID #: label=a\ntrue #: label=b after=a\n")
        self.assertEqual(ran.code, 3, ran.text + ran.err)
        self.assertEqual(ran.outcomes(), {"a": "interrupted", "b": "not run"})
        self.assertIn("no usable GPU is left", ran.text + ran.err)


class RefusalTest(ClusterCase):
    def hello(self, **changes: Any) -> Dict[str, Any]:
        return {"version": cluster.version(), "directory": self.folder, "gpus": "", "umask": 0o22,
                "nonces": {self.write("nonce", "text"): "text"}, "environment": {}, **changes}

    def test_an_agent_says_what_is_missing(self) -> None:
        cases = [
            ({"version": "another"}, "another version"),
            ({"nonces": {self.folder + "/gone": "text"}}, "gone: No such file"),
            ({"nonces": {self.write("other", "other"): "text"}}, "is another file here"),
            ({"directory": self.folder + "/nowhere"}, "nowhere: No such file"),
            ({"gpus": "9"}, "the outer mask shows 0 alone"),
        ]
        self.addCleanup(os.chdir, os.getcwd())       # an agent goes to the folder of its runner
        for changes, why in cases:
            with self.subTest(why), mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "0"}), \
                    self.assertRaisesRegex(cluster.Refusal, why):
                cluster.Agent(cluster.Lines(0), cluster.Writer(-1)).greet(self.hello(**changes))

    def refused(self, launch: str, *lines: str) -> None:
        self.launch = launch
        ran = self.run_list("true\n")
        self.assertEqual((ran.code, ran.text), (3, ""), ran.err)
        self.assertEqual(ran.err.splitlines()[1:], list(lines))

    def test_a_line_for_each_node_that_is_not_there(self) -> None:
        self.refused("no-such-program {node}", *(f"n{number}: no-such-program: No such file or directory"
                                                 for number in (1, 2)))
        self.refused("sh -c 'echo no route to {node} >&2; exit 255'",
                     *(f"n{number}: its agent has ended (exit 255): no route to n{number}" for number in (1, 2)))
        self.refused("sh -c 'echo Welcome to {node}; cat'",
                     *(f"n{number}: 'Welcome to n{number}' came in place of what its agent says; what --launch or a "
                       "login shell prints has to go to standard error" for number in (1, 2)))
        self.refused("sh -c 'printf %099999d 0 | tr 0 [; echo; cat'",
                     *(f"n{number}: '{'[' * run_tests.LINE_CHARS}' came in place of what its agent says; what --launch "
                       "or a login shell prints has to go to standard error" for number in (1, 2)))
        self.refused("sh -c 'kill -40 $$'", *(f"n{number}: its agent has ended (signal 40)" for number in (1, 2)))

    def test_an_interrupt_meanwhile_leaves_no_launch(self) -> None:
        up = Fifo(self, "up")
        self.launch = f"sh -c 'echo $$ >{up.path}; exec sleep 1000' {{node}}"
        self.write("t.txt", "true\n")
        process = self.start("t.txt")
        pids = up.lines(2)
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(process.returncode, 130)
        for pid in map(int, pids):
            self.wait_for_end(pid)

    def test_a_file_that_was_not_copied_is_named(self) -> None:
        for name in ("cluster.py", "gpu_locks.py", "memory.py", "plan.py", "pytest_parts.py"):
            alone = shutil.copy(os.path.join(ROOT, "qa", name), self.folder)
            ran = subprocess.run([sys.executable, "-S", alone], check=False, stderr=subprocess.PIPE)
            self.assertEqual(ran.returncode, 3)
            self.assertRegex(ran.stderr.decode(), rf"\A{name}: run_tests.py is neither in .*; copy it, too\n\Z")

    def test_files_above_hide_no_module_of_pythons(self) -> None:
        """The runner lies beside the companion: nothing is looked for in the folder above."""
        self.write("signal.py", "raise SystemExit('not the one')\n")
        self.write("ci/run_tests.py", "")
        shutil.copy(os.path.join(ROOT, "run_tests.py"), os.path.join(self.folder, "ci"))
        for name in ("cluster.py", "gpu_locks.py", "memory.py", "plan.py", "pytest_parts.py"):
            copied = shutil.copy(os.path.join(ROOT, "qa", name), os.path.join(self.folder, "ci"))
            ran = subprocess.run([sys.executable, copied, "--help"], check=False, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE)
            self.assertEqual((ran.returncode, ran.stderr), (0, b""))

    def test_mistakes_in_the_command_line(self) -> None:
        self.write("t.txt", "true\n")
        with mock.patch.object(self, "command", lambda *words: [sys.executable, CLUSTER, *words]):
            for words, said in ((["--nodes", "slurm"], r"type: salloc -N2 .*--nodes slurm tests.txt"),
                                (["--nodes", "n1,n1"], "give each node one name"),
                                (["--nodes", "n1", "--launch", "ssh {nod}"], "with {node} or {rank}"),
                                (["--nodes", "n1", "--launch", "ssh {node[x]}"], "with {node} or {rank}"),
                                (["--nodes", "n1", "--lost-after", "1s"], "'1s' is not 3s or more"),
                                ([], "--nodes is missing")):
                with self.subTest(words):
                    ran = self.run_command(*words, "t.txt")
                    self.assertEqual(ran.code, 2)
                    self.assertRegex(ran.err, said)


class LaunchTest(unittest.TestCase):
    def test_words_are_quoted_for_the_shell_of_ssh(self) -> None:
        for prefix, said in (("timeout 5 /bin/ssh {node}", "'/a b/python3'"), ("env A=1 {node}", "/a b/python3")):
            self.assertIn(said, cluster.Launch(prefix, "/a b/python3", 60.0).command("n1", 0))


class PoolTest(unittest.TestCase):
    """Which node a need is met on."""

    def setUp(self) -> None:
        launch = cluster.Launch("env", "python3", 60.0)
        self.nodes = [cluster.Node(f"n{rank}", rank, launch) for rank in (0, 1, 2)]
        for rank, node in enumerate(self.nodes):
            tokens = ["0", "1", "2", "3"][:4 - 4 * (rank == 2)]       # the last one has no GPU
            node.facts = {"tokens": tokens, "cores": 2, "sick": [[1, "no answer"]] * (rank == 1)}
            node.first = 4 * rank
            node.places = tuple(run_tests.Device(node.first + place, f"{node.name}:{token}")
                                for place, token in enumerate(tokens))
        self.cluster = cluster.Cluster(self.nodes, run_tests.Machine(), mock.Mock())
        self.pool = self.cluster.make_pool([], run_tests.Options(lists=()))

    def test_what_is_broken_from_the_start(self) -> None:
        sick, = self.cluster.health.sick
        self.assertEqual((sick.device, sick.reason), (self.nodes[1].places[1], "no answer"))

    def take(self, need: float) -> str:
        lease = self.pool.take(need)
        return lease.place if lease else ""

    def test_a_test_has_the_gpus_of_one_node(self) -> None:
        self.assertEqual([self.take(3) for _ in range(3)],
                         ["GPU n0:0,n0:1,n0:2", "GPU n1:0,n1:1,n1:2", ""])
        self.assertEqual([self.take(1), self.take(0.5), self.take(0.5), self.take(1)],
                         ["GPU n0:3", "GPU n1:3", "GPU n1:3", ""])

    def test_large_tests_find_room_beside_small_ones(self) -> None:
        self.assertEqual([self.take(1), self.take(1), self.take(4)],
                         ["GPU n0:0", "GPU n0:1", "GPU n1:0,n1:1,n1:2,n1:3"])

    def test_cpu_tests_go_to_any_node_by_its_cores(self) -> None:
        self.assertEqual(sorted(self.take(0) for _ in range(6)), ["CPU n0"] * 2 + ["CPU n1"] * 2 + ["CPU n2"] * 2)
        self.assertEqual(self.take(0), "")

    def test_several_nodes_are_held_together(self) -> None:
        test = a_test(0, gpus=8, attributes=run_tests.Attributes(nodes=2))
        span = self.cluster.fitted(test).gpus
        lease = self.pool.take(span)
        assert lease is not None
        self.assertEqual(len(lease.devices), 8)
        self.assertEqual(self.take(1), "")
        self.pool.give(lease)
        self.assertEqual(self.take(4), "GPU n0:0,n0:1,n0:2,n0:3")
        self.assertIsNone(self.pool.take(span))
        self.assertEqual([self.pool.holds(span), self.pool.holds(8), self.pool.holds(run_tests.ALL_GPUS)],
                         [True, False, True])

    def test_a_test_without_gpus_may_span_nodes_that_have_none(self) -> None:
        lease = self.pool.take(cluster.Span(0, 3))
        assert isinstance(lease, cluster.NodeLease)
        self.assertEqual([node.name for node, _ in lease.parts], ["n0", "n1", "n2"])
        self.assertEqual([self.pool.lack(a_test(0, gpus=cluster.Span(gpus, nodes)))
                          for gpus, nodes in ((0, 3), (0, 4), (4, 4), (3, 3))],
                         ["", "needs 4 nodes, more than there are", "needs 4 nodes, more than there are",
                          "needs 3 GPUs, more than there are on one node, or on as many as its nodes= says"])
        self.nodes[0].fault = "gone"
        self.assertEqual(self.pool.lack(a_test(0, gpus=cluster.Span(0, 3))), "needs 3 nodes, more than are left")

    def test_a_lost_node_gives_nothing(self) -> None:
        lease = self.pool.take(1)
        assert lease is not None
        self.nodes[0].fault = "gone"
        for device in self.nodes[0].places:
            self.pool.quarantine(device)
        self.pool.give(lease)
        self.assertEqual([self.pool.size, self.take(4), self.take(1)], [4, "GPU n1:0,n1:1,n1:2,n1:3", ""])
        self.assertEqual(sorted({self.take(0) for _ in range(5)}), ["", "CPU n1", "CPU n2"])

    def test_words_of_a_test_make_the_same_test(self) -> None:
        shell = run_tests.Snapshot("/d", {b"A": b"\xff", b"KEPT": b"y", b"MORE": b"z"}, "prelude")
        test = a_test(0, "a \udcff", shell=shell, command="true", preface=b"\xfe", junit="/x.xml", file="t", line=3)
        with mock.patch.dict(os.environ, {"GONE": "x", "KEPT": "x"}):
            outer = {b"GONE": b"y", b"KEPT": b"y", b"A": b"y"}
            read = cluster.test_of(cluster.words_of(test, {}, outer))
        names = (b"A", b"GONE", b"KEPT", b"MORE")
        self.assertEqual({name: read.shell.environment.get(name) for name in names},
                         {b"A": b"\xff", b"GONE": None, b"KEPT": b"x", b"MORE": b"z"})
        for name in ("label", "file", "line", "command", "preface", "junit"):
            self.assertEqual(getattr(read, name), getattr(test, name), name)
        self.assertEqual(read.shell._replace(environment={}), shell._replace(environment={}))
        plain = test._replace(shell=run_tests.Snapshot(""))
        read = cluster.test_of(cluster.words_of(plain, {"B": "x y"}, {}))
        self.assertIs(read.shell.environment, os.environb)
        self.assertEqual(read.command, "{ export B='x y'; } 2>/dev/null; true")
        job = run_tests.Job("/nowhere/bash", ["bash", "-c"], stdin="/in", umask=2)
        read = cluster.test_of(cluster.words_of(test._replace(program=job, splits=True), {"B": "x"}, {}))
        self.assertEqual(read.program, job._replace(bash=run_tests.find_program("bash")))
        self.assertEqual((read.command, read.splits, read.shell.environment[b"B"]), ("true", True, b"x"))
