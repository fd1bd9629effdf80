"""Scripts: each shape of those in the wild, run as it is by bash and by the runner, and what is handed over meanwhile.

Most scripts here run three times: under plain bash, on one slot (byte for byte the same output) and on four (the same
calls, failures, last lines and exit status). Stubs on PATH note how they were called, and in which order they began
and ended.
"""
from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest
from typing import Any, Counter, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

from run_tests import Script, goes_on, read_handler
from tests.support import SHED, Ran, lines_of
from tests.test_execute import WAIT_S, Fifo
from tests.test_faults import Ended, FaultCase

FOUR = "0,1,2,3"
LAST_LINES = 3                   # which other tools read
OWN_VARIABLE = re.compile(SHED.pattern + "|ONEAPI_.*")           # what the runner may set for a test
DEATH = re.compile(rb"(: line \d+:) +\d+ ")                      # the process id in what bash says of a death
JOIN = "=== What the script printed, with each test's output at its place ==="
PROGRAMS = ("python3", "pip3", "cmake", "ctest", "mpirun")

# Notes how it is called, when it begins and when it ends; prints; exits as the table says.
STUB = r"""#!/bin/sh
call="${0##*/} $*" status=0 quiet=
echo "start $call" >>"$CALLS/events"
{ pwd -P; umask; printf '%s\0' "$call"; cat "/proc/$$/environ"; } >"$CALLS/$$"
while read -r word code; do
  case " $call " in *" $word "*) status=$code ;; esac
done <"$CALLS/table"
for word; do
  case $word in
    --gate) echo "$call" >"$UP"; read -r _ <"$GATE" ;;
    --quiet) quiet=1 ;;
    --linger) sleep 0.05 ;;
    --needs=*) [ -e "${word#*=}" ] || status=9 ;;
    --junitxml=*) echo '<testsuite><testcase name="x"/></testsuite>' >"${word#*=}" ;;
  esac
done
[ "$quiet" ] || echo "$call"
if [ "${0##*/}" = mpirun ]; then shift 2; "$@"; status=$?; fi
echo "end $call" >>"$CALLS/events"
exit "$status"
"""

HEAD = """RET=0
FAILED_CASES=""
function error_exit() {
    echo "Error: $1"
    exit 1
}
function test_fail() {
    RET=1
    FAILED_CASES="$FAILED_CASES $1"
    echo "Error: sub-test failed: $1"
}
"""
TAIL = """if [ "$RET" -ne 0 ]; then
    echo "Error in the following test cases:$FAILED_CASES"
    exit 1
fi
echo "All tests passed"
"""


class Call(NamedTuple):
    """How a stub was called."""

    words: str
    place: str                           # folder and umask
    environment: Mapping[str, str]

    def told(self) -> Tuple[str, str, Tuple[Tuple[str, str], ...]]:
        """All but what the runner may set."""
        kept = sorted(item for item in self.environment.items() if not OWN_VARIABLE.fullmatch(item[0]))
        return self.words, self.place, tuple(kept)


class Trial(NamedTuple):
    """The runs of one script."""

    plain: Ran
    one: Ran
    four: Ran


def lines(*text: str) -> str:
    return "".join(line + "\n" for line in text)


def suite(*text: str) -> str:
    """A whole script around some lines."""
    return HEAD + "set -x\n" + lines(*text) + TAIL


def calls(ran: Ran) -> List[Call]:
    """How the stubs of a run were called."""
    found = []
    for name in filter(str.isdigit, os.listdir(ran.path("calls"))):
        head, *variables = ran.read("calls", name).split("\0")
        folder, umask, words = head.split("\n", 2)
        pairs = (variable.partition("=") for variable in variables if variable)
        found.append(Call(words.strip(), f"{folder} {umask}", {key: value for key, _, value in pairs}))
    return found


def call(ran: Ran, words: str) -> Call:
    """The one call with these words."""
    found, = (each for each in calls(ran) if each.words == words)
    return found


def events(ran: Ran) -> List[str]:
    """`start python3 a`, `end python3 a` …, in order."""
    return [line.strip() for line in ran.read("calls/events").splitlines()]


def began(ran: Ran) -> List[str]:
    """What the stubs were called with, in order."""
    return [line[len("start "):] for line in events(ran) if line.startswith("start ")]


def beside(ran: Ran, words: str) -> List[str]:
    """The calls that ran at the same time as this one."""
    told = events(ran)
    first, last = told.index("start " + words), told.index("end " + words)
    running: Counter[str] = collections.Counter()
    for line in told[:first]:
        kind, _, what = line.partition(" ")
        running[what] += 1 if kind == "start" else -1
    return sorted(running.elements()) + [line[len("start "):] for line in told[first + 1:last]
                                         if line.startswith("start ")]


def starts(ran: Ran) -> List[str]:
    """The labels of the tests that went to slots, as they started."""
    return [re.sub(r" on (GPU \S+|CPU)$", "", line[len(">>> Starting: "):])
            for line in lines_of(ran.text, ">>> Starting: ")]


def errors(ran: Ran) -> Sequence[str]:
    return lines_of(ran.text, "Error: sub-test failed:")


def are_in_order(part: Iterable[str], whole: Iterable[str]) -> bool:
    """Whether all of `part` is in `whole`, in this order."""
    rest = iter(whole)
    return all(line in rest for line in part)


