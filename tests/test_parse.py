"""Section 3: what a list means, which mistakes are told, and the bash text that comes of a test."""
from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
from typing import Any, List, Mapping, Optional, Sequence, Tuple
from unittest import mock

import run_tests
from run_tests import ALL_GPUS, Attributes, Draft, ListError, ListFile, Options, Test
from tests.support import RUNNER, Ran, RunnerCase

NAME = "tests.txt"
ARGUMENT_BYTES = 131_072         # Linux refuses one argument of this size, its NUL included

STATE_LINES = [
    "A=1", "A=", "A=1 B=2", "A+=x", 'A="x y"', "A=$(echo 1)", "MAP[a]=1",
    "export A", "export A=1", "export A=1; export B=2", "export A=1 && export B=2", "export A=1;",
    "unset A", ": ${A:=1}", "set -x", "set -euo pipefail", "shopt -s extglob", "ulimit -c 0", "umask 022",
    "cd x", "cd x || exit 1", "cd x || return 1", "cd x || true", 'cd "$(dirname x)" && export A=1',
    "[ -d x ] && cd x", "if [ -d x ]; then cd x; fi", "if true; then export A=1; else export A=2; fi", "! cd x",
    "cd x || { echo no; exit 1; }", "{ cd x; }", "f() { echo a; }", "function f { echo a; }", "declare -x A=1",
    "readonly A", "pushd x", "cd x >/dev/null 2>&1", "source x.sh", ". ./x.sh word", "  export A=1  # why", "\tcd x",
]
TEST_LINES = [
    "python3 a.py", "cd x && pytest", "export A=1 && python3 a.py", "set -x; python3 a.py", "cd x || echo no",
    "(cd x)", "cd x | cat", "A=1 python3 a.py", "env A=1 true", "echo export A=1", "exit 1", "true", "true || exit 1",
    "if [ -d x ]; then a; fi", "[ -d x ] || exit 1", "{ echo a; }", "cd x; echo a", "> file",
    "cdx", "sources a", "wait $pid", "waits", "[[ -n $A ]]",
    "bash test_x.py", "echo test_x.py", "cd x; test_x.py", "test_x.pyc", "test_x.py.txt", "a 2>&1 | tee b",
]
TARGET_LINES = [
    "test_x.py", "path/to/test_x.py", "./test_x.py", "test_x.py::test_y", "test_x.py::Test::test_y[1-2]",
    "$D/test_x.py", '"$D/test_x.py"', "'a b/test_x.py'", "A=1 B='x y' test_x.py", "test_x.py -k 'a or b' -x",
    "test_x.py --junitxml=a.xml", "  test_x.py  # why", 'test_x.py || test_fail "x"', "test_x.py | tee log",
    'run_test "" "x.xml" "test_x.py" "x"',
]
MASKS = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]
FRAGMENTS = [
    "'", '"', "`", "\\", "\\\n", "\n", "\n\n", " ", "\t", "$", "$(", ")", "(", "((", "))", "${", "}", "{", "$'", '$"',
    "$((", "<(", ">(", "#", "#:", " #: gpus=2", " #: label=", " #: after=a", "#: timeout=5x retries\n", ";", "&",
    "&&", "||", "|", "|&", ";;", "<<EOF", "<<<", "2>&1", ">", "<", ">>", "a=1", " A=1 ", "arr[0]=2", "export ",
    "cd x", "wait", "wait\n", "test_fail", ' || test_fail "x"', "run_test ", '"" "a.xml" "t.py" "l"',
    "CUDA_VISIBLE_DEVICES=0,1 ", "test_x.py", "::test_y[a-1]", "--junitxml=", "--junitxml ", '"--junitxml=$A/x.xml"',
    "if ", "then", "fi\n", "!", "*", "?", "[", "]", "é", "\udce9", "\u00a0", "\u2028", "\x0c", "\r", "\r\n", "\0",
    "${a:-b}", "$(echo x)", "`a`", "~", "=", "0", "word", ":",
]


def split(text: str) -> ListFile:
    return run_tests.split_list(NAME, text)


def kind_of(line: str) -> str:
    """What one line is: `state`, `test`, `target`, `wait`, `mistake` or nothing."""
    parsed = split(line + "\n")
    states = [state for state in parsed.states if state.text != "wait"]      # a barrier is shown under `set -x`
    found = ["mistake"] * len(parsed.mistakes) + ["state"] * len(states) + ["wait"] * parsed.waits
    found += ["target" if draft.is_target else "test" for draft in parsed.drafts]
    return " ".join(found)


def draft_of(text: str) -> Draft:
    """The one test of a text."""
    (draft,) = split(text).drafts
    return draft


def sources(text: str) -> List[Tuple[int, str]]:
    """Line number and source of each test of a text that has no mistake."""
    parsed = split(text)
    assert not parsed.mistakes, parsed.mistakes
    return [(draft.line, draft.source) for draft in parsed.drafts]


