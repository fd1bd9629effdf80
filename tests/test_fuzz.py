"""Section 3 under a seeded fuzz: any text becomes a plan or clean mistakes, never a traceback, never a hang.

`FUZZ_INPUTS=100000 python3 -m unittest tests.test_fuzz` is the full size; `FUZZ_SEED=12345` repeats one input.
"""
from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import traceback
import unicodedata
from collections import Counter
from typing import Any, Callable, Iterator, List, Sequence, Set, Tuple

import run_tests
from run_tests import ALL_GPUS, ListError, ListFile, Options, Test
from tests.test_parse import ParseCase

INPUTS = int(os.environ.get("FUZZ_INPUTS", "8000"))
ONE_SEED = os.environ.get("FUZZ_SEED")
FIRST_SEED = 20_240_601
WHOLE_WAY = 20                   # one input in so many goes through bash, which costs milliseconds
HUGE = 400                       # one in so many is only a huge line
LISTS, COMMAND_LINE = 5, 2000    # lists of a command line; how many inputs there are to one of those
CPU_S = 5                        # thousands of times what most inputs take, ten times what the longest do
BASH_S = 300                     # the same for bash, whose CPU time is not ours: wall time, but no machine is that slow
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
              "$'a\\n«chars»\\''", '\\"', "\\\\", "\\'", "\\\n", "'a\n«chars»'", '"a\n#b «value»"',
              '"$(echo "«chars»")"'],
    "word": ["x", "«piece»", "«piece»", "«piece»«piece»"],
    "words": ["x", "«word»", "«word» «word»", "«word» \\\n  «word» «word»", "-k 'a or b' \t«word»"],
    "mask": ["0,1", "0", "", "-1", "'2,3'", "$A", "GPU-a,GPU-b", "0,-1,2", "«word»"],
    "prefix": ["A=1 ", "A=«word» ", "B='x y' A+=«word» ", "CUDA_VISIBLE_DEVICES=«mask» ", "A=1 HIP_VISIBLE_DEVICES=0 "],
    "path": ["test_x.py", "d/test_x.py", "$A/test_«chars».py", "test_x.py::T::test_y[1-2]", "'a b/test_x.py'", "./d"],
    "junit": ["--junitxml=x.xml", "--junitxml=«word».xml", "--junitxml «word»", '"--junitxml=$A/x «chars».xml"',
              "--junit-xml=./logs/pytest_test_x.xml"],
    "command": ["made_up", "made_up «words»", "true «words»", "«prefix»made_up «words»", "«path»", "! true", "«word»",
                "«prefix»«path» «words»", "made_up «junit»", "«path» «junit»", "made_up «words» | true", "d", "((1))",
                "made_up && true «words»", "if true; then made_up; fi", "for i in 1 2; do made_up $i; done", "a 2>&1",
                "case x in a) true;; esac", "[[ x == @(a|b) ]]", "{ true; }", "(true «words»)", "true <<< «word»",
                "f() { true; }; made_up «words»"],
    "handler": [' || test_fail "a label"', " || test_fail", " || test_fail «word»", "||test_fail '«chars» «chars»'"],
    "call": ['run_test "" "x.xml" "test_x.py" "x"', 'run_test "A=1 B=$A" "«chars».xml" "«path» -v" "«words»"',
             "run_test «word» «word».xml «path» «word»", 'run_test "CUDA_VISIBLE_DEVICES=«mask»" y.xml t.py "y"'],
    "state": ["export A=1", "A=«word»", "export B=«word»", "unset A", ": ${A:=1}", "cd d", "cd nowhere || true",
              ". ./state.sh", "source ./state.sh «word»", "set -x", "set -euo pipefail", "set +e", "shopt -s extglob",
              "umask 022", "A=(«words»)", "LIST[1]=«word»", "[ -d d ] && cd d", "if [ -d d ]; then cd d; fi",
              "f() { echo «chars»; }", "ulimit -c 0", "declare -x A=«word»", 'export A="x\n«chars»"',
              "export A=1; export B=«word» \\\n  C=3", 'cd "$(echo d)" || exit 1', ";wait"],
    "good": ["gpus=2", "gpus=0", "gpus=.25", "gpus=all", "timeout=90s", "timeout=1.5h", "retries=2", "label=«chars»",
             "label='«chars» $A'", 'label="a \\"b\\""', "time=5m", "lock=a,b", "tags=slow,«chars»", "after=one"],
    "attributes": ["", "«good»", "«good»", "«good» time=7", "«good» tags=x"],
    "line": ["", "# it's \"text «chars»", "«command»", "«command»", "«command»", "  \t«command»", "«command»«handler»",
             "«command»«handler» #: «attributes»", "«command» #: «attributes»", "«command» # «chars»", "«call»",
             "«state»", "«state»", "«state» # «chars»", "#: «attributes»", "wait", "\\", "true #: label=one",
             "true #: label=One"],
    "bad": ["true &", "«command» #: gpus=1.5 nope=«chars»", "#: timeout=5x «good» «good»", "«command» #: label='",
            "«state» #: «good»", "true #: after='«chars»,one'", "a #: label=c after=c", "a #: split=2", "fi", "if true",
            "a && CUDA_VISIBLE_DEVICES='«chars»\n' b", "export CUDA_VISIBLE_DEVICES=«mask»", "made_up || RET=1",
            "test_fail «word»", "{ a || test_fail b; }", "a ( b )", "a &&", "cat <<EOF\n«chars»\nEOF", "«command» '",
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
                | {"run_test ", "export ", "then ", "function f ", "\udcff", "\x9b"})
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
    elif kind < 0.102:
        lines.append(huge(dice))
    elif kind < 0.3:
        lines.insert(dice.randint(0, len(lines)), grow(dice, "bad"))
    text = dice.choice(["", "", "", "", "\ufeff"]) + "\n".join(lines) + dice.choice(["\n", "\n", ""])
    if kind > 0.7:
        for _ in range(dice.choice([1, 1, 2, 9])):
            text = mutate(dice, text)
    data = run_tests.to_bytes(text.replace("\n", "\r\n") if kind > 0.99 else text)
    return data.decode("utf-8", "surrogateescape")


