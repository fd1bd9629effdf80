"""Section 3: what a list means, which mistakes are told, and from which shell each test starts."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple
from unittest import TestCase, mock

import run_tests
from run_tests import ALL_GPUS, Attributes, ListError, ListFile, Node, Options, Reader, Test
from tests.support import RunnerCase

NAME = "tests.txt"
FIRST_LINE = "\n" * (subprocess.check_output(["bash", "-c", "echo $LINENO"]) == b"0\n")

# Commands that bash reads as one, over one line or several.
WHOLE = [
    "for i in 1; do a; done \\\n  || exit 1", "[[ -f a ]] \\\n  || { b; }", "( a ) \\\n  >c",
    "a \\\n  b", "a\\\nb", 'a "x\ny"', "a 'x\n# y\n'", "a $(b\nc)", "a `b\nc`", "a ${b:-c\nd}", "a <(b\nc)", "a $'x\n'",
    'a "$(b "c\nd")"', "a $((1 +\n 2))", 'a "x\n\ny" \\\n\\\n z', "a $(\nb)", "a &&\nb", "a |\n\n# c\nb", "(a\nb)",
    "for i in 1 2; do\n  a $i\ndone", "if a\nthen\n  b\nelse\n  c\nfi", "while a; do\n  b\ndone <c >d", "{ a\nb; }",
    "case $a in\n  b) c;;\n  (*) d # it's\nesac", 'case $a in *"\n"*) b;; esac',
    "[[ a &&\n b ]]", "a $(case b in\n  b) c;; esac)", "a || (\n  b)",
    "a $'it\\'s'", 'a \\"', "a \\'", 'a "x\\"y"', "a $(echo \\))", 'a "$(echo ")" "b")"', "a \\\\", "a ${b#\\}}",
    "a $((1 + (2 * 3)))", "a ${#b} $# $", "a `b \\` c`", "a '\\'", 'a "`b "c"`"', 'a "${b:-"c d"}"', "a $(b '(')",
    "a \\$b", "a }", "a {b,c}", 'a $"x"', 'grep "foo$" x', 'a "$(b "c$")"', "a b\u00a0#c", "a @(b|c)",
    "a $(case b in b) c;; esac)", "for ((i = 0; i < 1 << 2; i++)); do a; done", "a ${b/ #/} c", "a $((1<<2)) b",
    "((1))",
]
STATE = [
    "A=1", "A=", "A=1 B=2", "A+=x", 'A="x y"', "A=$(echo 1)", "MAP[a]=1", "export A", "export A=1", "export A=1;",
    "export A=1; export B=2", "export A=1 && export B=2", "unset A", ": ${A:=1}", "set -x", "set -eu", "umask 022",
    "shopt -s extglob", "ulimit -c 0", "cd x", "cd x || exit 1", "cd x || return 1", "cd x || true", "! cd x",
    'cd "$(dirname x)" && export A=1', "[ -d x ] && cd x", "[ -d x ] || B=1", "export A=1 || B=1", "{ cd x; }",
    "if [ -d x ]; then cd x; fi", "if true; then export A=1; else export A=2; fi", "cd x || { echo no; exit 1; }",
    "f() { echo a; }", "function f { echo a; }", "f() {\n  a\n  b || RET=1\n}", "f() (\n  a\n)", "declare -x A=1",
    "readonly A", "pushd x", "cd x >/dev/null 2>&1", "source x.sh", ". ./x.sh word", "  export A=1  # why", "\tcd x",
    "FLAGS=(-x -v)", "FLAGS+=(-q)", "export A=1; FLAGS=(-x)", "A=(b\n  'c )' $(d))", "A=(1 # it's one\n2)", "alias a=b",
    "X=$(case $A in a) echo 1;; *) echo 2;; esac)", "if [ -d x ]; then\n  cd x\nfi", "[ -d x ] || exit 1; cd x",
    "A=1; case x in a) ;; esac",
    "if command -v a; then export A=1; fi", "type a && export A=1", "mkdir -p x && cd x",
    "if ! command -v a >f; then export A=1; fi", "! type a && export A=1",
    "mkdir x; cd x", "cd x || mkdir x",
]
TESTS = [
    "a", "cd x && a", "export A=1 && a", "set -x; a", "(cd x)", "cd x | cat", "A=1 a", "env A=1 true",
    "echo export A=1",
    "exit 1", "true", "if [ -d x ]; then a; fi", "[ -d x ] || exit 1", "{ echo a; }",
    "cdx", "sources a", "wait $pid", "waits", "[[ -n $B ]]", "bash test_x.py", "cd x; test_x.py", "test_x.pyc",
    "test_x.py.txt", "a & wait $!", "echo $(test_x.py)", "export A=1 | cat", "wait; a",
    "> file",                            # as state it would empty the file when the list is read
    'OUT=$(prog) && [ "$OUT" = x ]', "cd /x && test -f lib.so", "export A=1; test -e F", "cd x; false",      # checks
    "[ -d x ] && cd x || false", "A=2; ((A > 1))", "{ cd x; [[ -e F ]]; }", ". ./x.sh; ! test -e F",
    "mkdir x", "A=1; command -v a", "A=1; type a",
    "command a && export A=1", "a && export A=1",
]
TARGETS = [
    "test_x.py", "path/to/test_x.py", "./test_x.py", "test_x.py::test_y", "test_x.py::Test::test_y[1-2]",
    "$D/test_x.py", '"$D/test_x.py"', "'a b/test_x.py'", "A=1 B='x y' test_x.py", "test_x.py -k 'a or b' -x",
    "test_x.py --junitxml=a.xml", "  test_x.py  # why", 'test_x.py || test_fail "x"', "test_x.py 2>&1 | grep b",
    'run_test "" "x.xml" "test_x.py" "x"',
]
ALWAYS_PASS = [
    "a || { RET=1; }", "a || RET=1;", "a || export RET=1", "a || (RET=1)", "a; RET=$?", "if ! a; then RET=1; fi",
    "a || ((f <<= 1))", "a || echo failed", "a || ((f++))", 'A=1 a || FAILED="$FAILED a"', "a || RET=$((RET+1))",
    "a || { echo no; RET=1; }", "a ||\n  RET=1", "a || let RET=1", "a || printf no", "a; true", "a; echo done",
    "a && echo yes || echo no", "(a || RET=1)", "for i in 1 2; do\n  a $i || RET=1\ndone", "a || exit 0", "a; set +x",
    "if a; then echo yes; else echo no; fi", "case $A in b) a || RET=1;; esac",
    "a || if true; then RET=1; fi", "f() { a; }; f || RET=1", "a || b || RET=1", "a && b || RET=1", "a & wait",
    "a; exit  0", "a; hash -r", "a || RET=1; exit 2>&1", "a | tee b; mkdir x || { echo no; exit 1; }",
    "a & echo b", "a; rm b", "a >x; cat x", "sleep 9 & P=$!; a; kill $P", "cd b && { a || RET=1; }", "a || cat log",
    "which a; echo b", "pushd b; a; popd", "a || { cat log; RET=1; }", "[ -f x ] && a || echo no",
    "while read A; do a $A || RET=1; done", "while getopts ab c; do a || RET=1; done",
    "for i in 1 2; do a && break; sleep 5; done", "until [ $n = 3 ]; do a && break; n=$((n + 1)); sleep 5; done",
    "for i in 1 2; do a && exit; sleep 5; done", "for i in 1 2; do a && exit 0; sleep 5; done",
    "for i in 1 2; do if a; then exit 0; fi; sleep 5; done", "until a; do ((n++ < 2)) || break; sleep 5; done",
    "while ! a; do if ((n++ > 2)); then break; fi; done", "a; [ $? -ne 0 ] && exit $?; echo b",
    "find tests -name 'test_*' -exec a {} \\;", "find tests \\\n  -exec a {} ';'", 'find tests -exec a {} ";"',
    "timeout 9 /usr/bin/find tests -exec a {} \\;",
    "for i in 1 2; do a $i >log; cat log; done",
    "for i in 1 2; do a $i | tee log; done", "a & b || RET=1; kill $!", "a || RET=1; ! false",
    "a || exit 256", "a; return 256", "a | tee b; exit 256", "a && exit 1 || echo b",
    "a || { echo no; exit $?; }", 'if ! a; then echo no; exit "$?"; fi', "f() { echo no; return; }; a || f",
    "if a; then cd b; fi", "if a | grep -q b; then source ./env.sh; fi",
    "a || RET=1; exit $?", "if ! a; then exit $?; fi", "if a; then exit; fi", 'a || { echo no; exit  "${?}" >&2; }',
]
MAY_FAIL = [
    "a && echo b || exit 1", "a && cat log | tee b", "a && { rm b; echo c; }", "a; ((n == 0))",
    "if ! a; then exit 1; fi; echo b", "a; rc=$?; if [ $rc -ne 0 ]; then exit 1; fi; echo b",
    "a || true", "a || :", "a || b || true", "(a) || true", "a || true; echo b",     # a wish
    "a && echo yes", "a || exit 1", "a || { echo no; exit 1; }", "a || RET=1 b", "a || RET=$(b)", "a; exit",
    "a; exit $?",
    "a || { cat log; exit 1; }", "a && echo yes || (echo no; exit 1)", "a; rc=$?; b; (exit $rc)", "a; exit 1",
    "a; false",
    "if a; then echo yes; exit 0; fi; exit 1", "for i in 1 2; do a && exit 0; sleep 1; done; exit 1",
    "RET=0; for i in 1 2; do a || RET=1; done; exit $RET", "while ! a; do sleep 1; done", "[ -d x ] || mkdir x",
    "b || exit 0; a", "[ $Z ] && exit 0; a", "if b; then a; else echo no; fi",
    "docker run a; rc=$?; docker rm b; exit $rc",
    "! a", "if a; then b; fi", "for i in 1 2; do a $i; done", "echo a", "a | b", "a & wait $!",
    "for i in 1 2; do a && exit 0; sleep 5; done; false", "for i in 1 2; do a || sleep 5 && b; done",
    "until a; do sleep 1; done", "until a; do :; done", "while true; do a && break; sleep 1; done",
    "until a; do ((n++ < 2)) || exit 1; sleep 5; done", "until a; do ((n++ < 2)) || break; done; ((n < 2))",
    "[ -f b ] && a && exit", "find tests -exec a {} +", "find b -exec sh -c '\"$1\"; a' _ {} +",
    "find b -exec rm {} \\;", "find b -exec cat {} ';'",
    "for i in 1 2; do if a; then exit 0; fi; sleep 5; done; exit 1",
    "a & sleep 2; kill $!",
    "a || { echo no; b; exit $?; }", "a || { exit $?; }", "f() { return; }; a || f", "echo b; a; exit",
    "a || { RET=$?; echo no; exit $RET; }", "if a; then :; else exit; fi", "if b; then a; exit; fi",
    "a && echo b || exit $?", "a && echo b; exit $?",
    "a; A=$?; b; exit $((A | $?))", "f() { a; A=$?; b; return $(( ! A )); }; f", "A=0; a || A=1; ! ((A))",
    "a; case $? in 0|5) true;; *) exit 1;; esac",
    "n=0; a || ((n++)); ((n == 0)); exit $?", "until [ -f x ] || a; do exit $?; done", "a | b || true; echo c",
    "a && b || true; echo c", "{ a; } || true; echo b",
    "if a; then echo yes; else echo no; exit 1; fi", "a || (exit 3)", "while read A; do a $A; done",
    "a | tee b; exit 2", "(a | tee b; exit 2)", "f() { a || RET=1; return 1; }; f", "a || RET=1; false >x",
    "a || exit 2561", "a | tee b; exit 255",
]
MASKS = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]


def read(text: str, name: str = NAME) -> ListFile:
    """A list of which the shell state has not run yet."""
    parsed = ListFile(name, text, 0)
    scratch = run_tests.Scratch()
    run_tests.read_list(parsed, scratch)
    shutil.rmtree(scratch.folder, ignore_errors=True)
    return parsed


def lines(commands: Iterable[str]) -> str:
    return "".join(command + "\n" for command in commands)


def states_of(parsed: ListFile) -> List[int]:
    """The first line of each piece of shell state."""
    return [int(line) for line in re.findall(r'_rt_check "\$\?" (\d+)', "".join(parsed.script))]


def kinds_of(commands: Sequence[str]) -> Dict[str, str]:
    """What commands are in a list of them all: `state`, `test`, `target`, or what is wrong with them."""
    parsed = read(lines(commands))
    found = dict.fromkeys(states_of(parsed), "state")
    found.update((test.line, "target" if test.is_target else "test") for test in parsed.tests)
    found.update(parsed.mistakes)
    line, kinds = 1, {}
    for command in commands:
        kinds[command] = found.get(line, "nothing")
        line += command.count("\n") + 1
    return kinds


def bodies(text: str) -> List[Tuple[int, str]]:
    """Line number and command of each test of a text that has no mistake."""
    parsed = read(text)
    assert not parsed.mistakes, parsed.mistakes
    return [(test.line, test.body) for test in parsed.tests]


def shape(nodes: Iterable[Node]) -> str:
    """Commands as a reader has understood them: `a && if(b: c, d)` for `a && if b; then c; else d; fi`."""
    text = ""
    for node in nodes:
        text += f" {node.before} " if text else ""
        text += node.lead + " " if node.lead else ""
        conditions, parts = map(shape, node.conditions), map(shape, node.bodies)
        text += f"{node.kind}({', '.join(conditions)}: {', '.join(parts)})" if node.kind else node.name or "="
    return text


class ParseCase(RunnerCase):
    """In a folder of its own, with a bare environment: what a list means must not depend on the developer's."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = os.path.realpath(self.folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        environment = {"PATH": os.environ["PATH"], "HOME": self.folder, "TMPDIR": self.folder, "LC_ALL": "C.UTF-8"}
        patch = mock.patch.dict(os.environ, environment, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.scratch = run_tests.Scratch()
        self.addCleanup(lambda: shutil.rmtree(self.scratch.folder or self.path("none"), ignore_errors=True))

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def parse_with_hints(self, *names: str, **options: Any) -> Tuple[List[Test], List[str]]:
        """What lists become. The files that they name need not be there, unless a test says list=False."""
        return run_tests.parse_lists(Options(names, **{"list": True, **options}), self.scratch)

    def parse(self, text: str, **options: Any) -> List[Test]:
        """The tests of a list."""
        self.write(NAME, text)
        return self.parse_with_hints(NAME, **options)[0]

    def parse_one(self, text: str, **options: Any) -> Test:
        (test,) = self.parse(text, **options)
        return test

    def parse_several(self, *texts: str) -> List[Test]:
        """The tests of lists named a.txt, b.txt and so on."""
        names = [f"{letter}.txt" for letter, _ in zip("abcdef", texts)]
        for name, text in zip(names, texts):
            self.write(name, text)
        return self.parse_with_hints(*names)[0]

    def hints(self, text: str, **options: Any) -> List[str]:
        self.write(NAME, text)
        return self.parse_with_hints(NAME, **options)[1]

    def mistakes(self, text: str, **options: Any) -> List[str]:
        """The mistakes in a list that has some."""
        with self.assertRaises(ListError) as caught:
            self.parse(text, **options)
        return list(caught.exception.args)

    def assert_mistake(self, text: str, line: int, what: str, **options: Any) -> None:
        """The list has this one mistake."""
        with self.subTest(text=text[:200]):
            found = self.mistakes(text, **options)
            self.assertEqual([message[:len(f"{NAME}:{line}: ")] for message in found], [f"{NAME}:{line}: "], found)
            self.assertIn(what, found[0])

    def assert_mistakes(self, rows: Iterable[Tuple[str, str]]) -> None:
        """In a list of all these commands, each has this one mistake and no other."""
        rows = list(rows)
        found = self.mistakes(lines(command for command, _ in rows))
        self.assertEqual(len(found), len(rows), found)
        number = 1
        for (command, what), message in zip(rows, found):
            with self.subTest(command=command):
                self.assertTrue(message.startswith(f"{NAME}:{number}: ") and what in message, message)
            number += command.count("\n") + 1

    def labels(self, text: str) -> List[str]:
        return [test.label for test in self.parse(text)]

    def assert_labels(self, *rows: Tuple[str, str]) -> None:
        """The labels of these commands, in one list."""
        commands = [command for command, _ in rows]
        self.assertEqual(list(zip(commands, self.labels(lines(commands)))), list(rows))

    def output(self, test: Test, **variables: str) -> str:
        """What bash prints for a test, stdout and stderr together, behind what the state above it has printed."""
        text = FIRST_LINE + run_tests.bash_text(test, {"RUN_TESTS_LABEL": test.label, **variables}, {}, self.scratch, 0)
        ran = subprocess.run([b"bash", b"-c", run_tests.to_bytes(text), run_tests.to_bytes(test.file)], check=False,
                             cwd=test.shell.directory, env=test.shell.environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return run_tests.to_text(test.preface + ran.stdout)

    def assert_like_bash(self, text: str) -> List[Test]:
        """The tests of a list print, one after another, what `bash LIST` prints; returns them."""
        tests = self.parse(text)
        self.assertEqual("".join(map(self.output, tests)), run_tests.to_text(self.bash(text)), text[:1000])
        return tests


class Splitting(ParseCase):
    """Bash says where a command ends."""

    def test_a_command_is_what_bash_reads_as_one(self) -> None:
        expected, line = [], 1
        for command in WHOLE:
            expected.append((line, command))
            line += command.count("\n") + 1
        self.assertEqual(bodies(lines(WHOLE)), expected)

    def test_here_documents(self) -> None:
        documents = ["cat <<EOF\nhello\n  # no comment, it's \"text\nEOF", "cat <<-'E F' <<<x |\n\ta\n\tE F\n  cat",
                     "cat <<A; cat <<B\na\nA\nb\nB", "while read x; do\n  echo got $x\ndone <<EOF\n$(\n echo c)\nEOF"]
        text = lines([*documents, "true || test_fail end"])
        self.assertEqual([test.line for test in self.assert_like_bash(f"test_fail() {{ :; }}\n{text}")],
                         [2, 6, 10, 15, 21])
        for command in documents:
            with self.subTest(command=command):
                self.assertEqual(bodies(command + "\n"), [(1, command)])
        test = self.parse_one("cat <<EOF || test_fail 'the label'  #: gpus=2\nhello\nEOF\n")
        self.assertEqual((test.label, test.gpus, self.output(test)), ("the label", 2, "hello\n"))
        for text in ("cat <<EOF \\\n  || test_fail l\nhello\nEOF\n", "cat <<EOF ||\nhello\nEOF\ntest_fail l\n",
                     "cat <<EOF || # why\nhello\nEOF\n\n  test_fail l  # so\n",
                     "for i in 1; do cat <<A; done && \\\ncat <<EOF || test_fail l\nhel\nA\nlo\nEOF\n"):
            with self.subTest(text=text):
                test = self.parse_one(text)
                self.assertEqual((test.label, self.output(test).replace("hel\nlo", "hello")), ("l", "hello\n"))

    def test_comments_begin_only_at_the_start_of_a_word(self) -> None:
        rows = [("a b#c", "a b#c"), ("a \\# b", "a \\# b"), ("a '#' \"#\" $#", "a '#' \"#\" $#"), ("a #b", "a"),
                ("a ${#b}", "a ${#b}"), ("a\t# 'b", "a"), ("a;#b", "a"), ("a; # b", "a"), ("a # b \\", "a"),
                ('a # "b', "a"), ("# d \\\ne", "e")]
        self.assertEqual([body for _, body in bodies(lines(command for command, _ in rows))],
                         [body for _, body in rows])

    def test_lines_without_a_command_are_nothing(self) -> None:
        commands = ["", "   ", "\t", "# text", "  # it's \"text", "#", "#!text", "# : see gpus=x", "\\\n"]
        self.assertEqual(set(kinds_of(commands).values()), {"nothing"})
        self.assertEqual(self.parse("\ufeff# nothing\nexport A=1\nwait\n"), [])
        self.assertEqual(self.parse(""), [])

    def test_a_line_number_is_that_of_the_first_word(self) -> None:
        self.assertEqual(bodies("\\\n\\\na\nb\n"), [(3, "a"), (4, "b")])
        self.assertEqual(states_of(read('\nexport A="x\ny"\n\nexport B=1 \\\n  C=2\n\\\ncd z\n')), [2, 5, 8])

    def test_the_last_line_needs_no_end(self) -> None:
        for text in ("a\nb", "a\nb \\\n", "a\nb \\"):
            with self.subTest(text=text):
                self.assertEqual([(line, body.rstrip("\\\n ")) for line, body in bodies(text)], [(1, "a"), (2, "b")])

    def test_bad_syntax_is_told_where_its_command_begins(self) -> None:
        for command in ("if true", "fi", "then a", "done", "for i in 1 2; do", "a &&", "a |", "a ||", "| a", "&& a",
                        "; a",
                        "a;;", "(a", "a)", "{ a", "}", "a ( b )", "case a in", "while true", "esac", "a > ", "f() {",
                        "export A=1 &&", "cd x; )", "((1+", "|| test_fail a", "a & || test_fail b",
                        "if a; then\n  b\nfo",
                        "a; } || { b", "a; } || {\nb", "a ) || ( b", "a ) ; ( b", "a; }; f() { b", "A=(1 2",
                        "cat <<EOF\nb"):
            self.assert_mistake(f"true\n{command}\n", 2,
                                "EOF" if command[:3] in ("cat", "((1", "A=(") else "syntax error")
        self.assert_mistake("true\ncat <<EOF\nb\n", 2, "here-document delimited by end-of-file (wanted `EOF')")

    def test_unclosed_quotes_are_told_where_their_command_begins(self) -> None:
        for opener in ("'", '"', "`", "$(", "${", "$'", '$"', "<(", "$((", '"$(', '"${a:-', "b \\\n c '", "x; } | '"):
            self.assert_mistake(f"true\n\necho {opener}a\ntrue\n", 3, "")
        with mock.patch.object(run_tests, "COMMAND_LINES", 100):
            self.assert_mistake("true\n" + "echo '\n" + "true\n" * 300, 2, "looking for matching `''")

    def test_mistakes_below_bad_syntax_are_told_too(self) -> None:
        found = self.mistakes("fi\ntrue #: gpus=x\ntrue &\ndone\n")
        self.assertEqual([message.split(": ")[0] for message in found], [f"{NAME}:{line}" for line in (1, 2, 3, 4)])

    def test_the_bash_that_splits_a_list_runs_none_of_it(self) -> None:
        """Also where a command ends what the bash has put around it."""
        for text in ("( :\n) ) }\necho >started\n{ ( (\n", "( :\n} )\necho >started\n( { (\n", "$(echo >started)\n",
                     "{ :\n}; }\necho >started\n"):
            with self.subTest(text=text):
                read(text)
                self.assertFalse(os.path.exists("started"))

    def test_nul_bytes_and_windows_line_ends(self) -> None:
        self.assert_mistake("true\ntrue \0\ntrue\0\n", 2, "or a NUL byte: a list is text in UTF-8")
        self.assert_mistake("true\r\ntrue\r\n", 1, "Windows line ends; fix")
        self.assert_mistake("true\n\ntrue\r\n", 3, "Windows line ends")

    def test_what_is_to_be_tested_is_no_list(self) -> None:
        """A newcomer's first try; what is said works as it stands."""
        os.mkdir("my tests")
        self.write("test_a.py", "")
        for name, quoted in (("my tests", "'my tests'"), ("test_a.py", "test_a.py"), ("test_a.py::b", "test_a.py::b")):
            with self.subTest(name), self.assertRaises(ListError) as caught:
                run_tests.list_text(name)
            self.assertEqual(str(caught.exception), f"{name}: a directory or a Python file is no list; put it on a "
                             f"line of one, or run `echo {quoted} | run_tests.py -`")

    def test_many_lines_and_long_commands_are_whole(self) -> None:
        """Linux refuses an argument or a variable of 128 KiB."""
        word, values = ("x" * 6999 + "\n") * 20, " ".join(map(str, range(40_000)))
        text = "true\n" * 2000 + f"printf %s '{word}' | tr -d '\\n' | wc -c\nA=({values})\necho ${{#A[@]}}\nnosuch\n"
        tests = self.parse(text)
        self.assertEqual([test.line for test in tests[-3:]], [2001, 2023, 2024])
        self.assertEqual("".join(map(self.output, tests[-3:-1])), "139980\n40000\n")
        self.assertEqual(len(states_of(read("A=(\n" + "  x\n" * 150 + ")\n"))), 1)
        self.assertEqual(len(read(" && ".join(["a"] * 3000)).tests), 1)

    def test_nesting_without_end_is_a_mistake(self) -> None:
        """Bash itself dies of some."""
        for opener, closer in (("$(", ")"), ('"${a:-', '}"'), ("{ ", ";}"), ("(", ")")):
            for depth in (400, 5000):
                try:
                    self.parse(f"true\n{'a ' * (opener[0] in '$' + chr(34))}{opener * depth}x{closer * depth}\n")
                except ListError as error:
                    self.assertTrue(error.args[0].startswith(f"{NAME}:2: "), error)


class Reading(TestCase):
    """The small reader of words and commands, whose text bash has found whole. Pure."""

    def test_words(self) -> None:
        for text, words in (
                ("a 'b c' \"d $(e \"f g\") h\"", ["a", "'b c'", '"d $(e "f g") h"']),
                ("a\\ b c\\\n d", ["a\\ b", "c\\\n", "d"]),
                ("A=(1 '2 )' # it's\n 3) b", ["A=(1 '2 )' # it's\n 3)", "b"]),
                ("${a:-b c} ${d/ #/} ${#e}", ["${a:-b c}", "${d/ #/}", "${#e}"]),
                ("\"it's (\" 'b ('", ["\"it's (\"", "'b ('"]), ("${a/(/b} c", ["${a/(/b}", "c"]),
                ("$(a # it's )\n) b", ["$(a # it's )\n)", "b"]),
                ("$(case a in b) c;; esac) d", ["$(case a in b) c;; esac)", "d"]),
                ("$(echo case in) d", ["$(echo case in)", "d"]), ("$(echo esac) d", ["$(echo esac)", "d"]),
                ("a>b 2>&1 <<<c", ["a", ">", "b", "2>&", "1", "<<<", "c"]), ("a <(b c) >(d)", ["a", "<(b c)", ">(d)"]),
                ("`a \\` b` $'c\\' d' $\"e f\"", ["`a \\` b`", "$'c\\' d'", '$"e f"']),
                ("((i = 1 << 2, (i > 3))) || a", ["((i = 1 << 2, (i > 3)))", "||", "a"]),
                ("a <<E b\n'x #\nE\nc # d", ["a", "<<", "E", "b", "\n", "'x #\nE\n", "c", "# d"]),
                ("a&&b||c;d&e|&f", ["a", "&&", "b", "||", "c", ";", "d", "&", "e", "|&", "f"])):
            with self.subTest(text=text):
                self.assertEqual([token.text for token in run_tests.read_tokens(text)], words)

    def test_commands(self) -> None:
        for text, expected in (
                ("a b; c\nd & e", "a ; c ; d & e"), ("a && b ||\nc | d |& e", "a && b || c | d |& e"),
                ("A=1 B=(2 3) a >f 2>&1 <<<x; C=1", "a ; ="), ("! a | 'b' && time -p c", "! a | b && time c"),
                ("if a; then b; elif c; then d; else e; fi >f", "if(a, c: b, d, e)"),
                ("while a; do b; done <f | c", "while(a: b) | c"), ("until a\ndo\nb\nc\ndone", "until(a: b ; c)"),
                ("for i in 1 2; do a $i; done", "for(: a)"), ("for ((i = 0; i < 2; i++)) { a; }", "for(: a)"),
                ("select a in b; do break; done", "select(: break)"), ("for i\ndo a; done", "for(: a)"),
                ("case $A in a|b) c;; (d) e; f;; *) esac; g", "case(: c, e ; f, ) ; g"),
                ("f() { a; }; f", "function(: {(: a)) ; f"), ("function g\n(\na\n)", "function(: ((: a))"),
                ("( a; b ) && { c; }", "((: a ; b) && {(: c)"), ("((a) && b)", "((: ((: a) && b)"),
                ("{ if a; then b; fi }; c", "{(: if(a: b)) ; c"), ("[[ a && b || (c) ]] && d", "[[ && d"),
                ("((1 << 2)) || a", "(( || a"), ("a <<E | b\nc; d\nE\ne", "a | b ; e"), ("echo if then { }", "echo")):
            with self.subTest(text=text):
                self.assertEqual(shape(Reader(text).nodes), expected)

    def test_text_that_bash_refuses_can_be_read(self) -> None:
        """Bash itself says what is wrong with a script, when it comes there."""
        for text in ("function", "a\nfunction f", "f() {", "case", "case a in", "{ ( )", "if a; then !", "[[ a"):
            with self.subTest(text=text):
                self.assertTrue(Reader(text).nodes)

    def test_quotes_are_taken_off(self) -> None:
        for word, text in (("a", "a"), ("'a b'", "a b"), ('"a"', "a"), ("a\\ b", "a b"), ("a'b'\"c\"", "abc"),
                           ("''", "")):
            with self.subTest(word=word):
                self.assertEqual(run_tests.unquoted(word), text)


class Kinds(ParseCase):
    """What a command is, by its words."""

    def assert_kind(self, kind: str, commands: Sequence[str]) -> None:
        self.assertEqual({command: found for command, found in kinds_of(commands).items() if found != kind}, {})

    def test_state_tests_and_targets(self) -> None:
        self.assert_kind("state", STATE)
        self.assert_kind("test", TESTS + MAY_FAIL)
        self.assert_kind("target", TARGETS)

    def test_a_target_is_negated_or_timed_by_its_whole_command(self) -> None:
        self.assert_mistakes((f"{lead} a/test_x.py -v", f"`{lead}` before a pytest target") for lead in ("!", "time"))

    def test_a_line_that_always_passes_is_a_mistake(self) -> None:
        self.assert_mistakes((command, "this line passes even if `") for command in ALWAYS_PASS)

    def test_functions_that_always_pass(self) -> None:
        """One that can fail, by its last command or before, is fine."""
        functions = ('note() { FAILED="$FAILED $1"; }; run() { "$@" || note "$*"; }; '
                     'stop() { if ! "$@"; then exit 1; fi; }')
        for command in ("run a", "a || note a", "run a || test_fail a", "(run a)", "cd b && run a", "counted a",
                        "run a || exit 1", "again a"):
            text = (f'{functions}\ncounted() {{ [ "$1" ] || return 2; "$@"; RET=$((RET | $?)); }}; again() {{ run '
                    f'again; }}\n{command}\n')
            self.assert_mistake(text, 3, "this line passes even if `")
        self.assert_mistake("f() { cat log; rm -r x; }\na || f\n", 2, "this line passes even if `a`")
        self.assertEqual(len(self.parse("f() { cat log; return 1; }\na || f\n")), 1)
        for body in ("a || { note; return 1; }", "a; local rc=$?; note; return $rc", "if ! a; then exit 3; fi; note",
                     "note", "f; a || f", "stop a; stop b; note", '[ "$1" ] || return 1; note',
                     "a || true", "a || ((n++)); ((n == 0))"):
            self.assertEqual(len(self.parse(f"{functions}\nf() {{ {body}; }}\nf\nb || true\n")), 2)
        for call in ("if g; then :; else exit 1; fi", "f() { a; echo; }; f", "(f() {\n a; echo\n}; f)",
                     "f() { a || return 1; }; f; echo"):
            self.assert_mistake(f"g() {{ a; echo; }}\n{call}\n", 2, "this line passes even if `a`")
        self.assertEqual(len(self.parse("echo() { printf x; }\na && echo b\necho c\n")), 2)

    def test_failures_that_a_function_only_notes(self) -> None:
        """Also where something else in it can fail, or `set -e` would end it elsewhere."""
        hides = ("this line passes even if `", [
            'pytest "$1" || FAILED=1', 'if ! pytest "$1"; then FAILED=1; fi',
            'local f=$1; [ -f "$f" ] || return 1; pytest "$f" || FAILED=1', "pytest | cat", "g || return 1",
            "for i in 1 2; do pytest && break; echo again; done",
            "set +e; a && b; return 0"])
        fine = ("", [
            "g", "set +e; pytest && return 0; sleep 1; pytest", "pytest || pytest --lf", "pytest || report; ./clean",
            "for i in 1 2; do pytest && return 0; sleep 1; done; return 1", "until ./is-up; do sleep 1; done",
            "until pytest; do ((n++ < 3)) || return 1; done", "pytest || { rc=$?; FAILED=1; }; return $rc",
            "if ./is-new; then cp a b; fi; pytest", "python3 -c 'import x' || pip install x; pytest",
            "server & pytest; kill $!", "./x | grep -q y && FAILED=1", "! pytest"])
        for told, bodies in (hides, fine):
            for body in bodies:
                text = f"set -e\ng() {{ pytest a; echo done; }}; f() {{ {body}; }}\nf a\n"
                with self.subTest(body=body):
                    if told:
                        self.assert_mistake(text, 3, told)
                    else:
                        self.assertEqual(len(self.parse(text)), 1)

    def test_tee_hides_the_status_of_a_test(self) -> None:
        commands = ["a 2>&1 | tee log", "a |& tee -a log", "a | tee log || test_fail b", "cd b && a | tee log",
                    "(cd b && a | tee c)", "a | tee b || exit 1", "pytest | tail -3", "a | sed s/b/c/ | cat"]
        self.assert_mistakes((command, "fails; write `command || test_fail \"label\"`, for a pipe `set -o pipefail`")
                             for command in commands)
        self.assertEqual(len(self.parse(lines(["set -euo pipefail", *commands]))), len(commands))
        for elsewhere in ("# pipefail", "set -o pipefail\nset +o pipefail", "set -o pipefail\n[ 1 ] && set +o pipefail",
                          "set -- -o pipefail"):
            self.assertEqual(len(read(lines([elsewhere, *commands])).mistakes), len(commands))

    def test_background_commands_have_no_verdict(self) -> None:
        self.assert_mistakes((command, "in the background") for command in (
            "a &", "a && b &", "a 2>&1 &", 'a || test_fail "b" &', "a & # b", "export A=1 &", "test_x.py &",
            "run_test '' x.xml t.py l &", "coproc a"))
        self.assert_kind("test", ["a 2>&1", "a &> b", "a >& b", "a && b", "a '&'", "a \\&", "a |& b", "a >&-"])

    def test_a_handler_stands_at_the_end(self) -> None:
        self.assert_mistakes((command, "`test_fail` is understood only at the end of a whole command") for command in (
            "test_fail a", "a; test_fail b", "a && test_fail b", "if ! a; then test_fail b; fi", "! test_fail a",
            "{ a || test_fail b; }", "(a || test_fail b)", "a || test_fail b; c", "a || test_fail b || c",
            "a || test_fail b | c", "for i in 1; do\n  test_fail a\ndone"))
        # In a function of the list it is another one of the list, if that has one.
        text = 'run() {{ "$@" || test_fail "$1"; }}; test_fail() {{ echo "$1"; {}; }}\nrun a || test_fail b\n'
        self.assertEqual(len(self.parse(text.format("exit 1"))), 1)
        self.assert_mistake(text.format("RET=1"), 2, "this line passes even if `$@` fails")
        self.assert_mistake('. x.sh; run() { "$@" || test_fail a; }\nrun a\n', 2, "of a function behind its call")
        self.assertEqual(self.labels("echo test_fail\ngrep 'a || test_fail b' c\n"),
                         ["echo test_fail", "grep 'a || test_fail b' c"])

    def test_a_mask_elsewhere_than_first_is_a_mistake(self) -> None:
        for command in ("env {0}=${0} a", 'a -e "{0}=${{{0}}}"', "a -e {0}"):
            self.assertEqual(len(read(command.format("CUDA_VISIBLE_DEVICES") + "\n").tests), 1)
        self.assert_mistakes((command, "here would pin tests to the same GPUs; put it first") for command in (
            "a && CUDA_VISIBLE_DEVICES=0 b", "env CUDA_VISIBLE_DEVICES=0 b", "a; HIP_VISIBLE_DEVICES=0 b",
            "(CUDA_VISIBLE_DEVICES=0 b)", "CUDA_VISIBLE_DEVICES=0 && b", "export CUDA_VISIBLE_DEVICES=0 && b",
            "time CUDA_VISIBLE_DEVICES=0 b", "! CUDA_VISIBLE_DEVICES=0 b",
            "for i in 0 1; do\n  CUDA_VISIBLE_DEVICES=$i b\ndone", "f() { CUDA_VISIBLE_DEVICES=0 a; }; f"))
        self.assert_mistakes((command.format(name), f"{name}=") for name in MASKS for command in (
            "export {}=0", "{}=0", "cd x; export {}=0", "export A=1 {}=", "{}=0 A=1",
            "if true; then\n  export {}=0\nfi"))
        self.assert_mistakes((command, "`set -k`") for command in ("set -ek", "set -o keyword"))
        text = "unset CUDA_VISIBLE_DEVICES\nexport CUDA_VISIBLE_DEVICES\necho $CUDA_VISIBLE_DEVICES\n"
        self.assertEqual([test.gpus for test in self.parse(text)], [1])

    def test_a_test_counts_the_barriers_above_it(self) -> None:
        tests = self.parse("a\nwait\nb\n  wait  \nwait # for all above\nd\n")
        self.assertEqual([(test.label, test.barrier) for test in tests], [("a", 0), ("b", 1), ("d", 3)])


class AttributeLines(ParseCase):
    def attributes(self, text: str) -> List[Attributes]:
        return [test.attributes for test in read(text).tests]

    def test_values(self) -> None:
        rows = [("gpus=0", "gpus", 0), ("gpus=0.25", "gpus", 0.25), ("gpus=.5", "gpus", 0.5), ("gpus=2", "gpus", 2),
                ("gpus=all", "gpus", ALL_GPUS), ("timeout=90", "timeout", 90), ("timeout=90s", "timeout", 90),
                ("timeout=10m", "timeout", 600), ("timeout=2h", "timeout", 7200), ("timeout=1.5h", "timeout", 5400),
                ("timeout=250ms", "timeout", 0.25), ("timeout=1d", "timeout", 86400), ("retries=2", "retries", 2),
                ("timeout=1h30m", "timeout", 5400), ("timeout=5min", "timeout", 300), ("time=90sec", "time", 90),
                ("timeout=2d1h1m1s500ms", "timeout", 176461.5),
                ("retries=0", "retries", 0), ("label=x", "label", "x"), ("label='a b'", "label", "a b"),
                ('label="a \\"b\\""', "label", 'a "b"'), ("label=a=b", "label", "a=b"), ("label=a#b", "label", "a#b"),
                ("time=5m", "time", 300), ("lock=a", "lock", ("a",)), ("lock=a,b", "lock", ("a", "b")),
                ("after='a b, c'", "after", ("a b", "c")), ("tags=slow,nightly", "tags", ("slow", "nightly")),
                ("mem=20G", "mem", 20480), ("mem=1.5G", "mem", 1536), ("mem=512M", "mem", 512), ("mem=0G", "mem", 0),
                ("nodes=2", "nodes", 2), ("split=8", "split", "8"), ("split=auto", "split", "auto"),
                ("after-crash=go-on", "after_crash", "go-on")]
        expected = [Attributes(**{key: value}) for _, key, value in rows]  # type: ignore[arg-type]
        self.assertEqual(self.attributes(lines(f"a #: {text}" for text, _, _ in rows)), expected)
        self.assertEqual(self.attributes(lines(f"#: {text}\na" for text, _, _ in rows)), expected)

    def test_bad_values(self) -> None:
        rows = [("gpus=1.5", "gpus: '1.5' is not"), ("gpus=x", "gpus: 'x' is not"), ("gpus=-1", "gpus: '-1' is not"),
                ("gpus=0.0", "gpus: '0.0' is not"), ("gpus=", "`gpus=` in `#:` needs one value"),
                ("gpus=ALL", "gpus: 'ALL' is not"), ("gpus=nan", "gpus: 'nan' is not"),
                ("gpus", "`gpus` in `#:` needs one value; write KEY=VALUE once, blanks in quotes"),
                ("gpus=1 gpus=2", "`gpus=2` in `#:` needs one value"), ("gpus = 2", "`gpus` in `#:` needs one value"),
                ("gpus= 2", "`gpus=` in `#:` needs"), ("gpus: 2", "`gpus:` in `#:` needs"),
                ("label=a b", "`b` in `#:` needs one value"),
                ("timeout=5x", "timeout: '5x' is not a duration"), ("timeout=", "`timeout=` in `#:` needs one value"),
                ("timeout=-1", "timeout: '-1' is not"), ("timeout=5M", "timeout: '5M' is not"),
                ("timeout='1h 5m'", "timeout: '1h 5m' is not"), ("timeout=1h30", "timeout: '1h30' is not a duration"),
                ("timeout=30m1h", "timeout: '30m1h' is not"), ("timeout=1m1m", "timeout: '1m1m' is not"),
                ("timeout=2hours", "such as 90s, 10m, 2h or 1h30m"), ("timeout=h", "timeout: 'h' is not"),
                ("retries=x", "retries: 'x' is not a whole number"),
                ("retries=-1", "retries: '-1' is not"), ("retries=1.5", "retries: '1.5' is not"),
                ("label=", "`label=` in `#:` needs one value"), ("label=' '", "label: ' ' is"),
                ("label", "`label` in `#:` needs one value"), ("time=soon", "time: 'soon' is not a duration"),
                ("lock=", "`lock=` in `#:` needs one value"), ("lock=a,,b", "lock: 'a,,b' is not"),
                ("after=", "`after=` in `#:` needs one value"),
                ("tags=,", "tags: ',' is not a list"), ("mem=20", "mem: '20' is not a size such as 20G, 1.5G or 512M"),
                ("mem=20g", "mem: '20g' is not"), ("mem=-1G", "mem: '-1G' is not"), ("mem=1.G", "mem: '1.G' is not"),
                ("nodes=x", "nodes: 'x'"), ("split=0", "split: '0' is not auto or a whole number from 1"),
                ("split=all", "split: 'all' is not auto"),
                ("after-crash=stop", "after-crash: 'stop' is not go-on"), ("after_crash=go-on", "unknown key"),
                ("nope=1", "unknown key 'nope' in `#:`; known are gpus, timeout, retries, label, time, lock, after,"),
                ("Gpus=1", "unknown key 'Gpus'"), ("=1", "unknown key ''"), ('label="x', "a quote in"),
                ("label='x", "a quote in")]
        self.assert_mistakes((f"{start}#: {text}", what) for text, what in rows for start in ("true ", ""))

    def test_a_space_in_the_mark_is_a_mistake_where_a_key_follows(self) -> None:
        self.assert_mistake("true\ntrue # : label=x\n", 2,
                            "`# : label=x` is a comment; write `#:` first, without a space")
        self.assert_mistake("#  :gpus=2\ntrue\n", 1, "`#  :gpus=2` is a comment")
        self.assert_mistake("true # slow #: timeout=1\n", 1, "`# slow #: timeout=1` is a comment")
        self.assert_mistake("true #gpus=2 time=9\n", 1, "`#gpus=2 time=9` is a comment")
        for text in ("# false #: timeout=1\ntrue\n", "for i in 1 2; do\n true $i\n # false $i #: gpus=2\ndone\n",
                     "true #: label='x # : time=3'\n", f"true # {'gpus=1' * 40} x\n"):
            self.assertEqual(len(self.parse(text)), 1, "a test that is commented out, or a label")
        self.assertEqual(self.attributes("true # : note=1\ntrue # : of gpus=2\n# gpus=2\n"), [Attributes()] * 2)

    def test_each_mistake_of_a_line_is_told(self) -> None:
        found = self.mistakes("true #: gpus=x timeout=5x nope=1 gpus=2\n")
        self.assertEqual([message.split(" ")[0] for message in found], [f"{NAME}:1:"] * 4, found)

    def test_where_an_attribute_holds(self) -> None:
        """At the end of a line for its test, on a line of its own for all below, until the next such line."""
        two, one = Attributes(gpus=2, timeout=5), Attributes(gpus=1, timeout=5)
        self.assertEqual(self.attributes(
            "a\n#: gpus=2 timeout=5\nb\nexport A=1\nwait\n# text\nc #: gpus=1\nd #: label=x\ne\n"
            "#: timeout=7\nf\n  #:  \ng\n"),
            [Attributes(), two, one, two._replace(label="x"), two, Attributes(timeout=7), Attributes()])

    def test_the_end_of_a_command_of_several_lines_counts(self) -> None:
        self.assertEqual(self.attributes('a \\\n  b #: gpus=3\na "x\ny" || test_fail "z" #:gpus=3\nfor i in 1;\ndo a\n'
                                         "done #: gpus=3\n"), [Attributes(gpus=3)] * 3)
        self.assert_mistake("true\nif true; then #: gpus=2\n  true\nfi\n", 2, "`#:` inside a command")
        self.assert_mistake("export A=1 #: gpus=2\n", 1, "`#:` on a line that is no test")

    def test_what_is_no_attribute_comment(self) -> None:
        commands = ["a # : gpus=3", "a ##: gpus=3", "a '#: gpus=3'", "a b#: gpus=3", "a \\#: gpus=3"]
        self.assertEqual(self.attributes(lines(commands)), [Attributes()] * len(commands))

    def test_timeout_comes_from_the_line_else_from_the_command_line(self) -> None:
        text = "a #: timeout=5\nb\nc #: timeout=0\n"
        self.assertEqual([test.timeout for test in self.parse(text, timeout=60.0)], [5, 60, 0])
        self.assertEqual([test.timeout for test in self.parse(text)], [5, 0, 0])


class Need(ParseCase):
    def test_how_many_gpus_a_test_takes(self) -> None:
        rows: List[Tuple[str, float]] = [("a", 1), ("a #: gpus=0", 0), ("a #: gpus=.25", 0.25),
                                         ("a #: gpus=all", ALL_GPUS)]
        rows += [(f"{name}={mask} a", need) for name in MASKS for mask, need in (
            ("0", 1), ("3", 1), ("0,1,2,3", 4), ('"0,1"', 2), ("'5,6,7'", 3), ("GPU-a,GPU-b", 2), ("", 0), ('""', 0),
            ("-1", 0), ("0,-1,2", 1), ("$G", 3))]
        rows += [("CUDA_VISIBLE_DEVICES=0,1,2,3 a #: gpus=2", 2), ("#: gpus=0\nCUDA_VISIBLE_DEVICES=0,1 a", 0)]
        tests = self.parse("export G=0,1,2\n" + lines(text for text, _ in rows))
        self.assertEqual([(text, test.gpus) for (text, _), test in zip(rows, tests)], rows)

    def test_a_leading_mask_is_taken_out_of_the_command(self) -> None:
        rows = [("CUDA_VISIBLE_DEVICES=0,1 a b", "a b"), ("A=1 CUDA_VISIBLE_DEVICES=0,1 B=2 a", "A=1 B=2 a"),
                ("CUDA_VISIBLE_DEVICES= A=1 a", "A=1 a"), ("ZE_AFFINITY_MASK=0 a && b", "a && b")]
        self.assertEqual([test.command for test in self.parse(lines(text for text, _ in rows))],
                         [text for _, text in rows])

    def test_the_default_for_all_tests(self) -> None:
        text = "a\na #: gpus=1\nCUDA_VISIBLE_DEVICES=0,1,2 a\ntest_a.py\n"
        for word, gpus in (("2", 2.0), ("all", ALL_GPUS), ("0", 0)):
            options = run_tests.parse_command_line(["--gpus-per-test", word, NAME], {})
            self.assertEqual([test.gpus for test in self.parse(text, gpus_per_test=options.gpus_per_test)],
                             [gpus, 1, 3, gpus])


class Commands(ParseCase):
    def pytest(self, rest: str, stem: str = "pytest_test_a", python: str = "python3", prefix: str = "") -> str:
        """The command of a pytest target."""
        junit = shlex.quote(self.path("logs", stem + ".xml"))
        return f"{prefix}{python} -u -m pytest --tb=auto --junitxml={junit} {rest}"

    def test_a_command_is_kept_as_written(self) -> None:
        commands = ["a  'b' \"$c\" | d && e; f", "A=1 b  c", "A='x y' B=\"$z\" c", "A=1 && b", ">&2 a b",
                    "< b python3 c",
                    "! A=1 b", "a <<< b", "a >b 2>&1", ">b A=1 c", "A=1 >b B=2 c", "<b A=1 c"]
        self.assertEqual([test.command for test in self.parse(lines(f"  {line} # text" for line in commands))],
                         commands)
        test = self.parse_one("CUDA_VISIBLE_DEVICES=0,1 A=1 2>err >out printf '%s' caf\udce9 \udcff\n")
        self.assertEqual(self.output(test), "")
        with open("out", "rb") as file:
            self.assertEqual(file.read(), b"caf\xe9\xff")

    def test_the_handler_is_the_runners_job(self) -> None:
        rows = [('a b || test_fail "c"', "a b"), ("a || test_fail", "a"), ("a | b || test_fail c", "a | b"),
                ("if a; then b; fi || test_fail c # d", "if a; then b; fi"), ("a||test_fail c", "a"),
                ("A=1 a && b || test_fail c", "A=1 a && b"), ("{ a; b; } || test_fail c", "{ a; b; }"),
                ("a || b || test_fail c", "a || b"), ("a \\\n  || test_fail c", "a"), ('a ||\ntest_fail "c"', "a"),
                ("a ||\n\n  # why\n  test_fail c", "a"), ("a || test_fail >&2", "a")]
        tests = self.parse(lines([*(text for text, _ in rows), "a || b"]))
        self.assertEqual([test.command.rstrip("\\\n ") for test in tests[:-1]], [command for _, command in rows])
        self.assertEqual([test.announces for test in tests], [True] * len(rows) + [False])

    def test_a_target_runs_under_pytest(self) -> None:
        os.environ["D"] = "/te"
        options = {"python": "/my python/bin/python", "pytest_args": ("-x", "-m", "not slow")}
        rest = "d/test_a.py::test_b[x-1] -k 'a or b' -v"
        for text, command, stem, more in (
                ("test_a.py", self.pytest("test_a.py"), "pytest_test_a", {}),
                ("A=1 B='x y' test_a.py", self.pytest("test_a.py", prefix="A=1 B='x y' "), "pytest_test_a", {}),
                (rest, self.pytest(rest, "pytest_d_test_a_test_b_x-1_-k_a_or_b_-v"),
                 "pytest_d_test_a_test_b_x-1_-k_a_or_b_-v", {}),
                ('A=1 $D/test_b.py || test_fail "test_a.py"', self.pytest("$D/test_b.py", prefix="A=1 "),
                 "pytest_test_a", {}),
                ("test_a.py", self.pytest("-x -m 'not slow' test_a.py", python="'/my python/bin/python'"),
                 "pytest_test_a", options),
                ("test_a.py --junitxml=own.xml", "python3 -u -m pytest --tb=auto test_a.py --junitxml=own.xml", "own",
                 {}),
                ("a", "a", "a", options)):
            with self.subTest(text=text):
                test = self.parse_one(text + "\n", **more)
                self.assertEqual((test.command, test.stem, test.announces), (command, stem, command != "a"))

    def test_a_folder_is_a_target_where_the_test_starts(self) -> None:
        for folder in ("unit", "a b", "tests/unit", "true", "own"):
            os.makedirs(folder)
        os.environ["WHERE"] = "tests"
        rows = [("unit", True), ("unit/", True), ("./unit -k x", True), ("tests/unit", True), ("'a b'", True),
                ("$WHERE/unit", True), ("A=1 ${WHERE}", True), (f"{self.folder}/unit", True), ("true", False),
                ("./true", True), ("other", False), ("$NOWHERE", False), ("echo unit", False),
                (". /dev/null && a", False), ("cd tests\n./unit", True), ("./tests", False),
                ("cd ..\nown() { true; }\nown unit", False)]
        tests = self.parse(lines(text for text, _ in rows))
        self.assertEqual([(text, "pytest" in test.command) for (text, _), test in zip(rows, tests)], rows)

    def test_a_folder_is_no_target_where_bash_knows_the_name(self) -> None:
        self.write("bin/tool", "", mode=0o755)
        self.write("f.sh", "tool() { true; }\n")
        for name in ("tool", "eval", "exec"):
            os.mkdir(name)
        for text in ("PATH=$PWD/bin:$PATH\ntool", ". ./f.sh\ntool", "shopt -s expand_aliases; alias tool=a\ntool",
                     "eval a", "exec a"):
            with self.subTest(text):
                self.assertNotIn("pytest", self.parse_one(text).command)

    def test_what_a_target_needs_is_there_before_anything_starts(self) -> None:
        os.mkdir("a b")
        for name in ("test_a.py", "a b/test_b.py"):
            self.write(name, "")
        python = self.write("bin/python", "", mode=0o755)
        for text, options in (("test_a.py::x -v\n./test_a.py\n", {}), ("'a b/test_b.py'\n", {}),
                              ("cd 'a b'\ntest_b.py\n", {}),
                              ("test_a.py\n", {"python": "./bin/python"}), ("test_a.py\n", {"python": python}),
                              ("cat test_c.py\n$(echo test_c.py)\n", {"python": "nowhere"}),
                              ("cd bin; test_c.py\n", {}),
                              (f"export PATH={self.folder}/bin:$PATH\ntest_a.py\n", {"python": "python"}),
                              ("run_test '' x.xml 'test_a.py -k \"a b\"' l\n", {})):
            with self.subTest(text=text):
                self.assertTrue(self.parse(text, list=False, **options))
        for text, what in (("true\ntest_c.py::x\n", "test_c.py is not there; fix the path, or"),
                           ("cd 'a b'\ntest_a.py\n", "test_a.py is not"),
                           ("run_test '' x.xml t.py l\n", "t.py is not there"),
                           ("true\n$UNSET/test_a.py\n", "/test_a.py is")):
            self.assert_mistake(text, text.count("\n"), what, list=False)
        self.write("tool.py", "", mode=0o755)
        self.assert_mistake("tool.py\n", 1, "tool.py is a program by its mode", list=False)
        self.assert_mistake("true\ntest_a.py\n", 2, "--python no_such is no program", list=False, python="no_such")
        self.assert_mistake("cd bin\n../test_a.py\n", 2, "--python ./bin/python is", list=False,
                            python="./bin/python")


class RunTestCalls(ParseCase):
    def test_a_call_is_a_pytest_target_with_that_xml_name_and_label(self) -> None:
        test = self.parse_one('run_test "A=1 B=2" "pytest_x.xml" "d/test_x.py" "the x"')
        junit = self.path("logs", "pytest_x.xml")
        self.assertEqual((test.label, test.junit, test.stem, test.gpus), ("the x", junit, "pytest_x", 1))
        self.assertEqual(test.command,
                         f"A=1 B=2 python3 -u -m pytest --tb=auto --junitxml={shlex.quote(junit)} d/test_x.py")
        self.assertTrue(test.announces)

    def test_words(self) -> None:
        for number, (call, start, end) in enumerate((
                ('run_test "" {} t.py l', "python3 -u", " t.py"), ("run_test ' ' {} t.py l", "python3 -u", " t.py"),
                ("X=0 run_test \"A='x y' B=\\\"$HOME z\\\"\" {} t.py l", "X=0 A='x y' B=\"$HOME z\" python3", " t.py"),
                ("run_test '' {} \"$D/t.py -k 'a or b' -v\" l", "python3", " $D/t.py -k 'a or b' -v"))):
            with self.subTest(call=call):
                command = self.parse_one(call.format(f"x{number}.xml")).command
                self.assertTrue(command.startswith(start) and command.endswith(end), command)
        test = self.parse_one('export N=7\nrun_test "" "x$N.xml" "t.py" "l $N"')
        self.assertEqual((test.junit, test.label), (self.path("logs", "x7.xml"), "l 7"))

    def test_a_mask_in_the_environment_asks_for_gpus(self) -> None:
        masks = ['"CUDA_VISIBLE_DEVICES=0,1"', '"A=1 CUDA_VISIBLE_DEVICES=0,1,2,3 B=2"', '"CUDA_VISIBLE_DEVICES="',
                 "'CUDA_VISIBLE_DEVICES=-1'", "CUDA_VISIBLE_DEVICES=0,1,2"]
        tests = self.parse(lines(f"run_test {mask} x{number}.xml t.py l" for number, mask in enumerate(masks)))
        self.assertEqual([(test.gpus, "VISIBLE" in test.command) for test in tests],
                         [(need, False) for need in (2, 4, 0, 0, 3)])

    def test_the_xml_is_in_the_log_dir_unless_it_names_a_folder(self) -> None:
        tests = self.parse('cd /\nrun_test "" "a.xml" "t.py" "a"\nrun_test "" "/x/b.xml" "t.py" "b"\n', log_dir="out")
        self.assertEqual([test.junit for test in tests], [self.path("out", "a.xml"), "/x/b.xml"])

    def test_mistakes(self) -> None:
        commands = ["run_test", "! run_test '' x.xml t.py l"] + [f"run_test {words}" for words in (
            '""', "'' x.xml t.py", "'' x.xml t.py l more", "'' x.xml t.py l && echo more", "'' x.xml t.py l >log",
            "A x.xml t.py l", '"A=1 b" x.xml t.py l', '"A=1; B=2" x.xml t.py l', '"A=1 # b" x.xml t.py l',
            "'' x.xml 't.py ; a' l", "'' x.xml 't.py | a' l", "'' x.xml 't.py >a' l")]
        self.assert_mistakes((command, 'run_test takes 4 words, "ENV" "xml" "target"') for command in commands)
        self.assert_mistake("run_test '' x.xml \"t.py -k 'a\" l", 1, "is never closed")

    def test_a_function_of_the_list_goes_first(self) -> None:
        tests = self.assert_like_bash('run_test() { echo "mine $#"; }\nrun_test\nrun_test "" x.xml t.py l\n')
        self.assertEqual([test.label for test in tests], ["run_test", 'run_test "" x.xml t.py l'])
        self.assertEqual(len(self.mistakes("run_test a\nfunction run_test { echo; }\nrun_test a\n")), 1)


class Labels(ParseCase):
    def test_precedence(self) -> None:
        self.assert_labels(('a b || test_fail "c" #: label=d', "d"), ('a b || test_fail "c"', "c"), ("a b", "a b"),
                           ("run_test '' x.xml t.py l #: label=e", "e"), ("run_test '' y.xml t.py l", "l"),
                           ("a b f || test_fail", "a b f"), ("A=1 B='x y' a b g", "a b g"),
                           ("CUDA_VISIBLE_DEVICES=0,1 a b h", "a b h"), ("d/test_x.py -k y", "d/test_x.py -k y"),
                           ('((1)) || test_fail "k"', "k"), ("((2)) #: label=l2", "l2"),
                           ('a i || test_fail ""', "a i"), ('a j || test_fail "$UNSET"', "a j"))

    def test_variables_are_expanded(self) -> None:
        os.environ.update(X="1", LONG_NAME="2")
        self.assert_labels(
            ('a || test_fail "b$X"', "b1"), ("a || test_fail $X/${LONG_NAME}", "1/2"), ("a $X", "a 1"),
            ('a "$X"', 'a "1"'), ("a ${X}b", "a 1b"), ("a #: label=$X-${LONG_NAME}", "1-2"),
            ("a #: label='$X b'", "1 b"),
            ("a || test_fail $(basename d/b.py .py)", "b"), ("a || test_fail a\"b $X\"'c $X'\\ d", "ab 1c $X d"),
            ('true #: label="it\'s $X, isn\'t it"', "it's 1, isn't it"),
            ('a "it\'s $X, isn\'t it"', 'a "it\'s 1, isn\'t it"'),
            ("a #: label={$X}", "{1}"), ("a #: label=$Xé", "1é"), ("a #: label=$X}", "1}"), ("a #: label=é$X", "é1"),
            ("a || test_fail 'b $X'", "b $X"), *((line, line) for line in (
                "a 'b $X'", "for i in 1 2; do a $i; done", "bash -c \"b ${i}\"", "a $1 $? $$ $@", "a $(b) `c`", "a *",
                "a \\\\ \"b\"", "a $((1+2))", "a '\"' '$X'", "a !b ~ {c,d}", "a $", 'bash -c "b \\$X"',
                'a "${BASH_SOURCE[0]}" BASH_SOURCE $BASH_SOURCES')))

    def test_expansion_follows_the_state_above(self) -> None:
        text = "export V=1\na $V\nexport V=2\na $V\nunset V\na $V\n: ${V:=3}\na $V || test_fail \"$V\"\n"
        self.assertEqual(self.labels(text), ["a 1", "a 2", "a $V", "3"])

    def test_labels_of_any_characters_are_whole_and_of_one_line(self) -> None:
        labels = ["a/b", 'a "b"', "it's", "a  b", "a\\b", "../a", "*", "a;b|c&d", "$", "a`b`", "a, b", "%s %d", "{}",
                  "x" * 200,
                  "é日本", "😀 ok", "caf\udce9", "a\u00a0b"]
        self.assert_labels(*((f"true #: label={shlex.quote(label)}", label) for label in labels))
        self.assert_labels(*((f"true || test_fail {shlex.quote(label)}", label) for label in labels))
        self.assert_labels((f"true #: label={'x' * 201}", "x" * 199 + "…"))
        self.assert_labels(("python3 -c 'a\nb'", "python3 -c 'a b'"), ('true #: label="a\tb\x01c"', "a b c"),
                           ("true || test_fail $'d\\ne\\n'", "d e"), ("true || test_fail 'a\x1b[1mb'", "ab"),
                           ("true || test_fail 'f\u2028g'", "f g"), ("a \\\n  --b \\\n\t--c", "a --b --c"),
                           ('a "b\nc" || test_fail ""', 'a "b c"'), ("a\\\n  --d", "a --d"))

    def test_tests_that_differ_only_in_their_prefix_say_what_differs(self) -> None:
        os.environ["G"] = "2"
        self.assert_labels(("BACKEND=X pytest a", "pytest a (BACKEND=X)"),
                           ("C=1 BACKEND=Y pytest a", "pytest a (C=1 BACKEND=Y)"),
                           ("pytest a", "pytest a"), ("C=1 B=1 b", "b (B=1)"), ("C=1 B=$G b", "b (B=2)"),
                           ("C=1 B=2 b", "b (B=2) #2"),
                           ("A=1 d || test_fail e", "e"), ("A=2 d || test_fail e", "e #2"),
                           ("A='\t\n' f", "f (A='  ')"), ("f", "f"))

    def test_equal_labels_are_numbered_and_unique(self) -> None:
        self.assertEqual(self.labels("a\nb\na\nA=1 c\nc || test_fail a\nA\n"), ["a", "b", "a #2", "c", "a #3", "A"])
        labels = self.labels('a\na\nb || test_fail "a #2"\na\nb || test_fail "a #3"\n')
        self.assertEqual((len(set(labels)), labels[:2]), (5, ["a", "a #2"]))
        self.assertEqual(self.labels("#: label=x\na\nb\n"), ["x", "x #2"])

    def test_a_word_that_bash_cannot_expand_does_not_take_the_value_of_the_line_above(self) -> None:
        first, second = self.parse('a --junitxml=a.xml || test_fail one\n'
                                   'b "--junitxml=${1x}/b.xml" || test_fail "${1x}"\n')
        self.assertEqual(first.label, "one")
        self.assertNotIn("one", second.label)
        self.assertNotEqual(first.junit, second.junit)


class Stems(ParseCase):
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
        names = [run_tests.slug(label) for label in ("x" * 121, "x" * 122, "é", "è", "caf\udce9", "日本", "日")]
        self.assert_sound(names)
        for name in names:               # they have lost something
            self.assertRegex(name, r"-[0-9a-f]{8}\Z")
            self.assertLessEqual(len(name), run_tests.STEM_BYTES)

    def test_any_label_makes_a_file_name(self) -> None:
        labels = ["a", "A", "a/", "a b", "a_b", "a_2", "A_2", "a #2", "é", "x" * 300, "x" * 301, "..", ".", "-", "_",
                  "*?", "a\\b", "a:b", "caf\udce9", "CON", "'", '"', "$", "a.py", "a.PY", ".hidden", "😀"]
        stems = [test.stem for test in self.parse(lines(f"true #: label={shlex.quote(label)}" for label in labels * 2))]
        self.assertEqual(len(stems), 2 * len(labels))
        self.assert_sound(stems)

    def test_names_that_the_list_gives(self) -> None:
        for text, stems in (
                ("true --junitxml=d/own.xml || test_fail x\ntrue --junitxml=e/own.xml\ntrue --junitxml=f/OWN.xml\n"
                 "true --junitxml=a.b.xml\nrun_test '' pytest_z.xml t.py l\n",
                 ["own", "own_2", "OWN_3", "a.b", "pytest_z"]),
                ("own\ntrue --junitxml=own.xml\n", ["own", "own_2"]),
                (f"true --junitxml={'x' * 121}.xml\n", [run_tests.slug("x" * 121)]),
                ("test_a.py\nrun_test '' PYTEST_test_a.xml t.py l\n", ["pytest_test_a", "PYTEST_test_a_2"])):
            with self.subTest(text=text):
                self.assertEqual([test.stem for test in self.parse(text)], stems)

    def test_no_test_has_the_name_of_another_ones_attempt(self) -> None:
        tests = self.parse("a #: retries=1\nb #: label=a.attempt1\nc --junitxml=a.attempt2.xml\n")
        self.assertEqual([test.stem for test in tests], ["a", "a_attempt1", "a_attempt2"])

    def test_equal_targets_have_junit_files_of_their_own(self) -> None:
        tests = self.parse("test_a.py\nA=1 test_a.py\nTest_A.py\n")
        self.assertEqual(len({str(test.junit).casefold() for test in tests}), 3)
        for test in tests:
            self.assertEqual(test.junit, self.path("logs", test.stem + ".xml"))
            self.assertIn(f"--junitxml={shlex.quote(str(test.junit))} ", test.command)


class JunitFiles(ParseCase):
    def test_how_a_line_names_its_file(self) -> None:
        os.environ["X"] = "x"
        for command in ("python3 -m pytest t.py", "t.py"):
            for words, name in (
                    ("--junitxml=a.xml", "a.xml"), ("--junitxml a.xml", "a.xml"), ("--junit-xml=d/a.xml", "d/a.xml"),
                    ("--junitxml=$X/a.xml", "x/a.xml"), ('"--junitxml=$X/a.xml"', "x/a.xml"),
                    ('--junitxml="$X/a b.xml"', "x/a b.xml"), ("'--junitxml=$X a.xml'", "$X a.xml"),
                    ("--junitxml='a b.xml'", "a b.xml"), ('--junitxml "${X}/a.xml"', "x/a.xml"),
                    ("--junitxml=d/../a.xml", "a.xml"),
                    ("--junitxml=a.xml --junitxml=b.xml", "b.xml"), ("--junitxml=a.xml | grep b", "a.xml"),
                    ("--junitxml=a.xml || test_fail x", "a.xml"), ("--junitxml=é.xml", "é.xml"),
                    ("--junitxml=$(echo q).xml", "q.xml")):
                with self.subTest(command=command, words=words):
                    self.assertEqual(self.parse_one(f"{command} {words}").junit, self.path(name))

    def test_a_command_that_names_none_has_none(self) -> None:
        os.mkfifo("fifo")
        for command in ("mkdir -p d && a --junitxml=d/x.xml || true", "{ a --junitxml=d/x.xml; }",
                        "a | b --junitxml=d/x.xml", "a && b --junitxml=d/x.xml && cd d"):
            self.assertEqual(self.parse_one(command).junit, self.path("d/x.xml"))
        for command in ("mkdir d && cd d && a --junitxml=x.xml", "N=1; a --junitxml=$N.xml",
                        "a; read N; a --junitxml=$N.xml", "for i in 1 2; do a --junitxml=$i.xml; done"):
            self.assertEqual(self.parse_one(command).junit, "")
        for command in ("timeout -k 5 10m pytest a", "uv run pytest a", "python3 -m pytest a || exit 1",
                        "env -u A B=1 pytest a", '"${PY-python3}" -W ignore -m pytest a',
                        "python3 -m coverage run --source=d -m pytest a", "time -p pytest a"):
            self.assertTrue(self.parse_one(f"{command} --junitxml=x.xml").is_pytest, command)
        for command in ("pytest a && mv x.xml y", "pytest a || pytest --lf", "uv run --directory=d pytest a", "a",
                        "srun -n 2 pytest a", "env --chdir=d pytest a", "pytest a \\\n  && mv x.xml y"):
            self.assertFalse(self.parse_one(f"{command} --junitxml=x.xml").is_pytest, command)
        commands = ["python3 -m pytest t.py", "a --junitxml=", "a --junitxml", "a --junit=b.xml", "a '' junitxml=b",
                    "docker run i pytest --junitxml=/out/b.xml",
                    "a --junitxml=$UNSET", "a --junitxml=$(date +%s).xml", "a --junitxml=$$.xml",
                    "a --junitxml=r${RANDOM}.xml", "a --junitxml=g$CUDA_VISIBLE_DEVICES.xml",
                    *["a --junitxml=/dev/null"] * 2, "a --junitxml=fifo"]
        self.assertEqual([test.junit for test in self.parse(lines(commands))], [""] * len(commands))

    def test_a_path_is_relative_to_where_the_test_starts(self) -> None:
        os.makedirs("d/e")
        text = ("a --junitxml=x.xml\ncd d\na --junitxml=x.xml\ncd e && export A=1\n"
                "a --junitxml=../y.xml\na --junitxml=/z.xml\ntest_a.py\n")
        self.assertEqual([test.junit for test in self.parse(text, log_dir="out")],
                         [self.path("x.xml"), self.path("d/x.xml"), self.path("d/y.xml"), "/z.xml",
                          self.path("out/pytest_test_a.xml")])

    def test_two_tests_with_one_file_are_a_mistake(self) -> None:
        os.makedirs("d")
        os.environ["X"] = "logs"
        for first, second in (("a --junitxml=x.xml", "b --junitxml=./x.xml"),
                              ("a --junitxml=x.xml", "t.py --junitxml x.xml"),
                              ("run_test '' x.xml t.py l", "a --junitxml=$X/x.xml"),
                              ("run_test '' x.xml t.py l", "run_test '' x.xml t.py l"),
                              ("a --junitxml=d/x.xml\ncd d", "b --junitxml=x.xml")):
            text = f"{first}\n{second}\n"
            self.assert_mistake(text, text.count("\n"), f"writes the same JUnit file as {NAME}:1, ")


class Repeat(ParseCase):
    """`--repeat`: each run is a test of its own."""

    def test_runs_are_told_apart(self) -> None:
        tests = self.parse("true #: label=x\ntrue #: label=x\nwait\nfalse #: after=x lock=l\n", repeat=2)
        self.assertEqual([(test.index, test.label, test.origin, test.stem, test.barrier) for test in tests], [
            (0, "x", "x", "x", 0), (1, "x (run 2)", "x", "x_run_2", 0), (2, "x #2", "x #2", "x_2", 0),
            (3, "x #2 (run 2)", "x #2", "x_2_run_2", 0), (4, "false", "false", "false", 1),
            (5, "false (run 2)", "false", "false_run_2", 1)])
        every = ("x", "x (run 2)", "x #2", "x #2 (run 2)")
        self.assertEqual([test.attributes.after for test in tests[-3:]], [(), every, every])
        self.assertEqual({test.key for test in tests[:4]}, {tests[0].key})
        self.assertEqual([test.label for test in self.parse("true\n", repeat=1)], ["true"])

    def test_each_run_has_a_junit_file_or_its_turn(self) -> None:
        """What a line names itself cannot be told apart."""
        self.write("test_a.py", "")
        tests = self.parse("test_a.py\nprog --junitxml=$HOME/b.xml #: lock=l\n", repeat=2)
        self.assertEqual([test.stem for test in tests], ["pytest_test_a", "pytest_test_a_run_2", "b", "b_2"])
        for test in tests[:2]:
            self.assertIn(f"--junitxml={test.junit}", test.command)
            self.assertEqual((os.path.basename(test.junit or ""), test.attributes.lock), (f"{test.stem}.xml", ()))
        self.assertEqual([test.attributes.lock for test in tests[2:]], [("l", tests[2].junit)] * 2)

    def test_mistakes_are_told_once(self) -> None:
        self.assert_mistake("true #: after=none\n", 1, "after=none names no test", repeat=3)


class After(ParseCase):
    def test_an_after_that_cannot_be(self) -> None:
        for text, told in (
                ("a\nb #: after=a,c\nd #: after=A\n", {2: "after=c names no test", 3: "after=A names no test"}),
                ("a #: after=a\n", {1: "circle"}), ("a #: after=b\nb #: after=a\n", {1: "circle", 2: "circle"}),
                ("a #: after=b\nb #: after=c\nc #: after=a\nd #: after=a\n", dict.fromkeys((1, 2, 3), "circle")),
                ("a\nc\nb #: after=c,d\nd #: after=a,b\n", dict.fromkeys((3, 4), "circle")),
                ("a #: after=b\nwait\nb\n", {1: "after=b waits for a test below a `wait`"})):
            with self.subTest(text=text):
                found = self.mistakes(text)
                self.assertEqual([int(message.split(":")[1]) for message in found], list(told), found)
                for message, what in zip(found, told.values()):
                    self.assertIn(what, message)

    def test_an_after_that_can_be(self) -> None:
        for text in ("a\nb #: after=a\nc #: after=a,b\nd #: after=c,b,a\n", "b #: after=a\na\n",
                     "a\nwait\nb #: after=a\n"):
            self.assertTrue(self.parse(text))

    def test_variables_are_expanded_as_in_a_label(self) -> None:
        """With the values at the place of the line, also from a line of `#:` above."""
        text = ("A=1\na #: label=\"build $A\"\nb #: after=\"build ${A}\"\nA=2\na #: label='build $A'\n"
                "#: after='build $A,x $NO'\nb\nA=3\nb\n#:\nc #: label='x $NO'\nc #: label='build 3'\n")
        self.assertEqual([list(test.attributes.after) for test in self.parse(text)],
                         [[], ["build 1"], [], ["build 2", "x $NO"], ["build 3", "x $NO"], [], []])
        self.assert_mistake("A=1\na #: after='build $A'\n", 2, "after=build 1 names no test")


class State(ParseCase):
    """Shell state runs once, when the list is read; each test starts from the snapshot of its place."""

    def test_a_test_starts_from_all_that_the_state_above_has_set(self) -> None:
        os.mkdir("d")
        os.environ.update(INHERITED="1", GONE="1")
        self.write("lib.sh", "from_file() { echo \"from file $1\"; }\nexport FILE=1\n")
        self.assert_like_bash(lines((
            "export A=1 B='x y'", "C=unexported", "unset GONE", "export -n INHERITED",
            "echo $A $B $C ${GONE-gone} $INHERITED",
            "bash -c 'echo $A $B ${C-none} ${GONE-gone} ${INHERITED-none} $SHLVL'", "LIST=(1 'a b' [5]=3)",
            "declare -A MAP=([a]=1 ['b c']=$'2\\n3')", "declare -i N=3", "readonly R=7", "declare -l LOW=ABC",
            'echo "${LIST[1]}" ${!LIST[@]} "${MAP[b c]}" $LOW', "N=N+1; test $N = 4 && echo $N", "R=8; test $R",
            "f() { echo \"f $1 $C\"; }", "g() (", "  f 'in g'", ")", "export -f f", "f 1; g; bash -c 'f 2'",
            ". ./lib.sh",
            "from_file $FILE", "unset -f g", "g", "umask 027", "umask; bash -c umask", "ulimit -n 100 -c 0",
            "ulimit -n; bash -c 'ulimit -c'", "shopt -s extglob nullglob expand_aliases",
            "echo no_*; [[ aab == +(a)b ]] && echo extglob", "alias hi='echo alias'", "hi there", "unalias hi",
            "hi there",
            "set -- p 'q r'", 'printf "<%s>" "$@" $#; echo', "cd d", 'echo "$PWD $OLDPWD"', "cd ..", "pwd", "IFS=:",
            "P=a:b",
            "echo $P", "unset IFS", "echo $P", "V=$'\\xff\\001\\n'", 'echo "$V" 2>&1 | od -c', "set -f", "echo *",
            "set +f",
            "echo d*", "set -o pipefail -u", "false | true || echo pipefail", "(echo ${NOT_SET})", "set +u",
            "echo ${NOT_SET}",
            "set -a", "AUTO=1", "bash -c 'echo $AUTO'", "set -o posix", "shopt -o posix", "set -C", "echo x >lib.sh")))

    def test_functions_from_outside_go_on_until_they_are_unset(self) -> None:
        os.environ.update({"BASH_FUNC_say%%": "() { echo \"said $1\"; }"})
        self.assert_like_bash("bash -c 'say 1'\nexport A=1\nbash -c 'say 2'\nf() { :; }\nbash -c 'say 3'\n"
                              "unset -f say\nbash -c 'say 4'\n")

    def test_no_test_runs_while_the_list_is_read(self) -> None:
        self.parse("A=1\n$(touch started) a\n`touch started`\na <(touch started)\n")
        self.assertFalse(os.path.exists("started"))

    def test_tmpdir_may_be_relative(self) -> None:
        os.mkdir("d")
        with mock.patch.dict(os.environ, TMPDIR="."), mock.patch("tempfile.tempdir", None):
            self.assertEqual([test.label for test in self.parse("cd d\ntrue\nA=1\nfalse $A\n")], ["true", "false 1"])

    def test_state_runs_once(self) -> None:
        self.write("once.sh", "echo run >>count\necho noise\nD=$(mktemp -d)\n")
        tests = self.parse(". ./once.sh\necho one >$D/f\ncat $D/f\nwait\nrm -r $D\n")
        self.assertEqual([self.output(test) for test in tests], ["noise\n", "one\n", ""])
        with open("count", encoding="utf-8") as file:
            self.assertEqual(file.read(), "run\n")

    def test_what_state_prints_begins_the_log_of_the_test_below(self) -> None:
        self.write("noise.sh", "echo noise $1; echo error $1 >&2; export A=$1\n")
        tests = self.assert_like_bash(". ./noise.sh 1\necho $A\n. ./noise.sh 2\n. ./noise.sh 3\necho $A\necho $A\n")
        self.assertEqual([test.preface for test in tests],
                         [b"noise 1\nerror 1\n", b"noise 2\nerror 2\nnoise 3\nerror 3\n", b""])

    def test_what_is_only_exported_travels_in_the_environment(self) -> None:
        os.mkdir("d")
        shells = [test.shell for test in self.parse("a\nexport A=1\nunset HOME\nb\ncd d\nc\nB=1\nd\n")]
        self.assertEqual([bool(shell.prelude) for shell in shells], [False, False, False, True])
        self.assertEqual([shell.directory for shell in shells], [self.folder] * 2 + [self.path("d")] * 2)
        self.assertIs(shells[0].environment, os.environb)
        exported = shells[1].environment
        self.assertEqual((exported[b"A"], b"HOME" in exported, b"PATH" in exported), (b"1", False, True))
        names = {name for name in (*exported, *shells[3].environment) if name not in os.environb}
        self.assertEqual(names - {b"OLDPWD", b"PWD"}, {b"A"})    # nothing of the runner's own

    def test_a_test_changes_nothing_for_those_below(self) -> None:
        tests = self.parse("A=1\nA=2; cd /; set -u; f() { :; }; false\ndeclare -p A; echo $PWD ${B-unset}; f\n")
        self.assertEqual([self.output(test) for test in tests][1],
                         f'declare -- A="1"\n{self.folder} unset\n{NAME}: line 3: f: command not found\n')

    def test_what_a_test_sets_is_gone_below(self) -> None:
        """So bash fails where a test below would look at nothing, or go through nothing; also by a function."""
        for setter in ("if a; then F=(b); c; fi", "a || { F+=(a); tell; }", "note b", "a && F=1",
                       "for i in 1 2; do a $i || { F=1; b; }; done", "mapfile -t F <tests.txt; a",
                       "read -r A F <<< 'a 0'", "IFS=, read -d '' -ra F <<< a,b"):
            for needs in ('[ ${#F[@]} -eq 0 ] || exit 1', 'for f in "${F[@]}"; do b || exit 1; done', "((F == 0))",
                          "cd $F", "sum_up", "(sum_up)", "set -o pipefail; sum_up | cat"):
                text = f"note() {{ if a; then F=1; b; fi; }}; sum_up() {{ [ -z $F ]; }}\nF=\n{setter}\n{needs}\n"
                self.assert_mistake(text, 4, "`F` is set in line 3, which is a test, and is gone with its shell")
        for needs in ("((!F))", "[[ ! -v F ]]", "a --F=$F",
                      '[ -z "$F" ] || { echo "F=$F"; exit 1; }', "echo don\\'t; [ -z \"$F\" ] && echo 'fine'"):
            self.assert_mistake(f"a && F=1\n{needs}\n", 2, "`F` is set in line 1, which is a test")
        for setter in ("let F=1", "read -r F <<< 1"):         # they run no program
            self.assert_mistake(f"{setter}\n[ $F = 1 ]\n", 2, "set it by `=` or `mapfile` in a line that neither runs")
        uses = "a && F=1\nuse() { a $F; }\n"
        for given in ("F=1 use", "for F in 1 2; do use || exit 1; done", "f() { local F=1; use; }\nf", "(F=1; use)",
                      "f() { for F in 1; do use || return 1; done; }\nf", "grep -v F a",
                      "f() { eval 'F=1'; a $F; }\nf"):
            self.assertTrue(self.parse(f"{uses}{given}\n"), given)
        for text in ("{ F=1; a $F; }\n{ F=2; a $F; }\n", "for F in 1; do a $F; done\nb $F\n", "(F=1; a)\nb $F\n",
                     "a && F=1\nF=2\nb $F\n", "F=1 a\nb $F\n", "f() { local F=1; a; }\nf\nb $F\n",
                     "{ F=1; a; }\nbash -c 'F=2; b $F'\n", "F=$(a) && b\nF=$(a) && b $F\n",
                     "F=1; a\nsource ./x || true\nb $F\n", "F=1; a\neval F=2; b $F\n", "F=1; a\nb $(F=2; c $F)\n",
                     "F=1; a\nb | while read -r A F; do c $F; done\n",
                     "F=1; a\na \"don't\" && b '$F'\n", "F=1; a\nfor i in 1; do\n  # $F\n  b || exit 1\ndone\n",
                     "F=1; a\n(mapfile -t F < <(b); c $F)\n", "F=1; a\nb | while read -r F; do c $F; done\n",
                     "F=1; a\nfor (( F = 0; F < 2; F++ )); do a $F || exit; done\n",
                     '{ F=1; a; }\nbash -c "F=2; b \\$F"\n', "F=/F\nexport A=/F/x:$F && read -F x && a\n$F/b\n",
                     'test_fail() { F="$F $1"; }\na || test_fail a\n[ -z "$F" ] || b\n'):
            self.assertEqual(len(self.parse(text)), 2, text)

    def test_syntax_may_depend_on_the_state_above(self) -> None:
        self.assert_like_bash("shopt -s extglob\nA=$(echo tests.!(sh))\necho a $A\necho tests.@(txt|x)\n")

    def test_state_may_end_the_list_with_a_backslash(self) -> None:
        self.assertEqual(len(self.parse("true\nexport A=1 \\")), 1)
        self.assert_mistake("true\ncd nowhere \\", 2, "this shell state fails with status 1")

    def test_a_function_of_a_builtins_name_does_not_spoil_the_snapshot(self) -> None:
        self.write("d/x", "")
        self.assert_like_bash('printf() { echo mine; }\ncd() { builtin cd "$@" && echo "in $1"; }\n'
                              'set -e\nset +e\ncd d\nls\nprintf x\n')

    def test_state_that_fails_is_a_mistake_unless_its_line_guards_it(self) -> None:
        for text in ("cd nowhere\n", "\n. ./missing.sh\n", "export A=1; cd nowhere\n", "A=$(exit 3)\n",
                     "readonly A=1\nA=2 ||\nA=3\n",
                     "if [ -d / ]; then\n  cd nowhere\nfi\n", "[ -d / ] && cd nowhere\n", "{ cd nowhere; }\n"):
            line = text.rstrip("\n").count("\n") + 1
            if "if" in text or "||" in text:
                line = 1 if "if" in text else 2
            self.assert_mistake(f"{text}true\ntrue\n", line, "this shell state fails with status ")
        self.assertIn("cd: nowhere: No such file", self.mistakes("cd nowhere\ntrue\n")[0])
        self.assert_mistake("true\ncd nowhere\n", 2, "this shell state fails")
        for state in ("cd nowhere; export A=1", ". missing.sh; A=1", "if :; then cd nowhere; A=1; fi",
                      "A=$(false); B=1", "f() { return $?; }; cd nowhere; A=1"):
            self.assert_mistake(f"{state}\ntrue\n", 1, "this shell state fails with status 1")
        self.write("k.sh", "set -k\n")
        self.assert_mistake(". ./k.sh\ntrue\n", 1, "`set -k`")
        for line in ("false || test_fail a\ntrue", "true; run_test '' x.xml tests/test_a.py a\ntrue",
                     "(false || test_fail a)"):
            self.write("list.txt", f"{line}\n")
            self.assert_mistake("source ./list.txt\ntrue\n", 1, "in a file that it sources; name that file")
        self.write("x.sh", "test_fail() { echo $1; }\nfalse || test_fail a\n")
        self.assertEqual(len(self.parse("source ./x.sh\ntrue\n")), 1)
        self.write("x.sh", "ls nowhere; :")     # where it fails, it may be meant
        self.assertEqual(len(self.parse("set -E; . ./x.sh; cd nowhere || true; [ -d nowhere ]; A=1\ntrue\n")), 1)
        self.assertEqual(len(self.parse("A=$(false); RC=$?\ntrue\n")), 1)
        self.assert_like_bash(lines((
            "cd nowhere || true", "cd nowhere 2>/dev/null || :", ". ./missing || export A=1",
            "[ -d nowhere ] && cd nowhere",
            "test -d nowhere && export A=2", "[[ -d nowhere ]] && A=3", "false || B=4", "((0)) && B=5",
            "export C=$(nosuch)", "command -v nosuch && B=7", "type nosuch 2>/dev/null && B=8",
            "if [ -d nowhere ]; then cd nowhere; fi", "read D </dev/null || D=6", "echo $A $B $C $D")))

    def test_state_that_ends_bash_is_a_mistake_also_with_status_0(self) -> None:
        for text, line, what in (
                ("cd nowhere || exit 3\n\ntrue\n", 3, "ends bash with status 3"),
                ("cd nowhere || exit 0\ntrue\n", 2, "status 0"),
                ("true\ncd nowhere || exit\ntrue\nfalse\n", 3, "ends bash with"),
                (": ${UNSET:?}\ntrue\n", 2, "ends bash with"),
                ("set -e\ncd nowhere\ntrue\n", 3, "ends bash with"),
                ("true\ncd nowhere || exit 0\n", 2, "ends bash with"),
                ("set -n\ntrue\n", 2, "ends bash with"), ("true || test_fail ${UNSET:?}\n", 1, "ends bash with")):
            self.assert_mistake(text, line, what)

    def test_state_that_prints_all_variables(self) -> None:
        """What the reading bash says of itself is no part of that, whatever options came with the environment."""
        text = "set\ncd nowhere || A=1\ndeclare -p\nfalse $A\nset -x; BASH_XTRACEFD=1\nA=2\nfalse $A\n"
        self.assertEqual([test.label for test in self.parse(text)], ["false 1", "false 2"])
        self.assert_mistake("set\ncd nowhere\nset\ntrue\n", 2, "this shell state fails with status 1")
        for options in ("xtrace", "verbose", "errexit:nounset"):
            with mock.patch.dict(os.environ, SHELLOPTS=options):
                self.assertEqual([test.label for test in self.parse("A=1\ntrue $A\nfalse\n")], ["true 1", "false"])
        with mock.patch.dict(os.environ, FUNCNEST="1"):
            self.assert_mistake("A=1\ntrue\nfalse\n", 2, "ends bash with status ")

    def test_a_signal_ends_the_reading_also_where_bash_has_just_ended(self) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, stop)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with mock.patch("os.killpg", side_effect=ProcessLookupError), self.assertRaises(KeyboardInterrupt):
            self.parse("export A=$(kill -ALRM $PPID)\ntrue $A\n")

    def test_a_process_that_state_leaves_does_not_hold_the_run(self) -> None:
        self.write("daemon.sh", "sleep 1000 &\nexport PID=$!\n")
        test = self.parse_one(". ./daemon.sh\ntrue $PID\n")
        os.kill(int(test.label.split(" ")[1]), signal.SIGKILL)


class Messages(ParseCase):
    """Bash names the file and the line that it names for the list."""

    def test_lines_of_tests_and_of_state(self) -> None:
        tests = self.assert_like_bash(
            "\n# text\nnosuch_1\nexport A=$(nosuch_2)\n\nexport B=\"x\ny\" C=$(nosuch_3)\nnosuch_4 \\\n"
            "  a\nif true; then\n"
            "  D=$(\n    nosuch_5) || true\nfi\n\nfor i in 1 2; do\n  nosuch_6 $i\ndone\n"
            "(\n  nosuch_7)\necho $LINENO\n")
        self.assertIn(f"{NAME}: line 16: nosuch_6", self.output(tests[2]))

    def test_lines_of_functions(self) -> None:
        """Bash before 5.3 calls the file of a function `environment` that it has not read from one."""
        tests = self.parse("\nf() {\n  nosuch_1\n  echo $LINENO; return $1\n}\nf\nexport A=1\nf; nosuch_2\n")
        in_f = "(environment|tests.txt): line 3: nosuch_1: command not found\n4\n"
        last = "tests.txt: line 8: nosuch_2: command not found\n"
        self.assertRegex("".join(map(self.output, tests)), rf"\A{in_f}{in_f}{last}\Z")

    def test_lines_of_a_sourced_file(self) -> None:
        self.write("x.sh", "A=1\nnosuch_1\ng() {\n  nosuch_2\n}\n")
        self.assert_like_bash(". ./x.sh || true\ntrue\n")

    def test_where_the_list_lies(self) -> None:
        os.mkdir("sub")
        self.assert_like_bash(lines((
            'echo "$BASH_SOURCE_DIR" ${BASH_SOURCE[1]-none} ${BASH_SOURCE[0]} $BASH_SOURCE ${#BASH_SOURCE[@]} $0',
            "A=${BASH_SOURCE[1]-none}${BASH_SOURCE}", "BASH_SOURCE_DIR=$(dirname \"${BASH_SOURCE[0]}\")",
            'cd "$BASH_SOURCE_DIR"',
            'echo $A "$BASH_SOURCE_DIR" ${BASH_SOURCE[0]}', "echo BASH_SOURCE", "echo 'BASH_SOURCE' \\$BASH_SOURCE")))
        for word in ("$0", "${BASH_SOURCE[0]}", "$BASH_SOURCE", "${BASH_SOURCE}"):
            self.write("sub/l.txt", f'cd "$(dirname "{word}")"\npwd\n')
            self.assertEqual(self.parse_with_hints("sub/l.txt")[0][0].shell.directory, self.path("sub"), word)

    def test_the_list_lies_where_it_did_inside_a_function(self) -> None:
        self.assert_like_bash('f() { echo "${BASH_SOURCE[0]}"; }\nf\n')

    def test_traces_of_set_x(self) -> None:
        self.write("x.sh", "B=2\n")
        self.assert_like_bash("PS4='+$LINENO '\nset -x\nA=1\necho $A\n. ./x.sh\nwait\necho b\nset +x\necho c\n")
        self.assert_like_bash("set -x\nf() {\n  echo f\n}\nf\nset +x\nf\n")

    def test_the_tests_own_variables_win_over_its_state(self) -> None:
        self.write("mask.sh", "export CUDA_VISIBLE_DEVICES=9 MASTER_PORT=1\n")
        for state in (". ./mask.sh", "unset CUDA_VISIBLE_DEVICES", "cd ."):
            test = self.parse_one(f"{state}\necho $ZE; bash -c 'echo $CUDA_VISIBLE_DEVICES'\n")
            self.assertEqual(self.output(test, CUDA_VISIBLE_DEVICES="2,3", ZE="a b;$c'd"), "a b;$c'd\n2,3\n", state)


class Hints(ParseCase):
    """What may be a mistake is told once, and does not stop the run."""

    def test_what_prepares_for_the_tests_below(self) -> None:
        what = ("is a test here and runs beside those below; put it into the script that calls the runner, or, if it "
                "only writes files, `wait` below it")
        for command in ("pip install x", "pip3 install -q x || exit 1", "python3 -m pip install x",
                        "apt-get update && a", "conda a",
                        "A=1 apt install x", "exit $RET", "exit", "exit; a", "trap 'rm x' EXIT", 'eval "$(a)"',
                        "module load cuda", "mkdir -p x", "git clone x"):
            with self.subTest(command=command):
                (hint,) = self.hints(f"true\n{command}\npip install twice\ntrue\n")
                self.assertTrue(hint.startswith(f"{NAME}:2: `{re.split('[ ;]', command.replace('A=1 ', ''))[0]}"), hint)
                self.assertIn(f"` {what}", hint)
                self.assertEqual(self.hints(f"true\n{command}\nwait\ntrue\n"), [])
        self.assertEqual(self.hints("pipx\nexits 1\necho pip install x\naptly\n"), [])

    def test_what_would_change_its_own_shell_alone(self) -> None:
        self.write("x", "a\nb\n")
        self.assertEqual(self.output(self.parse_one("mapfile -t A <x\nreadarray -t B <x\n"
                                                    "echo ${A[1]} ${B[0]}\n")), "b a\n")
        fine = ("read A <x; [ \"$A\" ]\nexec ./x\n((B == 1))\nx & wait $!\nwaits\nprintf x | y\nread -r A <x && a $A\n"
                "pytest a -k 'not (wait or sleep)'\necho 'a; wait'\nexec >x ./prog\nwait-for-it.sh db:80\n"
                "read-model <x\nshift/test_x.py\ncd x && a && cd -\na && unset A\na ${A:=b}\n"
                "(a && cd x)\na && cd ..\nexec 3>f a\nout=$(a 2>&1); rc=$?; echo $out; exit $rc\n"
                "B=$(a) && echo $B\na || :\n")
        self.assertEqual(self.hints(fine), [])
        for state in ("a && cd sub", "rm -r d; mkdir d; cd d", "a && export B=1", "ls x && set -o pipefail", "exec 3>f",
                      "a && . env.sh"):
            (hint,) = self.hints(f"true\n{state}\n")
            self.assertRegex(hint, rf"\A{NAME}:2: what `.*` changes is gone with this line; put it on a line without")
        for state in ("export C=$(a) && echo $C", 'cd "$(a)" && echo there', "C=1 && echo $C", "ls x && export A=1",
                      "if nvidia-smi -L; then . env.sh; fi"):
            self.assert_mistake(f"{state}\n", 1, "this line would be a test, and change nothing for those below")
        for state in ("cd sub", "source env.sh", "pushd x", "[ -d x ] && cd x", "f", "A=$(a)"):
            texts = [f"{state}; echo x"] + [f"{state} || test_fail x"] * (state[0] != "A")
            for text in texts + ["f"] * (state == "f"):
                self.assert_mistake(f"f() {{ export A=1; cd x; }}\n{text}\n", 2,
                                    "this line would be a test, and change nothing for those below; write it without")
        self.write("env.sh", "f() { export A=1; }\ng() { f; a; }\nno() { a; echo; }\nok() { (export A=1); a; }\n"
                             "test_fail() { RET=1; }\nh() { a || test_fail a; }\n")
        self.assert_mistake(". ./env.sh\nf 8\n", 2, "this line would be a test, and change nothing for those below")
        for call in ("no", "h"):
            self.assert_mistake(f". ./env.sh\n{call}\n", 2, "this line passes even if `a` fails")
        self.write("lib.sh", "run() { a | tee x; }\n")
        self.parse(". ./lib.sh\nset -o pipefail\nrun a\nset +o pipefail\n")
        self.assert_mistake(". ./lib.sh\nrun a\nset -o pipefail\n", 2, "this line passes even if `a` fails")
        for call in ("f x", "f && cd -"):
            (hint,) = self.hints(f"f() {{ export A=1; a; }}\n{call}\n")
            self.assertIn("what `export A=1` changes is gone", hint)
        self.assertEqual(self.hints("export A=1 && a\n"), [])
        self.assertEqual(self.hints(". ./env.sh\nok\n"), [])
        self.assertEqual(len(self.parse("OUT=$(a) || test_fail a\n[ -d x ] || test_fail b\n")), 2)

    def test_what_looks_like_a_test_of_several_gpus(self) -> None:
        for command in ("torchrun --nproc-per-node=4 a.py", "torchrun --nproc_per_node 2 a.py",
                        "torchrun --nproc_per_node=gpu a",
                        "mpirun -np 4 a", "mpiexec -n 2 a", "tests/distributed/test_a.py", "pytest a_multigpu.py",
                        "multi-gpu/a", "tests/test_multi_gpu.py", "pytest -m mgpu a", "NUM_GPUS=2 a",
                        "accelerate launch --num_processes 2 a", "mpirun --oversubscribe \\\n  -np 4 a",
                        "accelerate launch \\\n  --num_processes=2 a"):
            with self.subTest(command=command):
                (hint,) = self.hints(f"true\n{command}\n{command} again\n")
                self.assertRegex(hint, rf"\A{NAME}:2: this looks like a test of several GPUs, and gets one; write `#:"
                                       ".* only the first such line is named$")
                for text in (f"{command} #: gpus=1", f"#: gpus=2\n{command}", f"CUDA_VISIBLE_DEVICES=0,1 {command}"):
                    self.assertEqual(self.hints(text + "\n"), [])
                self.assertEqual(self.hints(command + "\n", gpus_per_test=2), [])
        fine = ("torchrun --nproc-per-node=1 a\nmpirun -np 1 a/distributed/b\ntrue\npytest -m 'not mgpu' a\n"
                "prepare --num_processes 32\npython -m torch.distributed.launch --nproc_per_node=1 a\n")
        self.assertEqual(self.hints(fine), [])

    def test_tests_that_write_one_coverage_file(self) -> None:
        for text in ("pytest a --cov=x\npytest b --cov=x\n", "a/test_a.py --cov\nb/test_b.py --cov\n",
                     "coverage run -m pytest a\nA=1 coverage run -a -m pytest a\n",
                     "pytest a --cov=x\npytest b \\\n  --cov=x\n"):
            (hint,) = self.hints(text)
            self.assertRegex(hint, rf"\A{NAME}:2: .* spoil each other's \.coverage, .*; write COVERAGE_FILE=")
            apart = re.sub(r"(?<!\\)\n", "\nwait\n", text)
            for fine in (apart, f"#: lock=coverage\n{text}", f"COVERAGE_FILE=a {text}"):
                self.assertEqual(self.hints(fine), [])
        self.assertEqual(self.hints("./a --cov=x\n./b --cov=x\n"), [])

    def test_a_failure_that_is_lost_among_commands(self) -> None:
        for command in ("pytest a; pytest b", "for t in a b; do pytest $t; done", "{ pytest a; pytest b; }",
                        "(cd /; ./prog; grep ok log)"):
            with self.subTest(command=command):
                (hint,) = self.hints(f"true\n{command}\npytest c; pytest d\n")
                self.assertRegex(hint, rf"\A{NAME}:2: a failure of `(pytest|\./prog)` here is lost, as only the last")
                self.assertEqual(self.hints(f"set -e\n{command}\n"), [])
        (hint,) = self.hints('echo "$(date) $(nproc)" x\necho "version $(python3 -c pass)"\n[ "$(git log)" ]\n'
                             "echo '$(python3 -c pass)'\n")
        self.assertEqual(hint, f"{NAME}:2: a failure of `python3` here is lost; write `X=$(…) && echo \"$X\"`")
        fine = ("pytest a && pytest b\nfor t in a b; do pytest $t || exit 1; done\nrm x; pytest a\n"
                "for i in 1 2 3; do pytest a && break; done\n")
        self.assertEqual(self.hints(fine), [])

    def test_set_e_shows_what_comes_first(self) -> None:
        self.assertEqual(len(self.parse("set -e\npytest a; echo done\n")), 1)
        text = "(set -e; pytest a; echo b)\nset -o errexit -o nounset\npytest a; echo b\n"
        self.assertEqual(len(self.parse(text)), 2)
        for text in ("set +e\npytest a; echo done\n", "set -e\npytest a || RET=1\n",
                     "#\npytest a; echo done\nset -e\n", "set -e; set +e\npytest a; echo done\n",
                     "[ -z $A ] || set -e\npytest a; echo done\n",
                     "if [ -n \"$A\" ]; then set -e; fi\npytest a; echo done\n", "#\npytest a; set -e; echo done\n"):
            with self.subTest(text=text), self.assertRaisesRegex(
                    ListError, f"^{NAME}:2: this line passes even if"):
                self.parse(text)

    def test_what_set_e_does_not_see(self) -> None:
        """A condition, what stands before `&&`, and the background."""
        for command in ("if ! a; then echo failed; fi", "for t in a b; do if $t; then echo ok; fi; done", "! a; echo b",
                        "a && true; echo b", "{ a; echo b; } && echo c; echo d", "a & wait", "( a & )", "a | tee log",
                        "a || { cat log; RET=1; }"):
            self.assert_mistake(f"set -e\n{command}\n", 2, "this line passes")
        for command in ("for t in a b; do $t; echo $t; done", "if [ -f x ]; then a; echo b; fi",
                        "{ a; echo b; }; echo c", "time a; echo b", "mkdir -p o && a; echo b",
                        "server & a; kill $!; echo b", "[ -d x ] || { a; echo b; }"):
            self.assertEqual(len(self.parse(f"set -e\n{command}\n")), 1)
        for command in ("a || exit 1; echo b", "for t in a b; do $t || { echo no; exit 1; }; done; echo c"):
            self.assertEqual(len(self.parse(f"{command}\n")), 1)
        self.assert_mistake("cd x || exit 1; a; echo b\n", 1, "this line passes")


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
            ("build", ()), ("build #2", ()), ("true use", ("build #2",)), ("true too", ("build", "build #2"))])

    def test_a_list_given_twice(self) -> None:
        self.write(NAME, "true || test_fail build\nA=1 true a #: after=build label=a\n")
        tests, _ = self.parse_with_hints(NAME, NAME)
        self.assertEqual([(test.label, test.attributes.after) for test in tests],
                         [("build", ()), ("a", ("build",)), ("build #2", ()), ("a #2", ("build #2",))])

    def test_nothing_leaks_into_the_next(self) -> None:
        os.mkdir("d")
        first, second = self.parse_several("export V=1\ncd d\n#: gpus=3\na $V --junitxml=x.xml\n",
                                           "a $V --junitxml=x.xml\n")
        self.assertEqual((first.label, second.label), ("a 1 --junitxml=x.xml", "a $V --junitxml=x.xml"))
        self.assertEqual((first.junit, second.junit), (self.path("d/x.xml"), self.path("x.xml")))
        self.assertEqual((first.gpus, second.gpus, second.shell.prelude), (3, 1, ""))

    def test_mistakes_of_all_lists_are_told_in_order(self) -> None:
        for name, text in (("a.txt", "true --junitxml=x.xml\n"),
                           ("b.txt", "true\na --junitxml=x.xml\nb #: after=z\ncd nowhere\n"),
                           ("c.txt", "fi\ntrue #: gpus=x\n")):
            self.write(name, text)
        for names, told in ((("a.txt", "b.txt"), ["b.txt:2", "b.txt:3", "b.txt:4"]),
                            (("c.txt", "missing.txt"), ["missing.txt"]), (("a.txt", "."), ["."])):
            with self.assertRaises(ListError) as caught:
                self.parse_with_hints(*names)
            self.assertEqual(sorted(message.split(": ")[0] for message in caught.exception.args), told)