class ParseCase(RunnerCase):
    """In a folder of its own, with a bare environment: what a list means must not depend on the developer's."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = os.path.realpath(self.folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder}
        patch = mock.patch.dict(os.environ, environment, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def parse(self, text: str, **options: Any) -> List[Test]:
        """The tests of a list."""
        self.write(NAME, text)
        return run_tests.parse_lists(Options((NAME,), **options))

    def parse_one(self, text: str, **options: Any) -> Test:
        (test,) = self.parse(text, **options)
        return test

    def parse_several(self, *texts: str) -> List[Test]:
        """The tests of lists named a.txt, b.txt and so on."""
        names = [f"{letter}.txt" for letter, _ in zip("abcdef", texts)]
        for name, text in zip(names, texts):
            self.write(name, text)
        return run_tests.parse_lists(Options(tuple(names)))

    def mistakes(self, text: str, **options: Any) -> List[str]:
        """The mistakes in a list that has some."""
        with self.assertRaises(ListError) as caught:
            self.parse(text, **options)
        return list(caught.exception.messages)

    def assert_mistake(self, text: str, line: int, what: str) -> None:
        """The list has this one mistake."""
        found = self.mistakes(text)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{NAME}:{line}: "), found)
        self.assertIn(what, found[0])

    def labels(self, text: str) -> List[str]:
        return [test.label for test in self.parse(text)]

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def run_script(self, test: Test, mask: Mapping[str, str] = {}) -> str:  # noqa: B006
        """What bash prints for a test, stdout and stderr together."""
        script = run_tests.build_script(test, mask)
        ran = subprocess.run([b"bash", b"-c", run_tests.to_bytes(script), test.file.encode()], check=False,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env={**os.environ, **mask})
        return ran.stdout.decode("utf-8", "surrogateescape")


class LineKinds(ParseCase):
    def test_blank_lines_and_comments_are_ignored(self) -> None:
        for line in ("", "   ", "\t", "# text", "  # it's \"text", "#", "#!text", "# : gpus=x", "\\"):
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "")

    def test_lines_that_only_change_the_shell_are_state(self) -> None:
        for line in STATE_LINES:
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "state")

    def test_an_assignment_of_an_array_is_state(self) -> None:
        for line in ("FLAGS=(-x -v)", "FLAGS+=(-q)", "FLAGS=()", "export A=1; FLAGS=(-x)", "A=(b\n  'c )' $(d))"):
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "state")

    def test_any_other_command_is_a_test(self) -> None:
        for line in TEST_LINES:
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "test")

    def test_a_line_without_a_command_is_no_state(self) -> None:
        """As state it would empty the file again before every test below."""
        self.assertEqual(kind_of("> results.txt"), "test")

    def test_wait_is_a_barrier(self) -> None:
        for line in ("wait", "  wait  ", "wait # for all above"):
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "wait")

    def test_a_test_counts_the_barriers_above_it(self) -> None:
        tests = self.parse("a\nwait\nb\nc\nwait\nwait\nd\n")
        self.assertEqual([(test.label, test.barrier) for test in tests], [("a", 0), ("b", 1), ("c", 1), ("d", 3)])

    def test_python_files_are_pytest_targets(self) -> None:
        for line in TARGET_LINES:
            with self.subTest(line=line):
                self.assertEqual(kind_of(line), "target")

    def test_state_holds_for_all_tests_below_it(self) -> None:
        tests = self.parse("a\nexport A=1\nb\nunset A\nc\n")
        held = [[state.text for state in test.shell.lines[:test.shell.held]] for test in tests]
        self.assertEqual(held, [[], ["export A=1"], ["export A=1", "unset A"]])
        self.assertEqual([test.shell.shown for test in tests], [0, 0, 1])

    def test_state_keeps_its_line_numbers(self) -> None:
        parsed = split('\nexport A="x\ny"\n\nexport B=1 \\\n  C=2\n\\\ncd z\n')
        self.assertEqual(parsed.states, [(2, 'export A="x\ny"'), (5, "export B=1 \\\n  C=2"), (8, "cd z")])

    def test_a_list_without_tests_is_none(self) -> None:
        self.assertEqual(self.parse("# nothing\nexport A=1\nwait\n"), [])
        self.assertEqual(self.parse(""), [])


class LogicalLines(ParseCase):
    def test_backslashes_quotes_and_substitutions_continue_a_line(self) -> None:
        for first in ("a \\\n  b", "a\\\nb", 'a "x\ny"', "a 'x\n# y\n'", "a $(b\nc)", "a `b\nc`", "a ${b:-c\nd}",
                      "a <(b\nc)", "a $'x\n'", 'a "$(b "c\nd")"', "a $((1 +\n 2))", 'a "x\n\ny" \\\n\\\n z', "a $(\n)"):
            with self.subTest(first=first):
                lines = first.count("\n")
                self.assertEqual(sources(f"\n{first}\nlast\n"), [(2, first), (3 + lines, "last")])

    def test_what_bash_ends_a_line_at_does(self) -> None:
        for first in ("a $'it\\'s'", 'a \\"', "a \\'", 'a "x\\"y"', "a $(echo \\))", 'a "$(echo ")" "b")"', "a \\\\",
                      "a $((1 + (2 * 3)))", "a ${b#\\}}", "a ${#b} $# $", "a `b \\` c`", "a '\\'", 'a "`b "c"`"',
                      'a "${b:-"c d"}"', "a $(b '(')", "a \\$b", "a }", "a {b,c}", "a $\"x\""):
            with self.subTest(first=first):
                self.assertEqual(sources(f"{first}\nlast\n"), [(1, first), (2, "last")])

    def test_a_hash_begins_a_comment_only_at_the_start_of_a_word(self) -> None:
        for line, source in (("a b#c", "a b#c"), ("a \\# b", "a \\# b"), ("a '#' \"#\" $#", "a '#' \"#\" $#"),
                             ("a ${#b}", "a ${#b}"), ("a #b", "a"), ("a\t# 'b", "a"), ("a;#b", "a;"), ("a; # b", "a;"),
                             ("a # b \\", "a"), ('a # "b', "a")):
            with self.subTest(line=line):
                self.assertEqual(split(line).drafts[0].source, source)

    def test_a_backslash_in_a_comment_does_not_continue_it(self) -> None:
        self.assertEqual(sources("a # b \\\nc\n# d \\\ne\n"), [(1, "a"), (2, "c"), (4, "e")])

    def test_a_line_that_begins_with_a_continuation_has_the_number_of_its_first_word(self) -> None:
        self.assertEqual(sources("\\\n\\\na\nb\n"), [(3, "a"), (4, "b")])

    def test_only_blanks_of_bash_part_words(self) -> None:
        """A no-break space is part of a word in bash, and so is a `#` after it."""
        self.assertEqual(sources("a b\u00a0#c\n"), [(1, "a b\u00a0#c")])

    def test_a_dollar_before_a_quote_in_double_quotes_is_itself(self) -> None:
        for first in ('grep "foo$" x', 'echo "a$" "b$"', """python3 -c "print('$')" """.strip(), 'a "$(b "c$")"'):
            with self.subTest(first=first):
                self.assertEqual(sources(f"{first}\nmake\n"), [(1, first), (2, "make")])

    def test_an_apostrophe_in_a_quoted_default_is_text(self) -> None:
        self.assertEqual(sources('echo "${A:-it\'s}"\nb\n'), [(1, 'echo "${A:-it\'s}"'), (2, "b")])

    def test_the_last_line_needs_no_end(self) -> None:
        self.assertEqual(sources("a\nb"), [(1, "a"), (2, "b")])
        self.assertEqual(sources("a\nb \\\n"), [(1, "a"), (2, "b")])

    def test_a_backslash_at_the_very_end_is_what_it_is_in_bash(self) -> None:
        self.assertEqual([test.line for test in self.parse("true\ntrue a \\")], [1, 2])


class AttributeLines(ParseCase):
    def attributes(self, text: str) -> Attributes:
        return draft_of(text).attributes

    def test_values(self) -> None:
        for text, key, value in (
                ("gpus=0", "gpus", 0), ("gpus=0.25", "gpus", 0.25), ("gpus=.5", "gpus", 0.5), ("gpus=2", "gpus", 2),
                ("gpus=all", "gpus", ALL_GPUS), ("timeout=90", "timeout", 90), ("timeout=90s", "timeout", 90),
                ("timeout=10m", "timeout", 600), ("timeout=2h", "timeout", 7200), ("timeout=1.5h", "timeout", 5400),
                ("timeout=250ms", "timeout", 0.25), ("timeout=1d", "timeout", 86400), ("retries=2", "retries", 2),
                ("retries=0", "retries", 0), ("label=x", "label", "x"), ("label='a b'", "label", "a b"),
                ('label="a \\"b\\""', "label", 'a "b"'), ("label=a=b", "label", "a=b"), ("label=a#b", "label", "a#b"),
                ("time=5m", "time", 300), ("lock=a", "lock", ("a",)), ("lock=a,b", "lock", ("a", "b")),
                ("after='a b, c'", "after", ("a b", "c")), ("tags=slow,nightly", "tags", ("slow", "nightly")),
                ("split=4", "split", 4)):
            with self.subTest(text=text):
                self.assertEqual(self.attributes(f"a #: {text}\n"), Attributes(**{key: value}))
                self.assertEqual(self.attributes(f"#: {text}\na\n"), Attributes(**{key: value}))

    def test_bad_values(self) -> None:
        for text, what in (
                ("gpus=1.5", "gpus: '1.5' is not"), ("gpus=x", "gpus: 'x' is not"), ("gpus=-1", "gpus: '-1' is not"),
                ("gpus=0.0", "gpus: '0.0' is not"), ("gpus=", "gpus: '' is not"), ("gpus=ALL", "gpus: 'ALL' is not"),
                ("gpus=nan", "gpus: 'nan' is not"), ("gpus", "gpus needs a value"),
                ("gpus=1 gpus=2", "gpus is given twice"), ("timeout=5x", "timeout: '5x' is not a duration"),
                ("timeout=", "timeout: '' is not a duration"), ("timeout=-1", "timeout: '-1' is not a duration"),
                ("timeout=5M", "timeout: '5M' is not a duration"),
                ("timeout='1h 5m'", "timeout: '1h 5m' is not a duration"), ("timeout", "timeout needs a value"),
                ("retries=x", "retries: 'x' is not a whole number"), ("retries=-1", "retries: '-1' is not"),
                ("retries=1.5", "retries: '1.5' is not"), ("retries", "retries needs a value"),
                ("label=", "label: a label cannot be empty"), ("label=' '", "label: a label cannot be empty"),
                ("label", "label needs a value"), ("time=soon", "time: 'soon' is not a duration"),
                ("time", "time needs a value"), ("lock=", "lock: '' is not a list"),
                ("lock=a,,b", "lock: 'a,,b' is not"), ("lock", "lock needs a value"),
                ("after=", "after: '' is not a list"), ("after", "after needs a value"),
                ("tags=,", "tags: ',' is not a list"), ("tags", "tags needs a value"),
                ("split=x", "split: 'x' is not a whole number"), ("split", "split needs a value"),
                ("nope=1", "unknown key 'nope'"), ("Gpus=1", "unknown key 'Gpus'"), ("=1", "unknown key ''"),
                ('label="x', "a quote in"), ("label='x", "a quote in")):
            for form in (f"\ntrue #: {text}\n", f"\n#: {text}\ntrue\n"):
                with self.subTest(form=form):
                    self.assert_mistake(form, 2, what)

    def test_each_mistake_of_a_line_is_told(self) -> None:
        found = self.mistakes("true #: gpus=x timeout=5x nope=1 gpus=2\n")
        self.assertEqual(len(found), 4, found)
        self.assertTrue(all(message.startswith(f"{NAME}:1: ") for message in found))

    def test_keys_whose_effect_is_still_to_come_are_refused(self) -> None:
        self.assertEqual(self.mistakes("true\nfalse #: split=2\n"),
                         [f"{NAME}:2: split= is not supported yet; take it out"])

    def test_an_unknown_key_is_told_which_are_known(self) -> None:
        self.assert_mistake("true #: gpu=1\n", 1, "unknown key 'gpu' in `#:`; known are gpus, timeout, retries, "
                            "label, time, lock, after, tags")

    def test_what_a_line_says_of_its_test_stays_with_it(self) -> None:
        """The test's own line too, for a list of the deferred ones."""
        first, second = self.parse("#: tags=a,b time=5 gpus=0.25\nA=1 true 'x\ny' || test_fail z  #: lock=c\n"
                                   "CUDA_VISIBLE_DEVICES=0,1 \\\n  false #: after=z\n")
        self.assertEqual((first.source, second.source),
                         ("A=1 true 'x\ny' || test_fail z", "CUDA_VISIBLE_DEVICES=0,1 \\\n  false"))
        self.assertEqual(first.attributes, Attributes(gpus=0.25, time=5, tags=("a", "b"), lock=("c",)))
        self.assertEqual(second.attributes, Attributes(gpus=0.25, time=5, tags=("a", "b"), after=("z",)))
        self.assertEqual((first.gpus, second.gpus), (0.25, 0.25))

    def test_a_line_of_its_own_holds_until_the_next(self) -> None:
        parsed = split("a\n#: gpus=2 timeout=5\nb\nexport A=1\nwait\n# text\nc\n#: timeout=7\nd\n")
        self.assertEqual([draft.attributes for draft in parsed.drafts], [
            Attributes(), Attributes(gpus=2, timeout=5), Attributes(gpus=2, timeout=5), Attributes(timeout=7)])

    def test_an_empty_line_of_its_own_resets(self) -> None:
        for reset in ("#:", "  #:  "):
            with self.subTest(reset=reset):
                parsed = split(f"#: gpus=2\na\n{reset}\nb\n")
                self.assertEqual([draft.attributes.gpus for draft in parsed.drafts], [2, None])

    def test_the_end_of_a_line_is_merged_over_what_holds(self) -> None:
        parsed = split("#: gpus=2 timeout=5\na #: gpus=1\nb #: label=x\nc\n")
        self.assertEqual([draft.attributes for draft in parsed.drafts], [
            Attributes(gpus=1, timeout=5), Attributes(gpus=2, timeout=5, label="x"), Attributes(gpus=2, timeout=5)])

    def test_the_end_of_a_continued_line_counts(self) -> None:
        self.assertEqual(self.attributes("a \\\n  b #: gpus=3\n").gpus, 3)
        self.assertEqual(self.attributes('a "x\ny" || test_fail "z" #:gpus=3\n').gpus, 3)

    def test_what_is_no_attribute_comment(self) -> None:
        for line in ("a # : gpus=3", "a ##: gpus=3", "a '#: gpus=3'", "a b#: gpus=3", "a \\#: gpus=3"):
            with self.subTest(line=line):
                self.assertEqual(self.attributes(line), Attributes())

    def test_timeout_comes_from_the_line_else_from_the_command_line(self) -> None:
        tests = self.parse("a #: timeout=5\nb\nc #: timeout=0\n", timeout=60.0)
        self.assertEqual([test.timeout for test in tests], [5, 60, 0])
        self.assertEqual([test.timeout for test in self.parse("a #: timeout=5\nb\n")], [5, None])

    def test_label_holds_for_several(self) -> None:
        self.assertEqual(self.labels("#: label=x\na\nb\n"), ["x", "x #2"])


