"""Section 3 under a seeded fuzz: any text becomes a plan or clean mistakes, as bash has it, without traceback or hang.

`FUZZ_INPUTS=100000 python3 -m unittest tests.test_fuzz` is the full size; `FUZZ_SEED=12345` repeats one input.
"""
from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import traceback
import unicodedata
import unittest.mock
from collections import Counter
from typing import Any, Callable, List, Sequence

import run_tests
from run_tests import ALL_GPUS, ListError, Options, Test
from tests.test_parse import ParseCase, states_of

INPUTS = int(os.environ.get("FUZZ_INPUTS", "200"))
ONE_SEED = os.environ.get("FUZZ_SEED")
FIRST_SEED = 20_240_601
PLANS, HUGE = 3, 40              # one input in so many goes the whole way, is huge
CPU_S = 5                        # ten times what the longest input takes: more is a hang
ENOUGH = 5                       # faults by which a broken parser is known well enough
STEM_BYTES = 255 - len(".attempt999999.log")

# What lists are made of. «rule» stands for any form of that rule; the first form has none in it.
GRAMMAR = {
    "chars": ["x", "made_up", "A", "é", "日本", "\udce9", "a=b", "0.25", "-k", "--lr=0.1", "[1-2]", "*", "{a,b}", "~",
              "a#b", ":", "\u00a0", "%s", "$", "!", "++", "\u2028", "\x85", "\x1b[1m", "\x0b", "a\rb", "\ufeff"],
    "name": ["A", "B", "_LONG_NAME", "PWD", "0", "1", "#", "?", "BASH_SOURCE", "BASH_SOURCE[0]", "LIST[1]"],
    "value": ["$A", "$«name»", "${«name»}", "${«name»:-«piece»}", "${A#«chars»}", "${#A}", "$(echo «piece»)",
              "`echo «chars»`", "$((1 + 2))", "$((1 / 0))", "$(echo «word»; false)", "<(echo «chars»)", "${1x}"],
    "piece": ["x", "«chars»", "«chars»", "«chars»", "'«chars» «chars»'", '"«chars» «value»"', "«value»", '$"x"',
              "$'a\\n«chars»\\''", '\\"', "\\\\", "\\'", "\\\n", "'a\n«chars»'", '"$(echo "«chars»")"'],
    "word": ["x", "«piece»", "«piece»", "«piece»«piece»"],
    "words": ["x", "«word»", "«word» «word»", "«word» \\\n  «word» «word»", "-k 'a or b' \t«word»"],
    "mask": ["0,1", "0", "", "-1", "'2,3'", "$A", "GPU-a,GPU-b", "0,-1,2", "«word»"],
    "prefix": ["A=1 ", "A=«word» ", "B='x y' A+=«word» ", "CUDA_VISIBLE_DEVICES=«mask» ", "A=1 HIP_VISIBLE_DEVICES=0 "],
    "path": ["test_x.py", "d/test_x.py", "$A/test_«chars».py", "test_x.py::T::test_y[1-2]", "'a b/test_x.py'", "./d"],
    "junit": ["--junitxml=x.xml", "--junitxml «word»", '"--junitxml=$A/x «chars».xml"'],
    "command": ["made_up", "made_up «words»", "true «words»", "«prefix»made_up «words»", "«path»", "! true", "«word»",
                "«prefix»«path» «words»", "made_up «junit»", "«path» «junit»", "made_up «words» | true", "d", "((1))",
                "made_up && true «words»", "if true; then made_up; fi", "for i in 1 2; do made_up $i; done", "a 2>&1",
                "case x in a) true;; esac", "[[ x == @(a|b) ]]", "{ true; }", "(true «words»)", "true <<< «word»",
                "f() { true; }; made_up «words»", "cat <<EOF\n«chars» '$A\nEOF", "a @(b|«chars») «words»",
                "for i in 1 2; do\n  made_up «words»  # it's\ndone", "made_up $(case x in\n  x) echo «chars»;; esac)",
                "[[ a &&\n  b ]]", "cat <<-'E' |\n\t\"«chars»\n\tE\n  cat"],
    "handler": [' || test_fail "a label"', " || test_fail", " || test_fail «word»", "||test_fail '«chars» «chars»'"],
    "call": ['run_test "" "x.xml" "test_x.py" "x"', 'run_test "A=1 B=$A" "«chars».xml" "«path» -v" "«words»"',
             "run_test «word» «word».xml «path» «word»", 'run_test "CUDA_VISIBLE_DEVICES=«mask»" y.xml t.py "y"'],
    "state": ["export A=1", "A=«word»", "export B=«word»", "unset A", ": ${A:=1}", "cd d", "cd nowhere || true",
              ". ./state.sh", "source ./state.sh «word»", "set -x", "set -euo pipefail", "set +e", "shopt -s extglob",
              "umask 022", "A=(«words»)", "LIST[1]=«word»", "[ -d d ] && cd d", "if [ -d d ]; then cd d; fi",
              "f() {\n  echo «chars»\n}", "f() { echo «chars»; }", "ulimit -c 0", "declare -x A=«word»",
              'export A="x\n«chars»"',
              "export A=1; export B=«word» \\\n  C=3", 'cd "$(echo d)" || exit 1', ";wait"],
    "good": ["gpus=2", "gpus=0", "gpus=.25", "gpus=all", "timeout=90s", "timeout=1.5h", "retries=2", "label=«chars»",
             "label='«chars» $A'", "lock=a,b", "tags=slow,«chars»", "after=one"],
    "attributes": ["", "«good»", "«good»", "«good» time=7", "«good» tags=x"],
    "line": ["", "# it's \"text «chars»", "«command»", "«command»", "«command»", "  \t«command»", "«command»«handler»",
             "«command»«handler» #: «attributes»", "«command» #: «attributes»", "«command» # «chars»", "«call»",
             "«state»", "«state»", "«state» # «chars»", "#: «attributes»", "wait", "\\", "true #: label=one"],
    "bad": ["true &", "«command» #: gpus=1.5 nope=«chars»", "#: timeout=5x «good» «good»", "«command» #: label='",
            "«state» #: «good»", "true #: after='«chars»,one'", "a #: label=c after=c", "a #: nodes=2", "fi", "if true",
            "a && CUDA_VISIBLE_DEVICES='«chars»\n' b", "export CUDA_VISIBLE_DEVICES=«mask»", "made_up || RET=1",
            "test_fail «word»", "{ a || test_fail b; }", "a ( b )", "a &&", "cat <<EOF\n«chars»", "«command» '",
            "a ) }; b",
            "$(fi)", "a; } || { b", "a\n)", "a @(b|c) )", "[[ a", "$(case b in", "a & wait", "a; echo b",
            'echo "$(', "a ${A", "true\r", "true \0", "run_test", "`", "run_test 'x\n«chars»' x.xml t.py l",
            'run_test "" x.xml "t.py \'" l', "run_test '' x.xml '«chars» (' l", "a || test_fail «word» >&2",
            "a #: after='\x1b'", "cd nowhere || exit 3", ": ${NOT_SET:?}\ntrue", "${NOT_SET:?}/test_x.py", "set -n",
            "printf() { true; }\ntrue", "true || test_fail $(echo x >&3)", "true || test_fail $(printf 'x\\0' >&3)",
            "a --junitxml=$'d\\nx.xml'\nb --junitxml=$'d\\nx.xml'", "true --junitxml=./", "#!made_up"],
}
RULE = re.compile("«([a-z]+)»")
TOKENS = sorted({form for forms in GRAMMAR.values() for form in forms if "«" not in form}
                | set("'\"`\\$(){}[]#;&|<>=!*?~:, \t\n\r\0xé0") | {"$(", "${", "$((", "<(", "$'", '$"', "[[ ", "A=("}
                | {"\\\n", "\r\n", "#:", " #: ", "&&", "||", " || test_fail ", "<<EOF", "<<<", ">&2", ";;", "|&"}
                | {"run_test ", "then ", "\udcff", "\x9b"})