class Keys(ParseCase):
    """What journals know a test by."""

    def keys(self, commands: Iterable[str]) -> List[str]:
        return [test.key for test in read(lines(commands)).tests]

    def test_a_key_is_that_of_command_and_environment_prefix(self) -> None:
        line = "A=1 python3 x --y"
        same = self.keys([line, f"\n\n  {line}", f"{line} || test_fail 'z'", f"{line} || test_fail",
                          f"{line} #: gpus=2 label=z",
                          f"#: gpus=3\n{line}", f"export B=1\n{line}", f"wait\n{line} # text",
                          "A=1   python3 \\\n  x --y"])
        self.assertEqual((len(set(same)), len(same)), (1, 9))
        self.assertRegex(same[0], r"\A[0-9a-f]{12}\Z")
        others = [line, "python3 x --y", "A=2 python3 x --y", "A=1 B=2 python3 x --y", "A=1 python3 x --z",
                  "A=1 python3 x",
                  "A=1 python3 'x --y'", "A=1 python3 x --y > z", "A=1 python3 x; --y", "A=1 python3 xé --y",
                  "A=1 python3 x\udce9 --y",
                  *(f"{{ python3 - <<E\n{text}\nE\n}}" for text in "ab"),
                  *(f"python3 - <<E\n{text}\nE" for text in "ab")]
        self.assertEqual(len(set(self.keys(others))), len(others))

    def test_the_label_of_a_run_test_call_is_no_part_of_its_key(self) -> None:
        keys = self.keys(f"run_test {words}" for words in ("A=1 x.xml t.py one", "A=1 x.xml t.py two",
                                                           "A=2 x.xml t.py l",
                                                          "A=1 x.xml u.py l", "A=1 y.xml t.py l"))
        self.assertEqual((keys[0] == keys[1], len(set(keys))), (True, 4))


