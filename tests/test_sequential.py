"""One GPU or none: byte for byte the trace of `bash LIST`, as it comes, and one last line."""
from __future__ import annotations

import os
import random
import re
import select
import shutil
import subprocess
import unittest
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tests.support import RunnerCase

# The three ways to be sequential: one GPU, an outer mask that hides all, a machine whose vendor tools are not there.
MACHINES: Mapping[str, Optional[str]] = {"one GPU": "0", "an empty mask": "", "no vendor tool": None}
TOOLS = ("bash", "cat", "env", "head", "mkdir", "rm", "sed", "sh", "tr", "true", "false", "printf")
PRELUDE = 'test_fail() { echo "Error: sub-test failed: $1"; }\n'
WAIT_S = 60                      # for what takes milliseconds; then the runner hangs

LISTS = 30                       # generated ones
LINES = 14                       # of each


class Shape(NamedTuple):
    """A list, the labels of its tests that fail, and the handler that bash needs for its `|| test_fail`."""

    text: str
    failed: Sequence[str] = ()
    prelude: str = ""


def lines(*text: str) -> str:
    return "".join(line + "\n" for line in text)


SHAPES: Mapping[str, Shape] = {
    "both streams": Shape(lines("echo out; echo err >&2; echo out again", "echo err >&2; echo out", "echo end")),
    "order of streams in one process": Shape(lines(
        "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done", "echo end")),
    "a last line without an end": Shape(lines("printf one", "printf two >&2", "printf '\\nthree'", "echo")),
    "NUL bytes": Shape(lines(r"printf 'a\0b\0\n'", r"printf '\0\0\0'; echo")),
    "invalid UTF-8": Shape(lines(r"printf '\377\376 \303\n'", "echo 'in the list: \udcff\udc80'", "echo ünï ☃")),
    "carriage returns and escapes": Shape(lines(r"printf '10%%\r20%%\r\033[31mred\033[0m\n'", r"printf '\t\v\f\b\n'")),
    "a command not found": Shape(lines("echo one", "", "# a comment", "no_such_command with words", "echo two"),
                                 ["no_such_command with words"]),
    "bash names the right line in long commands": Shape(lines(
        "echo 'two", "lines'; no_such_a", "echo \\", "  x; no_such_b", "for i in 1 2; do no_such_c; done",
        "(no_such_d)", "if no_such_e; then echo x; fi", "! no_such_f", "echo $(no_such_g)", "no_such_h | cat",
        "echo \"${UNSET_VARIABLE:?says bash}\" #: label=unset"),
        ["echo 'two lines'; no_such_a", "echo x; no_such_b", "for i in 1 2; do no_such_c; done", "(no_such_d)",
         "unset"]),
    "what cannot be executed": Shape(lines("./tests.txt", "/no/such/program x", "echo x >/no/such/file",
                                           "cat </no/such/file", "echo end"),
                                     ["./tests.txt", "/no/such/program x", "echo x >/no/such/file",
                                      "cat </no/such/file"]),
    "errors of arithmetic and eval": Shape(lines("eval 'if'", "echo $((1 +))", "echo end"),
                                            ["eval 'if'", "echo $((1 +))"]),
    "set -x": Shape(lines("set -x", "echo one", "A=1", "export B='b c' C=$(echo sub)", "echo $A \"$B\" $C", "set +x",
                          "echo quiet", "set -x", "", "echo 'a", "b'", ": ${D:=d}", "cd .", "[[ $D == d ]] && echo is",
                          "for i in 1 2; do echo $i; done", "(echo sub)", "true")),
    "set -x with line numbers": Shape(lines("PS4='+${LINENO}: '", "", "set -x", "# comment", "echo one", "", "echo \\",
                                            "  two", "A=1", "echo 'a", "b' $A", "B=2", "C=3", "echo $A$B$C $LINENO")),
    "set -x with tests that fail": Shape(lines("set -x", "false", "no_such_command", "A=1", "false $A", "echo end"),
                                         ["false", "no_such_command", "false 1"]),
    "set -x with prefixes": Shape(lines("set -x", "A=1 B='2 3' bash -c 'echo $A $B'", "echo end")),
    "set -x from outside the list": Shape(lines("set -o xtrace", "echo a >&2", "set +o xtrace", "echo b")),
    "export": Shape(lines("export A=1", "echo $A", "bash -c 'echo $A'", "export A=2 B", "bash -c 'echo $A $B'",
                          "B=3", "bash -c 'echo $A $B'", "unset A", "echo ${A-gone}", "export -n B",
                          "bash -c 'echo ${B-gone}'")),
    "variables": Shape(lines("A=1", "A+=1", "echo $A", "B[2]=x", "echo ${#B[@]} ${B[2]}", "C=$(echo sub; echo err >&2)",
                             "echo $C", "D=$((A + 1)) E=`echo old`", "echo $D $E")),
    "values that end in an escape": Shape(lines("A=a\\;", "echo $A", "B=b\\ ", "echo \"$A$B\" end", "C='c;' D=\"d;\"",
                                                "echo \"$A$B$C$D\"", "export E=e; F=f;", "echo $E$F", "echo $E$F")),
    "several states on a line": Shape(lines("A=1; B=2 && export C=3 || true", "echo $A$B$C", "cd sub && D=4; cd ..",
                                            "echo $D", "pwd")),
    "a failing export": Shape(lines("export 1a=2", "echo one", "export 2b=3 || true", "echo two")),
    "cd": Shape(lines("cd sub", "pwd", "cd ..", "pwd", "cd sub && cd ..", "pwd", "echo $OLDPWD")),
    "cd inside a test": Shape(lines("(cd sub; pwd)", "pwd", "cd sub && cd .. && pwd #: label=x", "pwd")),
    "cd to a missing folder": Shape(lines("cd missing", "pwd", "cd missing2 || true", "pwd")),
    "source of a file that prints": Shape(lines("source ./env.sh", "echo $FROM_FILE", "echo again", ". ./env.sh",
                                                "echo third", "source ./missing.sh", "echo fourth")),
    "source under set -x": Shape(lines("set -x", "source ./env.sh", "echo $FROM_FILE", "echo again")),
    ": ${X:=y}": Shape(lines(": ${X:=y}", "echo $X", ": ${X:=z}", "echo $X", ": $(echo said >&2)", "echo end")),
    "set -u": Shape(lines("set -u", "echo ${A-none}", "A=1", "echo $A", "echo last; echo $UNSET_VARIABLE"),
                    ["echo last; echo $UNSET_VARIABLE"]),
    "shopt": Shape(lines("shopt -s extglob nullglob", "X=aab", "echo ${X/+(a)/_}", "echo /no/such*",
                         "[[ ab == @(ab|cd) ]] && echo match", "shopt -u nullglob", "echo /no/such*")),
    "lastpipe and pipefail": Shape(lines("shopt -s lastpipe", "echo a | read x; echo $x", "set -o pipefail",
                                         "false | true", "true | true"), ["false | true"]),
    "positional parameters": Shape(lines("echo $0 $#", "set -- a 'b c'", "echo $# $2", "echo \"$@\"")),
    "quoted lines": Shape(lines("echo 'a", "  # not a comment", "", "b'", 'echo "c', "$(echo d", ')"',
                                "echo $'e\\nf'")),
    "continuations": Shape(lines("echo a \\", "  b \\", "  c", "echo d\\", "e", "true && \\", "echo f")),
    "umask": Shape(lines("umask 027", "umask", "umask", "umask 0", "bash -c umask")),
    "ulimit": Shape(lines("ulimit -c 0", "ulimit -c", "ulimit -n 64", "echo $(ulimit -c) $(ulimit -n)")),
    "compound commands": Shape(lines(
        "for i in 1 2 3; do echo $i; done", "if true; then echo yes; else echo no; fi", "(echo sub; exit 0)",
        "{ echo brace; echo err >&2; }", "echo pipe | tr a-z A-Z", "! false", "! true", "(exit 4)",
        "case x in (x) echo case;; esac", "[[ a == a* ]] && (( 2 > 1 )) && echo both", "cat <<< here",
        "cat <(echo substituted)", "while read x; do echo got $x; done <<< word", "f() { echo function; }; f",
        "i=0; until (( ++i > 2 )); do echo $i; done", "false || echo rescued", "true && false", "echo a & wait"),
        ["! true", "(exit 4)", "true && false"]),
    "a status of a signal": Shape(lines("(exit 139)", "bash -c 'exit 255'", "echo end"),
                                  ["(exit 139)", "bash -c 'exit 255'"]),
    "exit in the last test": Shape(lines("echo one", "echo two; exit 3"), ["echo two; exit 3"]),
    "GPU needs": Shape(lines("echo cpu #: gpus=0", "#: gpus=0", "echo more", "echo gpu #: gpus=1",
                             "echo all #: gpus=all",
                             "#:", "CUDA_VISIBLE_DEVICES=5 echo mask")),
    "wait": Shape(lines("echo one", "wait", "echo two #: gpus=0", "wait", "wait", "echo three")),
    "wait under set -x": Shape(lines("set -x", "echo one", "wait", "echo two")),
    "comments and blank lines": Shape(lines("", "# first", "echo a # behind", "   ", "\t# indented", "  echo b",
                                            "echo 'c # d' e#f", "#", "#!not a script")),
    "labels do not show": Shape(lines("echo a #: label=x", "echo b #: label='y z' timeout=1h", "#: timeout=2h",
                                      "false"), ["false"]),
    "no final newline in the list": Shape("echo one\necho two"),
    "state below the last comment": Shape(lines("A=1", "# c", "B=2", "", "echo $A$B")),
    "an array": Shape(lines("A=(1 'two words' 3)", 'echo "${A[1]}" ${#A[@]}', 'A+=(4)', 'echo ${#A[@]}')),
    "much output": Shape(lines("head -c 3000000 /dev/zero | tr '\\0' x; echo", "echo end")),
    "silence": Shape(lines("true", ":; true", "false"), ["false"]),
    "standard input is empty": Shape(lines("cat", "read x || echo nothing", "echo end")),
    "test_fail": Shape(lines(
        'echo one || test_fail "never said"', 'false || test_fail "the label"', "echo two",
        "A=3", '(exit $A) || test_fail "expanded $HOME/$A"', "false || test_fail bare", "X=v",
        'echo three; no_such_command || test_fail "label of $X"', "printf 'half a line'; false || test_fail 'y'"),
        ["the label", "expanded {HOME}/3", "bare", "label of v", "y"], PRELUDE),
    "test_fail after alternatives": Shape(lines(
        "false && true || test_fail a", "true && echo fine || test_fail b", "! true || test_fail c",
        "false || false || test_fail d", "(false) || test_fail e"), ["a", "c", "d", "e"], PRELUDE),
    "equal labels": Shape(lines("false", "false", "true", "false"), ["false", "false #2", "false #3"]),
}