class ScriptCase(FaultCase):
    """Scripts in folders of their own, with stubs on PATH."""

    maxDiff = None

    def setUp(self) -> None:
        super().setUp()
        for name in PROGRAMS:
            self.stub(name, STUB)
        self.runs = 0

    def environment(self, gpus: Optional[str], extra: Mapping[str, str]) -> Dict[str, str]:
        full = super().environment(None, {})
        mask = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        return {**{name: full[name] for name in ("FAULT", "NAP", "PY")}, "LC_ALL": "C.UTF-8", "HOME": self.folder,
                "OLDPWD": self.folder, "TMPDIR": self.folder,
                "PATH": f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin", "CALLS": f"{self.folder}/calls",
                "UP": f"{self.folder}/up", "GATE": f"{self.folder}/gate", **mask, **extra}

    def lay(self, fails: Mapping[str, int]) -> None:
        """A fresh table: a word of a call to its exit status."""
        shutil.rmtree(os.path.join(self.folder, "calls"), ignore_errors=True)
        self.write("calls/table", lines(*(f"{word} {status}" for word, status in fails.items())))
        self.write("calls/events", "")

    def once(self, head: Sequence[str], files: Mapping[str, str], fails: Mapping[str, int] = {},  # noqa: B006
             gpus: str = "0", *, stdin: bytes = b"", env: Mapping[str, str] = {}) -> Ran:  # noqa: B006
        """Run `test.sh` in a folder that is the same each time, which is then put away."""
        self.lay(fails)
        work, done = os.path.join(self.folder, "work"), os.path.join(self.folder, f"done{self.runs}")
        for name, text in files.items():
            self.write(f"work/{name}", text, 0o755)
        process = subprocess.Popen([*head, "test.sh"], cwd=work, env=self.environment(gpus, env),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            out, _ = process.communicate(stdin, timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.fail(f"{head} hangs after {process.communicate()[0].decode('utf-8', 'replace')}")
        os.rename(work, done)
        os.rename(os.path.join(self.folder, "calls"), os.path.join(done, "calls"))
        self.runs += 1
        return Ran(process.returncode, DEATH.sub(rb"\1 PID ", out), "", done)

    def trial(self, text: str, files: Mapping[str, str] = {}, fails: Mapping[str, int] = {},  # noqa: B006
              stdin: bytes = b"", env: Mapping[str, str] = {}) -> Trial:  # noqa: B006
        """Run a script under bash, on one slot and on four, and hold these against each other."""
        files = {"test.sh": text, **files}
        plain, one, four = (self.once(head, files, fails, gpus, stdin=stdin, env=env) for head, gpus in (
            (["bash"], FOUR), (self.command(), "0"), (self.command(), FOUR)))
        self.assertEqual((one.text, one.code), (plain.text, plain.code))
        self.assertEqual((four.code, errors(four)), (plain.code, errors(plain)), four.text)
        end = four.text.rpartition(JOIN + "\n")[2].splitlines()[-LAST_LINES:]       # behind the runner's own lines
        self.assertEqual(end, plain.text.splitlines()[len(plain.text.splitlines()) - len(end):])
        self.assertTrue(are_in_order(plain.text.splitlines(), four.text.splitlines()), four.text + plain.text)
        counted = [collections.Counter(each.told() for each in calls(ran)) for ran in (plain, one, four)]
        self.assertEqual(counted[1], counted[0])
        self.assertEqual(counted[2], counted[0])
        self.assertEqual(self.left(), {})
        return Trial(plain, one, four)

    def begin(self, text: str, *options: str, gpus: str = FOUR, fails: Mapping[str, int] = {},  # noqa: B006
              **changes: Any) -> "subprocess.Popen[bytes]":
        """Start the runner on a script."""
        self.lay(fails)
        self.write("test.sh", text)
        return self.start(*options, "test.sh", gpus=gpus, **changes)

    def end(self, process: "subprocess.Popen[bytes]") -> Ended:
        """Its end, after which nothing is left."""
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual(self.left(), {}, err)
        self.assertNotIn(b"Traceback", err)
        return Ended(process.returncode, out, err.decode("utf-8", "replace"), self.folder)

    def conduct(self, text: str, *options: str, **changes: Any) -> Ended:
        """Run the runner on a script, to its end."""
        return self.end(self.begin(text, *options, **changes))


class ShapeTest(ScriptCase):
    """What scripts in the wild look like, line by line."""

    def test_environment_prefixes(self) -> None:
        ran = self.trial(suite(
            'NVTE_A=1 B="x y" python3 -m pytest a || test_fail "a"',
            'NVTE_A=0 C= python3 b "$NVTE_A" --flag="${B-none}" || test_fail "b"',
            'python3 c || test_fail "c"'), fails={"b": 3})
        self.assertCountEqual(starts(ran.four), ["a", "b", "c"])
        seen = call(ran.four, "python3 -m pytest a").environment
        self.assertEqual((seen["NVTE_A"], seen["B"]), ("1", "x y"))
        self.assertNotIn("NVTE_A", call(ran.four, "python3 c").environment)
        self.assertEqual(errors(ran.four), ["Error: sub-test failed: b"])

    def test_continuation_lines(self) -> None:
        ran = self.trial(suite(
            "python3 -m pytest \\", '    -k "not slow" \\', '    a || test_fail "a"',
            "A=1 \\", "  python3 b \\", "  || test_fail b",
            "python3 c ||", '    test_fail "c"'), fails={"b": 3, "c": 4})
        self.assertCountEqual(starts(ran.four), ["a", "b", "c"])
        self.assertEqual(ran.four.text.count(JOIN), 1)
        self.assertEqual([record["status"] for record in ran.four.journal("test_end")
                          if record["label"] == "c"], [4])

    def test_export_between_tests(self) -> None:
        """Each test has the environment of its place, though it may run long after."""
        ran = self.trial(suite(
            "export MODE=1", "python3 a --linger || test_fail a", "export MODE=2", "python3 b --linger || test_fail b",
            "MODE+=3", "python3 c || test_fail c", "unset MODE", "python3 d || test_fail d", "MODE=4 OTHER=5",
            'python3 e "$MODE$OTHER" || test_fail e'))
        self.assertCountEqual(starts(ran.four), ["a", "b", "c", "d", "e"])
        self.assertEqual(ran.four.text.count(JOIN), 1)
        modes = {each.words.split()[1]: each.environment.get("MODE") for each in calls(ran.four)}
        self.assertEqual(modes, {"a": "1", "b": "2", "c": "23", "d": None, "e": None})

    def test_pip_install_between_tests(self) -> None:
        """Nothing before it is still running, nothing after it has begun."""
        ran = self.trial(suite(
            "python3 a --linger || test_fail a", "python3 b --linger || test_fail b",
            'pip3 install x --linger || error_exit "Failed to install x"',
            "python3 c || test_fail c", "python3 d || test_fail d"), fails={"a": 1})
        self.assertEqual(beside(ran.four, "pip3 install x --linger"), [])
        order = began(ran.four)
        self.assertCountEqual(order[:2], ["python3 a --linger", "python3 b --linger"])
        self.assertEqual(order[2], "pip3 install x --linger")
        self.assertCountEqual(starts(ran.four)[2:], ["c", "d"])

    def test_a_failed_install_ends_the_script(self) -> None:
        ran = self.trial(suite(
            "python3 a --linger || test_fail a", "python3 b || test_fail b",
            'pip3 install x || error_exit "Failed to install x"', "python3 c || test_fail c"),
            fails={"a": 3, "install": 2})
        self.assertEqual(ran.four.code, 1)
        self.assertNotIn("python3 c", began(ran.four))
        self.assertEqual(ran.four.text.splitlines()[-2:], ["Error: Failed to install x", "+ exit 1"])

    def test_what_is_made_where_it_is_missing(self) -> None:
        text = suite(
            "python3 a --linger || test_fail a", "if [ ! -d made ]; then",
            '    python3 maker --linger || error_exit "cannot make it"', "    mkdir made", "fi",
            "python3 b --needs=made || test_fail b", "python3 c --needs=made || test_fail c")
        ran = self.trial(text)
        self.assertEqual(beside(ran.four, "python3 maker --linger"), [])
        self.assertEqual(began(ran.four)[:2], ["python3 a --linger", "python3 maker --linger"])
        ran = self.trial(text, files={"made/it": ""})
        self.assertCountEqual(starts(ran.four), ["a", "b", "c"])
        self.assertEqual(len(began(ran.four)), 3)
        ran = self.trial(text, fails={"maker": 1})
        self.assertEqual((began(ran.four), ran.four.code), (["python3 a --linger", "python3 maker --linger"], 1))

    def test_tests_in_loops_and_conditions(self) -> None:
        ran = self.trial(suite(
            "MODE=fast", "for i in 1 2; do", '    A=$i python3 loop_$i "$MODE" || test_fail "loop $i"',
            "    for j in x y; do python3 in_$i$j || test_fail in_$i$j; done", "done",
            'if [ "$MODE" = slow ]; then', "    python3 never || test_fail never", "else",
            "    python3 otherwise || test_fail otherwise", "fi",
            "n=0; while [ $n -lt 2 ]; do python3 while_$n || test_fail while_$n; n=$((n + 1)); done"),
            fails={"loop_2": 1, "in_1y": 2, "while_1": 3})
        names = ["loop 1", "in_1x", "in_1y", "loop 2", "in_2x", "in_2y", "otherwise", "while_0", "while_1"]
        self.assertCountEqual(starts(ran.four), names)
        self.assertEqual(ran.four.text.count(JOIN), 1)
        self.assertEqual(errors(ran.four), [f"Error: sub-test failed: {name}" for name in (
            "in_1y", "loop 2", "while_1")])
        self.assertEqual(call(ran.four, "python3 loop_2 fast").environment["A"], "2")

    def test_labels_are_expanded(self) -> None:
        """When the test is handed over: later changes of a variable are nothing to it."""
        ran = self.trial(suite(
            "P=/opt/tests/test_x.py N=1", 'python3 a || test_fail "${P##*/} $N"', "N=2",
            'python3 b || test_fail "$(basename "$P") $N"', "python3 c || test_fail '$N'",
            "python3 d || test_fail $N$N",
            'python3 e || test_fail "it\'s \\"$N\\""', "N=3"), fails=dict.fromkeys("abcde", 1))
        self.assertEqual(errors(ran.four), [f"Error: sub-test failed: {label}" for label in (
            "test_x.py 1", "test_x.py 2", "$N", "22", "it's \"2\"")])
        self.assertLessEqual({"test_x.py 1", "$N", "22", "it's \"2\""}, set(starts(ran.four)))

    def test_a_mask_is_a_need(self) -> None:
        """A test that names four GPUs has these four, and them alone; others have one."""
        text = suite("python3 a --linger || test_fail a", "python3 b --linger || test_fail b",
                     'CUDA_VISIBLE_DEVICES=0,1,2,3 python3 wide --linger || test_fail "wide"',
                     "CUDA_VISIBLE_DEVICES=2,3 python3 two || test_fail two",
                     "CUDA_VISIBLE_DEVICES= python3 none || test_fail none",
                     "python3 c --linger || test_fail c")
        ran = self.once(self.command(), {"test.sh": text}, {"b": 1}, "4,5,6,7")
        self.assertEqual((ran.code, errors(ran)), (1, ["Error: sub-test failed: b"]))
        masks = {each.words.split()[1]: each.environment["CUDA_VISIBLE_DEVICES"] for each in calls(ran)}
        self.assertEqual((masks["wide"], masks["none"], len(masks["two"])), ("4,5,6,7", "", 3))
        self.assertTrue(all(len(masks[name]) == 1 for name in "abc"), masks)
        self.assertLessEqual(set(beside(ran, "python3 wide --linger")), {"python3 none"})     # it needs no GPU
        self.assertCountEqual(starts(ran), ["a", "b", "wide", "two", "none", "c"])

    def test_tests_overlap(self) -> None:
        """Twelve tests on four slots, four at a time; one by one they would wait for ever."""
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(suite("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do", "  export NUMBER=$i",
                                   '  python3 "t$i" --gate || test_fail "t$i"', "done"))
        seen: List[bytes] = []
        for _ in range(3):
            seen += up.lines(4)
            for _ in range(4):
                gate.release()
        ran = self.end(process)
        self.assertEqual((ran.code, len(set(seen))), (0, 12))
        self.assertEqual((len(starts(ran)), ran.text.count(JOIN)), (12, 1))

    def test_hand_made_parallelism(self) -> None:
        """It is left to bash, and no test is on a slot as long as it runs."""
        text = HEAD + lines(
            "python3 before --linger || test_fail before",
            "python3 one --quiet --linger & PID1=$!", "python3 two --quiet --linger &", "PID2=$!",
            "python3 meanwhile || test_fail meanwhile", 'wait $PID1 || test_fail "one"', "wait $PID2 || test_fail two",
            "python3 after || test_fail after", "python3 later || test_fail later") + TAIL
        ran = self.trial(text, fails={"one": 3, "meanwhile": 1})
        self.assertEqual(errors(ran.four), [f"Error: sub-test failed: {name}" for name in ("meanwhile", "one")])
        self.assertCountEqual(starts(ran.four), ["before", "after", "later"])
        for name in ("one", "two"):
            self.assertLessEqual(set(beside(ran.four, f"python3 {name} --quiet --linger")), {
                "python3 one --quiet --linger", "python3 two --quiet --linger", "python3 meanwhile"})
            mask = call(ran.four, f"python3 {name} --quiet --linger").environment["CUDA_VISIBLE_DEVICES"]
            self.assertEqual(mask, FOUR)

    def test_a_block_as_handler(self) -> None:
        text = suite(
            "ok=1", 'cmake -B build --linger || { test_fail "configure"; ok=0; }',
            'if [ "$ok" = 1 ]; then', '    cmake --build build || { test_fail "build"; ok=0; }', "fi",
            '[ "$ok" = 0 ] || ctest || test_fail "ctest"', "python3 a || test_fail a")
        for fails, order in (({}, ["cmake -B build --linger", "cmake --build build", "ctest", "python3 a"]),
                             ({"-B": 2}, ["cmake -B build --linger", "python3 a"]),
                             ({"--build": 2, "a": 1}, ["cmake -B build --linger", "cmake --build build", "python3 a"])):
            with self.subTest(fails):
                ran = self.trial(text, fails=fails)
                self.assertCountEqual(began(ran.four), order)
                self.assertEqual(began(ran.four)[:2], order[:2])         # the last ones may overlap

    def test_scripts_as_tests(self) -> None:
        """The handler of another script is its own affair."""
        inner = lines("#!/bin/bash", "test_fail() { RET=1; }", "RET=0", "python3 inner $1 || test_fail inner",
                      "echo inner said $RET ${BASH_ENV-none} $# $0", "exit $RET")
        ran = self.trial(suite('bash run_x.sh 1 || test_fail "run_x 1"', "./run_x.sh 2 3 || test_fail run_x_2",
                               "bash ./run_x.sh || test_fail 'run_x 3'"), files={"run_x.sh": inner}, fails={"1": 7})
        self.assertCountEqual(starts(ran.four), ["run_x 1", "run_x_2", "run_x 3"])
        self.assertEqual(errors(ran.four), ["Error: sub-test failed: run_x 1"])

    def test_mpirun(self) -> None:
        ran = self.trial(suite(
            'mpirun -np 2 bash -c "python3 rank --x=\'a b\'; exit 3" || test_fail "ranks"',
            'N=2; mpirun -np $N python3 plain "$N" || test_fail "plain"'), fails={"plain": 4})
        self.assertCountEqual(starts(ran.four), ["ranks", "plain"])
        self.assertEqual([record["status"] for record in sorted(
            ran.four.journal("test_end"), key=lambda record: str(record["label"]))], [4, 3])

    def test_an_end_without_exit(self) -> None:
        """The last command's status is the script's: that of a test, of its handler, of a condition."""
        for end, code in (("python3 b || test_fail b", 0), ("python3 a || test_fail a", 0), ("[ $RET -eq 0 ]", 1),
                          ("python3 a || test_fail a", 5)):
            with self.subTest(end, code=code):
                head = "test_fail() { echo no; return 5; }\n" if code == 5 else HEAD
                ran = self.trial(head + lines("python3 b --linger || test_fail b", "python3 a || test_fail a", end),
                                 fails={"a": 3})
                self.assertEqual(ran.four.code, code)

    def test_set_e(self) -> None:
        ran = self.trial(lines("set -e") + suite(
            "python3 a --linger || test_fail a", "python3 b || test_fail b", "pip3 install x",
            "python3 c || test_fail c", "pip3 install y", "python3 never || test_fail never"), fails={"a": 1, "y": 6})
        self.assertEqual((ran.four.code, errors(ran.four)), (6, ["Error: sub-test failed: a"]))
        self.assertCountEqual(starts(ran.four), ["a", "b", "c"])
        self.assertEqual(beside(ran.four, "pip3 install x"), [])

    def test_set_e_and_a_handler_that_may_fail(self) -> None:
        ran = self.trial(suite(
            "set -e", "test_fail() { echo \"Error: sub-test failed: $1\"; [ \"$1\" != b ]; }",
            "python3 a || test_fail a", "python3 b || test_fail b", "python3 never || test_fail never"),
            fails={"a": 1, "b": 1})
        self.assertEqual((ran.four.code, began(ran.four)), (1, ["python3 a", "python3 b"]))

    def test_exit_in_the_middle(self) -> None:
        ran = self.trial(suite(
            "python3 a --linger || test_fail a", "python3 b || test_fail b",
            'if [ "$RET" -ne 0 ]; then echo "it makes no sense to go on"; exit 7; fi', "python3 c || test_fail c"),
            fails={"a": 3})
        self.assertEqual((ran.four.code, sorted(began(ran.four))), (7, ["python3 a --linger", "python3 b"]))

    def test_exit_right_after_a_test(self) -> None:
        ran = self.trial(suite("python3 a --linger || test_fail a", "exit 5", "python3 b || test_fail b"),
                         fails={"a": 3})
        self.assertEqual((ran.four.code, errors(ran.four)), (5, ["Error: sub-test failed: a"]))

    def test_standard_input(self) -> None:
        """The script reads it line by line, before, between and after its tests."""
        ran = self.trial(suite(
            'read -r first; echo "first is $first"', 'python3 "$first" || test_fail "$first"', "read -r second",
            'python3 "$second" || test_fail "$second"',
            'while read -r name; do python3 "$name" || test_fail "$name"; done', "echo end"),
            stdin=b"one\ntwo\nthree\nfour\n", fails={"two": 1, "four": 2})
        self.assertEqual(errors(ran.four), ["Error: sub-test failed: two", "Error: sub-test failed: four"])
        self.assertCountEqual(starts(ran.four), ["one", "two", "three", "four"])

    def test_a_test_that_reads_standard_input(self) -> None:
        """One by one it reads on where the script has stopped; beside others it reads nothing."""
        files = {"test.sh": suite("read -r first", "cat || test_fail all", 'echo "[$first]"')}
        plain, one, four = (self.once(head, files, {}, gpus, stdin=b"one\ntwo\n") for head, gpus in (
            (["bash"], FOUR), (self.command(), "0"), (self.command(), FOUR)))
        self.assertEqual((one.text, one.code), (plain.text, plain.code))
        self.assertIn("two\n", one.text)
        self.assertNotIn("two\n", four.text)

    def test_traps_of_its_own(self) -> None:
        """They run when all tests have ended, and know of all failures."""
        bye = "trap 'echo \"bye $? $RET$FAILED_CASES\"; python3 cleanup' EXIT"
        tests = ("python3 a --linger || test_fail a", "python3 b || test_fail b")
        for name, text in {"at the top": (bye, *tests), "at the end": (*tests, bye),
                           "in the middle": (tests[0], bye, tests[1]),
                           "replaced": ("trap 'echo never' EXIT", tests[0], bye, tests[1]),
                           "in a function": (f"f() {{ {bye}; }}", *tests, "f")}.items():
            with self.subTest(name):
                ran = self.trial(HEAD + lines(*text, "exit $RET"), fails={"a": 3})
                self.assertEqual((ran.four.code, lines_of(ran.four.text, "bye")), (1, ["bye 1 1 a"]))
                self.assertEqual((began(ran.four)[-1], beside(ran.four, "python3 cleanup")), ("python3 cleanup", []))

    def test_a_trap_that_is_taken_back(self) -> None:
        ran = self.trial(HEAD + lines("trap 'echo never' EXIT", "python3 a --linger || test_fail a", "trap - EXIT",
                                      "python3 b || test_fail b"), fails={"a": 3, "b": 3})
        self.assertEqual((ran.four.code, ran.four.text.count("never")), (0, 0))
        self.assertEqual(len(errors(ran.four)), 2)

    def test_a_trap_removes_what_tests_use(self) -> None:
        ran = self.trial(suite("mkdir scratch", "trap 'rm -rf scratch' EXIT",
                               "python3 a --linger --needs=scratch || test_fail a",
                               "python3 b --linger --needs=scratch || test_fail b"))
        self.assertEqual(ran.four.code, 0)
        self.assertFalse(os.path.exists(ran.four.path("scratch")))

    def test_source(self) -> None:
        """Tests in a file that is read like a part of the script are tests too."""
        more = lines("# more", 'python3 more "$1" || test_fail "more $1"', "export FROM_MORE=1", "MORE=2")
        ran = self.trial(suite("python3 a --linger || test_fail a", ". ./more.sh x", "source sub/more.sh 'y z'",
                               'python3 b "$MORE" || test_fail b'), files={"more.sh": more, "sub/more.sh": more},
                         fails={"x": 1, "b": 2})
        self.assertCountEqual(starts(ran.four), ["a", "more x", "more y z", "b"])
        self.assertEqual(call(ran.four, "python3 b 2").environment["FROM_MORE"], "1")
        where = {record["label"]: record["outcome"] for record in ran.four.journal("test_end")}
        self.assertEqual(where, {"a": "passed", "more x": "failed", "more y z": "passed", "b": "failed"})

    def test_one_junit_file_for_two_tests(self) -> None:
        """The second waits for the first, and a warning says so."""
        ran = self.trial(HEAD + lines("python3 a --linger --junitxml=x.xml || test_fail a",
                                      'python3 b --junitxml="$PWD/x.xml" || test_fail b',
                                      "python3 c --junitxml=y.xml || test_fail c") + TAIL)
        self.assertEqual(beside(ran.four, "python3 a --linger --junitxml=x.xml"), [])
        told = [line for line in ran.four.text.splitlines() if "same JUnit file" in line]
        self.assertEqual(len(told), 1, ran.four.text)
        self.assertRegex(told[0], r"^run_tests\.py: test\.sh:13: .*/x\.xml")
        self.assertCountEqual(starts(ran.four), ["a", "b", "c"])

    def test_a_whole_suite(self) -> None:
        """In the style of TransformerEngine, whose lines these are but for their number."""
        ran = self.trial("# Copyright (c) It's a test || test_fail \"no\"\n\n" + HEAD + lines(
            "", "set -x", "", ": ${TE_PATH:=/opt/te}", ": ${XML_LOG_DIR:=xml}", 'mkdir -p "$XML_LOG_DIR"', "",
            'pip3 install pytest==8.2.1 || error_exit "Failed to install pytest"', "",
            *(f'python3 -m pytest --tb=auto --junitxml=$XML_LOG_DIR/{name}.xml $TE_PATH/tests/{name}.py '
              f'|| test_fail "{name}.py"' for name in ("test_sanity", "test_recipe", "test_numerics")),
            "PYTORCH_JIT=0 NVTE_TORCH_COMPILE=0 NVTE_FUSED_ATTN=0 python3 -m pytest --tb=auto "
            '$TE_PATH/tests/test_cuda_graphs.py --linger || test_fail "test_cuda_graphs.py"',
            "export NVTE_TEST_CHECKPOINT_ARTIFACT_PATH=$TE_PATH/artifacts",
            'if [ ! -d "$NVTE_TEST_CHECKPOINT_ARTIFACT_PATH" ]; then',
            '    python3 $TE_PATH/tests/make.py --save all || error_exit "Failed to generate checkpoint files"', "fi",
            'python3 -m pytest $TE_PATH/tests/test_checkpoint.py || test_fail "test_checkpoint.py"', "") + TAIL,
            fails={"/opt/te/tests/test_recipe.py": 1})
        self.assertEqual(ran.four.text.splitlines()[-2:], ["Error in the following test cases: test_recipe.py",
                                                           "+ exit 1"])
        self.assertEqual(ran.four.text.count(JOIN), 2)
        self.assertEqual(began(ran.four)[0], "pip3 install pytest==8.2.1")
        self.assertEqual(beside(ran.four, "python3 /opt/te/tests/make.py --save all"), [])
        self.assertEqual(sorted(os.listdir(ran.four.path("xml"))), ["test_numerics.xml", "test_recipe.xml",
                                                                   "test_sanity.xml"])


class HandlerTest(ScriptCase):
    """What is done about a test that has failed."""

    def test_status(self) -> None:
        """`$?` is what the command has left, at the begin of the handler."""
        head = 'test_fail() { local status=$?; echo "Error: sub-test failed: $1 with $status"; }'
        ran = self.trial(lines(
            head, "set -x", "python3 a || test_fail a", "bash -c 'kill -SEGV $$' || test_fail b",
            "no_such_program --at=all || test_fail c", "python3 d || { echo \"it is $?\"; test_fail d; }",
            "python3 e || test_fail e", "./test.sh/x || test_fail f"), fails={"a": 3, "d": 42, "e": 255})
        self.assertEqual(errors(ran.four), [f"Error: sub-test failed: {label}" for label in (
            "a with 3", "b with 139", "c with 127", "d with 0", "e with 255", "f with 126")])
        self.assertIn("it is 42", ran.four.text.splitlines())

    def test_what_it_prints_has_its_place(self) -> None:
        """Behind its test's output and before that of the next, also on the other stream and without a line's end."""
        ran = self.trial(lines(
            'test_fail() { printf "<%s" "$1"; echo ">" >&2; echo "Error: sub-test failed: $1"; }',
            "python3 a --linger || test_fail a", "echo between", "python3 b || test_fail b", "printf half",
            "python3 c || test_fail c", "echo end"), fails={"a": 1, "c": 1})
        after = ran.four.text.rpartition(JOIN + "\n")[2]
        self.assertEqual(after, ran.plain.text)

    def test_handlers_that_exit(self) -> None:
        """Nothing after them begins."""
        for name, text in {
            "a block": ('python3 b || { test_fail "b"; exit 3; }',),
            "the function": ('test_fail() { echo "Error: sub-test failed: $1"; exit 3; }', "python3 b || test_fail b"),
            "a function that it calls": ("give_up() { exit $1; }", "test_fail() { echo \"Error: sub-test failed: $1\"; "
                                         "give_up 3; }", "python3 b || test_fail b"),
            "after the second failure": ("test_fail() { echo \"Error: sub-test failed: $1\"; "
                                         "[ -z \"$RET\" ] || exit 3; RET=1; }", "RET=",
                                         "python3 x || test_fail x", "python3 b || test_fail b"),
        }.items():
            with self.subTest(name):
                ran = self.trial(lines(HEAD, "python3 a --linger || test_fail a", *text, "python3 c || test_fail c"),
                                 fails={"b": 1, "x": 1})
                self.assertEqual((ran.four.code, errors(ran.four)[-1]), (3, "Error: sub-test failed: b"))
                self.assertNotIn("python3 c", began(ran.four))

    def test_a_handler_that_is_replaced(self) -> None:
        """What failed before is told by the old one. Bash defines functions without a word to its trap."""
        new = 'echo "Error: sub-test failed: $1 (new)"; }'
        ran = self.trial(HEAD + lines("python3 a --linger || test_fail a", "test_fail() { " + new,
                                      "python3 b || test_fail b"), fails={"a": 1, "b": 1})
        self.assertEqual(errors(ran.four), ["Error: sub-test failed: a", "Error: sub-test failed: b (new)"])

    def test_what_it_changes_is_seen_at_once(self) -> None:
        ran = self.trial(suite(
            "python3 a --linger || test_fail a", 'echo "RET is $RET"', 'python3 b "$RET" || test_fail b',
            'python3 c || test_fail "c$RET"', 'echo "$FAILED_CASES" >seen', "python3 d || test_fail d"),
            fails={"a": 1, "c": 1})
        self.assertEqual(ran.four.read("seen"), " a c1\n")
        self.assertIn("python3 b 1", began(ran.four))

    def test_parameters_in_labels(self) -> None:
        """They are those of the script, a function or a sourced file, and never the runner's."""
        ran = self.trial(lines(
            'test_fail() { echo "Error: sub-test failed: $*"; }', "set -- one 'two  words'",
            'python3 a || test_fail "a $1 $#" "$@"', 'f() { python3 b "$2" || test_fail "b $1 $#"; shift; }', "f x y z",
            'python3 c || { test_fail "c $2"; }', ". ./more.sh u v"),
            files={"more.sh": 'python3 d || test_fail "d $1 $0"\n'}, fails=dict.fromkeys("abcd", 1))
        self.assertEqual(errors(ran.four), [f"Error: sub-test failed: {label}" for label in (
            "a one 2 one two  words", "b x 3", "c two  words", "d u test.sh")])

    def test_other_names(self) -> None:
        text = HEAD + lines("note() { echo \"noted $1\"; }", "python3 a --linger || note a", "python3 b || test_fail b",
                            "python3 c || error_exit c")
        ran = self.conduct(text, fails={"a": 1})
        self.assertEqual((ran.code, starts(ran)), (0, ["b"]))
        ran = self.conduct(text, "--fail-function", "note", "--fail-function=error_exit", fails={"a": 1})
        self.assertCountEqual(starts(ran), ["a", "b", "c"])
        self.assertEqual((ran.code, ran.failures(), lines_of(ran.text, "noted")), (0, ["a"], ["noted a"]))


class SnapshotTest(ScriptCase):
    """A test runs in a shell of its own that is like the script's."""

    def test_variables_and_functions(self) -> None:
        """Those that are not exported count too, for functions that are tests."""
        ran = self.trial(lines(
            'test_fail() { echo "Error: sub-test failed: $1"; }',
            "plain=$'a\\nb \"q\" \\'s\\' \\xff \\xc3\\xa9'", "list=(1 'two  words' '' '*')",
            'declare -A map=(["k v"]=$\'v\\nw\')',
            "declare -i n=4; readonly FIXED='a b'; declare -n ref=plain; set -- p1 'p  2' ''",
            "show() {", '    echo "$1 [$plain] ${#list[@]} ${list[1]} ${map[k v]} $n $FIXED [$ref] $#"',
            '    python3 shown "$@"',
            '    echo "${UNSET-unset} $0"', "    return 3", "}", "show a 'b  c' || test_fail show",
            "plain=later list=()", 'python3 args "$plain" "${list[@]}" "$@" "$#" || test_fail args',
            'other() { echo "exported: $*"; }; export -f other', 'bash -c \'other "$@"\' x "$@" || test_fail other',
            "show b || test_fail show2"), fails={})
        self.assertEqual(errors(ran.four), ["Error: sub-test failed: show", "Error: sub-test failed: show2"])
        self.assertCountEqual(starts(ran.four), ["show", "args", "other", "show2"])
        self.assertIn(b"'s' \xff \xc3\xa9] 4 two  words v\nw 4 a b [a\n", ran.four.out)

    def test_options(self) -> None:
        ran = self.trial(lines(
            'test_fail() { echo "Error: sub-test failed: $1"; }', "two() { false | true; echo \"said $?\"; }",
            "set -u -o pipefail; shopt -s nullglob extglob", "two || test_fail two",
            "python3 a none*.x [ab] || test_fail a", "set +o pipefail; shopt -u nullglob", "two || test_fail two2",
            "python3 b none*.x || test_fail b", "set -f", "python3 c * || test_fail c"))
        self.assertCountEqual(starts(ran.four), ["a", "b", "c", "two", "two2"])
        self.assertEqual(began(ran.one), ["python3 a", "python3 b none*.x", "python3 c *"])
        self.assertEqual(lines_of(ran.four.text, "said"), ["said 1", "said 0"])

    def test_what_is_not_set(self) -> None:
        """Under `set -u` it ends the script, also as a word of a test."""
        ran = self.trial(HEAD + lines("set -u", "python3 a || test_fail a", "python3 $NOT_SET || test_fail b",
                                      "echo no"))
        self.assertEqual((ran.four.code, began(ran.four)), (1, ["python3 a"]))

    def test_folder_and_umask(self) -> None:
        ran = self.trial(HEAD + lines(
            "python3 a --linger || test_fail a", "mkdir -p 'sub dir/deeper'", "cd 'sub dir' && umask 027",
            "python3 b --linger || test_fail b", 'cd deeper; python3 c "$OLDPWD" || test_fail c', "cd ../..",
            "umask 022", "python3 d >d.txt || test_fail d", "cd nowhere || cd 'sub dir'",
            "python3 e >../e.txt || test_fail e"))
        places = {each.words.split()[1]: each.place.replace(self.folder, "") for each in calls(ran.four)}
        self.assertEqual(places, {"a": "/work 0022", "b": "/work/sub dir 0027", "c": "/work/sub dir/deeper 0027",
                                  "d": "/work 0022", "e": "/work/sub dir 0022"})
        self.assertEqual(ran.four.read("e.txt"), "python3 e\n")

    def test_environment(self) -> None:
        """Byte for byte bash's own: what was unset, what no shell can name, `$_`, SHLVL, PWD, exported functions."""
        names = {"a.b": "1", "1x": "two", "GONE": "x", "KEPT": "a\nb 'c' \udcff é ", "EMPTY": "", "SHLVL": "7"}
        ran = self.trial(HEAD + lines(
            "unset GONE", "f() { echo; }; export -f f", "export WITH=$'\\x01\\x7f\\xfe\\n' NO_VALUE",
            "python3 a || test_fail a", "export -n EMPTY; KEPT+=more", "cd /", "python3 b $SHLVL || test_fail b"),
            env=names)
        self.assertCountEqual(starts(ran.four), ["a", "b"])
        first, second = call(ran.four, "python3 a").environment, call(ran.four, "python3 b 8").environment
        self.assertEqual((first["a.b"], first["1x"], first.get("GONE"), first["SHLVL"]), ("1", "two", None, "8"))
        self.assertEqual((first["WITH"], first.get("NO_VALUE")), ("\x01\x7f\udcfe\n", None))
        self.assertEqual((second.get("EMPTY"), second["KEPT"], second["PWD"]), (None, "a\nb 'c' \udcff é more", "/"))
        self.assertEqual(first["_"], self.folder + "/bin/python3")
        self.assertIn("BASH_FUNC_f%%", first)
        for name in first:
            self.assertNotRegex(name, "(?i)_rt_|BASH_ENV")

    def test_old_folder(self) -> None:
        """Where there is none, a test has none."""
        text = HEAD + lines("python3 a || test_fail a", "env -u OLDPWD bash inner.sh || test_fail b")
        ran = self.trial(lines("unset OLDPWD") + text, files={"inner.sh": "python3 in\n"})
        self.assertNotIn("OLDPWD", call(ran.four, "python3 a").environment)
        head = ["env", "-u", "OLDPWD"]
        files = {"test.sh": HEAD + "python3 a || test_fail a\n"}
        plain, one = (self.once([*head, *rest], files) for rest in (["bash"], self.command()))
        self.assertEqual(call(one, "python3 a").told(), call(plain, "python3 a").told())

    def test_locale(self) -> None:
        """The runner's Python may set LC_CTYPE for itself (PEP 538); bash does not see it."""
        head = ["env", "-u", "LC_ALL", "-u", "LANG"]
        files = {"test.sh": HEAD + "x=é; echo ${#x} ${LC_CTYPE-none}\npython3 a || test_fail a\n"}
        plain, one = (self.once([*head, *rest], files) for rest in (["bash"], self.command()))
        self.assertEqual((one.text, call(one, "python3 a").told()), (plain.text, call(plain, "python3 a").told()))


class FeatureTest(ScriptCase):
    """All that the runner does for lists it does for scripts."""

    def outcomes(self, ran: Ended) -> Dict[str, str]:
        return {record["label"]: record["outcome"] for record in ran.journal("test_end")}

    def test_attributes(self) -> None:
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(HEAD + lines(
            "python3 wide || test_fail wide   #: gpus=2", "python3 cpu || test_fail cpu #: gpus=0",
            "python3 named || test_fail x #: label='y z'", "#: timeout=100ms",
            "bash -c 'exec $NAP' || test_fail slow", "#:",
            "bash -c '[ -e again ] || { touch again; exit 3; }' || test_fail flaky  #: retries=1",
            "python3 a --gate || test_fail a #: lock=port", "python3 b --gate || test_fail b #: lock=port") + TAIL)
        for _ in range(2):
            up.lines()
            gate.release()
        ran = self.end(process)
        self.assertEqual(self.outcomes(ran), {"wide": "passed", "cpu": "passed", "y z": "passed", "slow": "timeout",
                                              "flaky": "flaky", "a": "passed", "b": "passed"})
        self.assertEqual((ran.code, errors(ran)), (1, ["Error: sub-test failed: slow"]))
        self.assertEqual(len(call(ran, "python3 wide").environment["CUDA_VISIBLE_DEVICES"]), 3)
        self.assertEqual(call(ran, "python3 cpu").environment["CUDA_VISIBLE_DEVICES"], "")
        told = [line for line in events(ran) if "--gate" in line]
        self.assertEqual([line.split()[0] for line in told], ["start", "end"] * 2)

    def test_options(self) -> None:
        """--timeout and --retries, with the records of it all."""
        ran = self.conduct(HEAD + lines(
            "bash -c 'echo stuck; exec $NAP' --junitxml=slow.xml || test_fail slow",
            "bash -c '[ -e again ] || { touch again; exit 3; }' || test_fail flaky",
            "bash -c 'kill -SEGV $$' --junitxml=dead.xml || test_fail dead", "(exit 3) || test_fail left",
            "python3 fine --junitxml=fine.xml || test_fail fine") + TAIL,
            "--timeout", "300ms", "--retries", "1", "--junit", "all.xml")
        last = {record["label"]: record["outcome"] for record in ran.journal("test_end")}
        self.assertEqual(last, {"slow": "timeout", "flaky": "flaky", "dead": "crashed", "left": "failed",
                                "fine": "passed"})
        self.assertCountEqual(ran.failures(), ["slow", "dead", "left"])
        self.assertEqual((ran.code, errors(ran)), (1, [f"Error: sub-test failed: {name}" for name in (
            "slow", "dead", "left")]))
        self.assertEqual([ran.journal()[number]["event"] for number in (0, -1)], ["run_start", "run_end"])
        self.assertEqual(ran.journal("run_start")[0]["lists"], ["test.sh"])
        end, = ran.journal("run_end")
        self.assertEqual((end["exit"], sum(end["outcomes"].values())), (1, 5))
        begun = collections.Counter(record["label"] for record in ran.journal("test_start"))
        self.assertEqual(begun, {"slow": 2, "flaky": 2, "dead": 2, "fine": 1})
        for record in ran.journal("test_start"):
            self.assertTrue(os.path.isfile(ran.path(record["log"])), record)
        for name, what in (("slow", "timeout"), ("dead", "crashed")):
            problem, = ElementTree.parse(ran.path(f"{name}.xml")).getroot().iter("error")
            self.assertEqual(problem.get("type"), what)
        suite_of, = ElementTree.parse(ran.path("all.xml")).getroot()
        self.assertEqual([suite_of.get(key) for key in ("tests", "failures", "errors")], ["5", "1", "2"])
        self.assertEqual({case.get("name") for case in suite_of}, set(last))

    def test_fail_fast(self) -> None:
        for gpus in ("0", FOUR):
            with self.subTest(gpus):
                ran = self.conduct(suite(*(f"python3 {name} || test_fail {name} #: gpus=all" for name in "abc")),
                                   "--fail-fast", "--order", "file", gpus=gpus, fails={"a": 3})
                self.assertEqual((ran.code, began(ran), ran.failures()), (1, ["python3 a"], ["a"]))
                self.assertEqual(errors(ran), ["Error: sub-test failed: a"])
                self.assertEqual(self.outcomes(ran), {"a": "failed", "b": "not run", "c": "not run"})

    def test_deadline(self) -> None:
        for gpus in ("0", FOUR):
            with self.subTest(gpus):
                ran = self.conduct(lines("trap 'echo cleaned' EXIT") + suite(
                    "$NAP || test_fail a", "python3 b || test_fail b #: gpus=all", "pip3 never"),
                    "--deadline", "1s", "--grace", "2s", "--order", "file", gpus=gpus)
                self.assertEqual((ran.code, began(ran), self.outcomes(ran)["a"]), (1, [], "interrupted"))
                self.assertRegex(ran.text, r"(?m)^cleaned\n(?s:.*)^Ended by --deadline: ")

    def test_the_longest_first(self) -> None:
        """By what an earlier run has noted, here or in a journal that is named."""
        Fifo(self, "up"), Fifo(self, "gate")
        names = {"a": 2, "b": 6, "c": 4, "d": 5, "e": 1, "f": 0.5}
        text = HEAD + lines(
            "python3 first || test_fail first #: time=99", "python3 pair || test_fail pair #: time=98", *(
                f"python3 {name} || test_fail {name}" for name in names), "echo all are there") + TAIL
        ran = self.conduct(text, gpus="0,1")
        events_noted = [{**record, "seconds": names.get(record.get("label", ""), 50)} for record in ran.journal()]
        taught = lines(*map(json.dumps, events_noted))
        text = re.sub("(first|pair) \\|\\|", "\\1 --gate ||", text)
        for options in ((), ("--history", "taught.jsonl", "--log-dir", "other")):
            with self.subTest(options):
                self.write("taught.jsonl", taught)
                self.write("logs/run_tests.jsonl", "" if options else taught)
                self.assertEqual(self.in_order(text, *options), ["first", "pair", "b", "d", "c", "a", "e", "f"])

    def in_order(self, text: str, *options: str) -> List[str]:
        """The tests as they started on two slots that were busy until all others were there."""
        for name in ("up", "gate"):
            os.unlink(os.path.join(self.folder, name))
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(text, *options, gpus="0,1")
        up.lines(2)
        log = os.path.join(self.folder, "other" if options else "logs", "test.sh.log")
        self.wait_for(lambda: b"all are there" in pathlib.Path(log).read_bytes())
        for _ in range(2):
            gate.release()
        return starts(self.end(process))

    def test_what_a_test_leaves(self) -> None:
        ran = self.conduct(HEAD + lines("bash -c '(setsid $NAP &)' || test_fail a", "python3 b || test_fail b"))
        leaked, = (record["leaked"] for record in ran.journal("test_end") if record["label"] == "a")
        self.assertEqual((ran.code, len(leaked)), (0, 1))

    def test_what_the_script_leaves(self) -> None:
        ran = self.conduct(HEAD + lines("python3 a || test_fail a", "setsid $NAP & $NAP &", "(setsid $NAP &)",
                                        "echo end"))
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (0, "end"))

    def trapped(self) -> str:
        """A script that waits for its tests, two of which do not end by themselves; it cleans up."""
        return lines("trap 'echo \"cleaned\"; touch cleaned' EXIT") + HEAD + lines(
            "bash -c 'echo up >up; $NAP' || test_fail a", "bash -c 'setsid $NAP & echo up >up; $NAP' || test_fail b",
            "python3 c || test_fail c #: gpus=all", "echo end")

    def test_interrupted(self) -> None:
        """Nothing of the script or its tests is left, and its own EXIT trap has run."""
        up = Fifo(self, "up")
        for signum in (signal.SIGINT, signal.SIGTERM):
            for gpus in ("0", "0,1"):
                with self.each(f"{signum.name} {gpus}"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.folder, "cleaned"))
                    process = self.begin(self.trapped(), "--order", "file", gpus=gpus)
                    up.lines(1 if gpus == "0" else 2)
                    process.send_signal(signum)
                    ran = self.end(process)
                    self.assertEqual((ran.code, began(ran)), (128 + signum, []))
                    self.assertEqual(self.outcomes(ran).get("a"), "interrupted")
                    self.assertIn(f"Interrupted by {signum.name}: ", ran.text.splitlines()[-1])
                    self.assertTrue(os.path.exists(ran.path("cleaned")), ran.text)

    def test_interrupted_twice(self) -> None:
        up = Fifo(self, "up")
        process = self.begin(lines("trap '' TERM INT") + HEAD + lines(
            "bash -c 'trap \"\" TERM; echo up >up; while :; do $NAP; done' || test_fail a", "echo end"),
            "--grace", "1h")
        up.lines()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        ran = self.end(process)
        self.assertEqual((ran.code, self.outcomes(ran)), (143, {"a": "interrupted"}))

    def test_the_runner_is_killed(self) -> None:
        """Then the script is, and all that it and its tests have started."""
        up = Fifo(self, "up")
        for gpus in ("0", "0,1"):
            with self.each(gpus):
                process = self.begin(lines("trap '' TERM HUP INT", "(setsid $NAP &)") + HEAD + lines(
                    "bash -c 'setsid $NAP & echo up >up; $NAP' || test_fail a"), gpus=gpus)
                up.lines()
                process.kill()
                self.assert_swept()

    def test_gpu_locks(self) -> None:
        """Two runners share a GPU's lock: the test of one waits for that of the other."""
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        text = HEAD + "python3 a --gate || test_fail a\n"
        os.mkdir(os.path.join(self.folder, "locks"))
        first = self.begin(text, "--gpu-locks", "locks", gpus="0")
        up.lines()
        second = self.start("--gpu-locks", "locks", "--log-dir", "other", "test.sh", gpus="0")
        assert second.stderr is not None
        self.assertIn(b"waiting for GPUs that another runner holds", second.stderr.readline())
        for process in (first, second):
            gate.release()
            self.assertEqual(process.wait(WAIT_S), 0)
            if process is first:
                up.lines()
        self.assertEqual([line.split()[0] for line in events(self.end(first))], ["start", "end"] * 2)

    def test_exit_status(self) -> None:
        """That of the script is the run's: it may think little of failures, or much of other things."""
        for end, code in (("exit 0", 0), ("exit 7", 7), ("true", 0), ("false", 1), ("kill -TERM $$", 143),
                          ("kill -KILL $$", 137), ("exec bash -c 'exit 9'", 9), ("if", 2)):
            with self.subTest(end):
                ran = self.conduct(HEAD + lines("python3 a || test_fail a", end), fails={"a": 1})
                self.assertEqual((ran.code, ran.failures(), errors(ran)), (code, ["a"], ["Error: sub-test failed: a"]))
                self.assertEqual(ran.journal("run_end")[0]["exit"], code)

    def test_verbose(self) -> None:
        """It says why a test runs as it stands, once and with its line."""
        reasons = {
            "python3 a | cat || test_fail t": "it ends a pipeline", "! python3 a || test_fail t": "it follows `!`",
            "if python3 a || test_fail t; then :; fi": "it follows `if`",
            "( python3 a || test_fail t )": "it runs in a subshell",
            "{ python3 a || test_fail t; } | cat": "it runs in a subshell",
            "(python3 a) || test_fail t": "it is more than one command", "cd . || test_fail t": "bash runs it itself",
            'python3 "$$" || test_fail t': "`$$` needs the script's own shell",
            "change || test_fail t": "change changes the script's shell",
            "python3 a || { test_fail t; return 3; }": "its handler changes the course of the script",
            "sleep 5 & python3 a || test_fail t; kill $!": "the script has a job in the background",
            "{ python3 a || test_fail t; } >/dev/null": "its output is redirected",
            "set -e; python3 a || { test_fail t; date; }; set +e": "its handler may fail"}
        text = HEAD + lines("change() { N=1; }", *reasons)
        first = text.split("\n").index("change() { N=1; }") + 2
        ran = self.conduct(text, "--verbose")
        told = sorted(ran.err.splitlines(), key=lambda line: int(line.split(":")[1]))
        self.assertEqual(len(told), len(reasons), ran.err)
        for number, (line, why) in enumerate(zip(told, reasons.values())):
            self.assertTrue(line.startswith(f"test.sh:{first + number}: runs as it stands: {why}"), line)
        self.assertEqual((ran.code, starts(ran)), (0, []))
        self.assertEqual(self.conduct(text).err, "")

    def test_refusals(self) -> None:
        """What a script cannot do is refused before anything starts, with the reason."""
        self.write("list.txt", "python3 list\n")
        self.write("python", "#!/usr/bin/env python3\nprint('never')\n")
        self.write("stdin.sh", "#!/bin/bash\npython3 stdin\n")
        cases: Mapping[Sequence[str], str] = {
            ("--shard", "1/2", "test.sh"): "error: --shard: test.sh is a script",
            ("--plan", "test.sh"): "error: --plan: ",
            ("--list", "test.sh"): "error: --list: test.sh is a script", ("-k", "a", "test.sh"): "error: -k: ",
            ("--max-gpus", "1", "test.sh"): "error: --max-gpus: ",
            ("--rerun-failed", "test.sh"): "error: --rerun-failed: ",
            ("test.sh", "list.txt"): "error: test.sh is a script; it runs alone",
            ("list.txt", "test.sh"): "error: test.sh is a script; it runs alone",
            ("python",): "python:1: this is a script, but none for bash",
            ("nothing.sh",): "nothing.sh: cannot read this list",
            ("-",): "-:1: a script cannot come from standard input"}
        self.lay({})
        self.write("test.sh", suite("python3 a || test_fail a"))
        for arguments, why in cases.items():
            with self.subTest(arguments), open(os.path.join(self.folder, "stdin.sh"), "rb") as stdin:
                ran = self.end(self.start(*arguments, stdin=stdin))
                self.assertEqual((ran.code, ran.out, began(ran)), (2, b"", []))
                self.assertIn(why, ran.err)
                self.assertFalse(os.path.exists(ran.path("logs")))

    def test_mistakes_in_attributes(self) -> None:
        ran = self.conduct(HEAD + lines("python3 a || test_fail a #: gpsu=2", "python3 b || test_fail b #: after=a",
                                        "#: timeout=soon", "python3 c || test_fail c"))
        first = HEAD.count("\n") + 1
        self.assertEqual((ran.code, ran.out, began(ran)), (2, b"", []))
        told = ran.err.splitlines()
        self.assertEqual(len(told), 3, ran.err)
        mistakes = ("unknown key 'gpsu'", "after= means nothing", "timeout: 'soon'")
        for number, (line, what) in enumerate(zip(told, mistakes)):
            self.assertTrue(line.startswith(f"test.sh:{first + number}: {what}"), line)