class Need(ParseCase):
    def need(self, line: str) -> float:
        return self.parse_one(line + "\n").gpus

    def test_one_gpu_unless_said(self) -> None:
        for line, need in (("a", 1), ("a #: gpus=0", 0), ("a #: gpus=.25", 0.25), ("a #: gpus=3", 3),
                           ("a #: gpus=all", ALL_GPUS)):
            with self.subTest(line=line):
                self.assertEqual(self.need(line), need)

    def test_a_leading_mask_asks_for_as_many_as_it_names(self) -> None:
        for mask, need in (("0", 1), ("3", 1), ("0,1,2,3", 4), ('"0,1"', 2), ("'5,6,7'", 3), ("GPU-a,GPU-b", 2),
                           ("", 0), ('""', 0), ("-1", 0), ("0,-1,2", 1)):
            for name in MASKS:
                with self.subTest(name=name, mask=mask):
                    self.assertEqual(self.need(f"{name}={mask} a"), need)

    def test_a_leading_mask_is_expanded(self) -> None:
        tests = self.parse("CUDA_VISIBLE_DEVICES=$G a\nexport G=0,1,2\nCUDA_VISIBLE_DEVICES=$G b\n")
        self.assertEqual([test.gpus for test in tests], [0, 3])

    def test_a_leading_mask_is_taken_out_of_the_command(self) -> None:
        for line, command in (("CUDA_VISIBLE_DEVICES=0,1 a b", "a b"),
                              ("A=1 CUDA_VISIBLE_DEVICES=0,1 B=2 a", "A=1 B=2 a"),
                              ("CUDA_VISIBLE_DEVICES= A=1 a", "A=1 a"), ("ZE_AFFINITY_MASK=0 a && b", "a && b")):
            with self.subTest(line=line):
                self.assertEqual(self.parse_one(line).command, command)
        self.assertIn("--junitxml=", self.parse_one("CUDA_VISIBLE_DEVICES=0,1 test_a.py").command)

    def test_gpus_wins_over_a_mask(self) -> None:
        test = self.parse_one("CUDA_VISIBLE_DEVICES=0,1,2,3 a #: gpus=2")
        self.assertEqual((test.gpus, test.command), (2, "a"))
        self.assertEqual(self.need("#: gpus=0\nCUDA_VISIBLE_DEVICES=0,1 a"), 0)

    def test_a_mask_in_state_is_a_mistake(self) -> None:
        for name in MASKS:
            for line in (f"export {name}=0", f"{name}=0", f"cd x; export {name}=0", f"export A=1 {name}=",
                         f"{name}=0 A=1"):
                with self.subTest(line=line):
                    self.assert_mistake(f"true\n{line}\n", 2, f"{name}=")

    def test_a_mask_inside_a_line_is_a_mistake(self) -> None:
        for line in ("a && CUDA_VISIBLE_DEVICES=0 b", "env CUDA_VISIBLE_DEVICES=0 b", "a; HIP_VISIBLE_DEVICES=0 b",
                     "(CUDA_VISIBLE_DEVICES=0 b)", "CUDA_VISIBLE_DEVICES=0 && b", "export CUDA_VISIBLE_DEVICES=0 && b",
                     "CUDA_VISIBLE_DEVICES=0 a | CUDA_VISIBLE_DEVICES=1 b"):
            with self.subTest(line=line):
                self.assert_mistake(line, 1, "inside a line would pin the test")

    def test_a_mask_may_be_named_read_or_unset(self) -> None:
        text = "unset CUDA_VISIBLE_DEVICES\nexport CUDA_VISIBLE_DEVICES\necho $CUDA_VISIBLE_DEVICES\n"
        self.assertEqual([test.gpus for test in self.parse(text)], [1])


class Commands(ParseCase):
    def pytest(self, rest: str, stem: str = "pytest_test_a", python: str = "python3", prefix: str = "") -> str:
        """The command of a pytest target."""
        junit = shlex.quote(self.path("logs", stem + ".xml"))
        return f"{prefix}{python} -u -m pytest --tb=auto --junitxml={junit} {rest}"

    def test_a_command_is_kept_as_written(self) -> None:
        for line in ("a  'b' \"$c\" | d && e; f", "for i in 1 2; do a $i; done", "! a", "a >b 2>&1", "a <<< b",
                     "a\\\n  b", "A=1 b  c", "A='x y' B=\"$z\" c", "{ a; }", "A=1 && b", "(cd x && a)", "a ;",
                     "cat <(a) >(b)"):
            with self.subTest(line=line):
                self.assertEqual(self.parse_one(f"  {line} # text\n").command, line)

    def test_redirections_before_a_command_are_kept(self) -> None:
        for line, pieces in ((">&2 echo a", [">&2", "echo a"]), ("< b python3 c", ["< b", "python3 c"]),
                             ("A=1 >b c d", ["A=1", ">b", "c d"]),
                             ("CUDA_VISIBLE_DEVICES=0,1 2>b c d", ["2>b", "c d"])):
            with self.subTest(line=line):
                command = self.parse_one(line).command
                self.assertEqual([piece for piece in pieces if piece not in command], [], command)
        self.assertEqual(self.run_script(self.parse_one(">out echo hidden")), "")

    def test_the_handler_is_the_runners_job(self) -> None:
        for line, command in (('a b || test_fail "c"', "a b"), ("a || test_fail", "a"),
                              ("a | b || test_fail c", "a | b"),
                              ("if a; then b; fi || test_fail c # d", "if a; then b; fi"), ("a||test_fail c", "a"),
                              ("A=1 a && b || test_fail c", "A=1 a && b"), ("{ a; b; } || test_fail c", "{ a; b; }"),
                              ("a || b || test_fail c", "a || b"), ("a \\\n  || test_fail c", "a")):
            with self.subTest(line=line):
                test = self.parse_one(line)
                self.assertEqual((test.command, test.announces), (command, True))
        self.assertFalse(self.parse_one("a || b").announces)

    def test_a_target_runs_under_pytest(self) -> None:
        for prefix in ("", "A=1 B='x y' "):
            with self.subTest(prefix=prefix):
                test = self.parse_one(f"{prefix}test_a.py")
                self.assertEqual(test.command, self.pytest("test_a.py", prefix=prefix))
                self.assertEqual(test.junit, self.path("logs", "pytest_test_a.xml"))
                self.assertEqual(test.stem, "pytest_test_a")
                self.assertTrue(test.announces)

    def test_a_targets_arguments_and_node_ids_are_kept(self) -> None:
        rest = "d/test_a.py::test_b[x-1] -k 'a or b' -v"
        test = self.parse_one(rest)
        self.assertEqual(test.command, self.pytest(rest, "pytest_d_test_a_test_b_x-1_-k_a_or_b_-v"))

    def test_a_targets_label_gives_its_junit_name(self) -> None:
        os.environ["TE_PATH"] = "/te"
        test = self.parse_one('A=1 $TE_PATH/tests/test_sanity.py || test_fail "test_sanity.py"')
        self.assertEqual(test.command, self.pytest("$TE_PATH/tests/test_sanity.py", "pytest_test_sanity",
                                                   prefix="A=1 "))
        self.assertEqual(test.label, "test_sanity.py")

    def test_a_targets_own_junit_file_is_the_only_one(self) -> None:
        for line in ("test_a.py --junitxml=own.xml", "test_a.py --junitxml own.xml",
                     'test_a.py "--junitxml=own.xml" -x'):
            with self.subTest(line=line):
                test = self.parse_one(line)
                self.assertEqual(test.command, f"python3 -u -m pytest --tb=auto {line}")
                self.assertEqual((test.junit, test.stem), (self.path("own.xml"), "own"))

    def test_python_and_pytest_args_hold_for_targets_only(self) -> None:
        options = {"python": "/my python/bin/python", "pytest_args": ("-x", "-m", "not slow")}
        target, command = self.parse("test_a.py -v\npython3 b.py\n", **options)
        self.assertEqual(target.command, self.pytest("-x -m 'not slow' test_a.py -v", "pytest_test_a_-v",
                                                     "'/my python/bin/python'"))
        self.assertEqual(command.command, "python3 b.py")

    def test_a_folder_is_a_target(self) -> None:
        for folder in ("unit", "a b", "tests/unit", "true"):
            os.makedirs(folder)
        os.environ["WHERE"] = "tests"
        for line, is_target in (("unit", True), ("unit/", True), ("./unit -k x", True), ("tests/unit", True),
                                ("'a b'", True), ("$WHERE/unit", True), ("A=1 ${WHERE}", True),
                                (f"{self.folder}/unit", True), ("true", False), ("./true", True), ("other", False),
                                ("$NOWHERE", False), ("echo unit", False)):
            with self.subTest(line=line):
                self.assertEqual("pytest" in self.parse_one(line).command, is_target)

    def test_a_folder_is_looked_for_where_the_test_starts(self) -> None:
        os.makedirs("sub/unit")
        tests = self.parse("unit\ncd sub\nunit\nW=uni\n${W}t\n")
        self.assertEqual(["pytest" in test.command for test in tests], [False, True, True])

    def test_a_builtin_is_a_command_although_a_folder_has_its_name(self) -> None:
        for name in ("eval", "exec", "command"):
            os.makedirs(name)
            with self.subTest(name=name):
                self.assertEqual(self.parse_one(f"{name} true").command, f"{name} true")

    def test_bytes_that_are_not_utf_8_survive(self) -> None:
        test = self.parse_one("printf '%s' caf\udce9 \udcff > out\n")
        self.assertEqual(run_tests.to_bytes(test.command), b"printf '%s' caf\xe9 \xff > out")
        self.assertEqual(self.run_script(test), "")
        with open("out", "rb") as file:
            self.assertEqual(file.read(), b"caf\xe9\xff")