def harmless(text: str) -> str:
    """The text without what bash, which runs its state and expands its words, could do beyond the test's folder.

    On PATH is nothing but bash then; this takes care of redirections, of loops without end, and of `{1..9999999}`.
    """
    text = re.sub(r"(?<![^$\w{.][a-z.])(?<!\./logs)/", "_", re.sub(r"\.{2,}", ".", text))
    return re.sub(r"while|until|\(\(;", "if", text)


def pieces_of(parsed: ListFile) -> List[Tuple[int, str]]:
    """Line number and text of each line of state, then of each test."""
    return [*parsed.states, *((draft.line, draft.source) for draft in parsed.drafts)]


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Raise in what takes as much CPU time, or as long in bash, as only a hang does."""
    def interrupt(signum: int, _frame: Any) -> None:
        raise AssertionError(f"a hang, says {signal.Signals(signum).name}")

    limits = [(signal.SIGVTALRM, signal.ITIMER_VIRTUAL, CPU_S), (signal.SIGALRM, signal.ITIMER_REAL, BASH_S)]
    before = [signal.signal(signum, interrupt) for signum, _, _ in limits]
    try:
        for _, timer, seconds in limits:
            signal.setitimer(timer, seconds)
        yield
    finally:
        for (signum, timer, _), handler in zip(limits, before):
            signal.setitimer(timer, 0)
            signal.signal(signum, handler)


class Fuzz(ParseCase):
    """Each kind of check on so many seeds; a fault names its seed."""

    def setUp(self) -> None:
        super().setUp()
        self.text = ""                   # of the last list
        self.write("state.sh", "export S=1\n")
        for folder in ("d", "bin"):
            os.mkdir(folder)
        os.symlink(shutil.which("bash") or "", self.path("bin", "bash"))
        os.environ.update(PATH=self.path("bin"), LC_ALL="C.UTF-8")

    def run_seeds(self, check: Callable[[int], str], step: int = 1) -> None:
        """Check every so many of the seeds; both plans and mistakes must be common among what comes of them."""
        seeds = [int(ONE_SEED)] if ONE_SEED else range(FIRST_SEED, FIRST_SEED + max(INPUTS, step), step)
        found: Counter[str] = Counter()
        faults: List[str] = []
        for seed in seeds:
            try:
                with no_hang():
                    found[check(seed)] += 1
            except Exception:
                faults.append(f"FUZZ_SEED={seed}: {self.text[:2000]!r}\n{traceback.format_exc()}")
                if len(faults) == ENOUGH:
                    break
        if faults:
            self.fail("\n" + "\n".join(faults))
        if len(seeds) >= 100:
            self.assertGreater(min(found["plan"], found["mistakes"]), len(seeds) / 4, found)

    def test_splitting(self) -> None:
        """Without bash."""
        self.run_seeds(self.check_split)

    def test_huge_lines(self) -> None:
        """The whole way, too."""
        self.run_seeds(lambda seed: self.check_plan(seed, huge), HUGE)

    def test_plans(self) -> None:
        """The whole way from a file to tests and their scripts."""
        self.run_seeds(self.check_plan, WHOLE_WAY)

    def test_command_lines(self) -> None:
        """`--list` of several lists says what the same lists are in this process."""
        self.run_seeds(self.check_command_line, COMMAND_LINE)

    def check_split(self, seed: int) -> str:
        text = self.text = list_text(random.Random(seed))
        parsed, again = run_tests.split_list("fuzz.txt", text), run_tests.split_list("fuzz.txt", text)
        pieces = pieces_of(parsed)
        self.assertEqual((pieces, parsed.mistakes, parsed.waits), (pieces_of(again), again.mistakes, again.waits))
        for numbers in ([line for line, _ in parsed.states], [draft.line for draft in parsed.drafts],
                        [line for line, _ in parsed.mistakes]):
            self.assertEqual(numbers, sorted(numbers))
        lines = re.sub(r"(\$\{?)BASH_SOURCE(\[0\])?", r"\g<1>0", text).split("\n")
        is_blank = [line.strip(" \t") in ("", "\\") or line.lstrip(" \t")[0] == "#" for line in lines]
        understood: Set[int] = set()
        for line, piece in pieces:       # it begins where it says, ends with its last line, and shares no line
            span = range(line, line + piece.count("\n") + 1)
            self.assertTrue(understood.isdisjoint(span) and 1 <= line <= span[-1] <= len(lines), (line, piece))
            shown = "\n".join(lines[line - 1:span[-1]]).lstrip(" \t")
            self.assertTrue(shown.startswith(piece), (line, piece))
            self.assertIn(shown[len(piece):].lstrip(" \t;")[:1], ("", "#", "\\"), (line, piece))
            understood.update(span)
        told = {line for line, _ in parsed.mistakes}
        is_excused = "\0" in text or "\r\n" in text      # then the list is not read at all
        self.assertTrue(told or not is_excused)
        for number in range(1, len(lines) + 1):
            is_excused = (is_excused or number in told) and number not in understood     # how far it goes is not known
            self.assertTrue(number in understood or is_excused or is_blank[number - 1], f"line {number} is lost")
        for line, what in parsed.mistakes:
            self.assertTrue(1 <= line <= len(lines), line)
            self.assert_one_line(what)
        return "mistakes" if parsed.mistakes else "plan" if parsed.drafts else "nothing"

    def assert_one_line(self, text: str) -> None:
        """There is something in it, and no character that ends a line or controls a terminal."""
        self.assertTrue(text)
        self.assertFalse([char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp")], text)

    def plan(self, *names: str) -> Sequence[Test]:
        """The tests of lists, each found sound; raises ListError with its messages found sound."""
        try:
            tests = run_tests.parse_lists(Options(names))
        except ListError as error:
            for message in error.messages:
                self.assertRegex(message, r"\A[a-z]+\.txt:\d+: ")
                self.assert_one_line(message)
            raise
        for same in ([test.label for test in tests], [test.stem.casefold() for test in tests],
                     [test.junit for test in tests if test.junit]):
            self.assertEqual(len(set(same)), len(same), same)
        self.assertEqual([test.index for test in tests], list(range(len(tests))))
        for test in tests:
            self.assert_one_line(test.label.strip())
            said = test.attributes.label or ""
            self.assertTrue(not said.isidentifier() or test.label.split(" #")[0] == said, test)
            self.assert_one_line(test.stem)
            self.assertNotIn("/", test.stem)
            self.assertLessEqual(len(run_tests.to_bytes(test.stem)), STEM_BYTES)
            self.assertTrue(0 <= test.gpus < 1 or test.gpus == ALL_GPUS or test.gpus == int(test.gpus), test.gpus)
            self.assertLessEqual(set(test.attributes.after), {other.label for other in tests})
        return tests

    def check_plan(self, seed: int, make: Callable[[random.Random], str] = list_text) -> str:
        self.text = harmless(make(random.Random(seed)))
        self.write("fuzz.txt", self.text)
        parsed = run_tests.split_list("fuzz.txt", self.text[self.text.startswith("\ufeff"):])
        try:
            tests = self.plan("fuzz.txt")
        except ListError as error:
            self.assertTrue(parsed.states or "the shell state above" not in str(error), error)
            return "mistakes"
        self.assertEqual([(test.line, test.source) for test in tests], pieces_of(parsed)[len(parsed.states):])
        for _, state in parsed.states:   # no test hides behind a function
            self.assertTrue(state[-1] in "})" or not re.match(r"function\b|\w+ *\( *\)", state), state)
        for test in tests[-1:]:          # it has the most state above it
            script = run_tests.build_script(test, {"CUDA_VISIBLE_DEVICES": "0,1"})
            checked = subprocess.run(["bash", "-n", "-O", "extglob"], input=run_tests.to_bytes(script), check=False,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     env={**os.environ, "LC_ALL": "C"})
            self.assertEqual((checked.returncode, checked.stdout), (0, b""), script)
        return "plan"

    def check_command_line(self, seed: int) -> str:
        dice = random.Random(seed)
        is_sound = dice.random() < 0.5   # else there is a mistake in one of the lists, most likely
        names = [f"{letter}.txt" for letter in "abcdefgh"[:LISTS]]
        tests: Sequence[Test] = []
        messages: Sequence[str] = []
        for number in range(LISTS):
            while True:
                self.text = harmless(list_text(dice))
                self.write(names[number], self.text)
                try:
                    tests, messages = self.plan(*names[:number + 1]), []
                except ListError as error:
                    tests, messages = [], error.messages
                if not (messages and is_sound):
                    break
        ran = self.run_command("--list", *names, gpus=None)
        code = run_tests.EXIT_USAGE if messages else run_tests.EXIT_OK if tests else run_tests.EXIT_NOTHING
        self.assertEqual((ran.code, len(ran.err.splitlines())), (code, len(messages) or not tests), ran.err)
        self.assertEqual([line.split(b"\t")[::2] for line in ran.out.split(b"\n")[:-1]],
                         [[run_tests.to_bytes(test.label), run_tests.to_bytes(test.stem)] for test in tests])
        return "mistakes" if messages else "plan"