class Sequential(RunnerCase):
    """What both kinds of tests below need: the comparison, and machines without a vendor tool."""

    def setUp(self) -> None:
        super().setUp()
        os.mkdir(os.path.join(self.folder, "sub"))
        self.write("env.sh", "echo file speaks\necho on both >&2\nFROM_FILE=yes\n")

    def world(self, gpus: Optional[str]) -> Dict[str, str]:
        """Variables for a run; without a mask, a PATH and a `pynvml` that show no GPU on any machine."""
        if gpus is not None:
            return {}
        tools = os.path.join(self.folder, "tools")
        if not os.path.isdir(tools):
            os.mkdir(tools)
            for tool in TOOLS:
                os.symlink(shutil.which(tool) or self.fail(f"{tool} is not on PATH"), os.path.join(tools, tool))
            self.write("modules/pynvml.py", "raise ImportError('no GPU, please')\n")
        return {"PATH": tools, "PYTHONPATH": os.path.join(self.folder, "modules")}

    def verdict(self, failed: Sequence[str]) -> bytes:
        """The last line of a run."""
        if not failed:
            return b"All tests passed\n"
        text = "Error in the following test cases: " + " ".join(failed).replace("{HOME}", os.environ.get("HOME", ""))
        return text.encode("utf-8", "surrogateescape") + b"\n"

    def compare(self, shape: Shape, machines: Sequence[str] = tuple(MACHINES)) -> None:
        """Run a list by bash and by the runner; their traces must be equal, but for the runner's last line.

        The runs on several machines are at the same time, each with a log dir of its own.
        """
        expected = self.bash(shape.text, prelude=shape.prelude) + self.verdict(shape.failed)
        running = {name: self.start("--log-dir", "logs of " + name, "tests.txt", gpus=MACHINES[name],
                                    env=self.world(MACHINES[name])) for name in machines}
        ended = {name: (*process.communicate(), process.returncode) for name, process in running.items()}
        for name, (out, err, code) in ended.items():
            with self.subTest(machine=name):
                self.assertEqual(err, b"")
                self.assertEqual(out, expected, shape.text)
                self.assertEqual(code, 1 if shape.failed else 0)


