"""Scripts: each shape of those in the wild, run as it is by bash and by the runner, and what is handed over meanwhile.

A trial runs a script under bash and on four slots, and holds output, calls, files and exit status against each other.
`test_script_equivalence.py` does so for scripts of all shapes, on one slot, too; here is which tests overlap, and what
bash does not have. Stubs on PATH note how they were called, and in which order they began and ended.
"""
from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from typing import Any, Counter, Dict, List, Mapping, Sequence, Set, Tuple
from xml.etree import ElementTree

from run_tests import (
    ASK, LOOKS_LIKE_TEST, Options, Reader, Script, ScriptFile, paths_of, place_of, read_program)
from tests.support import SOON, WAIT_S, Fifo, Ran, lines_of, remarks
from tests.test_faults import Ended, FaultCase
from tests.test_script_equivalence import PROGRAMS, STUB, Case, EquivalenceCase, Trace, events_of

FOUR = "0,1,2,3"

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

# Commands, with the line where they come and what they are in: what they are where handlers tell the tests of
# ReadingTest.test_kinds_of_commands, and where their looks do so, if that differs.
KINDS: Mapping[Sequence[Any], Sequence[str]] = {
    (1, "python3 a"): ["_rt_test"], (1, "test_fail a", "function"): ["_rt_failed"],
    (2, "pytest b"): ["_rt_other", "_rt_test"], (3, "pytest c"): ["_rt_other", "_rt_test"],
    (3, "tee log"): ["_rt_pass"],
    (9, "pytest $(x)"): ["_rt_other", "_rt_test"], (9, "sh $t"): ["_rt_other", "_rt_each"],
    (9, '"$@"', "", "f"): ["_rt_each"],
    (9, '"$@"', "", "g"): ["_rt_other", "_rt_each"], (4, "f d", "function"): ["_rt_test", "_rt_function"],
    (4, "f d > log", "function"): ["_rt_block"], (5, "f d*", "function"): ["_rt_meets"],
    (9, "f d", "function"): ["_rt_function"], (9, "f > log", "function"): ["_rt_block"],
    (9, "x=1"): ["calm"], (9, "x=$(make)"): ["_rt_other"], (9, "x=$RANDOM"): ["_rt_other"],
    (9, "printf -v x '%(%s)T' -1"): ["_rt_other"], (9, "printf '%(%s)T' -1"): ["_rt_pass"],
    (9, "x=$(date)"): ["calm"], (9, "y=$((SECONDS - x))"): ["calm"], (9, "z=$(awk 1)"): ["_rt_other"],
    (9, "x=$(date -s 0)"): ["_rt_other"], (9, "export x=$(date)"): ["_rt_other"],
    (9, "x=$(cd y; pwd)"): ["calm"], (9, "x=$(cat f)"): ["_rt_other"], (9, "x=$(pwd >y)"): ["_rt_other"],
    (9, ": ${x:=$(make)}"): ["_rt_other"], (9, ". $(dirname x)/y"): ["_rt_reads"],
    (9, ". x >y"): ["_rt_block"],
    (9, "echo x"): ["calm"], (9, "echo $((x++)) >&2"): ["calm"],
    (9, "echo x > /dev/null"): ["calm"], (9, "echo x > f"): ["_rt_other"], (9, "echo x >&3"): ["_rt_other"],
    (9, "test x <& 10"): ["_rt_other"], (9, "echo x >&-"): ["_rt_other"], (9, "echo $(git log) >&-"): ["_rt_other"],
    (9, "echo $(git log) 2>&1"): ["_rt_pass"],
    (9, "echo $(shift; date; return)"): ["_rt_pass"], (9, "echo $(source f)"): ["_rt_other"],
    (9, "echo $(git log)"): ["_rt_pass"], (9, "echo $(git stash)"): ["_rt_other"],
    (9, "echo $(sed 's/\\w //' f)"): ["_rt_pass"], (9, "echo $(sed --in-place s/x// f)"): ["_rt_other"],
    (9, "echo $(sort -k2 f)"): ["_rt_pass"], (9, "echo $(sort -uo f f)"): ["_rt_other"],
    (9, """echo $(awk '{ print "->" $1 }' f)"""): ["_rt_pass"],
    (9, """echo $(awk '{ print "->" $1 > "g" }' f)"""): ["_rt_other"],
    (9, '[ "$x" ]'): ["calm"], (9, "[ -e f ]"): ["_rt_other"], (9, "[ $(x) ]"): ["_rt_other"],
    (9, "ls -l"): ["_rt_other"], (9, "id -u"): ["_rt_peek"], (9, "ls > f"): ["_rt_other"],
    (9, "cd x"): ["_rt_move"], (9, "echo x*"): ["_rt_meets"],
    (9, "read -r a b < f"): ["_rt_other"], (9, "A=1 make all"): ["_rt_other"],
    (9, "x=$[x+1]"): ["calm"], (9, "[ $1 = -f ]"): ["calm"],
    (9, "[ $1 -ne 0 -a $1 -ne 5 ]"): ["calm"], (9, "[ -a f ]"): ["_rt_other"], (9, "[[ $1 && -a f ]]"): ["_rt_other"],
    (9, 'IFS=, read -ra a <<< "$x"'): ["calm"], (9, "read a <<< $(x)"): ["_rt_other"],
    (9, "read -u 3 a <<< x"): ["_rt_other"], (9, 'x="${x%"${x##*[!a]}"}"'): ["calm"], (9, "export x=${y%.*}"): ["calm"],
    (9, "x=$(echo a*)"): ["_rt_meets"], (9, "x=(${y%.*}*)"): ["_rt_meets"],
    (9, "x=(${y%'}'} *.c 'b')"): ["_rt_meets"], (9, "x=${y%`ls *`}"): ["_rt_other"],
    (9, "rapids-logger x"): ["_rt_pass"],
    (9, "exec > f"): ["_rt_other"], (9, "exec make"): ["_rt_other"], (9, "trap x EXIT"): ["_rt_trapped"],
    (9, "wait"): ["_rt_peek"], (9, "exit $?"): ["calm"], (9, "for i in a b"): ["calm"], (9, "((i++))"): ["calm"],
    (9, "command -v x"): ["_rt_sees"], (9, "command -v x > f"): ["_rt_other"], (9, "exit $(x)"): ["_rt_meets"],
    (9, "return $SECONDS"): ["_rt_other"], (9, "read a <<< x 2> f"): ["_rt_other"], (9, "for i in a*"): ["_rt_looks"],
    (9, "command x"): ["_rt_other"], (9, "eval $(x)"): ["_rt_meets"]}


def lines(*text: str) -> str:
    return "".join(line + "\n" for line in text)


def suite(*text: str) -> str:
    """A whole script around some lines."""
    return HEAD + "set -x\n" + lines(*text) + TAIL


def began(events: Sequence[str]) -> List[str]:
    """What the stubs were called with, in order."""
    return [line[len("start "):].strip() for line in events if line.startswith("start ")]


def beside(events: Sequence[str], words: str) -> List[str]:
    """The calls that ran at the same time as this one."""
    first, last = events.index("start " + words), events.index("end " + words)
    running: Counter[str] = collections.Counter()
    for line in events[:first]:
        kind, _, what = line.partition(" ")
        running[what] += 1 if kind == "start" else -1
    return sorted(running.elements()) + began(events[first + 1:last])


def starts(text: str) -> List[str]:
    """The labels of the tests that went to slots, as they started."""
    return [re.sub(r" on (GPU \S+|CPU)$", "", line[len(">>> Starting: "):])
            for line in lines_of(text, ">>> Starting: ")]


def errors(text: str) -> List[str]:
    """The failures that a script has told, in order."""
    return re.findall(r"(?m)^Error: sub-test failed: (.*)", text)


class TrialCase(EquivalenceCase):
    """Scripts that bash and the runner run."""

    def trial(self, text: str, files: Mapping[str, str] = {}, env: Mapping[str, Any] = {}) -> Trace:  # noqa: B006
        """Run a script under bash, and on four slots: there is no difference. Returns the latter."""
        case = Case("test.sh", {**files, "test.sh": text})
        ran = self.run_case(case, 4, env)
        faults = list(self.faults(self.run_case(case, None, env), ran, 4))
        self.assertFalse(faults, "\n".join(faults))
        return ran


class ShapeTest(TrialCase):
    """What scripts in the wild look like, and what of them runs at once."""

    def test_a_whole_suite(self) -> None:
        """In the style of TransformerEngine, whose lines these are but for their number."""
        ran = self.trial("# Copyright (c) It's a test || test_fail \"no\"\n\n" + HEAD + lines(
            "", "set -x", "", ": ${TE_PATH:=/opt/te}", ": ${XML_LOG_DIR:=xml}", 'mkdir -p "$XML_LOG_DIR"', "",
            'pip3 install pytest==8.2.1 || error_exit "Failed to install pytest"', "",
            *(f'python3 -m pytest --tb=auto --junitxml=$XML_LOG_DIR/{name}.xml $TE_PATH/tests/{name}.py {how}'
              f'|| test_fail "{name}.py"' for name, how in (("test_sanity", ""), ("test_recipe", "--exit=1 "))),
            "PYTORCH_JIT=0 NVTE_TORCH_COMPILE=0 NVTE_FUSED_ATTN=0 python3 -m pytest --tb=auto \\",
            '  $TE_PATH/tests/test_cuda_graphs.py --slow || test_fail "test_cuda_graphs.py"',
            "export NVTE_TEST_CHECKPOINT_ARTIFACT_PATH=$TE_PATH/artifacts",
            'if [ ! -d "$NVTE_TEST_CHECKPOINT_ARTIFACT_PATH" ]; then',
            '    python3 $TE_PATH/tests/make.py --save all || error_exit "Failed to generate checkpoint files"', "fi",
            'python3 -m pytest $TE_PATH/tests/test_checkpoint.py || test_fail "test_checkpoint.py"', "") + TAIL)
        self.assertEqual(ran.text.splitlines()[-2:], ["Error in the following test cases: test_recipe.py", "+ exit 1"])
        self.assertCountEqual(starts(ran.text)[:3], ["test_sanity.py", "test_recipe.py", "test_cuda_graphs.py"])
        self.assertEqual(starts(ran.text)[3:], ["test_checkpoint.py"])
        self.assertEqual(began(ran.events)[0], "pip3 install pytest==8.2.1")
        self.assertEqual(beside(ran.events, "python3 /opt/te/tests/make.py --save all"), [])

    def test_what_runs_ahead(self) -> None:
        """Loops, conditions, exports, labels with values, sourced files: nothing of this waits for tests."""
        more = lines("# more", 'python3 more "$1" || test_fail "more $1"',
                     "python3 no --exit=5 || test_fail no", "MORE=2")
        ran = self.trial(suite(
            ". ./more.sh x", "export MODE=fast N=1", "P=/opt/tests/test_x.py", "for i in 1 2; do",
            '    A=$i python3 loop_$i "$MODE" --exit=$((i - 1)) || test_fail "loop $i"',
            "    for j in x y; do python3 in_$i$j --slow || test_fail in_$i$j; done", "done", "MODE+=er; N=2",
            'if [ "$MODE" = slow ]; then', "    python3 never || test_fail never", "else",
            '    python3 else "$MODE" || test_fail "${P##*/} $N"', "fi", "unset MODE",
            "set +x", "python3 piped 2>&1 | tee piped.log | tail -1 || test_fail piped", "set -x",
            "while [ $N -lt 4 ]; do python3 w$N || test_fail w$N; N=$((N + 1)); done",
            'python3 \\', '    last --exit=3 ||', '    test_fail "${P#/opt/} $MORE"', "cd sub && umask 027",
            "python3 c || test_fail '$N'", "N=5"), files={"more.sh": more})
        self.assertCountEqual(starts(ran.text), [
            "loop 1", "in_1x", "in_1y", "loop 2", "in_2x", "in_2y", "test_x.py 2", "more x", "no", "piped", "w2", "w3",
            "tests/test_x.py 2", "$N"])
        self.assertEqual(errors(ran.text), ["no", "loop 2", "tests/test_x.py 2"])

    def test_a_library_of_functions(self) -> None:
        """Bash reads it without a word to its trap, and yet its handlers are known."""
        library = 'test_fail() { RET=1; echo "Error: sub-test failed: $1"; }\n'
        ran = self.trial(lines(". ./lib.sh", "python3 a --exit=3 || test_fail a", "python3 b || test_fail b",
                               'echo "RET is $RET"'), files={"lib.sh": library})
        self.assertCountEqual(starts(ran.text), ["a", "b"])

    def test_what_is_waited_for(self) -> None:
        """Beside a program that is no test nothing runs: neither what stands above it nor what stands below."""
        text = suite("python3 a --slow --exit=1 || test_fail a", "python3 b --slow || test_fail b",
                     "pip3 install x --slow --exit=0 || error_exit 'no x'",
                     "python3 c || test_fail c", "python3 d || test_fail d")
        ran = self.trial(text)
        self.assertEqual(beside(ran.events, "pip3 install x --slow --exit=0"), [])
        self.assertCountEqual(began(ran.events)[:2], ["python3 a --slow --exit=1", "python3 b --slow"])
        self.assertCountEqual((starts(ran.text)[:2], starts(ran.text)[2:]), (["a", "b"], ["c", "d"]))
        ran = self.trial(text.replace("--exit=0", "--exit=2"))
        self.assertRegex(ran.text, r"Error: no x\n\+ exit 1\n(run_tests.*\n)?\Z")
        self.assertEqual(starts(ran.text)[2:], [])

    def test_a_loop_goes_through_failures(self) -> None:
        """Of which the scout knows none."""
        for handler, words in (('FAILED+=("$1")', '"${FAILED[@]}"'), ('FAILED="$FAILED $1"', "$FAILED")):
            ran = self.trial(lines(
                f"test_fail() {{ {handler}; }}", "python3 a --exit=1 || test_fail a", "python3 b || test_fail b",
                f"for each in {words}; do echo failed $each; code=1; done", "exit ${code:-0}"))
            self.assertEqual((ran.code, lines_of(ran.text, "failed")), (1, ["failed a"]))

    def test_input_that_is_redirected_around_a_test(self) -> None:
        """It reads that on its slot; but in a loop around `read`, whose lines are not for it, nothing."""
        ran = self.trial(HEAD + lines(
            "{ bash -c '! grep ERROR' || test_fail block; } <in.txt", "look() {",
            "  bash -c 'cat; false' || test_fail look", "}", "look <in.txt",
            "while read -r name; do python3 $name || test_fail $name; done <in.txt", "exec <in.txt",
            "bash -c 'cat; false' || test_fail all") + TAIL, files={"in.txt": "ERROR\nother\n"})
        self.assertEqual(errors(ran.text), ["block", "look", "all"])
        self.assertCountEqual(starts(ran.text), ["block", "look", "ERROR", "other", "all"])

    def test_what_is_made_where_it_is_missing(self) -> None:
        """A look at files waits too."""
        text = suite(
            "python3 a --slow || test_fail a", "if [ ! -e made ]; then",
            '    python3 maker --slow || error_exit "cannot make it"', "    mkdir made", "fi",
            "python3 b --needs=made || test_fail b", "python3 c --needs=made || test_fail c")
        ran = self.trial(text)
        self.assertEqual(beside(ran.events, "python3 maker --slow"), [])
        self.assertEqual(began(ran.events)[:2], ["python3 a --slow", "python3 maker --slow"])
        self.assertEqual(len(began(self.trial(text, files={"made": ""}).events)), 3)

    def test_hand_made_parallelism(self) -> None:
        """Jobs that are no tests are left to bash, with what it runs beside them."""
        ran = self.trial(HEAD + lines(
            "mkfifo gate", "python3 before --slow || test_fail before", "python3 one --quiet --slow --exit=3 & PID1=$!",
            "python3 two --quiet <gate &", "PID2=$!", "python3 meanwhile --exit=1 || test_fail meanwhile",
            ": >gate; rm gate", 'wait $PID1 || test_fail "one"', "wait $PID2 || test_fail two",
            "python3 after || test_fail after", "python3 later || test_fail later") + TAIL)
        self.assertEqual(errors(ran.text), ["meanwhile", "one"])
        self.assertCountEqual(starts(ran.text), ["before", "meanwhile", "after", "later"])
        together = {"python3 one --quiet --slow --exit=3", "python3 two --quiet", "python3 meanwhile --exit=1"}
        for words in together:
            self.assertLessEqual(set(beside(ran.events, words)), together)

    def test_programs_that_run_others(self) -> None:
        """The handler of another script is its own affair."""
        inner = lines("#!/bin/bash", "test_fail() { RET=1; }", "RET=0", "python3 inner --exit=${1:-0} || test_fail in",
                      "echo inner said $RET ${BASH_ENV-none} $# $0", "exit $RET")
        ran = self.trial(suite('bash run_x.sh 1 || test_fail "run_x 1"', "./run_x.sh 0 3 || test_fail run_x_2",
                               'mpirun -np 2 bash -c "python3 rank --x=\'a b\'; exit 3" || test_fail "ranks"'),
                         files={"run_x.sh": inner})
        self.assertCountEqual(starts(ran.text), ["run_x 1", "run_x_2", "ranks"])
        self.assertEqual(errors(ran.text), ["run_x 1", "ranks"])

    def test_a_test_that_reads_standard_input(self) -> None:
        """One by one it reads on where the script has stopped; beside others it reads nothing."""
        case = Case("test.sh", {"test.sh": suite("read -r first", "cat || test_fail all", 'echo "[$first]"')})
        plain, one, four = (self.run_case(case, slots) for slots in (None, 1, 4))
        self.assertEqual(list(self.faults(plain, one, 1)), [])
        self.assertIn("line 1\n", one.text)
        self.assertNotIn("line 1\n", four.text)

    def test_a_trap_removes_what_tests_use(self) -> None:
        """It runs when all tests have ended, and knows of all failures, wherever it is set."""
        bye = "trap 'echo \"bye $? $RET$FAILED_CASES\"; rm -r scratch; python3 cleanup' EXIT"
        first, second = ("python3 a --slow --needs=scratch --exit=3 || test_fail a",
                         "python3 b --slow --needs=scratch || test_fail b")
        for name, text in {
                "at the top": (bye, first, second), "replaced": ("trap 'echo never' EXIT", first, bye, second),
                "in a function": (f"f() {{ {bye}; }}", first, second, "f")}.items():
            with self.subTest(name):
                ran = self.trial(HEAD + lines("mkdir scratch", *text, "exit $RET"))
                self.assertEqual((ran.code, lines_of(ran.text, "bye")), (1, ["bye 1 1 a"]))
                self.assertEqual(beside(ran.events, "python3 cleanup"), [])

    def test_one_junit_file_for_two_tests(self) -> None:
        """The second waits for the first, and a warning says so."""
        ran = self.trial(HEAD + lines("python3 a --slow --junitxml=x.xml || test_fail a",
                                      'python3 b --junitxml="$PWD/x.xml" || test_fail b',
                                      "python3 c --junitxml=y.xml || test_fail c") + TAIL)
        self.assertEqual(beside(ran.events, "python3 a --slow --junitxml=x.xml"), [])
        self.assertRegex(ran.text, r"(?m)^run_tests\.py: test\.sh:13: writes the same JUnit file .*/x\.xml")
        self.assertCountEqual(starts(ran.text), ["a", "b", "c"])