class RunTestCalls(ParseCase):
    def test_a_call_is_a_pytest_target_with_that_xml_name_and_label(self) -> None:
        test = self.parse_one('run_test "A=1 B=2" "pytest_x.xml" "d/test_x.py" "the x"')
        junit = self.path("logs", "pytest_x.xml")
        self.assertEqual((test.label, test.junit, test.stem, test.gpus), ("the x", junit, "pytest_x", 1))
        self.assertEqual(test.command,
                         f"A=1 B=2 python3 -u -m pytest --tb=auto --junitxml={shlex.quote(junit)} d/test_x.py")
        self.assertTrue(test.announces)

    def test_the_environment_may_be_empty(self) -> None:
        for word in ('""', "''", '" "'):
            with self.subTest(word=word):
                self.assertTrue(self.parse_one(f'run_test {word} x.xml t.py l').command.startswith("python3 -u"))

    def test_the_environment_may_hold_quotes_and_a_prefix(self) -> None:
        test = self.parse_one("X=0 run_test \"A='x y' B=\\\"$HOME z\\\"\" x.xml t.py l")
        self.assertTrue(test.command.startswith("X=0 A='x y' B=\"$HOME z\" python3 -u"), test.command)

    def test_a_mask_in_the_environment_asks_for_gpus(self) -> None:
        for word, need in (('"CUDA_VISIBLE_DEVICES=0,1"', 2), ('"A=1 CUDA_VISIBLE_DEVICES=0,1,2,3 B=2"', 4),
                           ('"CUDA_VISIBLE_DEVICES="', 0), ("'CUDA_VISIBLE_DEVICES=-1'", 0)):
            with self.subTest(word=word):
                test = self.parse_one(f"run_test {word} x.xml t.py l")
                self.assertEqual((test.gpus, "VISIBLE" in test.command), (need, False))

    def test_a_mask_needs_no_quotes_to_ask_for_gpus(self) -> None:
        self.assertEqual(self.parse_one("run_test CUDA_VISIBLE_DEVICES=0,1 x.xml t.py l").gpus, 2)

    def test_target_words_are_split_and_variables_kept(self) -> None:
        command = self.parse_one('run_test "" "x.xml" "$D/t.py -k \'a or b\' -v" "l"').command
        self.assertTrue(command.endswith(" $D/t.py -k 'a or b' -v"), command)

    def test_words_are_expanded(self) -> None:
        test = self.parse_one('export N=7\nrun_test "" "x$N.xml" "t.py" "l $N"')
        self.assertEqual((test.junit, test.label), (self.path("logs", "x7.xml"), "l 7"))

    def test_the_xml_is_in_the_log_dir_unless_it_names_a_folder(self) -> None:
        tests = self.parse('cd /\nrun_test "" "a.xml" "t.py" "a"\nrun_test "" "/x/b.xml" "t.py" "b"\n', log_dir="out")
        self.assertEqual([test.junit for test in tests], [self.path("out", "a.xml"), "/x/b.xml"])

    def test_the_wrong_number_of_words_is_a_mistake(self) -> None:
        for rest, count in (("", 0), (' ""', 1), (' "" x.xml t.py', 3), (' "" x.xml t.py l more', 5)):
            with self.subTest(rest=rest):
                self.assert_mistake(f"\nrun_test{rest}\n", 2, f"here are {count}")

    def test_an_environment_that_is_none_is_a_mistake(self) -> None:
        for word in ("A", '"A"', '"A=1 b"', '"A=1; B=2"', '"A=1 # b"', "'A=$('", "'A=1 | b'"):
            with self.subTest(word=word):
                self.assert_mistake(f"run_test {word} x.xml t.py l\n", 1, "run_test's first word is VAR=value pairs")

    def test_a_target_that_is_no_bash_is_a_mistake(self) -> None:
        self.assertIn(f"{NAME}:1: ", self.mistakes('run_test "" x.xml "t.py -k \'a" l\n')[0])

    def test_what_follows_a_call_is_not_lost(self) -> None:
        parsed = split("run_test '' x.xml t.py l && echo more\n")
        self.assertTrue(parsed.mistakes or "echo more" in parsed.drafts[0].body)