class ScriptReadTest(unittest.TestCase):
    """What is read of a script before it runs."""

    def read(self, text: str) -> Script:
        return Script("t.sh", text, ["test_fail"])

    def test_sites(self) -> None:
        """Line, command, handler and label of each test, at each line of its command."""
        cases: Mapping[str, Mapping[int, Sequence[Tuple[str, str, str]]]] = {
            "a || test_fail x\n": {1: [("a", "test_fail x", "x")]},
            "A=1 a \\\n b || test_fail \"x y\"\n": {
                1: [("A=1 a \\\n b", 'test_fail "x y"', '"x y"')], 2: [("A=1 a \\\n b", 'test_fail "x y"', '"x y"')]},
            "a ||\n  test_fail x; b || test_fail y\n": {1: [("a", "test_fail x", "x")], 2: [("b", "test_fail y", "y")]},
            "a && b || test_fail x # no || test_fail y\n": {1: [("b", "test_fail x", "x")]},
            "a > log 2>&1 || test_fail x >&2\n": {1: [("a > log 2>&1", "test_fail x >&2", "x")]},
            "f() { a || test_fail x; }\n": {1: [("a", "test_fail x", "x")]},
            "case $x in a) b || test_fail b;; *) c || test_fail c ;; esac\n": {
                1: [("b", "test_fail b", "b"), ("c", "test_fail c", "c")]},
            "a || { test_fail x; ok=0; }\n": {1: [("a", " test_fail x; ok=0; ", "x")]},
            "cat <<EOF\na || test_fail in\n\tEOF\nEOF\nb || test_fail c\n": {5: [("b", "test_fail c", "c")]},
            "cat <<-'E F' <<G\n\tE F\na || test_fail in\nG\nb || test_fail c\n": {5: [("b", "test_fail c", "c")]},
            "cat <<E\n\tE\na || test_fail in\nE\nb || test_fail c\n": {5: [("b", "test_fail c", "c")]},
            "echo 'a || test_fail x\n' \"b || test_fail y\"\n": {}, "a || other x\n": {}, "a | test_fail x\n": {},
            "x=$(a || test_fail x)\n": {}, "test_fail x\n": {}, "# a || test_fail x\n": {}, "": {},
            "CUDA_VISIBLE_DEVICES=0,1 a || test_fail x\n": {
                1: [("CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-} a", "test_fail x", "x")]},
        }
        for text, sites in cases.items():
            with self.subTest(text):
                script = self.read(text)
                self.assertEqual({line: [(site.text.rstrip("\\\n "), site.handler, site.label) for site in found]
                                  for line, found in script.sites.items()}, sites)
                self.assertEqual((script.obstacles, script.parsed.mistakes), ({}, []))

    def test_what_a_site_says_further(self) -> None:
        site, = self.read('A=1 CUDA_VISIBLE_DEVICES=0,1 "a b" --junitxml=$X/y.xml || test_fail x '
                          "#: retries=2 label='z'\n").sites[1]
        self.assertEqual((site.line, site.mask, site.first, site.junit, site.label),
                         (1, "0,1", '"a b"', "$X/y.xml", "z"))
        self.assertEqual((site.attributes.retries, site.is_call), (2, True))
        self.assertFalse(self.read("a || { test_fail x; }\n").sites[1][0].is_call)
        self.assertFalse(self.read('a || test_fail "$?"\n').sites[1][0].is_call)
        below = self.read("#: gpus=2\na || test_fail x\n#:\nb || test_fail y\n")
        self.assertEqual([below.sites[line][0].attributes.gpus for line in (2, 4)], [2, None])

    def test_obstacles(self) -> None:
        for text, why in {
            "a | b || test_fail x\n": "pipeline", "! a || test_fail x\n": "`!`", "time a || test_fail x\n": "`time`",
            "if a || test_fail x; then b; fi\n": "`if`", "while a || test_fail x; do b; done\n": "`while`",
            "(\na || test_fail x)\n": "subshell", "{ a || test_fail x; } | b\n": "subshell",
            "for i in 1; do a || test_fail x; done | b\n": "subshell", "{ a || test_fail x; } &\n": "",
            "(a) || test_fail x\n": "more than one", "A=1 || test_fail x\n": "no command",
            "a $! || test_fail x\n": "`$!`", "a \"$$\" || test_fail x\n": "`$$`",
            "a ${x:=1} || test_fail x\n": "`${x:=`",
            "a <<E || test_fail x\nE\n": "`<<`", "a $((i++)) || test_fail x\n": "$((i++",
            "a || { test_fail x; exit 3; }\n": "changes the course",
            "a || { test_fail x; break; }\n": "changes the course",
            "echo 'open\na || test_fail x\n": "cannot be read",
        }.items():
            with self.subTest(text):
                script = self.read(text)
                self.assertEqual((script.sites, len(script.obstacles)), ({}, 1))
                self.assertIn(why, "".join(script.obstacles.values()))
        self.assertEqual(self.read("a '$$ $! <<' '${x:=1}' || test_fail x\n").obstacles, {})

    def test_a_here_string_hides_nothing(self) -> None:
        script = self.read("f() { cat <<< x; }\na <<< b || test_fail a\n"
                           "cat <<- EOF\n b || test_fail no\n\tEOF\nc || test_fail c\n")
        self.assertEqual(sorted(script.sites), [2, 6])

    def test_waits(self) -> None:
        """The lines after whose commands bash has to wait, as its trap is blind to what follows."""
        for text, waits in {
            "a\nb || test_fail b\nc\n": set(), "a\n(b)\n": {1}, "a\nb\n(c)\nd\n(e)\n": {2, 4}, "a\n{ b; } > log\n": {1},
            "a\n{ b; } | c\n": {1, 2}, "a\nif b; then c; fi 2>&1\n": {1}, "a; (b)\n": {1},
            "a\nfor i in $(b); do c; done\n": {1}, "a\nfor i in *.x; do c; done\n": {1},
            "a\nfor i in 1 2; do c; done\n": set(), "a\nif b; then\n c\n (d)\nfi\n": {3},
            "(a)\n": set(), "for i in 1; do\n (a)\n b\ndone\n": {1},
        }.items():
            with self.subTest(text):
                self.assertEqual(self.read(text).waits, waits)
        self.assertEqual(self.read("f() {\n a || test_fail x\n} > log\ng() ( b )\n").unseen, {"f", "g"})

    def test_mistakes(self) -> None:
        script = self.read("a || test_fail x #: oops=1\nb #: timeout=x\n#: gpus=0.5.5\n# : fine=1\necho '#: fine=1'\n")
        self.assertEqual([line for line, _ in script.parsed.mistakes], [1, 2, 3])