def shape_test(shape: Shape) -> Callable[[Sequential], None]:
    """A test of one shape."""
    return lambda self: self.compare(shape)


class Shapes(Sequential):
    """Each of SHAPES, on each of MACHINES. The tests are made below."""

    def test_all_are_distinct(self) -> None:
        self.assertEqual(len({shape.text for shape in SHAPES.values()}), len(SHAPES))


for number, (shape_name, one_shape) in enumerate(SHAPES.items(), 1):
    slug = re.sub(r"\W+", "_", shape_name).strip("_")
    setattr(Shapes, f"test_{number:02}_{slug}", shape_test(one_shape))


# Generated lists. A maker takes digits that make its line unique, and whether `set -x` holds; it returns the
# lines and the label of the test that fails, if one does; None where it would not be the same twice.

Made = Optional[Tuple[str, Optional[str]]]


def plain(template: str, fails: bool = False, label: str = "", traced: bool = True) -> Callable[[str, bool], Made]:
    """A maker from text with `@` for the number. `traced` tells whether `set -x` may hold.

    Under it the processes of a pipeline trace at the same time, and bash traces the call of `test_fail`.
    """
    def make(unique: str, tracing: bool) -> Made:
        if tracing and not traced:
            return None
        text = template.replace("@", unique)
        return text, (label.replace("@", unique) or text) if fails else None
    return make