class Labels(ParseCase):
    def label(self, line: str) -> str:
        return self.parse_one(line + "\n").label

    def test_precedence(self) -> None:
        for line, label in (('a b || test_fail "c" #: label=d', "d"), ('a b || test_fail "c"', "c"), ("a b", "a b"),
                            ('run_test "" x.xml t.py l #: label=d', "d"), ('run_test "" x.xml t.py l', "l"),
                            ("a b #: label=d", "d"), ("a b || test_fail", "a b"), ("A=1 B='x y' a b", "a b"),
                            ("CUDA_VISIBLE_DEVICES=0,1 a b", "a b"), ("d/test_x.py -k y", "d/test_x.py -k y")):
            with self.subTest(line=line):
                self.assertEqual(self.label(line), label)

    def test_variables_are_expanded(self) -> None:
        os.environ.update(X="1", LONG_NAME="2")
        for line, label in (('a || test_fail "b$X"', "b1"), ("a || test_fail $X/${LONG_NAME}", "1/2"),
                            ("a $X", "a 1"), ('a "$X"', 'a "1"'), ("a ${X}b", "a 1b"),
                            ("a #: label=$X-${LONG_NAME}", "1-2"), ("a || test_fail $(basename d/b.py .py)", "b"),
                            ("a $X$X", "a 11"), ("a #: label='$X b'", "1 b"),
                            ("a || test_fail a\"b $X\"'c $X'\\ d", "ab 1c $X d")):
            with self.subTest(line=line):
                self.assertEqual(self.label(line), label)

    def test_expansion_follows_the_state_above(self) -> None:
        text = "export V=1\na $V\nexport V=2\na $V\nunset V\na $V\n: ${V:=3}\na $V || test_fail \"$V\"\n"
        self.assertEqual(self.labels(text), ["a 1", "a 2", "a $V", "3"])

    def test_what_is_no_set_variable_stays_as_written(self) -> None:
        os.environ["X"] = "1"
        for line in ("a 'b $X'", "for i in 1 2; do a $i; done", "bash -c \"b ${i}\"", "a $1 $? $$ $@", "a $(b) `c`",
                     "a *", "a \\\\ \"b\"", "a $((1+2))", "a '\"' '$X'", "a !b ~ {c,d}", "a $"):
            with self.subTest(line=line):
                self.assertEqual(self.label(line), line)
        self.assertEqual(self.label("a || test_fail 'b $X'"), "b $X")

    def test_quotes_slashes_and_blanks_are_kept(self) -> None:
        for label in ("a/b", 'a "b"', "it's", "a  b", "a\\b", "../a", "*", "a;b|c&d", "$", "a`b`", "a, b", "%s %d",
                      "{}"):
            with self.subTest(label=label):
                self.assertEqual(self.label(f"true #: label={shlex.quote(label)}"), label)
                self.assertEqual(self.label(f"true || test_fail {shlex.quote(label)}"), label)

    def test_an_apostrophe_in_a_label_quotes_nothing(self) -> None:
        os.environ["X"] = "1"
        self.assertEqual(self.label('true #: label="it\'s $X, isn\'t it"'), "it's 1, isn't it")
        self.assertEqual(self.label('a "it\'s $X, isn\'t it"'), 'a "it\'s 1, isn\'t it"')

    def test_an_escaped_dollar_is_no_variable(self) -> None:
        os.environ["X"] = "1"
        self.assertEqual(self.label('bash -c "b \\$X"'), 'bash -c "b \\$X"')

    def test_a_name_ends_where_bash_ends_it(self) -> None:
        os.environ["X"] = "1"
        for label, expanded in (("{$X}", "{1}"), ("$Xé", "1é"), ("$X}", "1}"), ("é$X", "é1"), ("$X-$X", "1-1")):
            with self.subTest(label=label):
                self.assertEqual(self.labels(f"true #: label=first\ntrue #: label={label}\n"), ["first", expanded])

    def test_a_word_that_bash_cannot_expand_does_not_take_the_value_of_the_line_above(self) -> None:
        labels = self.labels('a || test_fail one\nb || test_fail "${1x}"\n')
        self.assertEqual(labels[0], "one")
        self.assertNotIn("one", labels[1])
        first, second = self.parse('a --junitxml=a.xml\nb "--junitxml=${1x}/b.xml" || test_fail two\n')
        self.assertNotEqual(first.junit, second.junit)

    def test_equal_labels_are_numbered(self) -> None:
        self.assertEqual(self.labels("a\nb\na\nA=1 a\nc || test_fail a\n"), ["a", "b", "a #2", "a #3", "a #4"])

    def test_numbered_labels_are_unique_too(self) -> None:
        text = 'a\na\nb || test_fail "a #2"\na\nb || test_fail "a #3"\n'
        labels = self.labels(text)
        self.assertEqual(len(set(labels)), 5, labels)
        self.assertEqual(labels[:2], ["a", "a #2"])

    def test_letters_of_another_case_make_another_label(self) -> None:
        self.assertEqual(self.labels("a\nA\n"), ["a", "A"])

    def test_control_characters_become_blanks(self) -> None:
        for line, label in (("python3 -c 'a\nb'", "python3 -c 'a b'"), ('true #: label="a\tb\x01c"', "a b c"),
                            ("true || test_fail $'a\\nb\\n'", "a b"), ("true || test_fail 'a\x1b[1mb'", "a [1mb"),
                            ("true || test_fail 'a\u2028b'", "a b")):
            with self.subTest(line=line):
                self.assertEqual(self.label(line), label)

    def test_an_empty_label_falls_back_to_the_command(self) -> None:
        for line in ('a b || test_fail ""', 'a b || test_fail "$UNSET"', "a b || test_fail ' '"):
            with self.subTest(line=line):
                self.assertEqual(self.label(line), "a b")

    def test_a_label_is_one_line_also_as_fallback(self) -> None:
        label = self.label('a "b\nc" || test_fail ""')
        self.assertNotIn("\n", label)

    def test_a_continued_command_is_one_line(self) -> None:
        self.assertEqual(self.label("a \\\n  --b \\\n\t--c"), "a --b --c")
        self.assertEqual(self.label("a\\\nb c"), "ab c")

    def test_a_continuation_keeps_the_blanks_that_part_words(self) -> None:
        self.assertEqual(self.label("a\\\n  --b"), "a --b")

    def test_long_and_foreign_labels_are_whole(self) -> None:
        for label in ("x" * 300, "é日本", "😀 ok", "caf\udce9", "a\u00a0b"):
            with self.subTest(label=label):
                self.assertEqual(self.label(f"true #: label={shlex.quote(label)}"), label)
                self.assertEqual(self.label(f"true || test_fail '{label}'"), label)


class Stems(ParseCase):
    def stems(self, text: str) -> List[str]:
        return [test.stem for test in self.parse(text)]

    def assert_sound(self, stems: Sequence[str]) -> None:
        """File names of ASCII, short enough, none hidden, no two equal where a file system ignores case."""
        for stem in stems:
            self.assertRegex(stem, r"\A[A-Za-z0-9+=@-][A-Za-z0-9._+=@-]*\Z")
            self.assertLessEqual(len(stem), 200)
        self.assertEqual(len({stem.casefold() for stem in stems}), len(stems), stems)

    def test_slugs(self) -> None:
        for label, slug in (("test_sanity.py", "test_sanity"), ("d/test_x.py::test_y[1-2]", "d_test_x_test_y_1-2"),
                            ("python3 a.py --lr=0.1", "python3_a_--lr=0.1"), ("a  /b", "a_b"), ("A.b", "A.b"),
                            ("a.python", "a.python"), ("...", "test"), ("/", "test"),
                            ("../../etc/passwd", "etc_passwd"), ("x" * 120, "x" * 120)):
            with self.subTest(label=label):
                self.assertEqual(run_tests.slug(label), slug)

    def test_a_slug_that_lost_something_has_a_hash(self) -> None:
        names = [run_tests.slug(label) for label in ("x" * 121, "x" * 122, "é", "è", "caf\udce9", "日本", "日")]
        self.assert_sound(names)
        for name in names:
            self.assertRegex(name, r"-[0-9a-f]{8}\Z")
            self.assertLessEqual(len(name), run_tests.STEM_BYTES)

    def test_any_label_makes_a_file_name(self) -> None:
        labels = ["a", "A", "a/", "a b", "a_b", "a_2", "A_2", "a #2", "é", "x" * 300, "x" * 301, "..", ".", "-", "_",
                  "*?", "a\\b", "a:b", "caf\udce9", "CON", "'", '"', "$", "a.py", "a.PY", ".hidden", "😀"]
        text = "".join(f"true #: label={shlex.quote(label)}\n" for label in labels * 2)
        stems = self.stems(text)
        self.assertEqual(len(stems), 2 * len(labels))
        self.assert_sound(stems)

    def test_a_junit_file_gives_the_stem(self) -> None:
        text = ("true --junitxml=d/own.xml || test_fail x\ntrue --junitxml=e/own.xml\ntrue --junitxml=f/OWN.xml\n"
                "true --junitxml=a.b.xml\nrun_test '' pytest_z.xml t.py l\n")
        self.assertEqual(self.stems(text), ["own", "own_2", "OWN_3", "a.b", "pytest_z"])

    def test_names_that_the_list_gives_come_first(self) -> None:
        self.assertEqual(self.stems("own\ntrue --junitxml=own.xml\n"), ["own_2", "own"])
        text = "test_a.py\nrun_test '' PYTEST_test_a.xml t.py l\n"
        self.assertEqual(self.stems(text), ["pytest_test_a_2", "PYTEST_test_a"])

    def test_equal_targets_have_junit_files_of_their_own(self) -> None:
        tests = self.parse("test_a.py\nA=1 test_a.py\nTest_A.py\n")
        self.assertEqual(len({str(test.junit).casefold() for test in tests}), 3)
        for test in tests:
            self.assertEqual(test.junit, self.path("logs", test.stem + ".xml"))
            self.assertIn(f"--junitxml={shlex.quote(str(test.junit))} ", test.command)