class ThroughTheCommandLine(ParseCase):
    def assert_refused(self, text: str, *starts: str, **options: Mapping[str, str]) -> None:
        """Exit code 2, one line per mistake on stderr, nothing on stdout, and nothing started or written."""
        ran = self.run_list(text, *options.get("arguments", ()))
        told = ran.err.splitlines()
        self.assertEqual((ran.code, ran.out, len(told)), (2, b"", len(starts)), ran)
        for line, start in zip(told, starts):
            self.assertTrue(line.startswith(start), (line, start))
        self.assertEqual(os.listdir(self.folder), [NAME])

    def test_mistakes_are_told_in_line_order_and_nothing_starts(self) -> None:
        self.assert_refused("touch started\nfi\ntrue #: gpus=x nope=1\n"
                            "export CUDA_VISIBLE_DEVICES=0\nA || RET=1\necho 'a\n",
                            "tests.txt:2: syntax error", "tests.txt:3: gpus: 'x'", "tests.txt:3: unknown key 'nope'",
                            "tests.txt:4: CUDA_VISIBLE_DEVICES=0", "tests.txt:5: this line passes",
                            "tests.txt:6: unexpected EOF")
        self.assert_refused("touch started\ntest_missing.py\ncd nowhere\n",
                            f"tests.txt:2: {self.folder}/test_missing.py is not there",
                            "tests.txt:3: this shell state fails")

    def test_a_list_from_standard_input(self) -> None:
        ran = self.run_command("--list", "-", stdin=b"true a\n\ncaf\xe9 #: gpus=2\nexit $RET\n")
        self.assertEqual((ran.code, ran.err.startswith("-:4: `exit` is a test here")), (0, True), ran.err)
        first, second, _ = ran.out.splitlines()
        self.assertEqual(first, b"true a\t1\ttrue_a\t-:1")
        self.assertTrue(second.startswith(b"caf\xe9\t2\tcaf-") and second.endswith(b"\t-:3"), second)
        for text, told in ((b"true\nfi\n", "-:2: syntax error"),
                           (b"#!/bin/sh\ntrue\n", "-:1: a script cannot come from")):
            ran = self.run_command("-", stdin=text)
            self.assertEqual((ran.code, ran.out, ran.err[:len(told)]), (2, b"", told))

    def test_state_runs_once_in_a_run_too(self) -> None:
        """It is silent and gets no input under --list; its output begins the first test's log."""
        self.write("state.sh", "cat; echo run >>count; echo noise; export A=1\n")
        text = (". ./state.sh\ntest $A = 1 #: label=one\ntest $A = 1 #: label=two\n"
                "torchrun --nproc-per-node=4 x || true\n")
        ran = self.run_list(text, "--list")
        self.assertEqual((ran.code, len(ran.out.splitlines())), (0, 3), ran.err)
        self.assertRegex(ran.err, r"\Atests\.txt:4: this looks like a test of several GPUs.*\n\Z")
        os.unlink("count")
        ran = self.run_list(text)
        self.check(ran, 0, {"one": "passed", "two": "passed", "torchrun --nproc-per-node=4 x || true": "passed"})
        self.assertEqual((ran.read("count"), ran.read("logs/one.log"), ran.read("logs/two.log")),
                         ("run\n", "noise\n", ""))