MAKERS: Sequence[Callable[[str, bool], Made]] = (
    plain("echo out @; echo err @ >&2; echo out @"),
    plain("printf 'half a line @'"),
    plain(r"printf '\000\377 @\n'"),
    plain("no_such_@ arg", fails=True),
    plain("export V0='exported @'"),
    plain("V1=set_@"),
    plain("echo @ \"${V0-unset}\" ${V1-unset} ${V2-unset}; bash -c 'echo ${V0-none} ${V1-none}'"),
    plain("unset V0 V2"),
    plain("unset V1"),
    plain(": ${V2:=default_@}"),
    plain("cd {FOLDER}/sub"),
    plain("cd {FOLDER}"),
    plain("cd missing_@"),
    plain("pwd #@"),
    plain("source {FOLDER}/env.sh"),
    plain("source missing_@.sh || true"),
    plain("# a comment @"),
    plain(""),
    plain("set -x"),
    plain("set +x"),
    plain("set -u"),
    plain("set +u"),
    plain("shopt -s extglob; set -- @ b"),
    plain("[[ x@ == x+([0-9]) ]] && echo digits $#"),
    plain("echo 'quoted @\n   # over\nlines'"),
    plain("echo \"quoted @\n$(echo $((@ + 1)))\""),
    plain("echo continued \\\n  @ \\\n  ${V1-}"),
    plain("umask 0@7"),
    plain("umask; echo @"),
    plain("for i in 1 2 @; do echo $i; done"),
    plain("if test @ = 3; then echo three; else echo other; fi"),
    plain("(echo sub @; exit 0)"),
    plain("(exit @)", fails=True),
    plain("! echo not @", fails=True),
    plain("! (exit @)"),
    plain("echo pipe @ | tr a-z A-Z", traced=False),
    plain("false | cat; test @ = x", fails=True, traced=False),
    plain("cat /dev/null missing_@", fails=True),
    plain("case @ in (*[13579]) echo odd;; (*) echo even;; esac"),
    plain("{ echo a@; echo b@ >&2; } 2>&1"),
    plain("wait", traced=False),
    plain("echo on the CPU @ #: gpus=0"),
    plain("false @ #: gpus=0 label='named @'", fails=True, label="named @"),
    plain("A@=1 B=\"x y\" bash -c 'echo $A@ $B'"),
    plain("echo fine @ || test_fail 'never @'"),
    plain("echo bad @; false || test_fail \"label @\"", fails=True, label="label @", traced=False),
    plain("test -z @ || test_fail \"it's @ ${V1-unset}\"", fails=True, label="it's @ {V1}", traced=False),
)