NESTS = [("$(", ")"), ("${A:-", "}"), ('"$(', ')"'), ("(", ")"), ("$((", "))"), ('"${A:-', '}"'), ("A=(", ")")]
LONG = ["x", " ", "é", "'x'", "\\\n", "#", "$A", "\t", "''", "a ", "\\", "|", "A=", "$(("]


def grow(dice: random.Random, rule: str, depth: int = 0) -> str:
    """A form of a rule, the rules in it replaced likewise."""
    form = dice.choice(GRAMMAR[rule]) if depth < 6 else GRAMMAR[rule][0]
    return RULE.sub(lambda match: grow(dice, match.group(1), depth + 1), form)


def mutate(dice: random.Random, text: str) -> str:
    """The text with a piece, mostly a short one, deleted, doubled, moved or replaced, or cut off there."""
    first, second = sorted((dice.randint(0, len(text)), dice.randint(0, len(text))))
    if dice.random() < 0.7:
        second = min(second, first + 3)
    before, piece, after = text[:first], text[first:second], text[second:]
    token = dice.choice(TOKENS)
    return dice.choice([before, before + after, before + piece + piece + after, after + piece + before,
                        before + token + after, before + token + piece + after, before + token + piece + after])


def huge(dice: random.Random) -> str:
    """A very deep or a very long line."""
    if dice.random() < 0.5:
        count, (opener, closer) = dice.choice([40, 3000]), dice.choice(NESTS)
        return "true " + opener * count + "x" + closer * dice.choice([count, count - 1])
    start, piece = dice.choice(["true ", "", "export A=", "true #: label=", "a || test_fail "]), dice.choice(LONG)
    return start + piece * (100_000 // len(piece)) + dice.choice(["", " x"])


def list_text(dice: random.Random) -> str:
    """A list as read from a file: of good lines, with a bad one among them, mutated, or noise."""
    kind = dice.random()
    lines = [grow(dice, "line") for _ in range(dice.randint(1, 7))]
    if kind < 0.08:
        lines = ["".join(dice.choice(TOKENS) for _ in range(dice.randint(0, 20)))]
    elif kind < 0.1:
        lines = [bytes(dice.getrandbits(8) for _ in range(dice.randint(0, 60))).decode("utf-8", "surrogateescape")]
    elif kind < 0.3:
        lines.insert(dice.randint(0, len(lines)), grow(dice, "bad"))
    text = dice.choice(["", "", "", "\ufeff"]) + "\n".join(lines) + dice.choice(["\n", "\n", ""])
    for _ in range(dice.choice([1, 1, 2, 9]) if kind > 0.7 else 0):
        text = mutate(dice, text)
    return run_tests.to_bytes(text).decode("utf-8", "surrogateescape")


def harmless(text: str) -> str:
    """The text without what bash, which runs its state and expands its words, could do beyond the test's folder.

    On PATH is nothing but bash then; this takes care of redirections, of loops without end, and of `{1..9999999}`.
    """
    text = re.sub(r"(?<![^$\w{.][a-z.])(?<!\./logs)/", "_", re.sub(r"\.{2,}", ".", text))
    return re.sub(r"while|until|\(\(;", "if", text)


def interrupt(signum: int, _frame: Any) -> None:
    raise AssertionError(f"a hang, says {signal.Signals(signum).name}")


class Fuzz(ParseCase):
    """Each kind of check on so many seeds; a fault names its seed."""

    def setUp(self) -> None:
        super().setUp()
        self.text = ""                   # of the last list
        self.addCleanup(signal.signal, signal.SIGVTALRM, signal.signal(signal.SIGVTALRM, interrupt))
        self.write("state.sh", "export S=1\n")
        for folder in ("d", "bin"):
            os.mkdir(folder)
        for program in ("bash", "env"):
            os.symlink(shutil.which(program) or "", self.path("bin", program))
        os.environ["PATH"] = self.path("bin")

    def run_seeds(self, check: Callable[[int], str], step: int = 1) -> None:
        """Check every so many of the seeds; both plans and mistakes must be common among what comes of them."""
        seeds = [int(ONE_SEED)] if ONE_SEED else range(FIRST_SEED, FIRST_SEED + max(INPUTS, step), step)
        found: Counter[str] = Counter()
        faults: List[str] = []
        for seed in seeds:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
                found[check(seed)] += 1
            except Exception:
                faults.append(f"FUZZ_SEED={seed}: {self.text[:2000]!r}\n{traceback.format_exc()}")
                if len(faults) == ENOUGH:
                    break
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.assertFalse(faults, "\n".join(faults))
        if len(seeds) >= 50:
            self.assertGreater(min(found["plan"], found["mistakes"]), len(seeds) / 5, found)

    def test_bash_reads_the_same_commands(self) -> None:
        self.run_seeds(self.check_split)

    def test_huge_lines(self) -> None:
        self.run_seeds(lambda seed: self.check_plan(seed, huge), HUGE)

    def test_plans(self) -> None:
        """The whole way from a file to tests and what bash runs of them."""
        self.run_seeds(self.check_plan, PLANS)

    def assert_bash_reads(self, text: str, is_sound: bool = True) -> None:
        """What bash says of a text's syntax; it only warns of a here-document without end."""
        checked = subprocess.run(["bash", "-n", "-O", "extglob"], input=run_tests.to_bytes(text), check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "LC_ALL": "C"})
        self.assertEqual((checked.returncode, checked.stdout) == (0, b""), is_sound, (checked.stdout, text))

    def check_split(self, seed: int) -> str:
        """The commands are bash's, in order and without a gap; a list is refused if bash refuses it."""
        text = self.text = list_text(random.Random(seed)).replace("\0", "").replace("\r", "")
        parsed = run_tests.ListFile("fuzz.txt", text, 0)
        pieces = list(run_tests.split_list(parsed, self.scratch))
        behind = 0
        for line, end, piece in pieces:
            self.assertTrue(behind < line <= end, pieces)
            self.assertEqual(piece, "\n".join(parsed.lines[line - 1:end]) + "\n")
            behind = end
        if not parsed.mistakes:
            self.assertEqual("".join(piece for _, _, piece in pieces).rstrip("\n"), text.rstrip("\n"))
        self.assert_bash_reads(text, not parsed.mistakes)
        with unittest.mock.patch.object(run_tests, "split_list", return_value=pieces):    # not by bash once more
            run_tests.read_list(parsed, self.scratch)
        found = [*states_of(parsed), *(test.line for test in parsed.tests)]
        self.assertEqual(len(set(found)), len(found))
        for line, what in parsed.mistakes:
            self.assertTrue(1 <= line <= len(parsed.lines), line)
            self.assert_one_line(what)
        return "mistakes" if parsed.mistakes else "plan" if parsed.tests else "nothing"

    def assert_one_line(self, text: str) -> None:
        """There is something in it, and no character that ends a line or controls a terminal."""
        self.assertTrue(text)
        self.assertFalse([char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp")], text)

    def plan(self, *names: str) -> Sequence[Test]:
        """The tests of lists, each found sound; raises ListError with its messages found sound."""
        try:
            tests, _ = run_tests.parse_lists(Options(names, list=True), self.scratch)
        except ListError as error:
            for message in error.args:
                self.assertRegex(message, r"\A[a-z]+\.txt:\d+: ")
                self.assert_one_line(message)
            raise
        for same in ([test.label for test in tests], [test.stem.casefold() for test in tests],
                     [test.junit for test in tests if test.junit]):
            self.assertEqual(len(set(same)), len(same), same)
        for index, test in enumerate(tests):
            self.assertEqual(test.index, index)
            self.assert_one_line(test.label.strip())
            self.assert_one_line(test.stem)
            self.assertNotIn("/", test.stem)
            self.assertLessEqual(len(run_tests.to_bytes(test.stem)), STEM_BYTES)
            self.assertTrue(0 <= test.gpus < 1 or test.gpus == ALL_GPUS or test.gpus == int(test.gpus), test.gpus)
            self.assertLessEqual(set(test.attributes.after), {other.label for other in tests})
        return tests

    def check_plan(self, seed: int, make: Callable[[random.Random], str] = list_text) -> str:
        self.text = harmless(make(random.Random(seed)))
        self.write("fuzz.txt", self.text)
        try:
            tests = self.plan("fuzz.txt")
        except ListError:
            return "mistakes"
        for test in tests[-1:]:          # it has the most state above it
            self.assert_bash_reads(run_tests.bash_text(test, {"CUDA_VISIBLE_DEVICES": "0,1"}, {}, self.scratch, 0))
        return "plan"