class SnapshotTest(TrialCase):
    """A test gets what its program would get from bash."""

    def test_functions_as_tests(self) -> None:
        """The programs in them that look like tests go to slots; nothing of the runner's own reaches programs."""
        ran = self.trial(lines(
            'test_fail() { echo "Error: sub-test failed: $1"; }',
            "plain=$'a\\nb \"q\" \\'s\\' \\xff \\xc3\\xa9'", "list=(1 'two  words' '' '*')",
            "set -- p1 'p  2' ''", "show() {", '    python3 -m pytest "$1" "$plain" "${list[@]}" --exit=$#', "}",
            "own() { env | grep _rt_; }", "set -o pipefail; shopt -s nullglob",
            "own || test_fail own", "show a 'b  c' || test_fail show",
            'python3 args "$plain" "${list[@]}" "$@" "$#" none*.x || test_fail args',
            'other() { echo "exported: $*"; }; export -f other', 'bash -c \'other "$@"\' x "$@" || test_fail other',
            "show b || test_fail show2"))
        self.assertEqual(errors(ran.text), ["own", "show", "show2"])
        self.assertCountEqual(starts(ran.text), ["show", "args", "other", "show2"])

    def test_a_function_that_is_exported_anew(self) -> None:
        """Behind a trap, too, for which another bash stands in a test's place: that one imports no functions."""
        ran = self.trial(lines("test_fail() { RET=1; }", "trap : ERR", "f() { echo one; }; export -f f",
                               "bash -c f || test_fail a", "f() { echo two; }", "bash -c f || test_fail b"))
        self.assertEqual((ran.code, ran.out.count(b"\none\n"), ran.out.count(b"\ntwo\n")), (0, 1, 1))

    def test_environment(self) -> None:
        """Byte for byte bash's own: what was unset, what no shell can name, `$_`, SHLVL, PWD, exported functions."""
        names = {"a.b": "1", "1x": "two", "GONE": "x", "KEPT": "a\nb 'c' \udcff é ", "EMPTY": "", "OLDPWD": "/"}
        text = HEAD + lines(
            "unset GONE", "f() { echo; }; export -f f", "export WITH=$'\\x01\\x7f\\xfe\\n' NO_VALUE",
            "python3 a || test_fail a", "export -n EMPTY; KEPT+=more", "cd /", "python3 b || test_fail b")
        first, = (call for call in self.trial(text, env=names).calls if call.startswith(b"python3\0a\0"))
        for item in (b"a.b=1", b"1x=two", b"KEPT=a\nb 'c' \xff \xc3\xa9 ", b"WITH=\x01\x7f\xfe\n",
                     b"_=/ROOT/bin/python3", b"BASH_FUNC_f%%=() {  echo\n}"):
            self.assertIn(b" | " + item + b" | ", first)
        self.assertNotRegex(first, b"(?i)_rt_|BASH_ENV|GONE|NO_VALUE")

    def test_level_of_shells(self) -> None:
        self.trial(HEAD + "python3 $SHLVL || test_fail a\nbash -c 'echo $SHLVL' || test_fail b\n", env={"SHLVL": "7"})

    def test_locale(self) -> None:
        """The runner's Python may set LC_CTYPE for itself (PEP 538); bash does not see it."""
        self.trial(HEAD + "x=é; echo ${#x} ${LC_CTYPE-none}\npython3 a || test_fail a\n", env={"LC_ALL": None})