class JunitFiles(ParseCase):
    def junit(self, text: str) -> Optional[str]:
        return self.parse_one(text).junit

    def test_how_a_line_names_its_file(self) -> None:
        os.environ["X"] = "x"
        for words, name in (("--junitxml=a.xml", "a.xml"), ("--junitxml a.xml", "a.xml"),
                            ("--junit-xml=d/a.xml", "d/a.xml"), ("--junitxml=$X/a.xml", "x/a.xml"),
                            ('"--junitxml=$X/a.xml"', "x/a.xml"), ('--junitxml="$X/a b.xml"', "x/a b.xml"),
                            ("'--junitxml=$X a.xml'", "$X a.xml"), ("--junitxml='a b.xml'", "a b.xml"),
                            ('--junitxml "${X}/a.xml"', "x/a.xml"), ("--junitxml=d/../a.xml", "a.xml"),
                            ("--junitxml=a.xml --junitxml=b.xml", "b.xml"), ("--junitxml=a.xml | tee log", "a.xml"),
                            ("--junitxml=a.xml || test_fail x", "a.xml"), ("--junitxml=é.xml", "é.xml"),
                            ("--junitxml=$(echo q).xml", "q.xml")):
            for command in ("python3 -m pytest t.py", "t.py"):
                with self.subTest(command=command, words=words):
                    self.assertEqual(self.junit(f"{command} {words}"), self.path(name))

    def test_a_command_that_names_none_has_none(self) -> None:
        for line in ("python3 -m pytest t.py", "a --junitxml=", "a --junitxml", "a --junit=b.xml", "a '' junitxml=b",
                     "a --junitxml=$UNSET"):
            with self.subTest(line=line):
                self.assertIsNone(self.junit(line))

    def test_a_path_is_relative_to_where_the_test_starts(self) -> None:
        os.makedirs("d/e")
        text = ("a --junitxml=x.xml\ncd d\na --junitxml=x.xml\ncd e && export A=1\n"
                "a --junitxml=../y.xml\na --junitxml=/z.xml\n")
        self.assertEqual([test.junit for test in self.parse(text)],
                         [self.path("x.xml"), self.path("d/x.xml"), self.path("d/y.xml"), "/z.xml"])

    def test_the_log_dir_is_the_runners_whatever_the_list_does(self) -> None:
        test = self.parse_one("cd /\ntest_a.py\n", log_dir="out")
        self.assertEqual(test.junit, self.path("out", "pytest_test_a.xml"))

    def test_two_tests_with_one_file_are_a_mistake(self) -> None:
        os.makedirs("d")
        os.environ["X"] = "logs"
        for first, second in (("a --junitxml=x.xml", "b --junitxml=./x.xml"),
                              ("a --junitxml=x.xml", "t.py --junitxml x.xml"),
                              ("run_test '' x.xml t.py l", "a --junitxml=$X/x.xml"),
                              ("run_test '' x.xml t.py l", "run_test '' x.xml t.py l"),
                              ("a --junitxml=d/x.xml\ncd d", "b --junitxml=x.xml")):
            text = f"{first}\n{second}\n"
            with self.subTest(text=text):
                self.assert_mistake(text, text.count("\n"), f"writes the same JUnit file as {NAME}:1, ")

    def test_a_file_in_another_list_counts_too(self) -> None:
        with self.assertRaises(ListError) as caught:
            self.parse_several("a --junitxml=x.xml\n", "b\na --junitxml=x.xml\n")
        self.assertEqual(len(caught.exception.messages), 1)
        self.assertTrue(caught.exception.messages[0].startswith("b.txt:2: writes the same JUnit file as a.txt:1, "))


class Mistakes(ParseCase):
    def test_background_commands(self) -> None:
        for line in ("a &", "a && b &", "a 2>&1 &", 'a || test_fail "b" &', "a & # b", "export A=1 &", "cd x &",
                     "run_test '' x.xml t.py l &", "test_x.py &"):
            with self.subTest(line=line):
                self.assert_mistake(f"\n{line}\n", 2, "in the background")

    def test_a_failure_that_only_sets_a_variable_would_pass(self) -> None:
        for line in ("make check || RET=1", 'python3 t.py || FAILED="$FAILED t"', "A=1 make || RET=$((RET+1))"):
            with self.subTest(line=line):
                self.assert_mistake(f"\n{line}\n", 2, 'would hide the failure: the test would always pass; write || '
                                    'test_fail "label"')

    def test_variables_that_a_guard_or_a_test_sets(self) -> None:
        self.assertEqual(self.labels("[ -d a ] || B=1\nexport A=1 || B=1\nmake || B=1 make\n"), ["make || B=1 make"])

    def test_ampersands_that_put_nothing_in_the_background(self) -> None:
        for line in ("a 2>&1", "a &> b", "a >& b", "a && b", "a '&'", "a \\&", "a |& b", "a & wait", "a >&-"):
            with self.subTest(line=line):
                self.assertEqual(len(self.parse(line)), 1)

    def test_misplaced_handlers(self) -> None:
        for line in ("test_fail a", "a; test_fail b", "a && test_fail b", "if ! a; then test_fail b; fi",
                     "! test_fail a", "{ a || test_fail b; }", "(a || test_fail b)", "a || test_fail b; c",
                     "a || test_fail b || c", "a || test_fail b | c", "for i in 1; do test_fail a; done"):
            with self.subTest(line=line):
                self.assert_mistake(f"\n{line}\n", 2, "`test_fail` is understood only at the end of a line")

    def test_test_fail_as_an_argument_is_a_word(self) -> None:
        self.assertEqual(self.labels("echo test_fail\ngrep 'a || test_fail b' c\n"),
                         ["echo test_fail", "grep 'a || test_fail b' c"])

    def test_unclosed_quotes(self) -> None:
        for opener in ("'", '"', "`", "$(", "${", "$'", '$"', "<(", "$((", '"$(', '"${a:-'):
            text = f"true\n\necho {opener}a\ntrue\n"
            with self.subTest(opener=opener):
                self.assert_mistake(text, 3, "is never closed")

    def test_an_unclosed_quote_is_told_where_its_line_begins(self) -> None:
        self.assert_mistake("true\n\necho a \\\n b \\\n 'c\nd\n", 3, "' is never closed")

    def test_bad_syntax(self) -> None:
        for line in ("if true", "fi", "then a", "done", "for i in 1 2; do", "a &&", "a |", "a ||", "| a", "&& a",
                     "; a", "a;;", "(a", "a)", "{ a", "}", "a ( b )", "case a in", "while true", "esac", "a > ",
                     "f() {", "export A=1 &&", "cd x; )", "((1+", "|| test_fail a", "a & || test_fail b"):
            with self.subTest(line=line):
                found = self.mistakes(f"true\n{line}\ntrue\n")
                self.assertEqual([message.split(" ")[0] for message in found], [f"{NAME}:2:"], found)

    def test_a_group_over_several_lines_is_bad_syntax(self) -> None:
        """Each line alone is no bash, although the two together are."""
        for text in ("{ a\nb; }\n", "f() { a\nb; }\n", "{ a\nb; } || test_fail c\n", "( a\nb )\n"):
            with self.subTest(text=text):
                found = self.mistakes(text)
                self.assertEqual([message.split(" ")[0] for message in found], [f"{NAME}:1:", f"{NAME}:2:"], found)

    def test_a_loop_over_several_lines_is_told_at_each_end(self) -> None:
        found = self.mistakes("for i in 1 2; do\n  a $i\ndone\n")
        self.assertEqual([message.split(" ")[0] for message in found], [f"{NAME}:1:", f"{NAME}:3:"], found)

    def test_good_syntax(self) -> None:
        for line in ("if a; then b; fi", "for i in 1 2; do a $i; done", "case a in b) c;; esac", "{ a; }", "(a)",
                     "[[ a == @(b|c) ]]", "((1))", "a <<< b", "while a; do b; done", "! a", "time a",
                     "a ;", "echo }"):
            with self.subTest(line=line):
                self.assertEqual(self.parse_one(line).command, line)

    def test_here_documents(self) -> None:
        self.assert_mistake("true\ncat <<EOF\nhello\nEOF\n", 2, "here-document")
        self.assert_mistake("cat <<-'EOF' || test_fail a\n\tEOF\n", 1, "here-document")

    def test_nul_bytes_and_windows_line_ends(self) -> None:
        self.assert_mistake("true\ntrue \0\ntrue\0\n", 2, "NUL")
        self.assert_mistake("true\r\ntrue\r\n", 1, "Windows line ends")
        self.assert_mistake("true\n\ntrue\r\n", 3, "Windows line ends")

    def test_nesting_without_end(self) -> None:
        for line in ("echo " + "$(" * 5000 + ")" * 5000, 'echo "' + "${a:-" * 5000 + "}" * 5000 + '"'):
            self.assert_mistake(f"true\n{line}\n", 2, "nested too deeply")

    def test_a_test_that_is_too_long_to_start(self) -> None:
        for text in (f"true {'x' * 140_000}\n", f"true {'é' * 70_000}\n",
                     f"export A={'a' * 100_000}\nexport B={'b' * 100_000}\ntrue\n"):
            with self.subTest(text=text[:12]):
                try:
                    tests = self.parse(text)
                except ListError as error:
                    self.assertRegex(error.messages[0], rf"\A{NAME}:\d+: ")
                else:
                    sizes = [len(run_tests.to_bytes(run_tests.build_script(test, {}))) for test in tests]
                    self.assertLess(max(sizes), ARGUMENT_BYTES)

    def test_after_that_names_nothing(self) -> None:
        found = self.mistakes("a\nb #: after=a,c\nd #: after=A\n")
        named = [message for message in found if "names no test" in message]
        self.assertEqual([message.split(";")[0] for message in named],
                         [f"{NAME}:2: after=c names no test", f"{NAME}:3: after=A names no test"])

    def test_after_that_goes_in_a_circle(self) -> None:
        for text, lines in (("a #: after=a\n", [1]), ("a #: after=b\nb #: after=a\n", [1, 2]),
                            ("a #: after=b\nb #: after=c\nc #: after=a\nd #: after=a\n", [1, 2, 3]),
                            ("a\nc\nb #: after=c,d\nd #: after=a,b\n", [3, 4])):
            with self.subTest(text=text):
                found = [message for message in self.mistakes(text) if "circle" in message]
                self.assertEqual([int(message.split(":")[1]) for message in found], lines, found)

    def test_after_that_goes_in_no_circle(self) -> None:
        for text in ("a\nb #: after=a\nc #: after=a,b\nd #: after=c,b,a\n", "b #: after=a\na\n",
                     "a\nwait\nb #: after=a\n"):
            with self.subTest(text=text):
                self.assertTrue(self.parse(text))

    def test_after_across_a_barrier(self) -> None:
        """A test above a `wait` cannot wait for one below it."""
        self.assert_mistake("a #: after=b\nwait\nb\n", 1, "after=b waits for a test below a `wait`")

    def test_state_that_ends_bash(self) -> None:
        for text, line in (("cd nowhere || exit 3\n\ntrue\n", 3), ("true\ncd nowhere || exit 3\ntrue\nfalse\n", 3),
                           (": ${UNSET:?}\ntrue\n", 2)):
            with self.subTest(text=text):
                self.assert_mistake(text, line, "ends bash with status ")
        self.assertIn("status 3", self.mistakes("cd nowhere || exit 3\ntrue\n")[0])

    def test_state_that_fails_but_goes_on_is_none(self) -> None:
        self.assertEqual(self.labels("cd nowhere\n. ./nofile\nset -e\nset -u\ntrue $A\n"), ["true $A"])

    def test_state_below_the_last_test_does_not_run(self) -> None:
        self.assertEqual(self.labels("true\ncd nowhere || exit 1\n"), ["true"])

    def test_state_is_silent_and_gets_no_input_while_the_list_is_read(self) -> None:
        self.write("state.sh", "cat; echo noise; echo noise >&2; export A=1\n")
        ran = self.run_list(". ./state.sh\ntrue $A\n", "--list")
        self.assertEqual((ran.code, ran.text, ran.err), (0, "true 1\t1\ttrue_1\ttests.txt:2\n", ""))

    def test_a_mistake_of_every_kind_is_told_at_once(self) -> None:
        text = "a #: nope=1\nb --junitxml=x.xml\nc --junitxml=x.xml\nd #: split=1\n"
        self.assertEqual([message.split(":")[1] for message in self.mistakes(text)], ["1", "3", "4"])