class DecisionTest(unittest.TestCase):
    """What may go on while tests run, and what handlers do."""

    def test_goes_on(self) -> None:
        yes = ("read x", "n=$(basename \"$f\" .py)",
               "echo a", "echo \"$x\" 'b c'", "x=1", "x=1 y=\"$z\"", "export A=1", "cd sub", "cd ..", ":", "wait",
               "set -x", "[ $n -gt 1 ]", "[[ $x == e* ]]", "[[ -n $x && -z $y ]]", "test -n \"$x\"", "(( n > 1 ))",
               "((n++))", "let n=n+1", "for i in 1 2", "case $x in", "umask 077", "shopt -s nullglob",
               "echo a >/dev/null", "echo a >&2", "list+=(\"$x\")", "printf '%s\\n' \"$x\"", "local a=1", "unset x",
               "shift", "return", "break", "declare -A m", "echo '*'", "n=$((n + 1))", "echo \"$(( n * 2 ))\"")
        no = ("python3 a", "A=1 python3 a", "x=$(a)", "x=`a`", "echo $(a)", "echo a >file", "echo a >>file",
              "[ -f x ]", "[ ! -d x ]", "[[ -e x ]]", "[ a -nt b ]", "test -s x", "echo *", "[ -n * ]", "echo $?",
              "source x", ". ./x", "eval a", "exec a", "exit", "trap 'a' EXIT", "kill 1", "cat <(a)",
              "export", "export -p", "set", "jobs", "list=(*)", "a; b", "echo 'open", "mapfile x", "echo a <file",
              "type a", "unknown", "n=$((n + $(a)))", "n=$((n + `a`))", "x=$( (a) )", "", "# a")
        for command in yes:
            with self.subTest(command):
                self.assertTrue(goes_on(command, ()))
        for command in no:
            with self.subTest(command):
                self.assertFalse(goes_on(command, ()))
        self.assertTrue(goes_on("A=1 f a 'b c'", ("f",)))
        self.assertFalse(goes_on("f *", ("f",)))
        self.assertFalse(goes_on("f >file", ("f",)))

    def test_handlers(self) -> None:
        """Variables that they change, what cannot be put off, whether they can fail, whether they are tests."""
        functions = {
            "test_fail": "{ \n    RET=1;\n    FAILED=\"$FAILED $1\";\n    echo \"Error: $1\"\n}",
            "print_fail": "{ \n    printf 'Error: test failed: %s\\n' \"$1\"\n}", "leave": "{ \n    exit 3\n}",
            "nested": "{ \n    test_fail \"$1\";\n    leave\n}", "loop": "{ \n    loop;\n    N=1\n}",
            "tell": "{ \n    echo a\n}",
            "tee_fail": "{ \n    echo \"$1\" | tee -a log\n}", "array_fail": "{ \n    BY[$1]=2;\n    LIST+=(\"$1\")\n}"}
        for text, (changes, hasty, can_fail, is_test) in {
            "test_fail x": ("FAILED RET", "", False, False), "test_fail x; ok=0": ("FAILED RET ok", "", False, False),
            "print_fail x": ("", "", False, True), "tell": ("", "", False, True), "leave": ("", "exit", True, False),
            "nested x": ("FAILED RET", "exit", True, False), "loop": ("N", "", False, False),
            "tee_fail x": ("", "", True, True), "array_fail x": ("BY LIST", "", False, False),
            "unknown x": ("", "unknown", True, True), "export A=1": ("A", "", False, False),
            "python3 x": ("", "python3", True, True), "cd x": ("", "cd", True, False),
            "echo a >&2": ("", "", False, True),
        }.items():
            with self.subTest(text):
                handler = read_handler(text, functions)
                self.assertEqual((handler.changes, handler.hasty), ({*changes.split()}, {*hasty.split()}))
                self.assertEqual((handler.can_fail, handler.is_test), (can_fail, is_test))
        self.assertIn("B", read_handler("printf -v B x", {}).changes)


if __name__ == "__main__":
    unittest.main()