class ScriptCase(FaultCase):
    """Runs of the runner on a script, in the test's folder, with stubs on PATH."""

    def setUp(self) -> None:
        super().setUp()
        for name in {*PROGRAMS} - {"nvidia-smi"}:
            self.stub(name, STUB)
        self.write("bin/mark", "\n@@mark@@\n")

    def environment(self, gpus: Any, extra: Mapping[str, str]) -> Dict[str, str]:
        full = super().environment(gpus, {
            "LC_ALL": "C.UTF-8", "PATH": f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin", **extra})
        own = {"STUBS": "bin", "STUB_LOG": "calls", "UP": "up", "GATE": "gate"}
        return {**full, **{name: os.path.join(self.folder, path) for name, path in own.items()}}

    def begin(self, text: str, *options: str, gpus: str = FOUR, **changes: Any) -> "subprocess.Popen[bytes]":
        """Start the runner on a script."""
        shutil.rmtree(os.path.join(self.folder, "calls"), ignore_errors=True)
        self.write("calls/events", "")
        self.write("test.sh", text)
        return self.start(*options, "test.sh", gpus=gpus, **changes)

    def end(self, process: "subprocess.Popen[bytes]") -> Ended:
        """Its end, after which nothing is left."""
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual(self.left(), {}, err)
        self.assertNotIn(b"Traceback", err)
        return Ended(process.returncode, out, remarks(err), self.folder)

    def conduct(self, text: str, *options: str, **changes: Any) -> Ended:
        """Run the runner on a script, to its end."""
        return self.end(self.begin(text, *options, **changes))

    def events(self, ran: Ran) -> List[str]:
        return events_of(ran.path("calls"))

    def environs(self, ran: Ran) -> Dict[str, Dict[str, str]]:
        """The environment of each stub, by how it was called."""
        found = {}
        for name in filter(str.isdigit, os.listdir(ran.path("calls"))):
            words, environ, _ = ran.read("calls", name).split("\n@@mark@@\n")
            pairs = (item.partition("=") for item in environ.split("\0") if item)
            found[words.partition("\0\1")[0].replace("\0", " ")] = {key: value for key, _, value in pairs}
        return found


class FeatureTest(ScriptCase):
    """All that the runner does for lists it does for scripts."""

    def test_without_a_standard_input(self) -> None:
        self.head = ["bash", "-c", 'exec "$@" <&-', "bash", *self.head]
        ran = self.conduct(HEAD + lines("python3 a || test_fail a", "python3 b || test_fail b"))
        self.assertCountEqual(starts(ran.text), "ab")

    def test_tests_overlap(self) -> None:
        """Eight tests on four slots, four at a time; one by one they would wait for ever."""
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(suite("eval : several words", "for i in 1 2 3 4 5 6 7 8; do",
                                   '  python3 "t$i" --gate || test_fail "t$i"', "done"))
        seen: Set[bytes] = set()
        for _ in range(2):
            seen |= set(up.lines(4))
            for _ in range(4):
                gate.release()
        ran = self.end(process)
        self.assertEqual((ran.code, len(seen), len(starts(ran.text))), (0, 8, 8))

    def test_a_file_that_is_sourced_from_another_folder(self) -> None:
        """Its tests have slots; and the words of a command that may be a test say why bash ends."""
        os.mkdir(os.path.join(self.folder, "sub"))
        suite, use = "suite() { python3 c || test_fail c; }", 'X=python3; use() { $X "${1:?no file}"; }'
        self.write("sub/common.sh", lines(suite, use))
        ran = self.conduct(HEAD + lines("cd sub", ". ./common.sh", "python3 a || test_fail a", "suite", "use"))
        self.assertEqual((ran.code, sorted(starts(ran.text))), (1, ["a", "c"]))
        self.assertIn("1: no file\n", ran.text + ran.err)

    def test_setsid_waits_for_its_test(self) -> None:
        """It would fork, and pass at once, as the leader of a process group; in bash it is none."""
        ran = self.conduct(lines("setsid pytest a --exit=3", "echo is $?", "nohup setsid pytest b --exit=4 & wait $!",
                                 "echo is $?", "bash -c 'setsid pytest c --exit=5'", "echo is $?",
                                 "echo 'exec setsid bash -c \"exit 6\"' >test_d", "chmod +x test_d", "./test_d",
                                 "echo is $?"))
        self.assertEqual((ran.code, lines_of(ran.text, "is")), (0, ["is 3", "is 4", "is 5", "is 6"]))
        self.assertEqual(len(ran.failures()), 4)

    def test_a_binary_file_is_not_sourced(self) -> None:
        """Bash tells it from a script by its first line. The runner hung, reading one."""
        shutil.copy(os.path.realpath(str(shutil.which("bash"))), os.path.join(self.folder, "env"))
        ran = self.conduct(lines(". ./env", "pytest a --beside=b", "pytest b --beside=a"))
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 2))
        self.assertIn("./env: cannot execute binary file\n", ran.text)

    def test_a_function_that_gets_what_differs_each_time(self) -> None:
        """Only bash runs it. The scout ran it, too, with a `$RANDOM` of its own, and a run of passed tests was red."""
        suite = 'suite() { python3 "$1" || test_fail a; }'
        ran = self.conduct(HEAD + lines(suite, "suite $RANDOM || test_fail s", "python3 b || test_fail b"))
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 2))
        self.assertIn("only bash can run `suite $RANDOM`", ran.err)
        self.write("lib.sh", lines('suite() { python3 "$@"; }'))
        ran = self.conduct(lines(". ./lib.sh", "python3 a && touch made", "suite made* b"), "--tests", "suite|python3")
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 2))

    def test_a_script_that_closes_all_descriptors(self) -> None:
        """Bash runs its tests itself from there on: there is nobody to ask. They failed, and had not run."""
        close = "for n in {3..254}; do eval \"exec $n>&-\"; done"
        ran = self.conduct(HEAD + lines("python3 a || test_fail a", close, "python3 b || test_fail b"))
        self.assertEqual((ran.code, [event.split()[-1] for event in self.events(ran)]), (0, [*"aabb"]))

    def test_what_one_subshell_asks_the_next_one_knows(self) -> None:
        """Each that asks makes a pipe for the answer."""
        self.stub("mkfifo", f'#!/bin/sh\necho >>asked\nexec {shutil.which("mkfifo")} "$@"\n')
        ran = self.conduct(lines("f() { echo $1; }", "for i in 1 2 3 4; do x=$(f $i; true $x); done", "echo $x"),
                           gpus="0")
        self.assertEqual((ran.code, ran.text, ran.read("asked")), (0, "4\n", "\n"))

    def test_long_commands_of_jobs(self) -> None:
        """What two of them ask at the same time does not mix: a pipe takes 4096 bytes at once."""
        jobs = "(cat <<A; true) & (cat <<B; true) & wait\n{0}A\n{0}B\n".format("it's a line\n" * 1000)
        ran = self.conduct("exec >out\n" + jobs * 8, gpus="0")
        self.assertEqual((ran.code, ran.read("out").count("a line\n")), (0, 16_000))

    def test_masks(self) -> None:
        """A test that names four GPUs has these four, and them alone; others have one."""
        ran = self.conduct(suite(
            "python3 a --slow || test_fail a", "python3 b --slow || test_fail b",
            'CUDA_VISIBLE_DEVICES=0,1,2,3 python3 wide --slow || test_fail "wide"',
            "CUDA_VISIBLE_DEVICES=2,3 python3 two || test_fail two",
            "CUDA_VISIBLE_DEVICES= python3 none || test_fail none",
            "python3 three --nproc_per_node=3 || test_fail three", "python3 distributed || test_fail d",
            "python3 distributed_1 || test_fail one #: gpus=1", "ctest all", "N=3",
            "python3 launch.distributed --nproc_per_node=$N || test_fail e", 'run() { "$@" || test_fail "$2"; }',
            "run python3 run --num_gpus 2", "mpirun -np $N p || test_fail p",
            "D=distributed; python3 q --log=$D/x || test_fail q",
            "env CUDA_VISIBLE_DEVICES=0 python3 own || test_fail own"), gpus="4,5,6,7")
        self.assertEqual(ran.err.count("`CUDA_VISIBLE_DEVICES=0` in the words of a test chooses GPUs that others"), 1)
        masks = {words.split()[1]: environ["CUDA_VISIBLE_DEVICES"] for words, environ in self.environs(ran).items()}
        self.assertEqual((masks["wide"], masks["none"], len(masks["two"])), ("4,5,6,7", "", 3))
        self.assertEqual((masks["all"], len(masks["a"]), len(masks["b"])), ("4,5,6,7", 1, 1))
        self.assertEqual((len(masks["three"]), masks["distributed"], len(masks["distributed_1"])), (5, "4,5,6,7", 1))
        self.assertEqual([len(masks[name]) for name in ("launch.distributed", "run", "-np", "q")], [5, 3, 5, 1])
        self.assertLessEqual(set(beside(self.events(ran), "python3 wide --slow")), {"python3 none"})      # needs no GPU

    def test_what_a_test_is_told(self) -> None:
        """Mask, label, slot, attempt and port are its own; what the script sets itself stays."""
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(HEAD + lines(
            'python3 a --gate || test_fail "the first"', "export MASTER_PORT=7 OMP_NUM_THREADS=5 PYTHONFAULTHANDLER=0",
            "python3 b --gate || test_fail second", "pip3 install x"), gpus="2,5", env={"RUN_TESTS_LABEL": "outer"})
        up.lines(2)
        gate.release()
        gate.release()
        told = self.environs(self.end(process))
        first, second = told["python3 a --gate"], told["python3 b --gate"]
        self.assertEqual({each["CUDA_VISIBLE_DEVICES"] for each in (first, second)}, {"2", "5"})
        self.assertEqual([first["RUN_TESTS_" + name] for name in ("LABEL", "ATTEMPT")], ["the first", "1"])
        self.assertNotEqual(first["RUN_TESTS_SLOT"], second["RUN_TESTS_SLOT"])
        self.assertEqual(first["RUN_TESTS_RUN"], second["RUN_TESTS_RUN"])
        self.assertEqual([first[name] for name in ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER")], ["1", "1"])
        self.assertRegex(first["MASTER_PORT"] + " " + first["OMP_NUM_THREADS"], r"^\d{4,5} \d+$")
        self.assertEqual(first["PET_MASTER_PORT"], first["MASTER_PORT"])
        self.assertEqual([second[name] for name in ("MASTER_PORT", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER")],
                         ["7", "5", "0"])
        self.assertEqual({"RUN_TESTS_LABEL", "RUN_TESTS_SLOT", "MASTER_PORT"} & told["pip3 install x"].keys(),
                         {"MASTER_PORT"})

    def test_a_command_that_is_no_test_asks_once(self) -> None:
        """Each of the two shells, whatever the number of turns. Of most tests they know what they are."""
        self.drive("import json", "take = run_tests.ScriptRun.handle",
                   "def told(run, event):",
                   "    if isinstance(event, list):",
                   "        print(json.dumps(event[2:7]), file=open('asked', 'a'))",
                   "    take(run, event)",
                   "run_tests.ScriptRun.handle = told")
        loop = 'for ((i = 0; i < 60; i++)); do x=$((x + i)); [ "$x" != no ] && y="$x"; f; done'
        ran = self.conduct(HEAD + lines("f() { echo $y >/dev/null; }", loop, "python3 a || test_fail a", loop,
                                        "pip3 install x", loop, "python3 b --exit=2 || test_fail b", loop) + TAIL)
        self.assertEqual(ran.code, 1)
        asked = [json.loads(line) for line in ran.read("asked").splitlines()]
        kinds = collections.Counter((role, *place) for role, what, *place in asked if what == "kind")
        self.assertEqual(set(kinds.values()), {1})
        line = str(HEAD.count("\n") + 2)
        for command in ("((i < 60))", "((i++))", "x=$((x + i))", '[ "$x" != no ]', 'y="$x"', "f"):
            self.assertIn(("scout", "test.sh", line, command), kinds)
        self.assertNotIn(("shell", "test.sh", str(HEAD.count("\n") + 3), "python3 a"), kinds)
        self.assertLess(len(asked), 120)

    def test_status(self) -> None:
        """`$?` is what the command has left, at the begin of the handler, and in the journal."""
        ran = self.conduct(lines(
            'test_fail() { local status=$?; echo "Error: sub-test failed: $1 with $status"; }',
            "python3 a --exit=3 || test_fail a", "bash -c 'kill -SEGV $$' || test_fail b",
            "no_such_program --at=all || test_fail c", "python3 d --exit=42 || { echo \"it is $?\"; test_fail d; }",
            "./test.sh/x || test_fail f"))
        self.assertEqual(errors(ran.text), ["a with 3", "b with 139", "c with 127", "d with 0", "f with 126"])
        self.assertIn("it is 42\n", ran.text)
        self.assertEqual({record["label"]: record["status"] for record in ran.journal("test_end")},
                         {"a": 3, "b": -signal.SIGSEGV, "c": 127, "d": 42, "f": 126})

    def test_a_dry_reading(self) -> None:
        """Each test, and why it does not run ahead; what looks like a test is one where no command has a handler."""
        self.write("test_a.py", "")
        native = "starts when the script comes to it; if a function, its tests may run ahead"
        for text, tests in {
            HEAD + lines("a || test_fail x", 'b || { test_fail "$(c)"; }', "d | e || test_fail y", "pytest z",
                         "#: one-by-one", "f || test_fail z"):
                ["x:12:runs ahead", '$(c):13:runs ahead', "y:14:runs ahead", "z:17:`#: one-by-one`"],
            lines("pytest a", "pip install pytest", "$PYTHON -m pytest b || exit 1", "ctest | tee log",
                  "if tests/run.sh; then c; fi", "timeout -k 5 1.5m torchrun d", "cd tests", "(/x/test_e)",
                  "$py_version -m pytest f", "bin/someTests", "xvfb-run -a -s '-screen 0 8x8' taskset -c 0-3 pytest g",
                  "coverage run --omit a -p $B -m pytest h", "uv run --with pytest==8 -q pytest i",
                  "command -v pytest", "uv run --with a pip install pytest",
                  "uv run --frozen mypy tests/test_a.py", "poetry run -q cp $X tests/test_a.py"): [
                "pytest a:1:runs ahead", "$PYTHON -m pytest b:3:waits for `pip install pytest` (test.sh:2), which "
                "waits for the test above it", "ctest:4:runs ahead",
                "tests/run.sh:5:runs ahead", "timeout -k 5 1.5m torchrun d:6:runs ahead", "/x/test_e:8:runs ahead",
                "$py_version -m pytest f:9:runs ahead", "bin/someTests:10:runs ahead",
                "xvfb-run -a -s '-screen 0 8x8' taskset -c 0-3 pytest g:11:runs ahead",
                "coverage run --omit a -p $B -m pytest h:12:runs ahead",
                "uv run --with pytest==8 -q pytest i:13:runs ahead"],
            lines("set -eu", "test_f() {", '  pytest "${A}/$B" #: timeout=5m', "}", "test_f || exit 1"): [
                'pytest "${A}/$B":3:runs ahead', f"test_f:5:{native}"],
            lines("pytest test_a.py -k x", "pytest test_a.py -k y", "pytest b <in", "pytest c --junitxml=x.xml",
                  "pytest d --junitxml=x.xml"): [
                "pytest test_a.py -k x:1:runs ahead",
                "pytest test_a.py -k y:2:waits for a test that has test_a.py, too",
                "pytest b:3:starts when the script comes to it", "pytest c --junitxml=x.xml:4:runs ahead",
                "pytest d --junitxml=x.xml:5:waits for a test that has x.xml, too"],
            lines("command pytest a", "exec pytest b"): [
                f"command pytest a:1:{native}", f"exec pytest b:2:{native}"],
            lines("f() { :; }", "make", "pytest a", "make || no", "f", "pytest b || rm b", "X=$(make) && pytest c"): [
                "pytest a:3:runs ahead",
                "pytest b:6:waits for `make` (test.sh:4), which waits for the test above it",
                "pytest c:7:waits for `X=$(make)` (test.sh:7), which waits for the test above it"],
            lines("pytest a", "{ pytest b; } >log"): [
                "pytest a:1:2: a block writes log", "pytest b:2:2: a block writes log"],
        }.items():
            ran = self.conduct(text, "--list")
            told = [line.replace("\ttest.sh:", ":").replace("\t", ":") for line in ran.text.splitlines()]
            self.assertEqual((ran.code, told, self.events(ran)), (0, tests, []))

    def test_what_looks_like_a_test(self) -> None:
        """It overlaps where all pass; a failure under `set -e` ends the script, and what ran ahead is named."""
        text = lines("set -e", "trap 'echo bye $N' EXIT", "N=1", "pytest a", "N=2", "pytest b --exit=0", "N=3",
                     "pytest c")
        ran = self.conduct(text)
        self.assertEqual((ran.code, sorted(starts(ran.text))), (0, ["pytest a", "pytest b --exit=0", "pytest c"]))
        self.assertIn("test.sh: set -e: 3 commands look like tests, and may run ahead of each other; "
                      "--one-by-one stops that, and --tests REGEX says anew what is a test\n", ran.err)
        self.assertEqual(ran.text.splitlines()[-1], "bye 3")
        fails = "--beside=c --exit=4"
        ran = self.conduct(text.replace("--exit=0", fails))
        self.assertEqual((ran.code, lines_of(ran.text, "bye"), ran.failures()), (4, ["bye 2"], [f"pytest b {fails}"]))
        self.assertIn("the script has not come to tests that ran ahead of it: pytest c\n", ran.err)
        ran = self.conduct(text, "--one-by-one")
        self.assertEqual(beside(self.events(ran), "pytest b --exit=0"), [])
        self.assertEqual(starts(self.conduct(text, "--tests", "pytest b").text), ["pytest b --exit=0"])

    def test_words_around_a_test(self) -> None:
        """A prefix before arguments, a variable for the interpreter, an assignment that is a pattern to nobody."""
        text = lines("set -e", "run() { A=1 pytest \"$@\"; }", "run a", 'M="4*60 \\e[1m"', 'N="$((4*60))"',
                     'env $NONE torchrun b', '"$BIN" -m pytest c', "python3 -m torch.distributed.run d",
                     "pytest e || { printf $'no\\n'; R=1; }", "pytest f")
        ran = self.conduct(f"BIN=python3\n{text}")
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 6))
        self.assertNotIn("could not run beside", ran.err)

    def test_a_script_needs_descriptors(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for number, code in ((199, 3), (200, 0)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, limits[1]))
            ran = self.conduct("pytest a\npytest b\n")
            self.assertEqual((ran.code, "`ulimit -n` is 199" in ran.err), (code, code == 3))
        ran = self.conduct("exec 193>log\npytest a\n")
        self.assertEqual((ran.code, "descriptors 191 to 194" in ran.err), (2, True))

    def test_functions_as_tests_under_errexit(self) -> None:
        """As NeMo's scripts have them; and the last test of a script without `set -e` overlaps those before it."""
        run_test = "run_test() { if [[ $1 == fast ]]; then shift; fi; time \"$@\"; }"
        ran = self.conduct(lines("set -xeuo pipefail", run_test, "run_test fast pytest a --beside=b",
                                 "run_test pytest b --beside=a", "run_test pytest c --exit=4"))
        self.assertEqual((ran.code, len(starts(ran.text))), (4, 3))
        self.assertIn("pytest b --beside=a", beside(self.events(ran), "pytest a --beside=b"))
        ran = self.conduct(lines("bash tests/build.sh", "pytest a --beside=b", "pytest b --beside=a --exit=3"))
        self.assertEqual((ran.code, len(starts(ran.text))), (3, 2))
        self.assertEqual(beside(self.events(ran), "pytest a --beside=b"), ["pytest b --beside=a --exit=3"])

    def test_a_function_that_is_called_with_a_test(self) -> None:
        """A message that names it has seen no failure; what has died gets a JUnit file by the words of the call."""
        ran = self.conduct(lines("RET=0", 'run() { echo "run $1"; "$@" || RET=1; }', "run pytest a --exit=1",
                                 "run bash -c 'kill -SEGV $$' tests/b --junitxml=dead.xml", "exit $RET"))
        self.assertEqual((ran.code, len(starts(ran.text)), "went ahead" in ran.err), (1, 2, False), ran.err)
        self.assertIn("crashed", ran.read("dead.xml"))

    def test_what_does_not_keep_a_test_from_another(self) -> None:
        """The first waits for the start of the second, and both start while their slots are there."""
        for name, text in {
            "a status that is asked for": "{0}; rc=$?; [ $rc = 0 ] || RET=1",
            "in an if": "{0}\nif [ $? -ne 0 ]; then RET=1; fi", "as an if": "if ! {0}; then RET=1; fi",
            "of a pipeline": "{0} | tee $N.log; rc=${{PIPESTATUS[0]}}; [ $rc = 0 ] || RET=1",
            "by eval": "eval_it {0}", "at the end of a function": 'many "a --beside=b" b || RET=1; exit $RET',
            "near the end of a function": 'run_tests "a --beside=b" b || RET=1; exit $RET',
            "a handler that calls a calm program": "{0} || {{ rapids-logger no; RET=1; }}",
            "a handler that reads the test's own log": "{0} >$N.log 2>&1 || {{ cat $N.log; RET=1; }}",
            "a handler that counts by a program": "if ! {0}; then RET=`expr ${{RET:-0}} + 1`; fi",
        }.items():
            with self.subTest(name):
                one, other = (text.format(f"pytest {words}") for words in ("a --beside=b", "b"))
                ran = self.conduct(HEAD + lines(
                    "shopt -s expand_aliases  # there are none", 'eval_it() { eval "$*" || RET=1; }',
                    "many() {", "  local bad=0 words",
                    '  for words in "$@"; do pytest $words || bad=1; done', "  return $bad", "}",
                    "run_tests() {", "  local worse=0", "  if ! pytest $1; then worse=1; fi",
                    "  if ! pytest $2; then worse=1; fi", "  coverage combine || true",
                    "  if [ $worse -eq 1 ]; then", "    BAD+=(\"$1\")", "    return 1", "  fi", "  return 0", "}",
                    "N=1", one, "N=2", other, "exit ${RET:-0}"))
                self.assertEqual(ran.code, 0, ran.err)
                self.assertNotIn("could not run beside others", ran.err)

    def test_a_trap_that_notes_failures(self) -> None:
        """One that assigns a constant, as RAPIDS' scripts have it, does not keep tests apart."""
        ran = self.conduct(lines("EXITCODE=0", 'trap "EXITCODE=1" ERR', "set +e", "rapids-logger 'first'",
                                 "pytest a --slow", "rapids-logger 'next'",
                                 "timeout 40m ./ci/run_cudf_pytests.sh", "pytest b --exit=3",
                                 'echo "exiting with: ${EXITCODE}"', "exit ${EXITCODE}"))
        self.assertEqual((ran.code, len(starts(ran.text)), ran.text.splitlines()[-1]), (1, 3, "exiting with: 1"))
        ran = self.conduct(lines("set -E; trap 'exit 9' ERR", *["PATH=$PATH pytest a"] * 2))
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 2))

    def test_names_of_handlers(self) -> None:
        text = HEAD + lines("note() { echo \"noted $1\"; }", "python3 a --exit=1 || note a",
                            "python3 b || test_fail b", "python3 c || error_exit c")
        ran = self.conduct(text)
        self.assertEqual((ran.code, starts(ran.text)), (0, ["b"]))
        ran = self.conduct(text, "--fail-function", "note", "--fail-function=error_exit")
        self.assertCountEqual(starts(ran.text), ["a", "b", "c"])
        self.assertEqual((ran.code, ran.failures(), lines_of(ran.text, "noted")), (0, ["a"], ["noted a"]))

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
        self.assertEqual(ran.outcomes(), {"wide": "passed", "cpu": "passed", "y z": "passed", "slow": "timeout",
                                          "flaky": "flaky", "a": "passed", "b": "passed"})
        self.assertEqual((ran.code, errors(ran.text)), (1, ["slow"]))
        masks = [self.environs(ran)[f"python3 {name}"]["CUDA_VISIBLE_DEVICES"] for name in ("wide", "cpu")]
        self.assertEqual((len(masks[0]), masks[1]), (3, ""))
        gated = [line.split()[0] for line in self.events(ran) if "--gate" in line]
        self.assertEqual(gated, ["start", "end"] * 2)

    def test_options(self) -> None:
        """--timeout and --retries, with the records of it all."""
        ran = self.conduct(HEAD + lines(
            "bash -c 'echo stuck; exec $NAP' --junitxml=slow.xml || test_fail slow",
            "#: timeout=1h", "bash -c '[ -e again ] || { touch again; exit 3; }' || test_fail flaky",
            "bash -c 'kill -SEGV $$' --junitxml=dead.xml || test_fail dead", "(exit 3) || test_fail left",
            "python3 fine --junitxml=fine.xml || test_fail fine") + TAIL,
            "--timeout", "300ms", "--retries", "1", "--junit", "all.xml")
        self.assertEqual(ran.outcomes(), {"slow": "timeout", "flaky": "flaky", "dead": "crashed", "left": "failed",
                                          "fine": "passed"})
        self.assertCountEqual(ran.failures(), ["slow", "dead", "left"])
        self.assertEqual((ran.code, errors(ran.text)), (1, ["slow", "dead", "left"]))
        self.assertEqual((ran.journal()[0]["event"], ran.journal()[0]["lists"]), ("run_start", ["test.sh"]))
        end = ran.journal()[-1]
        self.assertEqual((end["event"], end["exit"], sum(end["outcomes"].values())), ("run_end", 1, 5))
        begun = collections.Counter(record["label"] for record in ran.journal("test_start"))
        self.assertEqual(begun, {"slow": 2, "flaky": 2, "dead": 2, "fine": 1})
        for record in ran.journal("test_start"):
            self.assertTrue(os.path.isfile(ran.path(record["log"])), record)
        for name, what in (("slow", "timeout"), ("dead", "crashed")):
            problem, = ElementTree.parse(ran.path(f"{name}.xml")).getroot().iter("error")
            self.assertEqual(problem.get("type"), what)
        suite_of, = ElementTree.parse(ran.path("all.xml")).getroot()
        self.assertEqual([suite_of.get(key) for key in ("tests", "failures", "errors")], ["5", "1", "2"])
        self.assertEqual({case.get("name") for case in suite_of.iter("testcase")}, set(ran.outcomes()))

    def test_a_pass_without_a_case_is_told(self) -> None:
        """On one GPU and on several; what failed is told by its marker, where there is one."""
        for gpus in ("0", FOUR):
            ran = self.conduct(lines("test_fail() { :; }",
                                     "bash -c 'echo \"<a/>\" >x.xml' --junitxml=x.xml || test_fail x"), gpus=gpus)
            self.assertEqual(ran.err.count("test.sh:2: x passed: ran none of its cases\n"), 1, ran.err)

    def test_a_pass_without_a_junit_file_is_told(self) -> None:
        for gpus in ("0", FOUR):
            ran = self.conduct(lines("test_fail() { :; }", f"/bin/true --junitxml=x{gpus}.xml || test_fail x",
                                     f"/bin/false --junitxml=y{gpus}.xml || test_fail y"), gpus=gpus)
            told = re.findall(" passed: .*", ran.err)
            self.assertEqual(told[:1], [" passed: without its JUnit file (missing)"], ran.err)
            self.assertNotIn("y passed", ran.err)

    def test_fail_fast(self) -> None:
        text = suite(*(f"python3 {name} --exit=3 || test_fail {name} #: gpus=all" for name in "abc"))
        ran = self.conduct(text, "--fail-fast", "--order", "file")
        self.assertEqual((ran.code, ran.failures(), len(began(self.events(ran)))), (1, ["a"], 1))
        self.assertEqual(ran.outcomes(), {"a": "failed", "b": "not run", "c": "not run"})
        process = self.begin(text, "--fail-fast", gpus="0")
        self.assertIn(b": 1 failed, 2 not run\n", process.communicate(timeout=WAIT_S)[1])

    def test_what_did_not_run_is_no_pass(self) -> None:
        """Whatever the script makes of it."""
        text = lines("E=ex", *(f"pytest {name} --${{E}}it=1" for name in "abcdefgh"), "true")
        for gpus in ("0", FOUR):
            with self.each(gpus):
                ran = self.conduct(text, "--fail-fast", gpus=gpus)
                self.assertEqual((ran.code, ran.outcomes()["pytest h --exit=1"]), (1, "not run"))
                self.assertIn("not all tests have run: this is no pass", ran.err)

    def test_deadline(self) -> None:
        self.over_when_ready()
        ran = self.conduct(lines("trap 'echo cleaned' EXIT") + suite(
            "bash -c 'echo up >up; exec $NAP' || test_fail a", "python3 b || test_fail b #: gpus=all", "pip3 never"),
            "--deadline", "1h", "--grace", "1h", "--order", "file")
        self.assertEqual((ran.code, self.events(ran), ran.outcomes()["a"]), (1, [], "interrupted"))
        self.assertRegex(ran.text, r"(?m)^cleaned\n(?s:.*)^Ended by --deadline: ")

    def test_the_longest_first(self) -> None:
        """By what an earlier run has noted, here or in a journal that is named."""
        names = {"a": 2, "b": 6, "c": 4, "d": 5, "e": 1, "f": 0.5}
        text = HEAD + lines(
            "python3 first --gate || test_fail first #: time=99", "python3 pair --gate || test_fail pair #: time=98",
            *(f"python3 {name} || test_fail {name}" for name in names), "for all in $(uname); do :; done") + TAIL
        up, gate, there = (Fifo(self, name) for name in ("up", "gate", "there"))
        # The scout runs it where it has found all tests, the shell where all have ended.
        self.stub("uname", '#!/bin/sh\necho there >"${0%/*}/../there"\n')

        def ran(*options: str) -> Ran:
            process = self.begin(text, *options, gpus="0,1")
            up.lines(2)
            there.lines()
            gate.release()
            gate.release()
            there.lines()
            return self.end(process)

        noted = ran().journal()
        taught = lines(*(json.dumps({**record, "seconds": names.get(record.get("label", ""), 50)}) for record in noted))
        for folder, options in (("logs", ()), ("other", ("--history", "taught.jsonl", "--log-dir", "other"))):
            with self.subTest(folder):
                self.write("taught.jsonl", taught)
                self.write("logs/run_tests.jsonl", "" if options else taught)
                self.assertEqual(starts(ran(*options).text), ["first", "pair", "b", "d", "c", "a", "e", "f"])

    def test_what_the_script_leaves(self) -> None:
        """Its daemons end with the run."""
        self.drive(SOON)
        ran = self.conduct(HEAD + lines("python3 a || test_fail a", "setsid $NAP & $NAP &", "(setsid $NAP &)",
                                        "(setsid env -i $NAP </dev/null >/dev/null 2>&1 &)", "echo end"))
        self.assertEqual((ran.code, ran.text.splitlines()[-1]), (0, "end"))

    def test_interrupted(self) -> None:
        """Nothing of the script or its tests is left, and its own EXIT trap has run."""
        up = Fifo(self, "up")
        text = lines("trap 'echo \"cleaned\"; touch cleaned' EXIT") + HEAD + lines(
            "bash -c 'echo up >up; $NAP' || test_fail a", "bash -c 'setsid $NAP & echo up >up; $NAP' || test_fail b",
            "python3 c || test_fail c #: gpus=all", "echo end")
        for signum, gpus in ((signal.SIGINT, "0"), (signal.SIGTERM, "0,1")):
            with self.each(signum.name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, "cleaned"))
                process = self.begin(text, "--order", "file", gpus=gpus)
                up.lines(len(gpus.split(",")))
                process.send_signal(signum)
                ran = self.end(process)
                self.assertEqual((ran.code, self.events(ran)), (128 + signum, []))
                self.assertEqual(ran.outcomes().get("a"), "interrupted")
                last = (ran.err if gpus == "0" else ran.text).splitlines()[-1]
                self.assertIn(f"Interrupted by {signum.name}: ", last)
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
        self.assertEqual((ran.code, ran.outcomes()), (143, {"a": "interrupted"}))

    def test_what_one_test_reads_another_prints(self) -> None:
        """The first has the only slot when the other comes."""
        self.write("tests/count.sh", "#!/bin/sh\n: >up\ngrep -c ''\n", 0o755)
        ran = self.conduct(lines("x=$({ until [ -e up ]; do :; done; python3 -m pytest a; } | tests/count.sh)",
                                 'echo "lines: $x"'), gpus="0")
        self.assertEqual((ran.code, ran.text.splitlines()[:1]), (0, ["lines: 1"]))

    def test_a_job_that_the_script_leaves(self) -> None:
        """It ends with the script, as what its shell has started does."""
        self.write("tests/serve.sh", "#!/bin/sh\necho up >up; exec $NAP\n", 0o755)
        up, gate = Fifo(self, "up"), Fifo(self, "gate")
        process = self.begin(lines("tests/serve.sh & python3 -m pytest --gate", "kill $!; exit 0"))
        up.lines()
        gate.release()
        ran = self.end(process)
        self.assertEqual((ran.code, sorted(ran.outcomes().values())), (0, ["interrupted", "passed"]))

    def test_a_job_that_is_killed_at_once(self) -> None:
        """The shell may not have told of its test, which the scout may have found."""
        self.write("tests/serve.sh", "#!/bin/sh\nexec $NAP\n", 0o755)
        self.write("tests/b.sh", "#!/bin/sh\n", 0o755)
        for job in ("tests/serve.sh", "(tests/serve.sh)"):
            with self.subTest(job):
                ran = self.conduct(lines(f"{job} & kill -9 $!; tests/b.sh"))
                self.assertEqual((ran.code, {*ran.outcomes().values()} - {"interrupted"}), (0, {"passed"}))

    def test_tmpdir_is_cleaned(self) -> None:
        self.write("tmp/x", "")
        ran = self.conduct(HEAD + lines("rm -rf tmp/*", "python3 a || test_fail a"), env={"TMPDIR": "tmp"})
        self.assertEqual(ran.code, 3)
        self.assertIn("are gone from", ran.text)
        self.assertIn("let nothing clean TMPDIR", ran.text)

    def test_a_tmpdir_that_is_not_utf_8(self) -> None:
        folder = os.fsdecode(b"t\xff")
        os.mkdir(os.path.join(self.folder, folder))
        ran = self.conduct(HEAD + lines("python3 -m pytest a || test_fail a"), env={"TMPDIR": folder})
        self.assertEqual((ran.code, len(ran.outcomes())), (0, 1), ran.text + ran.err)

    def test_a_relative_path_counts_from_the_tests_folder(self) -> None:
        self.write("other/test_x", "#!/bin/sh\nexit 1\n", 0o755)
        self.write("sub/bin/test_x", "#!/bin/sh\n", 0o755)
        ran = self.conduct(lines("PATH=bin:$PWD/other:$PATH", "cd sub", "test_x"))
        self.assertEqual((ran.code, ran.outcomes()), (0, {"test_x": "passed"}), ran.text)

    def test_an_environment_that_nobody_can_tell(self) -> None:
        """`cat` cannot start (`ulimit -v`), or fails: then so does the test, which must not run without it."""
        self.write("bin/cat", "#!/bin/sh\nexit 9\n", 0o755)
        self.write("tests/a.sh", "#!/bin/sh\ntouch ran\n", 0o755)
        for gpus in ("0", "0,1"):
            with self.subTest(gpus=gpus):
                ran = self.conduct("tests/a.sh\n", gpus=gpus, env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
                self.assertEqual((ran.code, os.path.exists(ran.path("ran"))), (9, False), ran.text)

    def test_a_signal_comes_to_the_script_behind_the_test(self) -> None:
        """As under bash, which waits for the test before it runs the trap."""
        up = Fifo(self, "up")
        # A bash that is about to start something, or to wait, may have its trap run in a copy of it, or too late.
        self.write("waits.py", "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
                               "print('up', file=open('up', 'w'), flush=True)\n"
                               "signal.sigwait([signal.SIGTERM])\nprint('ended', flush=True)\nos._exit(1)\n")
        process = self.begin(HEAD + lines("trap 'cp logs/a.log seen; exit 3' TERM", "$PY waits.py || test_fail a"),
                             gpus="0")
        up.lines()
        process.send_signal(signal.SIGTERM)
        ran = self.end(process)
        self.assertEqual((ran.code, ran.read("seen")), (143, "ended\n"))

    def test_the_runner_is_killed(self) -> None:
        """Then the script is, and all that it and its tests have started."""
        up = Fifo(self, "up")
        process = self.begin(lines("trap '' TERM HUP INT", "(setsid $NAP &)") + HEAD + lines(
            "bash -c 'setsid $NAP & echo up >up; $NAP' || test_fail a"), gpus="0,1")
        up.lines()
        process.kill()
        self.assert_swept()

    def test_the_script_is_killed_behind_a_test(self) -> None:
        """The test that it waits for is ended, too."""
        self.drive("ask = run_tests.ScriptRun.shell_at_test", "def killed(run, *fields):", "    ask(run, *fields)",
                   "    run.shell.process.signal(9)", "run_tests.ScriptRun.shell_at_test = killed")
        ran = self.conduct(HEAD + lines("bash -c 'exec $NAP' || test_fail a", "exit 0"))
        self.assertEqual((ran.code, ran.outcomes()), (137, {"a": "interrupted"}))

    def test_a_trap_while_the_shell_waits_for_a_test(self) -> None:
        """Its programs are no tests, not even one of the same name."""
        self.drive("ask = run_tests.ScriptRun.shell_at_test", "def told(run, *fields):", "    ask(run, *fields)",
                   f"    run.shell.process.signal({int(signal.SIGUSR1)})", "run_tests.ScriptRun.shell_at_test = told")
        ran = self.conduct(HEAD + lines("trap 'python3 x' USR1", "python3 a --exit=1 || test_fail a", "exit $RET"))
        self.assertEqual((ran.code, ran.outcomes(), ran.text.count("python3: x\n")), (1, {"a": "failed"}, 1))

    def test_a_signal_between_a_question_and_its_answer(self) -> None:
        for name, code, outcomes in (("TERM", 143, {"a": "failed"}), ("USR1", 1, {"a": "failed", "b": "passed"})):
            with self.each(name):
                self.drive("on_kind = run_tests.ScriptRun.on_kind", "def told(run, *fields):",
                           "    if (run.role, fields[2]) == ('shell', 'python3 b 2>&1'):",
                           f"        run.shell.process.signal({int(signal.Signals['SIG' + name])})",
                           "    return on_kind(run, *fields)", "run_tests.ScriptRun.on_kind = told")
                ran = self.conduct(HEAD + lines("trap 'echo cleaned' EXIT USR1", "python3 a --exit=1 || test_fail a",
                                                "python3 b 2>&1 || test_fail b", "trap - EXIT", "exit $RET"),
                                   "--one-by-one")
                self.assertEqual((ran.code, ran.outcomes(), ran.err), (code, outcomes, ""))
                self.assertRegex(ran.text, "sub-test failed: a\n(?s:.*)cleaned\n")

    def test_the_pipe_of_questions_is_written_to(self) -> None:
        """By a script that does not know what it is: nothing is lost, and nothing waits."""
        ran = self.conduct(lines("for each in /proc/$$/fd/1??; do echo noise >$each; done", "pytest a --exit=4"))
        self.assertEqual((ran.code, ran.outcomes(), "noise\n" in ran.text), (4, {"pytest a --exit=4": "failed"}, True))

    def test_exit_status(self) -> None:
        """That of the script is the run's: it may think little of failures, or much of other things."""
        for end, code in (("exit 0", 0), ("kill -TERM $$", 143), ("exec bash -c 'exit 9'", 9), ("if", 2)):
            with self.subTest(end):
                ran = self.conduct(HEAD + lines("python3 a --exit=1 || test_fail a", end))
                self.assertEqual((ran.code, ran.failures(), errors(ran.text)), (code, ["a"], ["a"]))
                self.assertEqual(ran.journal("run_end")[0]["exit"], code)
        ran = self.conduct(HEAD + lines("export TOP=$$", "bash -c 'kill $TOP' || test_fail a"))
        self.assertEqual(ran.code, 143)     # the signal comes while it waits at its end

    def test_a_failure_that_no_test_explains(self) -> None:
        """Then the script has failed: who counts tests sees it."""
        ends = ("0", "exit 3", "failed"), (FOUR, "exit 3", "failed"), (FOUR, "$NAP", "interrupted")
        for gpus, end, outcome in ends:
            with self.subTest(gpus=gpus, end=end):
                up = Fifo(self, f"up.{gpus}.{outcome}")
                process = self.begin(HEAD + lines("python3 a || test_fail a", f"echo >'{up.path}'; {end}"),
                                     "--junit", "all.xml", gpus=gpus)
                up.lines()
                if end == "$NAP":
                    process.terminate()
                ran = self.end(process)
                self.assertEqual((ran.code in (3, 143), ran.outcomes()), (True, {"a": "passed", "test.sh": outcome}))
                self.assertRegex(ran.read("all.xml"), r'(failures|errors)="1"')
                attached = f"[[ATTACHMENT|{ran.path('logs/test.sh.log')}]]" in ran.read("all.xml")
                self.assertEqual(attached, outcome == "failed")

    def test_what_has_no_handler_is_told(self) -> None:
        text = lines("f() { pytest $1; }; f a || test_fail a", "pytest b", "pytest c | cat", "test_fail d",
                     "run_test() { :; }; run_test e")
        ran = self.conduct(HEAD + text + TAIL)
        line = HEAD.count("\n") + 2
        self.assertIn(f"test.sh:{line}: 2 commands without `|| test_fail` may test something, too; ", ran.err)
        self.assertEqual(starts(ran.text), ["a"])

    def test_a_script_that_does_not_mind_a_failure(self) -> None:
        self.assertRegex(self.begin("E=ex\npytest a --${E}it=1\npytest b\n").communicate(timeout=WAIT_S)[1].decode(),
                         r"2 tests in \S+ on 4 GPU\(s\): 1 passed, 1 failed; test.sh ends with 0, as under bash\n$")

    def test_what_a_script_prints_is_shown_at_once(self) -> None:
        gate = Fifo(self, "gate")
        for gpus in ("0", FOUR):
            with self.each(gpus):
                process = self.begin("echo one\nread <gate\n", gpus=gpus)
                assert process.stdout is not None
                while process.stdout.readline() != b"one\n":
                    self.assertIsNone(process.poll())
                gate.release()
                self.end(process)

    def test_logs_that_others_write(self) -> None:
        """Neither the script, nor a test, nor whoever reads the runner's output loses them."""
        text = HEAD + lines(
            "exec > >(tee -a logs/test.sh.log)", "for t in a; do", "  python3 b >logs/b.log || test_fail b",
            "  python3 $t >logs/$t.log || test_fail $t", "done")
        self.write("logs/out.log", "")
        ran = self.conduct(text)
        written = ran.read("logs/a.log") + ran.read("logs/b.log")
        self.assertEqual((ran.code, written), (0, "python3: a\npython3: b\n"))
        for name, first in (("logs/out.log", ""), ("logs/test.sh.log", "earlier\n")):
            self.write(name, first)
            with open(ran.path(name), "ab") as log:
                self.begin(HEAD + lines("echo c || test_fail out", "echo $0"), gpus="0", stdout=log).wait(WAIT_S)
            self.assertEqual(ran.read(name), first + "c\ntest.sh\n")

    def test_aliases_from_elsewhere(self) -> None:
        self.write("aliases.sh", "alias note='R=$?'\n")
        ran = self.conduct("shopt -s expand_aliases\npytest a --exit=1\nnote\npytest b\nexit $R\n",
                           env={"BASH_ENV": "aliases.sh"})
        self.assertEqual(ran.code, 1)

    def test_errors_that_are_kept_apart(self) -> None:
        """Those of a test behind one that needed it are shown where the script wants them with the output."""
        ran = self.conduct(HEAD + lines(
            "exec >rest.txt", "python3 a --beside=b || test_fail a", "python3 b --beside=a || test_fail b", "exec >&2",
            "python3 c --both || test_fail c", "exit $RET"))
        self.assertEqual((ran.code, ran.text.count("python3 complains\n")), (0, 1))

    def test_a_summary_that_cannot_be_written(self) -> None:
        for gpus in ("0", FOUR):
            with self.each(gpus):
                ran = self.conduct(HEAD + lines("python3 a || test_fail a", "mkdir all.xml", "exit 0"),
                                   "--junit", "all.xml", gpus=gpus)
                self.assertEqual(ran.code, 3)
                self.assertIn("error: cannot write all.xml (is no regular file", ran.text + ran.err)
                os.rmdir(ran.path("all.xml"))

    def test_arguments_in_labels(self) -> None:
        """They tell the calls of a function apart."""
        ran = self.conduct(lines('run() { pytest "tests/$1" ${2} || RET=1; }', "run a x", "run b", "exit $RET"))
        self.assertEqual(set(ran.outcomes()), {"pytest tests/a x", "pytest tests/b"})

    def test_an_option_in_a_variable(self) -> None:
        """It may be POSIX mode, where no function can stand in a test's place, and a script ended with 2."""
        for gpus in ("0", FOUR):
            for option in ("posix", "pipefail"):
                with self.each(f"{gpus} {option}"):
                    text = lines(f"O={option[1:]}", 'set -o "p$O"', "tests/a", "pytest a", "exit 7")
                    ran = self.end(self.begin(text, gpus=gpus))
                    alone = "behind `tests/a` (test.sh:3) bash runs all by itself" in ran.err
                    self.assertEqual((ran.code, alone), (7, option == "posix"), ran.err)

    def test_labels_of_calls(self) -> None:
        """A call without a handler does not get the label of an earlier one."""
        ran = self.conduct(lines('test_fail() { echo "no $1"; }', 'run() { "$@"; }', "run pytest a || test_fail one",
                                 "run pytest b --exit=1", "if ! run pytest c --exit=1; then run pytest d; fi",
                                 "(cd / && run pytest e --exit=1)", "F=run; $F pytest f --exit=1",
                                 "run pytest g --exit=1 || test_fail two"))
        self.assertEqual(starts(ran.text)[0], "one")
        self.assertEqual(ran.failures(), [*(f"pytest {name} --exit=1" for name in "bcef"), "two"])

    def test_a_function_in_a_group_with_a_handler(self) -> None:
        """Its tests go to slots, and have that handler's label: a failure is told once."""
        ran = self.conduct(HEAD + lines('run() { "$@"; }', 'many() { pytest $1 --beside=$2; pytest $2 --beside=$1; }',
                                        "(cd / && run pytest a --exit=1) || test_fail one",
                                        'show() { echo "$1"; }', "{ show no; } || test_fail no",
                                        "if :; then many b c; run pytest d --exit=1; fi || test_fail two",
                                        "{ F=1; pip3 x || test_fail three; pytest e; } || test_fail four"))
        self.assertEqual(ran.failures(), ["one", "two #3"])
        self.assertCountEqual(starts(ran.text), ["one", "two", "two #2", "two #3", "three", "four"])

    def test_a_function_that_prints_a_file(self) -> None:
        """With a handler, too, it may have no test: the next one waits for the file."""
        for call in ("f | tee made || test_fail f", "(f | tee made) || test_fail f", "f | sort >made || test_fail f"):
            with self.each(call):
                ran = self.conduct(lines("rm -f made", "test_fail() { exit 4; }", "f() { echo x; }",
                                         "bash -c 'sleep 0.3' tests/a || test_fail a", call,
                                         "bash -c '[ -s made ]' tests/b || test_fail b", "exit 0"))
                self.assertEqual((ran.code, ran.outcomes()), (0, {"a": "passed", "b": "passed"}), ran.text + ran.err)

    def test_what_bash_has_run_is_told(self) -> None:
        """A handler that a subshell calls is counted once; where none runs beside others, it says why."""
        self.assertEqual(self.conduct(HEAD + "(false || test_fail a)\n").failures(), ["a"])
        for options in ((), ("--list",)):
            self.assertIn("no command has `|| test_fail`, or looks like a test (with --tests: begins so);",
                          self.conduct("make\n", *options).err)
        ran = self.conduct('run() { "$@"; }\nrun pytest a\n', "--list")
        self.assertIn('what a function runs by "$@" shows only in a run', ran.err)
        _, err = self.begin(lines("trap 'N=1' DEBUG", "pytest a")).communicate(timeout=WAIT_S)
        self.assertRegex(err.decode(), r"behind `trap 'N=1' DEBUG` \(test.sh:1\) bash runs all by itself\n"
                                       r"(.|\n)*nothing ran in parallel: .*\n"
                                       r"0 tests in \S+ on 4 GPU\(s\): none ran on a slot\n$")

    def test_words_that_end_no_handing_over(self) -> None:
        """Those of a test, or arguments, that look like a trap or an option which would."""
        ran = self.conduct(lines("pytest test_bootstrap.py --continue", "pytest test_keyword.py",
                                 "set -- --backend=x+T", 'pytest "$1"'))
        self.assertEqual((ran.code, len(starts(ran.text)), "by itself" in ran.err), (0, 3, False))
        ran = self.conduct(HEAD + lines("IFS=,", 'run() { "$@"; }', "suite() { run pytest a; run pytest b; }",
                                        "suite || test_fail suite"))
        self.assertEqual(starts(ran.text), ["suite", "suite #2"])

    def test_refusals(self) -> None:
        """What a script cannot do is refused before anything starts, with the reason."""
        self.write("list.txt", "python3 list\n")
        self.write("python", "#!/usr/bin/env python3\nprint('never')\n")
        self.write("stdin.sh", "#!/bin/bash\npython3 stdin\n")
        self.write("known.txt", "a # b\n")
        self.write("windows.sh", "#!/bin/bash\r\npython3 a\r\n")
        self.write("binary.sh", "\x7fELF\2\1\1\0\n")
        self.write("bad.sh", HEAD + lines("python3 a || test_fail a #: gpsu=2", "python3 b || test_fail b #: after=a",
                                          "#: timeout=soon", "python3 c || test_fail c"))
        line = HEAD.count("\n") + 1
        cases: Mapping[Sequence[str], Sequence[str]] = {
            ("--shard", "1/2", "test.sh"): ["error: --shard: test.sh is a script"],
            ("-k", "a", "test.sh"): ["error: -k: "], ("--tests", "(", "test.sh"): ["'(' is no regular expression: "],
            ("--only", "list.txt", "test.sh"): ["error: --only: "],
            ("--max-gpus", "1", "test.sh"): ["error: --max-gpus: "],
            ("--skip-code", "77", "test.sh"): ["error: --skip-code: "],
            ("--repeat", "2", "test.sh"): ["error: --repeat: "],
            ("--known-failures", "known.txt", "test.sh"): ["error: --known-failures: "],
            ("--rerun-failed", "test.sh"): ["error: --rerun-failed: "],
            ("test.sh", "list.txt"): ["error: test.sh is a script; it runs alone"],
            ("list.txt", "test.sh"): ["error: test.sh is a script; it runs alone"],
            ("python",): ["python:1: this is a script, but none for bash"],
            ("windows.sh",): ["windows.sh:1: Windows line ends; fix them with `sed -i 's/\\r$//'`"],
            ("binary.sh",): ["binary.sh:1: Windows line ends; fix them with `sed -i 's/\\r$//'`; or a binary file"],
            ("nothing.sh",): ["nothing.sh: cannot read this list"],
            ("-",): ["-:1: a script cannot come from standard input"],
            ("bad.sh",): [f"bad.sh:{line}: unknown key 'gpsu'", f"bad.sh:{line + 1}: after= means nothing",
                          f"bad.sh:{line + 2}: timeout: 'soon'"]}
        self.write("calls/events", "")
        self.write("test.sh", suite("python3 a || test_fail a"))
        for arguments, mistakes in cases.items():
            with self.subTest(arguments), open(os.path.join(self.folder, "stdin.sh"), "rb") as stdin:
                ran = self.end(self.start(*arguments, stdin=stdin))
                self.assertEqual((ran.code, ran.out, self.events(ran)), (2, b"", []))
                told = [line for line in ran.err.splitlines() if not line.startswith("usage:")]
                self.assertEqual([why in line for why, line in zip(mistakes, told)], [True] * len(told), ran.err)
                self.assertFalse(os.path.exists(ran.path("logs")))


class ScoutTest(TrialCase):
    """What the scout does, and what the shell of the script makes of it."""

    def test_it_does_nothing_for_real(self) -> None:
        """Files, programs and traps are the shell's alone, whether tests pass or fail."""
        text = HEAD + lines(
            "trap 'echo bye >>f8; pip3 bye; exit $RET' EXIT; trap 'echo err >>f8; pip3 err' ERR",
            "trap 'echo usr >>f8; pip3 usr' USR1; kill -USR1 $$",
            "exec 3>third; echo three >&3; echo one >f1; echo two >>f1", '{ echo in block; pip3 b; } 2>&1',
            'w() { echo "$1" >"$2"; pip3 w "$1" >>"$2"; mkdir "gone_$1"; rmdir "gone_$1"; }', "w x f3",
            "x=$(pip3 --echo=v >f5; echo val; touch f6)", "mkdir d; cd d; : >here; cd ..",
            "python3 a $x FIRST || test_fail a", "echo two >>f1; printf '%s' a b | tee f4 >/dev/null; printf 2>f8",
            "if pip3 p --exit=3; then echo yes >f7; else echo no >f7; fi",
            "pip3 q --exit=1 || pip3 r && pip3 s; ! pip3 t", "until pip3 u; do :; done",
            "for i in 1 2; do pip3 turn $i --exit=$((i % 2)) && break; done", "pip3 fails --exit=2",
            "python3 b SECOND || test_fail b", "exec >f9", "pip3 x", "python3 c || test_fail c")
        for first, second in (("", ""), ("--exit=1", ""), ("", "--exit=2"), ("--exit=1", "--exit=1")):
            with self.subTest(first=first, second=second):
                ran = self.trial(text.replace("FIRST", first).replace("SECOND", second))
                self.assertEqual((ran.code, starts(ran.text)), (int(first + second != ""), ["a", "b", "c"]))
                self.assertNotIn("went ahead", ran.text)

    def test_words_that_do_something(self) -> None:
        """They do it once; and what stands before a function is for that alone."""
        for text in (lines("CMD=pytest; N=2", "$CMD a --exit=1 --n=$((--N))", "$CMD b --n=$N", "exit $N"),
                     lines("CMD=pytest; n=1", "pytest a; echo $((n++)) >&2", "$CMD b$n ${x:=y}; $CMD $x"),
                     lines('run() { pytest "$@"; }', "X=1 run a", "run b", "run c")):
            with self.subTest(text):
                ran = self.trial(text)
                self.assertNotIn("has not come to tests", ran.text)

    def test_commands_of_subshells_speak_of_their_place(self) -> None:
        """What bash says of them has the script's name and line; a trap for ERR has the command."""
        self.trial(lines(
            "(kill -0 999999)", "pip3 x | while read -r 5x; do :; done", "(pip3 x --signal=SEGV; echo $?)",
            "(trap 'echo \"$BASH_COMMAND $LINENO\"' ERR; pip3 x --exit=1; pip3 y --exit=2)", "pytest z"))

    def test_commands_of_subshells_behave_as_under_bash(self) -> None:
        """What the shell does to hear of their ends and their output is seen neither by them nor by the script."""
        for text in ("for i in $(pip3 --echo=1; wait; echo 2); do echo $i; done",
                     "for i in $(sleep 60 >/dev/null & pip3 x; kill $! && wait; echo $?); do echo $i; done",
                     "f() { pip3 x; for i in 1 2 3 4; do echo $i; echo $i$i >&2; done; }; echo $(f 2>&1)",
                     "set -a; grep -c BASH_FUNC /proc/self/environ | cat",
                     "IFS=12; (pip3 x --exit=1); echo \"$?\"",
                     "(eval \"echo ${X:?is not there}\"); eval \"echo ${X:?is not there, too}\"",
                     "GLOBIGNORE='*'; set +B -f -C; for i in $(pip3 --echo=1 | cat; exec >&-); do echo $i; done",
                     "for i in 1 2; do id -u | cat; id() { echo mine; }; done; id", "pwd | cat; type id | cat"):
            with self.subTest(text):
                ran = self.trial(lines(text, "pytest z"))
                self.assertNotIn("went ahead", ran.text)

    def test_builtins_in_pipelines_tell_of_their_ends(self) -> None:
        ran = self.trial(HEAD + lines("pwd | wc; type a | wc", "python3 a || test_fail a", "pytest b || test_fail b"))
        self.assertNotIn("bash has come to", ran.text)

    def test_where_it_is_lost(self) -> None:
        """One line says where; the rest runs one by one, with bash's status."""
        for name, where, why in (
            ("a sum", "pip3 $((X=3))", "only bash knows what changes by `pip3 "),
            ("a block", "{ python3 x $X || test_fail x; } >log", "a block writes log"),
            ("a function", 'f() { echo "$1"; }; f 1 >log', "only bash can run `f 1 > log`"),
            ("a part", "for i in $( (pip3 x) ); do X=4; done", "in a job or a part of a `$(…)`, `pip3 x`"),
            ("a comment", "#: one-by-one", "`#: one-by-one`"),
        ):
            with self.subTest(name):
                ran = self.trial(HEAD + lines(
                    "python3 a --slow || test_fail a", where, "python3 b $X --slow || test_fail b",
                    "python3 c --exit=5 || test_fail c", "exit ${X-$RET}"))
                told, = lines_of(ran.text, "run_tests.py: ")
                self.assertRegex(told, "tests ran while no other did; .*: .*" + re.escape(why))
                words = " ".join(["python3 b", *re.findall("X=(3|4)", where), "--slow"])
                self.assertEqual(beside(ran.events, words), [])


class AheadTest(ScriptCase):
    """What the scout finds, and what comes of it."""

    def overlap(self, tests: int, *text: str) -> Ended:
        """Run a script whose tests wait for each other; so many pass."""
        ran = self.conduct(lines(*text), "--timeout", "9s")
        self.assertEqual((ran.code, list(ran.outcomes().values())), (0, ["passed"] * tests), ran.text + ran.err)
        return ran

    def test_what_programs_say_reaches_it(self) -> None:
        """Output, files, folders, and failures: the tests behind them overlap."""
        ran = self.overlap(
            2, HEAD, "X=$(pip3 --echo=sub); mkdir $X; cd $(pip3 --echo=$X)", "pip3 --echo='q r' >../v",
            "read -r A B <../v; mapfile -t D < <(echo $B)", "if pip3 x --exit=1; then C=then; else C=else; fi",
            "pip3 y --exit=4 || C+=-or", "[ -e none ] || C+=-no", "export C", "IFS= read -r N </dev/null || C+=-end",
            "python3 $A $X --beside=r || test_fail $A", "cd ..", "python3 ${D[0]} $C --beside=q || test_fail $B",
            "exit $RET")
        self.assertEqual((sorted(began(self.events(ran))[-2:]), ran.err),
                         (["python3 q sub --beside=r", "python3 r else-or-no-end --beside=q"], ""))

    def test_what_a_builtin_gets_reaches_it(self) -> None:
        """By each `$(…)`: its output, also where it is code, and its status."""
        ran = self.overlap(
            2, """eval "$(pip3 --echo='f() { pytest "$@"; }; A=a')"; source <(pip3 --echo=B=b)""",
            'C=$(pip3 --echo=c --exit=3) || C+=d', '[[ $(pip3 --echo=e) == x ]] || C+=e',
            'Y=$(pip3 x)', 'for i in $(pip3 --echo=i | sort) "$(pip3 x; pip3 y)"; do C+=${#i}; done',
            'if [[ $(pip3 --echo=f) =~ (.) ]]; then C+=${BASH_REMATCH[1]}; fi', "set -- $(pip3 --echo='g h')",
            'g() { echo "j$(pip3 --echo=j)"; }; for i in $(g); do C+=$i; done',
            '(pip3 $A; exit 4) || C+=$?', 'f $A$C --beside=b$2', 'f $B$2 --beside=$A$C')
        self.assertEqual(sorted(began(self.events(ran))[-2:]),
                         ["pytest acde115fjj4 --beside=bh", "pytest bh --beside=acde115fjj4"])

    def test_tests_overlap_wherever_they_stand(self) -> None:
        """In pipelines, subshells, jobs, functions and conditions."""
        ran = self.overlap(
            14, "run_tests() {", "pytest a --beside=b", "pytest b --beside=a", "}", "run_tests | tee x",
            "f() { pytest $1; }", "(pytest c --beside=d)", "(cd . && pytest d --beside=c) || exit 3",
            "f 'e --beside=f'", "while ! f 'f --beside=e' | cat; do :; done", "echo $(pytest g --beside=h)",
            "time pytest h --beside=g", "pytest i --beside=j & pytest j --beside=i & wait",
            'CMD=f; $CMD "k --beside=l"; eval "f l\\ --beside=k"',
            'for i in m=n n=m; do [[ $i =~ (.)= ]] && pytest ${BASH_REMATCH[1]} --beside=${i#*=}; done')
        self.assertEqual(ran.read("x"), "pytest: a --beside=b\npytest: b --beside=a\n")
        self.assertNotIn("while no other did", ran.err)

    def test_jobs_and_their_labels(self) -> None:
        """Jobs come to their tests at once: each has its own label, and its failure is told once."""
        names = "abcde"
        jobs = [f"{each}() {{ python3 {each} --exit=1 || test_fail {each}; }}" for each in names]
        ran = self.conduct(HEAD + lines(*jobs, " & ".join(names) + " & wait"))
        self.assertEqual(sorted(ran.failures()), list(names))
        self.assertEqual(sorted(began(self.events(ran))), [f"python3 {each} --exit=1" for each in names])

    def test_what_a_test_prints_may_be_a_value(self) -> None:
        """The scout waits for that test, and goes on."""
        self.overlap(3, "x=$(pytest --echo=c)", "pytest b --beside=$x", "pytest $x --beside=b")

    def test_what_holds_nothing_up(self) -> None:
        self.overlap(2, "V=false", "if [[ $(pip3 x) ]]; then V=$V; fi", "CXX=g++ LOG=$V.csv pytest a --beside=b",
                     "if $V; then echo x; fi", "V=true",
                     'x=$(awk "BEGIN{print 1 + 2}"); export CXX=g++', "LOG=$V.csv pytest b --beside=a")

    def test_a_sum_that_the_scout_cannot_know(self) -> None:
        """It waits for that, and goes the same way."""
        self.overlap(2, "if ((SECONDS > 300)); then exit 1; fi", "pytest a --beside=b", "pytest b --beside=a")

    def test_a_builtin_that_only_values_name(self) -> None:
        """No test runs ahead without what that has changed."""
        for change in ("run export A=1", 'C="export A=1"; $C', "run eval export A=1", "run . ./env"):
            for handled in ("", " || test_fail b"):
                ran = self.conduct(lines('run() { "$@"; }', "echo export A=1 >env", "pytest a" + handled, change,
                                         "pytest b $A" + handled))
                self.assertEqual((ran.code, began(self.events(ran))), (0, ["pytest a", "pytest b 1"]), change)
        # One that its own text names it waits for, also where that is all of the text.
        self.write("list", "1\n2\n")
        self.overlap(2, "while read; do : $REPLY; done <list", "pytest a --beside=b", "pytest b --beside=a")

    def test_a_check_of_a_file_that_only_a_value_names(self) -> None:
        for check in ('C="[ -e made ]"; $C', 'C="[ ! -e made ]"; ! $C'):
            ran = self.conduct(lines(": >made", "bash -c 'sleep 0.3; rm made' tests/a", f"{check} && pytest b",
                                     "exit 0"))
            self.assertEqual((ran.code, began(self.events(ran))), (0, []), check)

    def test_traps_that_hold_nothing_up(self) -> None:
        """One for a signal in a job, and one whose commands name a variable with CHLD in its name."""
        self.overlap(2, "trap 'kill $CHLD_PID 2>/dev/null' EXIT", "serve() { trap 'exit 0' TERM; :; }",
                     "serve & CHLD_PID=$!", "pytest a --beside=b", "pytest b --beside=a")

    def test_what_takes_the_time_of_tests(self) -> None:
        self.overlap(2, "run() {", "local start end status", "start=$(date +%s)", '"$@"', "status=$?",
                     'end=$(date +%s); echo "$1: $((end - start))"; return $status', "}", "run pytest a --beside=b",
                     "run pytest b --beside=a")

    def test_functions_by_other_names(self) -> None:
        """Their programs are waited for, as is a file; nothing has gone ahead of them where all pass."""
        several = "f() { for i in 1 2 3 4 5 6 7 8; do pip3 $i --slow; done; }"
        for call in ("CMD=f; $CMD", 'run() { "$@"; }; run f', "eval f", "echo x >log; f"):
            with self.subTest(call):
                ran = self.overlap(3, HEAD, several, "python3 a --slow || test_fail a", call,
                                   "python3 b --beside=c || test_fail b", "python3 c --beside=b || test_fail c",
                                   "exit $RET")
                alone = [beside(self.events(ran), words) for words in ("python3 a --slow", "pip3 8 --slow")]
                self.assertEqual(("went ahead" in ran.err, alone), (False, [[], []]))

    def test_subshells_with_programs(self) -> None:
        """The shell tells of a program's end before it goes into one, and in one, also of the last there."""
        for text in ("pip3 x; (pytest b --beside=c)", "(cd . && pip3 x --exit=3) || pytest b --beside=c",
                     "f() { pip3 a; pip3 x; }; f | tee log; pytest b --beside=c",
                     "f() { pip3 a; pip3 x; }; f | grep -q 'pip3: x' && pytest b --beside=c",
                     "(pip3 x | grep -q x; [ -e none ] || pip3 y) && pytest b --beside=c",
                     "eval pip3 x 2>&1 | tee log; pytest b --beside=c",
                     "set -o pipefail; [ -e none ]; pip3 x | cat && pytest b --beside=c",
                     "run() { \"$@\" 2>&1 | tee log; }; X='pip3 x'; run $X; ($X); $X | cat; pytest b --beside=c",
                     "set -o pipefail; [ -e none ]; eval 'pip3 x | cat' && pytest b --beside=c",
                     "f() { echo x; pwd; pip3 x; pytest b --beside=c; }; f | tee log",
                     "set -e; f() { pip3 x; return 3; }; f | cat; pip3 x --exit=3 | tail; pytest b --beside=c",
                     "printf '%s\\n' 1 2 | while IFS= read -r n; do pip3 $n; done; pytest b --beside=c"):
            with self.subTest(text):
                self.overlap(3, "pytest a", text, "pytest c --beside=b")

    def test_commands_that_are_not_mixed_up(self) -> None:
        """The end of one is not that of another, and a pipeline ends as its last command: so no test runs too much."""
        self.write("names", "a,b\n")
        for text in ("f() { [[ -f x ]]; }; (f) && pytest a; touch x; f && pytest b",
                     "f() { x=$(pip3 x --exit=$1); }; (f 1) && pytest a; (f 0; :) && pytest b",
                     "set -E; f() { pip3 x --exit=$1; }; trap : ERR; (f 1) && pytest a; (f 0; :) && pytest b",
                     'f() { pip3 --echo=$1; }; f a; for i in "$(f a)"; do pytest $i; done',
                     "for i in $(pip3 --echo='1 0'); do pytest --exit=$i; done",
                     "shopt -s expand_aliases; set -o pipefail\nalias p='pip3 x --exit=3'\np | cat && pytest a",
                     "set -o pipefail; pip3 x --exit=1 | cat && pytest a; pip3 x --exit=1",
                     "pytest b; if echo x | grep -q y; then pytest a; fi; pip3 x | grep -q y && pytest a",
                     'set -o pipefail; run() { "$@" | cat; }; run pip3 x --exit=3 && pytest a',
                     "set -o pipefail; X=pip3; $X x --exit=3 | cat && pytest a",
                     "set -o pipefail; x=$(pip3 x --exit=3) | cat && pytest a",
                     "set -E -o pipefail; trap : ERR; pip3 x --exit=3 | cat && pytest a",
                     "(X=1 pip3 x; pytest a; pytest b); IFS=, read -r i <names; for i in $N; do pytest $i; done"):
            with self.subTest(text):
                ran = self.conduct(lines("N=$'d\\ne'", text, "pytest z"))
                self.assertEqual((ran.code, re.findall("went ahead|ran ahead of it", ran.err)), (0, []))

    def test_a_failure_that_later_tests_see(self) -> None:
        """They run with what bash gives them, whatever has run ahead, which is named."""
        Fifo(self, "up")
        ran = self.conduct(HEAD + lines(
            "export SEEN=0", "bash -c 'read x <>up; exit 1' || { eval SEEN\\=1; test_fail a; }",
            "bash -c 'echo x 1<>up; echo it is $SEEN | tee -a ran' || test_fail b", "python3 c$SEEN || test_fail c",
            "exit $RET"), "--timeout", "9s")
        self.assertEqual((ran.code, errors(ran.text), lines_of(ran.text, "it is")), (1, ["a"], ["it is 1"]))
        self.assertEqual(ran.read("ran"), "it is 0\nit is 1\n")
        self.assertIn("python3 c1", began(self.events(ran)))
        self.assertRegex(ran.err, r"the script has not come to tests that ran ahead of it: b\b")

    def test_a_test_that_is_tried_again(self) -> None:
        """What runs beside it the first time does so the second time."""
        Fifo(self, "up")
        retry = 'retry() { "$@" || { sleep 0.1; "$@"; }; }'
        for text in (lines(retry, "retry bash -c '[ -e s ] || { read x <>up; >s; exit 1; }' tests/first || exit 1",
                           "retry bash -c '[ -e t ] || { read x <>up; >t; exit 1; }' tests/a || exit 1"),
                     lines("for n in u v; do for i in 1 2; do",
                           "bash -c '[ -e $0 ] || { read x <>up; >$0; exit 1; }' $n tests/a && break",
                           "sleep 0.1", "done; done")):
            with self.each(text):
                ran = self.conduct(text + "bash -c 'printf \"x\\ny\\n\" 1<>up' tests/b\n")
                self.assertEqual((ran.code, len(starts(ran.text)), "went ahead" in ran.err), (0, 5, False))

    def test_a_job_that_comes_to_its_test_before_the_scout(self) -> None:
        """It has not gone another way: the scout waits there for a file of another test."""
        ran = self.conduct(lines('f() { sleep $2; bash -c "sleep $3" tests/$1 $4; }', "f a 1.5 0 &", "f b 0 1 m.csv &",
                                 "sleep 0.5", "f b 0 0 m.csv &", "wait"), "--calm", "sleep")
        self.assertEqual((ran.code, len(starts(ran.text)), "went ahead" in ran.err), (0, 3, False), ran.err)

    def test_what_only_a_failure_does(self) -> None:
        """A handler that goes elsewhere and back lets no test run twice; a trap that is mended has not run again."""
        for handler in ("pushd / >/dev/null; popd >/dev/null", "trap 'rm -f x' EXIT"):
            with self.each(handler):
                ran = self.conduct(lines("trap 'echo err; ls none' ERR", f"test_fail() {{ {handler}; RET=1; }}",
                                         "pytest a --exit=1 || test_fail a", "pytest b || test_fail b", "exit $RET"))
                self.assertEqual((ran.code, len(starts(ran.text)), ran.err.count("has not come")), (1, 2, 0))

    def test_variables_that_a_program_has_set(self) -> None:
        """The scout declares them as the script does: with their attributes, and in their function alone."""
        for text, words in (("n=x; f() { local n=$(pip3 --echo=v); }; f", "$n"),
                            ("declare -A n=([a]=$(pip3 --echo=v) [b]=x)", "${n[b]}"),
                            ("declare -i n=$(pip3 --echo=1); n+=2", "$n")):
            with self.each(text):
                ran = self.conduct(lines("pytest a", text, f"pytest b {words}", "pytest c"))
                self.assertEqual((ran.code, len(starts(ran.text)), "went ahead" in ran.err), (0, 3, False))

    def test_variables_of_other_names(self) -> None:
        """What a nameref names only bash sets; a variable of the same name elsewhere is like any other."""
        get = "get() { local -n out=$1; out=$(pip3 $1); }"
        ran = self.conduct(lines(get, "get V", "pytest a $V", "pytest b $V"))
        self.assertIn("first reason to wait: only bash can run `out=$(pip3 $1)` (test.sh:1)", ran.err)
        self.overlap(2, get, "out=$(pip3 x)", "pytest a $out --beside=b", "pytest b $out --beside=a")

    def test_a_variable_that_a_failure_sets(self) -> None:
        """A test that gets it, exported or in its words, starts when the script comes to it; so nothing goes ahead."""
        for export, word, name in (("export RET", "", "RET"), ("set -euao pipefail", "", "FAILED_CASES"),
                                   ("", "$RET", "RET"), ("export i=0", "", "i")):
            with self.each(export + word):
                ran = self.conduct(HEAD + lines(export, "python3 a --slow --exit=1 || { test_fail a; i=1; }",
                                                f"python3 b{word} || test_fail b", "exit 0"))
                self.assertEqual((ran.code, began(self.events(ran))[1:]), (0, [f"python3 b{word and 1}"]))
                self.assertRegex(ran.err, rf"test.sh:\d+ gets {name}, which is set where a test fails")

    def test_programs_with_names_of_what_has_begun(self) -> None:
        """No place in the script is `main`, and a function may unset itself: each program starts once."""
        self.stub("main", STUB)
        for text, programs in (("main a || test_fail a", "main a"),
                               ("pip3() { unset -f pip3; pip3 --exit=2 || cmake y; }; pip3", "cmake y|pip3 --exit=2")):
            with self.each(text):
                ran = self.conduct(HEAD + lines(text, "python3 b || test_fail b", "cmake z"))
                expected = sorted([*programs.split("|"), "cmake z", "python3 b"])
                self.assertEqual(sorted(began(self.events(ran))), expected)
                self.assertEqual((ran.code, "has not come" in ran.err), (0, False))

    def test_a_test_that_reads_and_gets_what_a_failure_sets(self) -> None:
        """The scout goes on once the script has come to it."""
        ran = self.conduct(HEAD + lines("python3 a --exit=1 || test_fail a",
                                        "{ for i in 1; do python3 b$RET || test_fail b; done; } </etc/passwd",
                                        "python3 c --beside=d || test_fail c", "python3 d --beside=c || test_fail d",
                                        "exit $RET"), "--timeout", "9s")
        self.assertEqual((ran.code, sorted(ran.failures())), (1, ["a"]), ran.text + ran.err)

    def test_the_label_of_what_has_run_ahead(self) -> None:
        """One that the script does not come to is blamed for nothing, and has its label first."""
        for status, told in (("$SEEN", ["b"]), ("$((1 - SEEN))", [])):
            with self.each(status):
                ran = self.conduct(HEAD + lines("export SEEN=0",
                                                "python3 a --beside=b --exit=1 || { eval SEEN\\=1; test_fail a; }",
                                                f"python3 b --exit={status} || test_fail b", "exit $RET"))
                self.assertEqual((ran.code, errors(ran.text)), (1, ["a", *told]))
                self.assertEqual(ran.failures(), ["a", *(f"{label} #2" for label in told)])

    def test_a_file_behind_a_failure(self) -> None:
        """A test that had begun may have missed it: this is no pass."""
        text = HEAD + lines("python3 a --beside=b --exit=1 || { test_fail a; echo x >file; }",
                            "python3 b file || test_fail b")
        ran = self.conduct(text, "--timeout", "9s")
        self.assertEqual((ran.code, ran.outcomes()), (1, {"a": "failed", "b": "passed"}))
        self.assertIn(f"b went ahead of `echo x > file` (test.sh:{HEAD.count(chr(10)) + 1}), behind a failure", ran.err)
        self.assertNotIn("went ahead", self.conduct(text + "exit 4\n").err)      # which is no pass by itself
        for command, told in (("rm -f file", True), ("echo x >file", True), ("echo x >>log", False)):
            with self.each(command):    # a failure that may have come by that
                ran = self.conduct(HEAD + lines(f"python3 a --beside=b --exit=1 || {{ test_fail a; {command}; }}",
                                                "python3 b --exit=1 || { test_fail b; exit 6; }"), "--timeout", "9s")
                self.assertEqual((ran.code, "b went ahead of `" in ran.err), (6, told), ran.err)

    def test_a_loop_over_files(self) -> None:
        """Behind a failure, too, it is no doubt, unless that test has made such a file."""
        Fifo(self, "up")
        for name in ("a.t", "b.t"):
            self.write(name, "")
        for made, code in (("x", 0), ("c.t", 1)):
            with self.each(made):
                test = f"[ $0 = tests/b.t ] && echo >up || {{ read x <up; >{made}; }}; exit 1"
                ran = self.conduct(lines(f"for f in *.t; do bash -c '{test}' tests/$f || RET=1; done", "exit 0"))
                self.assertEqual((ran.code, "went ahead of `for f in" in ran.err), (code, code == 1), ran.err)

    def test_a_folder_in_a_subshell(self) -> None:
        """Behind a failure, too, it is no doubt, unless a test that went ahead has made it."""
        ran = self.conduct(lines("pytest a --exit=1", "(cd / && pytest b)", "D=$(CDPATH= cd -- tests/.. && pwd)",
                                 "f() { pushd $1 >/dev/null; pytest c; }", "(f /)", "exit 0"))
        self.assertEqual((ran.code, len(starts(ran.text)), "went ahead" in ran.err), (0, 3, False), ran.err)
        Fifo(self, "up")
        ran = self.conduct(lines("bash -c 'read x <up; exit 1' tests/a", "(CDPATH= cd made) || :",
                                 "bash -c 'mkdir made; echo >up' tests/b", "exit 0"))
        self.assertEqual((ran.code, "tests/b went ahead of `CDPATH= cd made`" in ran.err), (1, True), ran.err)

    def test_a_source_that_changes(self) -> None:
        """Behind a failure, too, it is no doubt, unless it has changed, or is there only now."""
        Fifo(self, "up")
        for made, words, code in (("x", "./env.sh", 0), ("env.sh", "./env.sh", 1), ("./new.sh", "./new.sh", 1),
                                  ("x", '"${BASH_SOURCE%test.sh}./env.sh"', 0), ("x", "./env.sh $(echo)", 1)):
            with self.each(f"{made} {words}"):
                self.write("env.sh", "X=1\n")
                ran = self.conduct(lines("bash -c 'read x <up; exit 1' tests/a", f". {words}",
                                         f"bash -c 'echo X=2 >{made}; echo >up' tests/b", "exit 0"))
                is_told = f"tests/b went ahead of `. {words}`" in ran.err
                self.assertEqual((ran.code, is_told), (code, code == 1), ran.err)

    def test_a_glob_that_finds_nothing(self) -> None:
        """Under failglob bash opens no file for the `tee`, and runs the test."""
        ran = self.conduct(lines("shopt -s failglob", "pytest a | tee x*.log || :", "pytest b"))
        self.assertEqual((ran.code, len(starts(ran.text))), (0, 2), ran.err)

    def test_a_loop_over_many_files(self) -> None:
        """Each of the two shells tells only once what it finds there."""
        self.drive("take = run_tests.ScriptRun.on_moved", "def told(run, number, *found):",
                   "    print(len(found), file=open('found', 'a'))", "    take(run, number, *found)",
                   "run_tests.ScriptRun.on_moved = told")
        for number in range(98):
            self.write(f"{number}.t", "")
        ran = self.conduct(lines("pytest a", "for f in *.t; do :; done", "pytest b"))
        self.assertEqual((ran.code, ran.read("found").split()), (0, ["100"] * 2))

    def test_what_a_scout_has_asked_before_its_end(self) -> None:
        """Nothing runs ahead any more: the script may have been told that nobody needs to know what it does."""
        self.drive("take, numbers = run_tests.ScriptRun.handle, set()", "def told(run, event):",
                   "    if isinstance(event, list) and event[2:4] == ['scout', 'test']:",
                   "        numbers.add(event[8])", "        len(numbers) < 2 or run.on_lost('it has gone')",
                   "    take(run, event)", "run_tests.ScriptRun.handle = told")
        ran = self.conduct(lines("pytest a --slow --slow", "pytest b"))
        self.assertEqual((ran.code, beside(self.events(ran), "pytest a --slow --slow")), (0, []))

    def test_an_end_that_bash_does_not_tell(self) -> None:
        """The reason says how to write it."""
        text = lines("set -E", "trap 'E=1' ERR", "f() { (pip3 $1 --exit=1); }", "f x || :", "f y || :", "pytest a",
                     "pytest b")
        reason = "`pip3 $1 --exit=1` (test.sh:3); `bash -c` in place of the ( ) around it helps\n"
        self.assertIn(f"2 tests ran while no other did; first reason to wait: bash has not told the end of {reason}",
                      self.conduct(text).err)
        ran = self.conduct(text.replace("(pip3 $1 --exit=1)", "bash -c 'exit 1'"))
        self.assertNotIn("ran while no other did", ran.err)

    def test_what_the_scout_comes_to_too_late_in_each_turn(self) -> None:
        """There it waits for the script, and goes ahead again."""
        self.overlap(8, "for i in 1 2; do", "bash -c 'sleep 0.5' tests/c m$i.csv & bash -c : tests/d m$i.csv &",
                     "[[ -d repo$i ]] || { mkdir repo$i; bash -c 'sleep 0.5'; }", "pytest e$i", "done",
                     "pytest a --beside=b", "pytest b --beside=a")

    def test_one_by_one(self) -> None:
        """From such a comment on."""
        ran = self.overlap(4, "pytest a --beside=b", "pytest b --beside=a", "#: one-by-one", "pytest c --slow",
                           "pytest d")
        self.assertEqual(beside(self.events(ran), "pytest c --slow"), [])
        self.assertIn("2 tests ran while no other did; first reason to wait: `#: one-by-one`", ran.err)

    def test_a_program_between_tests(self) -> None:
        """Where each waits for it, the run says how it need not; the tests below a calm one may need what that does."""
        ran = self.conduct(lines("pytest a", "pip3 x", "pytest b"))
        self.assertRegex(ran.err, r"to wait: `pip3 x` \(test\.sh:2\) waits for the test before it; above all tests it "
                                  r"costs nothing, and --calm REGEX names what no test needs\n")

    def test_files_that_tests_share(self) -> None:
        """A test waits for the one that writes a file that it names."""
        slow = 8 * " --slow"        # the scout is quicker
        for way in (">x.log", "2>&1 | tee x.log", "| tail -1 >>$PWD/x.log", "--out=x.log", "--junitxml x.log"):
            with self.subTest(way):
                text = lines(f"pytest a{slow} {way}", "cd .", "pytest b --file=x.log || exit 1", "pytest c")
                ran = self.conduct(text)
                self.assertEqual((ran.code, ran.err.count("waits for a test that has")), (0, 1))
                self.assertNotIn(began(self.events(ran))[0], beside(self.events(ran), "pytest b --file=x.log"))

    def test_a_file_of_a_test_that_the_script_starts(self) -> None:
        """A later test waits for that, too."""
        for trap in ("", "trap : USR1"):
            for way in (">x.log", "2>&1 | tee x.log"):
                with self.subTest(trap + way):
                    ran = self.conduct(lines(trap, f"pytest $${8 * ' --slow'} {way}", "pytest b --file=x.log"))
                    first, second = began(self.events(ran))
                    self.assertEqual((ran.code, second), (0, "pytest b --file=x.log"))
                    self.assertNotIn(first, beside(self.events(ran), second))
        ran = self.conduct(lines("RANDOM=42", "a=$RANDOM b=$RANDOM", "RANDOM=42", "pytest a >x.$RANDOM",
                                 "[ $RANDOM = $b ] || exit 7"))
        self.assertEqual(ran.code, 0, "the name of a file has asked for RANDOM twice")


class ReadingTest(unittest.TestCase):
    """What is read of a script before it runs, and of a command as it comes."""

    def read(self, *text: str, looks: bool = False) -> Tuple[Script, ScriptFile]:
        script = Script(Options([], tests=LOOKS_LIKE_TEST if looks else None))
        return script, script.read("test.sh", lines(*text))

    def test_sites(self) -> None:
        _, file = self.read(
            "A=1 python3 a \\", '  "$x" || test_fail "a $x"   #: gpus=2',
            "(cd d && pytest b `which c`) || { test_fail b; exit 3; }", "#: timeout=5m",
            "pytest c 2>&1 | tee c.log | tail -1 || test_fail c",
            'run "$@" >log 2>&1 <in || test_fail', "x=$(date) || test_fail no", "pytest d",
            "pytest e $(make) 2>err || test_fail \"$(make)\"  #: gpus=0")
        self.assertEqual([(site.line, " ".join(site.node.all_words), site.label) for site in file.sites], [
            (1, 'A=1 python3 a "$x"', '"a $x"'), (3, "pytest b `which c`", '"b"'), (5, "pytest c", '"c"'),
            (6, 'run "$@"', '""'), (9, "pytest e $(make)", "'$(make)'")])      # nothing runs for a label
        self.assertEqual([site.file_words for site in file.sites], [[], [], ["c.log"], ["log", "in"], ["err"]])
        self.assertEqual([(site.splits, site.waits_for_shell) for site in file.sites],
                         [(None, False), (None, False), (False, False), (False, True), (True, True)])
        self.assertEqual([(site.attributes.gpus, site.attributes.timeout) for site in file.sites],
                         [(2, None), (None, None), (None, 300), (None, 300), (0, 300)])
        self.assertEqual(file.filters, {("tee", "c.log"), ("tail", "-1")})
        node = file.sites[0].node
        self.assertEqual([file.by_place[place_of(line, node)] for line in (1, 2, 3)], [file.sites[:1]] * 2 + [[]])
        # As bash 5.2 and later lay it out.
        _, file = self.read("pytest $(cat a 2>b|c;d) <(e&&f)")
        (node,) = Reader("pytest $(cat a 2> b | c; d) <(e && f)").nodes
        self.assertEqual(file.by_place[place_of(1, node)], file.sites)

    def test_a_long_word_is_read_in_linear_time(self) -> None:
        """As of a file inside a script, by base64: in a second, else in an hour."""
        word = "0123456789abcdef" * 50_000
        _, file = self.read(f"x={word}", f"pytest a || y={word}", "f() { :; }", looks=True)
        self.assertEqual(file.defines, {"f"})

    def test_what_env_and_timeout_are_given_is_no_test(self) -> None:
        """That a command is none is known at once, also where it has long lists of folders or many options."""
        looks_like_test = Options(["test.sh"]).looks_like_test
        for words in ("env LIB=/x/tests/lib ./tool", "timeout -k 5 9 ./tool", f"env LIB={'/x/lib:' * 9000} ./tool",
                      f"timeout {'-k5 ' * 90} ./tool", "test -f x", "timeout 9 test -f x",
                      "python3 -c import pytest", "python -c import a, my_test", "python -c import a; import my_test"):
            self.assertFalse(looks_like_test(words), words[:40])
        for words in ("env LIB=/x/lib tests/a.sh", "timeout -k5 -v -s KILL 9 pytest a",
                      "timeout --signal KILL --kill-after=5 9 pytest a", "srun -N 1 -p gpu --mpi=pmix -l pytest a",
                      "srun -n2 pytest a", "/x/gtests/A_TEST --b", "env -u A B=1 bin/someTests",
                      "timeout $T pytest a", 'timeout "${T:-5}" tests/a', "./test -f x", "sh test -x",
                      "bash -c import; tests/a", "nosetests a", "build/unittests", "./unittest -v"):
            self.assertTrue(looks_like_test(words), words)

    def test_a_group_whose_handler_has_no_label(self) -> None:
        _, file = self.read("{ pytest a; make; } || test_fail")
        self.assertEqual([(site.node.text, site.label) for site in file.sites], [("pytest a", '""')])

    def test_a_handler_in_a_group_with_a_handler_is_no_test(self) -> None:
        script, file = self.read("{ make || test_fail a; pytest b; } || test_fail c")
        self.assertEqual([(site.node.text, site.label) for site in file.sites], [("make", '"a"'), ("pytest b", '"c"')])
        self.assertRegex(script.kind(file, 1, "test_fail a", ("function",)), '; _rt_failed "a"$')

    def test_what_keeps_it_from_running_ahead(self) -> None:
        _, file = self.read("for x in a; do pytest $x || test_fail $x; done 2>/dev/null", "#: one-by-one",
                            "{ pytest b || test_fail b; } >log", "pytest c || test_fail c #: gpsu=1",
                            "pytest d || test_fail d; pytest d || test_fail e")
        self.assertEqual((file.obstacle, file.one_by_one), ("test.sh:3: a block writes log", 2))
        self.assertEqual([told.partition(" in ")[0] for told in file.mistakes], ["test.sh:4: unknown key 'gpsu'"])
        self.assertEqual(len(file.by_place[5, "pytest d"]), 2)       # which of them it is

    def test_kinds_of_commands(self) -> None:
        """By their words; tests by their place, too, where handlers tell them."""
        text = "python3 a || test_fail a", "pytest b", "pytest c | tee log", "f d || test_fail d", "f d* || test_fail e"
        for looks in (False, True):
            script, file = self.read(*text, looks=looks)
            for (line, words, *functions), kind in KINDS.items():
                with self.subTest(line=line, words=words, looks=looks):
                    code = script.kind(file, line, words, functions or [""])
                    stands = "aside" not in code or line == 9  # where the script has nothing
                    prefixes = r"_rt_(checks\S+; |aside value; |(?:joins|gets)=\S+ |names \S+ |is_function \S* \|\| )"
                    name = re.sub(rf"{prefixes}| .*", "", code, flags=re.DOTALL)
                    self.assertEqual((name, stands), (kind[looks % len(kind)], True))

    def test_times_that_are_only_shown(self) -> None:
        for line, is_shown in [("echo $t", True), ("y=$((1 - t)); pytest $y", False),
                               ("printf -v x %s $t; echo $x", True), ("printf -v x %s $t; pytest $x", False),
                               ("local n=$1 t; pytest $n; echo $t", True), ("local n=${t%s}; pytest $n", False),
                               ("a[t]=1; pytest ${a[@]}", False)]:
            _, file = self.read("t=$(date)", line)
            self.assertEqual(file.only_shows("t"), is_shown, line)

    def test_paths_of(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "test_a.py").touch()
            pathlib.Path(folder, "old.json").touch()
            paths = paths_of(folder, "x", "test_a.py::T", "test_no.py", "--out=m", "--out=m.sh", "-o", "n.x",
                             "--log=l.txt", "old.json", "sub", "--master_port", "2950", "--rdzv-endpoint=h:0",
                             "--basetemp=b")
            own = [os.path.relpath(path, folder) for path, is_own in paths.items() if is_own]
        self.assertEqual(own, ["test_a.py", "m.sh", "n.x", "l.txt", "2950", "b"])

    def test_coverage_is_a_shared_file(self) -> None:
        """Else `--cov-fail-under` passes by what another test has covered."""
        for owns, *lines in [
            ([".coverage"], "pytest --cov", "/bin/pytest -q --cov=a b", "python3 -m pytest --cov a",
             "pytest a --cov-append", "coverage run -a -m pytest", "python3 -m coverage run --source=a -m unittest",
             "coverage run --omit a --source b -m pytest -p c", "coverage run a.py", "coverage run -a a.py --path=b"),
            ([], "pytest --no-cov", "pytest --cov-report=term --cov-config=a", "./run_a.sh --cov=a", "coverage report",
             "coverage run -p -m pytest", "coverage run --omit a --parallel-mode -m pytest"),
            (["c"], "pytest --cov=a COVERAGE_FILE=c"),
        ]:
            for line in lines:
                own = [path for path, is_own in paths_of("", *line.split()).items() if is_own]
                self.assertEqual(own, owns, line)

    def test_what_a_shell_asks_is_written_at_once(self) -> None:
        """Else it mixes with what the other shell asks. A bash with its own malloc writes 1008 bytes at once."""
        ask = ASK + '_rt_folder=$PWD _rt_reply= _rt_role=shell; _rt_send did "$@" 191>&1'
        for size, is_whole, words in (
                (900, True, ["x" * 880]), (99, False, ["\u65e5" * 880]), (99, False, ["x"] * 600)):
            with self.subTest(size=size, words=len(words)), tempfile.TemporaryDirectory() as folder:
                sent = subprocess.run(["bash", "-c", "IFS=;" + ask, "-", *words], cwd=folder, stdout=subprocess.PIPE,
                                      env={**os.environ, "LC_ALL": "C.UTF-8"}, check=True).stdout
                self.assertLessEqual(len(sent), size)
                self.assertEqual(os.listdir(folder) == [], is_whole)

    def test_read_program(self) -> None:
        """As the hook tells of it: its environment, one only, and where that is the same again, without it."""
        tells = re.search(r"(?ms)^_rt_program\(\) \{.*?^\}$", ASK)
        assert tells is not None
        text = tells.group() + r"""
            _rt_cat=cat _rt_asked=0 _rt_whole=
            in_folder() { _rt_folder=$PWD/$1; mkdir -p $1; }
            _rt_ask() { echo "$3"; }
            export A=$'1\n\t\e\\E"\'$`é' B C=" "; umask 027
            exported() { echo; }; export -f exported
            in_folder first; _rt_program tool "a b" ""
            in_folder whole; _rt_whole=1; D=1 _rt_program tool "a b" ""
            in_folder again; _rt_program tool "an earlier test, and a longer one"
            _rt_whole=; D=1 _rt_program tool "a b" ""
            in_folder other; D=2 _rt_program tool
        """
        known: Dict[bytes, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            told = subprocess.run(["bash", "-c", text], cwd=folder, check=True, stdout=subprocess.PIPE).stdout
            marks = told.decode().splitlines()
            del marks[2]    # the next one is written over it
            with self.assertRaises(OSError):
                read_program(f"{marks[0]}0", known)    # it has not been written to its end
            first, *same, other = marks
            whole, again = (read_program(mark, known) for mark in same)
            for mark in (first, other):
                with self.assertRaises(KeyError):
                    read_program(mark, known)
        self.assertEqual(whole, again)
        self.assertEqual((whole.words, whole.directory), (("tool", "a b", ""), os.path.realpath(folder)))
        values = {name: whole.environment.get(name) for name in (b"A", b"B", b"C", b"D")}
        self.assertEqual(values, {b"A": "1\n\t\x1b\\E\"'$`é".encode(), b"B": None, b"C": b" ", b"D": b"1"})
        self.assertEqual((whole.umask, b"BASH_FUNC_exported%%" in whole.environment), (0o27, True))


if __name__ == "__main__":
    unittest.main()