def generated(seed: int, folder: str) -> Shape:
    """A list of LINES lines by MAKERS, ended by a test, so that no state is left without one."""
    source = random.Random(seed)
    text: List[str] = []
    failed: List[str] = []
    tracing, value, count = False, "unset", 0
    while len(text) < LINES:
        count += 1
        made = source.choice(MAKERS)(f"{7 + count:o}", tracing)      # a mask, a status and a number alike
        if made is None:
            continue
        line, label = made
        tracing = {"set -x": True, "set +x": False}.get(line, tracing)
        value = line[3:] if line.startswith("V1=") else "unset" if line == "unset V1" else value
        text.append(line.replace("{FOLDER}", folder))
        if label is not None:
            failed.append(label.replace("{V1}", value))
    return Shape("\n".join([*text, "echo end"]) + "\n", failed, PRELUDE)


class Generated(Sequential):
    """Seeded lists of random lines; a failure names its seed and shows its list."""

    def test_lists(self) -> None:
        for seed in range(LISTS):
            with self.subTest(seed=seed):
                self.compare(generated(seed, self.folder), [list(MACHINES)[seed % len(MACHINES)]])

    def test_they_vary(self) -> None:
        """The generator does reach its makers, and both verdicts."""
        made = [generated(seed, "/folder") for seed in range(LISTS)]
        whole = "\n".join(shape.text for shape in made)
        starts = {re.sub(r"\d.*|\W.*", "", line) for line in whole.splitlines()}
        self.assertGreater(len(starts), 15)
        self.assertIn("set -x", whole)
        self.assertTrue(any(shape.failed for shape in made))


class Alone(Sequential):
    """What a sequential run does besides printing."""

    def test_a_last_line_that_the_tests_left_open_is_ended(self) -> None:
        """The verdict has a line of its own: the last one, which scripts read."""
        for text in ("printf 'no end'\n", "echo a\nprintf 'b\\nc' >&2\n"):
            with self.subTest(text):
                expected = self.bash(text)
                self.assertFalse(expected.endswith(b"\n"))
                ran = self.run_list(text, gpus="0")
                self.assertEqual(ran.out, expected + b"\nAll tests passed\n")

    def test_a_death_by_signal_is_told_as_bash_tells_it(self) -> None:
        """`tests.txt: line 1: 123 Killed …`; process numbers apart, it is part of the trace."""
        for name in ("KILL", "TERM", "ABRT"):
            with self.subTest(name):
                shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
                text = f"ulimit -c 0\nbash -c 'kill -{name} $$'\necho end\n"
                expected = re.sub(rb" *\b\d{2,}\b *", b" PID ", self.bash(text))
                ran = self.run_list(text, gpus="0")
                failed = f"Error in the following test cases: bash -c 'kill -{name} $$'\n".encode()
                self.assertEqual(re.sub(rb" *\b\d{2,}\b *", b" PID ", ran.out), expected + failed)
                self.check(ran, 1, {f"bash -c 'kill -{name} $$'": "crashed", "echo end": "passed"})

    def test_exit_ends_only_its_test(self) -> None:
        ran = self.run_list("echo one; exit 3\nset -e\nfalse; echo never\necho two\n", gpus="0")
        self.assertEqual(ran.out, b"one\ntwo\nError in the following test cases: echo one; exit 3 false; echo never\n")
        self.check(ran, 1, {"echo one; exit 3": "failed", "false; echo never": "failed", "echo two": "passed"})
        self.assertEqual([record["status"] for record in ran.journal("test_end")], [3, 1, 0])

    def test_logs_are_written_all_the_same(self) -> None:
        """Each test's output in a log of its own; together they are the trace."""
        text = "set -x\necho one\nA=2\nprintf 'two %s' $A >&2\nset +x\necho; false\ncat /dev/null\n"
        expected = self.bash(text)
        ran = self.run_list(text, gpus="0")
        self.check(ran, 1, {"echo one": "passed", "printf 'two %s' 2 >&2": "passed", "echo; false": "failed",
                            "cat /dev/null": "passed"})
        logs = [ran.read(record["log"]) for record in ran.journal("test_start")]
        self.assertEqual("".join(logs).encode(), expected)
        self.assertEqual(logs[0], "+ echo one\none\n")
        self.assertEqual(len(logs), 4)

    def test_list_order_one_at_a_time(self) -> None:
        text = "echo a #: gpus=0\necho b\nwait\nfalse\necho c #: gpus=all\necho d #: gpus=0\n"
        for machine, gpus in MACHINES.items():
            with self.subTest(machine):
                shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
                ran = self.run_list(text, gpus=gpus, env=self.world(gpus))
                events = [(record["event"], record["label"]) for record in ran.journal() if "label" in record]
                self.assertEqual(events, [(event, label) for label in ("echo a", "echo b", "false", "echo c", "echo d")
                                          for event in ("test_start", "test_end")])
                self.assertEqual(ran.journal("run_start")[0]["gpus"], ["0"] if gpus else [])

    def test_more_gpus_than_one_cannot_run(self) -> None:
        for gpus in ("0", ""):
            with self.subTest(gpus=gpus):
                shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
                ran = self.run_list("echo one\necho two #: gpus=2\necho three\n", gpus=gpus)
                self.check(ran, 1, {"echo one": "passed", "echo two": "unrunnable", "echo three": "passed"})
                self.assertIn(b"one\nthree\n", ran.out)
                self.assertIn("echo two", ran.err)

    def test_no_markers(self) -> None:
        """Nothing of the parallel trace, whatever `--output` says."""
        for output, shown in (("replay", b"said\n"), ("ordered", b"said\n"), ("failures", b""), ("none", b"")):
            with self.subTest(output):
                ran = self.run_list("echo said\n", "--output", output, gpus="0")
                self.assertEqual(ran.out, shown + b"All tests passed\n")

    def test_output_failures_shows_the_whole_log_of_a_failure(self) -> None:
        ran = self.run_list("echo good\necho bad; false\necho good too\n", "--output", "failures", gpus="0")
        self.assertEqual(ran.out, b"bad\nError in the following test cases: echo bad; false\n")

    def test_gpus_option_of_one(self) -> None:
        """`--gpus 1` of an outer mask of four is sequential too."""
        for arguments in (("--gpus", "1"), ("--gpus", "2,"), ("--gpus", "0")):
            with self.subTest(arguments):
                ran = self.run_list("echo one\necho two\n", *arguments, gpus="0,1,2,3")
                self.assertEqual(ran.out, b"one\ntwo\nAll tests passed\n")

    def test_the_mask_holds_after_state_that_changes_it(self) -> None:
        self.write("mask.sh", "export CUDA_VISIBLE_DEVICES=7\n")
        ran = self.run_list("source ./mask.sh\nset -x\necho $CUDA_VISIBLE_DEVICES\n", gpus="3")
        self.assertEqual(ran.out, b"+ echo 3\n3\nAll tests passed\n")