class ThroughTheCommandLine(ParseCase):
    def assert_refused(self, ran: Ran, *starts: str) -> None:
        """Exit code 2, one line per mistake on stderr, nothing on stdout, and nothing written."""
        lines = ran.err.splitlines()
        self.assertEqual((ran.code, ran.out), (2, b""), ran)
        self.assertEqual(len(lines), len(starts), lines)
        for line, start in zip(lines, starts):
            self.assertTrue(line.startswith(start), (line, start))
        self.assertEqual([name for name in os.listdir(self.folder) if name in ("logs", "started")], [])

    def test_mistakes_are_told_in_line_order_and_nothing_starts(self) -> None:
        text = "touch started\nfi\ntrue #: gpus=x nope=1\nexport CUDA_VISIBLE_DEVICES=0\ntrue &\necho 'a\n"
        ran = self.run_list(text)
        self.assert_refused(ran, "tests.txt:2: syntax error", "tests.txt:3: gpus: 'x'",
                            "tests.txt:3: unknown key 'nope'", "tests.txt:4: CUDA_VISIBLE_DEVICES=0",
                            "tests.txt:5: a test in the background", "tests.txt:6: ' is never closed")

    def test_mistakes_of_several_lists(self) -> None:
        self.write("a.txt", "touch started\n\ntrue #: gpus=x\nfi\n")
        self.write("b.txt", "touch started\n")
        self.write("c.txt", "test_fail a\n")
        self.assert_refused(self.run_command("a.txt", "b.txt", "c.txt"), "a.txt:3: gpus", "a.txt:4: syntax error",
                            "c.txt:1: `test_fail`")

    def test_one_missing_list_stops_all(self) -> None:
        self.write("a.txt", "touch started\n")
        for name in ("missing.txt", self.folder):
            with self.subTest(name=name):
                self.assert_refused(self.run_command("a.txt", name), f"{name}: cannot read this list (")

    def test_a_missing_list_does_not_hide_other_mistakes(self) -> None:
        self.write("a.txt", "true\nfi\n")
        ran = self.run_command("a.txt", "missing.txt")
        self.assertEqual(sorted(line.partition(" ")[0] for line in ran.err.splitlines()), ["a.txt:2:", "missing.txt:"])

    def test_a_script_for_another_shell_is_refused(self) -> None:
        for line in ("#!/usr/bin/env python3", "#!/usr/bin/perl"):
            with self.subTest(line=line):
                self.assert_refused(self.run_list(f"{line}\ntouch started\n", name="run"), "run:1: this is a")

    def test_equal_junit_files_are_told(self) -> None:
        ran = self.run_list("touch started --junitxml=a.xml\ntouch started --junitxml a.xml\n")
        self.assert_refused(ran, "tests.txt:2: writes the same JUnit file as tests.txt:1")

    def test_standard_input_is_a_list(self) -> None:
        ran = self.run_command("--list", "-", stdin=b"true a\n\ncaf\xe9 #: gpus=2\n")
        self.assertEqual((ran.code, ran.err), (0, ""))
        first, second = ran.out.splitlines()
        self.assertEqual(first, b"true a\t1\ttrue_a\t-:1")
        self.assertTrue(second.startswith(b"caf\xe9\t2\tcaf-") and second.endswith(b"\t-:3"), second)

    def test_mistakes_in_standard_input_are_told(self) -> None:
        self.assert_refused(self.run_command("-", stdin=b"true\nfi\n"), "-:2: syntax error")
        self.assert_refused(self.run_command("-", stdin=b"#!/bin/sh\ntrue\n"), "-:1: a script cannot come from")

    def test_a_closed_standard_input_is_a_list_that_cannot_be_read(self) -> None:
        ran = subprocess.run(["bash", "-c", '"$@" <&-', "bash", sys.executable, RUNNER, "-"], check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((ran.returncode, ran.stdout), (2, b""), ran.stderr)
        self.assertIn(b"-: cannot read this list", ran.stderr)


class SeveralLists(ParseCase):
    def test_labels_and_stems_are_unique_over_all(self) -> None:
        tests = self.parse_several("true\nfalse\n", "true\n", "true\n")
        self.assertEqual([(test.label, test.stem, test.where, test.index) for test in tests], [
            ("true", "true", "a.txt:1", 0), ("false", "false", "a.txt:2", 1), ("true #2", "true_2", "b.txt:1", 2),
            ("true #3", "true_3", "c.txt:1", 3)])

    def test_barriers_are_counted_over_all(self) -> None:
        tests = self.parse_several("a\nwait\nb\nwait\n", "c\nwait\nd\n", "e\n")
        self.assertEqual([test.barrier for test in tests], [0, 1, 2, 3, 3])

    def test_after_names_a_test_of_its_own_list_first(self) -> None:
        build = 'true || test_fail "build"\n'
        tests = self.parse_several(build, f"{build}true use #: after=build\n", "true too #: after=build\n")
        self.assertEqual([(test.label, test.attributes.after) for test in tests], [
            ("build", ()), ("build #2", ()), ("true use", ("build #2",)), ("true too", ("build",))])

    def test_state_does_not_leak_into_the_next(self) -> None:
        os.mkdir("d")
        first, second = self.parse_several("export V=1\ncd d\na $V --junitxml=x.xml\n", "a $V --junitxml=x.xml\n")
        self.assertEqual((first.label, second.label), ("a 1 --junitxml=x.xml", "a $V --junitxml=x.xml"))
        self.assertEqual((first.junit, second.junit), (self.path("d/x.xml"), self.path("x.xml")))
        self.assertEqual((first.shell.held, second.shell.held, len(second.shell.lines)), (2, 0, 0))

    def test_attributes_do_not_leak_into_the_next(self) -> None:
        self.assertEqual([test.gpus for test in self.parse_several("#: gpus=3\na\n", "b\n")], [3, 1])

    def test_an_empty_list_among_others(self) -> None:
        self.assertEqual([test.label for test in self.parse_several("", "export A=1\n", "a\n")], ["a"])


class Keys(ParseCase):
    LINE = "A=1 python3 x --y"

    def test_a_key_is_that_of_command_and_environment_prefix(self) -> None:
        key = draft_of(self.LINE).key
        self.assertRegex(key, r"\A[0-9a-f]{12}\Z")
        for text in (f"\n\n  {self.LINE}\n", f"{self.LINE} || test_fail 'z'", f"{self.LINE} || test_fail",
                     f"{self.LINE} #: gpus=2 label=z timeout=5", f"#: gpus=3\n{self.LINE}", f"export B=1\n{self.LINE}",
                     f"wait\n{self.LINE} # text", "A=1   python3 \\\n  x --y"):
            with self.subTest(text=text):
                self.assertEqual(draft_of(text).key, key)

    def test_another_command_or_prefix_has_another_key(self) -> None:
        lines = [self.LINE, "python3 x --y", "A=2 python3 x --y", "A=1 B=2 python3 x --y", "A=1 python3 x --z",
                 "A=1 python3 x", "A=1 python3 'x --y'", "A=1 python3 x --y > z", "A=1 python3 x; --y",
                 "A=1 python3 xé --y", "A=1 python3 x\udce9 --y"]
        self.assertEqual(len({draft_of(line).key for line in lines}), len(lines))

    def test_equal_lines_have_equal_keys_wherever_they_stand(self) -> None:
        first, _, third = self.parse("a $V\nb\na $V\n")
        self.assertEqual((first.key == third.key, first.label == third.label), (True, False))
        self.assertEqual(run_tests.split_list("other.txt", "a $V\n").drafts[0].key, first.key)

    def test_the_label_of_a_run_test_call_is_no_part_of_its_key(self) -> None:
        call = 'run_test "A=1" "x.xml" "t.py" '
        self.assertEqual(draft_of(call + '"one"').key, draft_of(call + '"two"').key)
        self.assertNotEqual(draft_of(call + "l").key, draft_of('run_test "A=2" "x.xml" "t.py" l').key)
        self.assertNotEqual(draft_of(call + "l").key, draft_of('run_test "A=1" "x.xml" "u.py" l').key)


class Scripts(ParseCase):
    """build_script: the bash text of a test."""

    def test_a_command_stands_on_its_own_line(self) -> None:
        for test in self.parse("\n\necho a\nexport A=1\n\necho \"b\nc\"\nexport B='x\ny'\n\n\n\necho d\n"):
            with self.subTest(test=test.label):
                lines = run_tests.build_script(test, {}).split("\n")
                self.assertEqual("\n".join(lines[test.line - 1:]).rstrip("\n"), test.command)

    def test_bash_names_the_line_that_it_names_for_the_list(self) -> None:
        text = ("\n# text\nnosuch_1\nexport A=$(nosuch_2)\n\nexport B=\"x\ny\"\nnosuch_3 \\\n  a\n"
                "export C=$(nosuch_4)\n\n\nnosuch_5\nnosuch_6\n")
        printed = "".join(self.run_script(test) for test in self.parse(text))
        self.assertEqual(printed, self.bash(text).decode())
        self.assertIn(f"{NAME}: line 3: nosuch_1", printed)
        self.assertIn(f"{NAME}: line 14: nosuch_6", printed)

    def test_state_is_shown_once(self) -> None:
        self.write("noise.sh", "echo noise $1; echo error $1 >&2; export A=$1\n")
        text = ". ./noise.sh 1\necho a $A\necho b $A\n. ./noise.sh 2\n. ./noise.sh 3\necho c $A\necho d $A\n"
        printed = [self.run_script(test) for test in self.parse(text)]
        self.assertEqual(printed, ["noise 1\nerror 1\na 1\n", "b 1\n",
                                   "noise 2\nerror 2\nnoise 3\nerror 3\nc 3\n", "d 3\n"])
        self.assertEqual("".join(printed), self.bash(text).decode())

    def test_shown_state_is_silent_under_tracing(self) -> None:
        text = "set -x\nexport A=1\necho a\nexport B=2\necho b\n"
        tests = self.parse(text)
        self.assertEqual(self.run_script(tests[0]), "+ export A=1\n+ A=1\n+ echo a\na\n")
        self.assertEqual(self.run_script(tests[1], {"CUDA_VISIBLE_DEVICES": "1"}), "+ export B=2\n+ B=2\n+ echo b\nb\n")

    def test_state_holds_in_the_tests_own_shell(self) -> None:
        os.mkdir("d")
        self.write("f.sh", "greet() { echo hello $1; }\n")
        text = ". ./f.sh\ncd d || exit 1\nV=local\numask 077\ngreet $V\nbasename $PWD; umask\n"
        self.assertEqual([self.run_script(test) for test in self.parse(text)], ["hello local\n", "d\n0077\n"])

    def test_state_may_turn_on_a_syntax_for_the_state_below_it(self) -> None:
        text = "shopt -s extglob\nA=$(echo tests.!(sh))\necho a $A\necho b $A\n"
        tests = self.parse(text)
        self.assertEqual([self.run_script(test) for test in tests], ["a tests.txt\n", "b tests.txt\n"])

    def test_the_mask_is_set_again_after_state(self) -> None:
        self.write("mask.sh", "export CUDA_VISIBLE_DEVICES=9\n")
        mask = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        for state in (". ./mask.sh", "unset CUDA_VISIBLE_DEVICES", "cd ."):
            text = f"{state}\necho $CUDA_VISIBLE_DEVICES\nbash -c 'echo $CUDA_VISIBLE_DEVICES'\n"
            with self.subTest(state=state):
                self.assertEqual([self.run_script(test, mask) for test in self.parse(text)], ["2,3\n", "2,3\n"])

    def test_a_mask_of_any_bytes_is_quoted(self) -> None:
        test = self.parse_one("cd .\necho \"$ZE_AFFINITY_MASK\"\n")
        self.assertEqual(self.run_script(test, {"ZE_AFFINITY_MASK": "a b;$c'd"}), "a b;$c'd\n")
        self.assertEqual(self.run_script(test, {"ZE_AFFINITY_MASK": ""}), "\n")

    def test_without_state_and_mask_the_script_is_the_command(self) -> None:
        self.assertEqual(run_tests.build_script(self.parse_one("echo a"), {}).rstrip("\n"), "echo a")

    def test_the_mask_is_set_again_after_what_may_change_it(self) -> None:
        mask, again = {"CUDA_VISIBLE_DEVICES": "1"}, "{ export CUDA_VISIBLE_DEVICES=1; } 2>/dev/null; echo a"
        plain, after_state = self.parse_one("echo a"), self.parse("export A=1\necho a\n")[0]
        with mock.patch.dict(os.environ):
            os.environ.pop("BASH_ENV", None)
            self.assertEqual(run_tests.build_script(plain, mask).rstrip("\n"), "echo a")
            self.assertEqual(run_tests.build_script(after_state, mask).rstrip("\n"), "export A=1\n" + again)
            os.environ["BASH_ENV"] = "prelude.sh"
            self.assertEqual(run_tests.build_script(plain, mask).rstrip("\n"), again)

    def test_the_list_finds_its_own_folder(self) -> None:
        for word in ("$0", "${BASH_SOURCE[0]}", "$BASH_SOURCE", "${BASH_SOURCE}"):
            with self.subTest(word):
                self.write("sub/l.txt", f'cd "$(dirname "{word}")"\npwd > here\n')
                ran = self.run_command("sub/l.txt")
                self.assertEqual((ran.code, os.path.realpath(ran.read("sub/here").strip())),
                                 (0, os.path.realpath(ran.path("sub"))), ran.err)
                os.unlink(ran.path("sub/here"))

    def test_a_script_may_be_longer_than_the_lists_line_numbers_allow(self) -> None:
        """Where the padding does not fit, it goes; not a byte of the content does."""
        padding = "\n" * 150_000
        text = f"{padding}export A='x\n\ny'\n{padding}echo \"$A\n\nz\"\n{padding}export B='\n'\necho \"$A$B\n\"\n"
        tests = self.parse(text)
        self.assertEqual([test.line for test in tests], [300_004, 450_009])
        for test in tests:
            self.assertLess(len(run_tests.build_script(test, {})), 1000)
        self.assertEqual([self.run_script(test) for test in tests], ["x\n\ny\n\nz\n", "x\n\ny\n\n\n"])

    def test_a_long_command_is_whole(self) -> None:
        word = "x\n" * 30_000
        test = self.parse_one(f"\n\nexport A=1\nprintf %s '{word}' | tr -d '\\n' | wc -c\n")
        self.assertEqual(self.run_script(test).strip(), "30000")


class Fuzz(ParseCase):
    def test_no_text_makes_the_splitter_raise(self) -> None:
        """What it finds lies where it says, whatever the text is."""
        dice = random.Random(20240229)
        found = {"tests": 0, "states": 0, "mistakes": 0}
        for number in range(3000):
            text = "".join(dice.choice(FRAGMENTS) for _ in range(dice.randint(1, 14)))
            with self.subTest(number=number, text=text):
                parsed = split(text)
                lines = text.split("\n")
                for line, piece in [*parsed.states, *((draft.line, draft.source) for draft in parsed.drafts)]:
                    self.assertIn(piece, "\n".join(lines[line - 1:]))
                    self.assertIn(piece.split("\n")[0], lines[line - 1])
                for line, what in parsed.mistakes:
                    self.assertTrue(1 <= line <= len(lines) and what, (line, what))
            found["tests"] += len(parsed.drafts)
            found["states"] += len(parsed.states)
            found["mistakes"] += len(parsed.mistakes)
        self.assertGreater(min(found.values()), 150, found)

    def test_whole_lists_become_tests_or_mistakes(self) -> None:
        """The same through bash; fragments that would run something while labels expand are left out."""
        dice = random.Random(20240301)
        safe = [fragment for fragment in FRAGMENTS if not set("`<>\r\0") & set(fragment) and "$(" not in fragment]
        for number in range(60):
            text = "".join(dice.choice(safe) for _ in range(dice.randint(1, 12)))
            with self.subTest(number=number, text=text):
                try:
                    tests = self.parse(text)
                except ListError as error:
                    self.assertTrue(all(message.startswith(f"{NAME}:") for message in error.messages), error)
                else:
                    self.assertEqual(len({test.label for test in tests}), len(tests))
                    self.assertEqual(len({test.stem.casefold() for test in tests}), len(tests))