class Live(Sequential):
    """The trace comes while the test runs."""

    def fifo(self, name: str) -> int:
        """A FIFO whose descriptor here keeps both its ends open: nobody's `open` of it blocks."""
        path = os.path.join(self.folder, name)
        os.mkfifo(path)
        descriptor = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, descriptor)
        return descriptor

    def begin(self, text: str, gpus: Optional[str], **popen: Any) -> "subprocess.Popen[bytes]":
        """Start the runner on a list; it is gone when the test is."""
        self.write("tests.txt", text)
        process = self.start("tests.txt", gpus=gpus, env=self.world(gpus), bufsize=0, **popen)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.communicate()

    def some(self, process: "subprocess.Popen[bytes]", size: int) -> bytes:
        """The next `size` bytes of a process's output, as soon as they are there."""
        assert process.stdout is not None
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
            self.assertTrue(ready, f"nothing came after {data!r}")
            piece = os.read(process.stdout.fileno(), size - len(data))
            self.assertTrue(piece, f"the trace ends after {data!r}")
            data += piece
        return data

    def test_each_line_is_there_before_the_test_goes_on(self) -> None:
        for gpus in ("0", "", None):
            with self.subTest(gpus=gpus):
                hold = self.fifo(f"hold{gpus}")
                process = self.begin(f"echo first; read x <hold{gpus}; echo second >&2; read x <hold{gpus}; "
                                     f"printf half; read x <hold{gpus}; echo\necho end\n", gpus)
                for said in (b"first\n", b"second\n", b"half"):
                    self.assertEqual(self.some(process, len(said)), said)
                    os.write(hold, b"go on\n")
                rest, errors = process.communicate(timeout=WAIT_S)
                self.assertEqual((rest, errors, process.returncode), (b"\nend\nAll tests passed\n", b"", 0))

    def test_a_test_that_takes_its_log_away(self) -> None:
        """What it wrote before may be lost; the run is not."""
        ran = self.run_list("echo one; rm -r logs/*.log; echo two\n", gpus="0")
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertTrue(ran.out.endswith(b"All tests passed\n"))


if __name__ == "__main__":
    unittest.main()
