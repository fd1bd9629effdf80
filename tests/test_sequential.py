"""One GPU or none: byte for byte the trace of `bash LIST`, as it comes, and one last line."""
from __future__ import annotations

import functools
import os
import random
import re
import shutil
import signal
import unittest
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from tests.support import WAIT_S, Fifo, GatedCase, remarks

# The three ways to be sequential: one GPU, an outer mask that hides all, a machine whose vendor tools are not there.
MACHINES: Mapping[str, Optional[str]] = {"one GPU": "0", "an empty mask": "", "no vendor tool": None}
TOOLS = ("bash", "cat", "env", "head", "mkdir", "rm", "sed", "sh", "tr", "true", "false", "printf")
PRELUDE = 'test_fail() { echo "Error: sub-test failed: $1"; }\n'

LISTS = int(os.environ.get("LISTS", "6"))      # generated ones
LINES = 14                       # of each


class Shape(NamedTuple):
    """A list, the labels of its tests that fail, and the handler that bash needs for its `|| test_fail`."""

    text: str
    failed: Sequence[str] = ()
    prelude: str = ""


def shape(*lines: str, failed: Sequence[str] = (), prelude: str = "") -> Shape:
    return Shape("".join(line + "\n" for line in lines), failed, prelude)


SHAPES: Mapping[str, Shape] = {
    "both streams": shape("for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done", "printf one", "printf two >&2",
                          "printf '\\nthree'", "echo", ":; true", "false", "printf 'no end' >&2", failed=["false"]),
    "much output": shape("head -c 3000000 /dev/zero | tr '\\0' x", "echo end"),
    "any bytes": shape(r"printf 'a\0b\0\n'", r"printf '\0\0\0'", r"printf '\377\376 \303\n'", "echo ünï ☃",
                       "echo 'in the list: \udcff\udc80'", r"printf '10%%\r20%%\r\033[31mred\033[0m\n\t\v\f\b\n'"),
    "what cannot be executed": shape(
        "echo one", "", "# a comment", "no_such_command with words", "./tests.txt", "/no/such/program x",
        "echo x >/no/such/file", "echo $((1 +))", "eval 'if'", "wait", "echo two",
        failed=["no_such_command with words", "./tests.txt", "/no/such/program x", "echo x >/no/such/file",
                "echo $((1 +))", "eval 'if'"]),
    "bash names the right line in long commands": shape(
        "echo 'two", "lines'; no_such_a", "echo \\", "  x; no_such_b", "for i in 1 2; do", "no_such_c", "done", "(",
        "no_such_d)", "if true", "then", "no_such_e", "fi", "! no_such_f", "[ $(no_such_g", ") $LINENO ] #: label=l",
        "no_such_h | cat || true", "echo \"${UNSET_VARIABLE:?says bash}\" #: label=unset",
        failed=["echo 'two lines'; no_such_a", "echo x; no_such_b", "for i in 1 2; do no_such_c done",
                "( no_such_d)", "if true then no_such_e fi", "unset"]),
    "set -x": shape(
        "set -x", "echo one", "A=1", "export B='b c' C=$(echo sub)", "echo $A \"$B\" $C", "set +x", "echo quiet",
        "set -x", "", "echo 'a", "b'", ": ${D:=d}", "cd .", "[[ $D == d ]] && echo is", "wait", "for i in 1 2; do",
        "  echo $i", "done", "(echo sub)", "A=1 B='2 3' bash -c 'echo $A $B'", "false", "no_such_command", "false $A",
        "set +x", "echo c", failed=["false", "no_such_command", "false 1"]),
    "set -x with line numbers": shape(
        "PS4='+${LINENO}: '", "", "set -x", "# comment", "echo one", "", "echo \\", "  two", "A=1", "echo 'a", "b' $A",
        "B=2", "C=3", "echo $A$B$C $LINENO", "PS4='> '", "echo a", "PS4=", "echo b", "unset PS4", "echo c"),
    "set -x around files and functions": shape(
        "f() { g $1; }", "g() { echo $1; }", "set -x", "source ./env.sh", "echo $FROM_FILE", "f a", "A=$(f b)",
        "echo $A $(echo $(echo c))", "PS4='{'", ". ./env.sh", "(f d)", "set +x", "source ./env.sh", "f e"),
    "set -x with the file's name": shape("PS4='+ ${BASH_SOURCE[0]}:${LINENO}: '", "set -x", "echo a", "A=1",
                                         "echo b $A"),
    "an exported PS4": shape("export PS4='++ '", "set -x", "echo a", "echo b"),
    "export": shape("export A=1", "bash -c 'echo $A'", "export A=2 B", "bash -c 'echo $A $B'", "B=3", "unset A",
                    "bash -c 'echo ${A-gone} $B'", "export -n B", "bash -c 'echo ${B-gone}'", "export 1a=2 || true",
                    "C=$'\\n a\\tb\\xff'", "printf %q \"$C\"", "export C", "bash -c 'printf %q \"$C\"'"),
    "variables": shape("A=1", "A+=1", "echo $A", "B[2]=x", "echo ${#B[@]} ${B[2]}", "C=$(echo sub; echo err >&2)",
                       "echo $C", "D=$((A + 1)) E=`echo old`", "echo $D $E", "declare -A M=([a]=1 ['b c']=2)",
                       "echo ${M['b c']}", "declare -i N=3+4", "readonly N", "declare -l L=ABC", "declare -n R=L",
                       "echo $N $L $R", ": ${X:=y}", "echo $X", ": ${X:=z}", "echo $X", "IFS=:", "A=a:b:c", "echo $A"),
    "arrays over lines": shape("A=(1 # it's one", "2)", "echo ${A[@]}", "A+=('two words')", 'echo "${A[2]}" ${#A[@]}'),
    "several states on a line": shape("A=1; B=2 && export C=3 || true", "echo $A$B$C", "cd sub && D=d\\;; cd ..",
                                      "E=e\\ ", "echo \"$D$E\" end", "F='f;' G=\"g;\"", "export H=h; I=i;",
                                      "echo \"$F$G$H$I\""),
    "state with conditions": shape(
        "if [ -d sub ]; then", "  A=1", "else", "  A=2", "fi", "echo $A", "[ -d none ] || B=3", "[ -d none ] && B=4",
        "echo $B", "for x in a b; do C+=$x; done", "echo $C $x", "D=$(case $A in 1) echo one;; *) echo other;; esac)",
        "echo $D", "while read l; do E=$l; done <env.sh", "echo $E"),
    "cd": shape("cd sub", "pwd", "cd ..", "pwd", "cd sub && cd ..", "pwd", "echo $OLDPWD", "(cd sub; pwd)", "pwd",
                "cd sub && cd .. && pwd #: label=x", "cd missing || true", "pwd"),
    "state that prints": shape(
        "source ./env.sh", "echo $FROM_FILE", "echo again", ". ./env.sh", "umask", "echo third",
        "source ./missing.sh || true", ": $(echo said >&2)", "cd sub", "cd -", "[ -d sub ] && { A=1; printf 'half '; }",
        "echo $A", "{ cd sub; echo back >&2; cd ..; }", "alias x='echo y'", "alias x", "true"),
    "arguments": shape("set -- a 'b c'", "echo $0 $# $2", "echo \"$@\"", "source ./env.sh", "echo $1"),
    "functions": shape("say() {", "  echo \"said: $*\"", "}", "function twice", "{ say $1; say $1 >&2; }", "say a",
                       "twice b", "(say c)", "say d | cat", "A=$(twice e)", "echo \"$A\"", "export -f say",
                       "bash -c 'say f'", "unset -f say", "say g || true", "f() (", "cat <<END", "got $1", "END", ")",
                       "f h"),
    "bash names the right line in functions": shape(
        "A=1", "f() {", "  echo $LINENO", "  no_such_in_f 2>/dev/null", "}", "", "f || true", "A=$(f) || true",
        "echo $A"),
    "here-documents": shape(
        "cat <<END", "$((1 + 1)) #: gpus=3", "END", "cat <<'END'", "$HOME '\"`", "END", "cat <<-END", "\ttabs",
        "\tEND", "while read x; do", "  echo got $x", "done <<A", "one", "A", "cat <<A - <<B", "a", "A", "b", "B",
        "X=$(cat <<END", "one", "END", ")", "echo $X", "bash -s <<END || test_fail 'from bash'", "exit 4", "END",
        "bash -s <<END #: label=named", "exit 5", "END", "set -x", "cat <<END", "$LINENO", "END", "cat <<< here",
        failed=["from bash", "named"], prelude=PRELUDE),
    "loops over lines": shape("for i in 1 2; do # a comment", "  # more 'quote", "  echo $i",
                              "done #: label=l timeout=1h", "until ((++n > 2))", "do", "  echo $n", "done",
                              "for ((j = 0; j < 2; j++)); do", "  echo $j", "done"),
    "choices over lines": shape("case sub in", "  s*) echo starts", "  ;;", "  *) echo other;;", "esac",
                                "if test -e sub", "then", "  echo yes", "else", "  echo no", "fi", "[[ a == a &&",
                                "  b == b ]] &&", "echo both", "for sub in 1; do echo $sub; done"),
    "patterns": shape("shopt -s extglob nullglob", "X=aab", "echo ${X/+(a)/_}", "echo /no/such*", "f() {",
                      "  case $1 in", "    !(a|b)) echo neither;;", "    @(a|b)) echo one;;", "  esac", "}", "f a",
                      "f c", "[[ ab == @(ab|cd) ]] && echo match", "shopt -u nullglob", "echo /no/such*"),
    "quotes over lines": shape("echo 'a", "  # not a comment", "", "b'", 'echo "c', "$(echo d", ')"', "echo $'e\\nf'",
                               "echo \"a\\\"b`echo c", "`\"", "echo a \\", "  b \\", "  c", "echo d\\", "e",
                               "true && \\", "echo f", "echo g |", "cat", "echo $((", "1 + 2", "))"),
    "commands within commands over lines": shape('echo "', "$(for i in 1 2; do", "  echo $i", "done)", '"'),
    "options": shape("shopt -s lastpipe", "echo a | read x; [ $x = a ]", "set -o pipefail", "false | true",
                     "true | true", "set -f", "echo *", "set +f", "set -o noclobber", "echo a >env.sh || true",
                     "set -u", "echo ${A-none}", "A=1", "echo $A", "echo last; echo $UNSET_VARIABLE",
                     failed=["false | true", "echo last; echo $UNSET_VARIABLE"]),
    "aliases": shape("shopt -s expand_aliases", "alias hi='echo hello'", "hi you", "unalias hi", "hi you || true"),
    "limits": shape("umask 027", "umask; true", "umask 0", "bash -c umask", "ulimit -c 0", "ulimit -c; true",
                    "ulimit -n 64", "echo $(ulimit -c) $(ulimit -n)"),
    "compound commands": shape(
        "if true; then echo yes; else echo no; fi", "(echo sub; exit 0)", "{ echo brace; echo err >&2; }", "! false",
        "echo pipe | tr a-z A-Z", "! true", "(exit 4)", "case x in (x) echo case;; esac", "cat <(echo substituted)",
        "[[ a == a* ]] && (( 2 > 1 )) && echo both", "while read x; do echo got $x; done <<< word", "(exit 139)",
        "f() { echo function; }; f", "i=0; until (( ++i > 2 )); do echo $i; done", "false || true", "true && false",
        "echo a & wait", "bash -c 'exit 255'", "echo two; exit 3",
        failed=["! true", "(exit 4)", "(exit 139)", "true && false", "bash -c 'exit 255'", "echo two; exit 3"]),
    "names of the list": shape("echo $0 \"${BASH_SOURCE[0]}\" \"${BASH_SOURCE[1]-none}\" \"$BASH_SOURCE_DIR\"",
                               "D=$(dirname \"${BASH_SOURCE[0]}\")/$BASH_SOURCE", "echo $D"),
    "what only the runner reads": shape(
        "", "# first", "echo a # behind", "   ", "\t# indented", "  echo 'c # d' e#f", "#", "#!not a script", "wait",
        "echo cpu #: gpus=0", "#: gpus=0", "echo more", "wait", "wait", "#:", "CUDA_VISIBLE_DEVICES=5 echo mask",
        "echo b #: label='y z' timeout=1h", "#: timeout=2h", "A=1", "# c", "", "false", "false",
        failed=["false", "false #2"]),
    "no final newline in the list": Shape("echo one\necho two"),
    "standard input is empty": shape("cat", "read x || true", "echo end"),
    "test_fail": shape(
        'echo one || test_fail "never said"', 'false || test_fail "the label"', "A=3", "X=v",
        '(exit $A) || test_fail "expanded $HOME/$A"', "false || test_fail bare", "false && true || test_fail a",
        'echo three; no_such_command || test_fail "label of $X"', "printf 'half a line'; false || test_fail 'y'",
        "true && echo fine || test_fail b", "! true || test_fail c", "false || false || test_fail d", "(false) ||",
        "  test_fail e", failed=["the label", "expanded {HOME}/3", "bare", "a", "label of v", "y", "c", "d", "e"],
        prelude=PRELUDE),
}


class Sequential(GatedCase):
    """What all tests below need: the comparison, and machines without a vendor tool."""

    def setUp(self) -> None:
        super().setUp()
        os.mkdir(os.path.join(self.folder, "sub"))
        self.write("env.sh", "echo file speaks $#\necho on both >&2\nFROM_FILE=yes\n")
        self.write("functions.sh", "# a comment\nfrom_file() {\n  echo $LINENO\n  no_such_in_file\n}\n")

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

    def compare(self, one: Shape, machine: str) -> None:
        """Run a list by bash and by the runner; their traces must be equal, but for the runner's last line."""
        expected = self.bash(one.text, prelude=one.prelude)
        if expected and not expected.endswith(b"\n"):
            expected += b"\n"            # the verdict has a line of its own
        last = "All tests passed"
        if one.failed:
            last = "Error in the following test cases: " + " ".join(one.failed).replace("{HOME}", os.environ["HOME"])
        ran = self.run_list(one.text, gpus=MACHINES[machine], env=self.world(MACHINES[machine]))
        self.assertEqual(ran.err, "", machine)
        self.assertEqual(ran.out, expected + last.encode("utf-8", "surrogateescape") + b"\n", one.text)
        self.assertEqual(ran.code, 1 if one.failed else 0)


class Shapes(Sequential):
    """Each of SHAPES, on one of MACHINES in turn. The tests are made below."""


for number, (shape_name, one_shape) in enumerate(SHAPES.items(), 1):
    setattr(Shapes, f"test_{number:02}_" + re.sub(r"\W+", "_", shape_name), functools.partialmethod(
        Sequential.compare, one_shape, list(MACHINES)[number % len(MACHINES)]))


# Generated lists: commands in which `@` is a number, and the labels of those that fail.
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys((
        "", "# a comment @", "echo out @; echo err @ >&2; echo out @", "printf 'half a line @'",
        "export V0='exported @'",
        r"printf '\000\377 @\n'", "V1=set_@", "unset V0 V2", "unset V1", ": ${V2:=default_@}", "V3=(@ # it's one\n2)",
        "echo @ \"${V0-unset}\" ${V1-unset} ${V2-unset} ${V3[1]-}; bash -c 'echo ${V0-none} ${V1-none}'",
        "cd {FOLDER}/sub", "cd {FOLDER}", "cd missing_@ || true", "pwd #@", "source {FOLDER}/env.sh",
        "source missing_@.sh || true", "set -x", "set +x", "set -u", "set +u", "PS4='+@ $LINENO '",
        "shopt -s extglob; set -- @ b",
        "[[ x@ == x+([0-9]) ]] && echo digits $# || true", "umask 0@7", "bash -c umask && echo @",
        "echo 'quoted @\n   # over\nlines'", "echo \"quoted @\n$(echo $((@ + 1)))\"",
        "echo continued \\\n  @ \\\n  ${V1-}", "for i in 1 2 @; do\n  echo $i\ndone", "wait",
        "if test @ = 3\nthen\n  echo three\nelse\n  echo other\nfi", "(echo sub @; exit 0)", "! (exit @)",
        "case @ in\n(*[13579]) echo odd;;\n(*) echo even\nesac", "f() {\n  echo f @ $1 ${V1-}\n}", "f @ || true",
        "cat <<END\nhere @ ${V1-}\nEND", "cat <<'END' >&2\nhere $@\nEND", "{ echo a@; echo b@ >&2; } 2>&1",
        "echo on the CPU @ #: gpus=0", "A@=1 B=\"x y\" bash -c 'echo $A@ $B'", "echo fine @ || test_fail 'never @'",
        "echo pipe @ | tr a-z A-Z"), ""),
    **{command: command for command in (
        "no_such_@ arg", "(exit @)", "! echo not @", "cat /dev/null missing_@", "false | cat; test @ = x")},
    "false @ #: gpus=0 label='named @'": "named @",
    "echo bad @; false || test_fail \"label @\"": "label @",
    "test -z @ || test_fail \"it's @ ${V1-unset}\"": "it's @ {V1}",
}
# Under `set -x` the processes of a pipeline trace at the same time, and bash traces the call of `test_fail`.
UNTRACED = re.compile(r" \| |(false|@) \|\| test_fail \"")


def generated(seed: int, folder: str) -> Shape:
    """A list of LINES commands, ended by a test, so that no state is left without one."""
    source = random.Random(seed)
    text: List[str] = []
    failed: List[str] = []
    is_traced, value, number = False, "unset", 0
    while len(text) < LINES:
        number += 1
        command, label = source.choice(list(COMMANDS.items()))
        if not is_traced or not UNTRACED.search(command):
            command, label = (said.replace("@", f"{7 + number:o}") for said in (command, label))  # mask, status
            is_traced = {"set -x": True, "set +x": False}.get(command, is_traced)
            value = command[3:] if command.startswith("V1=") else "unset" if command == "unset V1" else value
            text.append(command.replace("{FOLDER}", folder))
            failed += [label.replace("{V1}", value)] * bool(label)
    return Shape("\n".join([*text, "echo end"]) + "\n", failed, PRELUDE)


class Generated(Sequential):
    """Seeded lists of random lines, as many as $LISTS says; a failure names its seed and shows its list."""

    def test_lists(self) -> None:
        for seed in range(LISTS):
            with self.subTest(seed=seed):
                self.compare(generated(seed, self.folder), list(MACHINES)[seed % len(MACHINES)])


class Alone(Sequential):
    """What a sequential run does besides printing."""

    def test_a_death_by_signal_is_told_as_bash_tells_it(self) -> None:
        """`tests.txt: line 1: 123 Killed …`; process numbers apart, it is part of the trace."""
        text = "ulimit -c 0\n" + "".join(f"bash -c 'kill -{name} $$'\n" for name in ("KILL", "TERM", "ABRT"))
        expected = re.sub(rb"(line \d+:) *\d+ *", rb"\1 PID ", self.bash(text))
        ran = self.run_list(text, gpus="0")
        self.check(ran, 1, dict.fromkeys(text.splitlines()[1:], "crashed"))
        self.assertEqual(re.sub(rb"(line \d+:) *\d+ *", rb"\1 PID ", ran.out).rpartition(b"Error in")[0], expected)

    def test_exit_ends_only_its_test(self) -> None:
        ran = self.run_list("exit 3\nset -e\nfalse; echo never\necho two\n", gpus="0")
        self.assertEqual(ran.out, b"two\nError in the following test cases: exit 3 false; echo never\n")
        self.check(ran, 1, {"exit 3": "failed", "false; echo never": "failed", "echo two": "passed"})
        self.assertIn("tests.txt:1: `exit` is a test here", ran.err)

    def test_logs_are_written_all_the_same(self) -> None:
        """A log for each test, behind what the state above it prints; together they are the trace."""
        text = "set -x\necho one\nA=2\nprintf 'two %s' $A >&2\nset +x\necho; false\numask 027\numask\ncat /dev/null\n"
        expected = self.bash(text)
        ran = self.run_list(text, gpus="0")
        self.check(ran, 1, {"echo one": "passed", "printf 'two %s' 2 >&2": "passed", "echo; false": "failed",
                            "cat /dev/null": "passed"})
        logs = [ran.read(record["log"]) for record in ran.journal("test_start")]
        self.assertEqual("".join(logs).encode(), expected)
        self.assertEqual((logs[0], logs[3]), ("+ echo one\none\n", "0027\n"))

    def test_list_order_one_at_a_time(self) -> None:
        labels = ("echo a", "echo b", "false", "echo wide", "echo c", "echo d")
        text = "echo a #: gpus=0\necho b\nwait\nfalse\necho wide #: gpus=2\necho c #: gpus=all\necho d #: gpus=0\n"
        for machine, gpus in MACHINES.items():
            with self.subTest(machine):
                shutil.rmtree(os.path.join(self.folder, "logs"), ignore_errors=True)
                ran = self.run_list(text, gpus=gpus, env=self.world(gpus))
                self.check(ran, 1, {**dict.fromkeys(labels, "passed"), "false": "failed", "echo wide": "unrunnable"})
                self.assertIn(b"\na\nb\nc\nd\n", ran.out)
                self.assertEqual(ran.err, "")
                events = [(record["event"], record["label"]) for record in ran.journal() if "label" in record]
                self.assertEqual(events, [("test_end", "echo wide")] + [
                    (event, label) for label in labels if label != "echo wide" for event in ("test_start", "test_end")])
                self.assertEqual(ran.journal("run_start")[0]["gpus"], ["0"] if gpus else [])

    def test_output(self) -> None:
        """Nothing of the parallel trace; `failures` shows the whole log of each, after the state above it."""
        text = "A=1\numask 022\numask\necho good\nset -x\necho bad >&2; false\n"
        bad = "+ echo bad\nbad\n+ false\n"
        for output, shown in (("replay", "0022\ngood\n" + bad), ("ordered", "0022\ngood\n" + bad), ("failures", bad),
                              ("none", "")):
            with self.subTest(output):
                ran = self.run_list(text, "--output", output, gpus="0")
                self.assertEqual(ran.text, shown + "Error in the following test cases: echo bad >&2; false\n")

    def test_one_gpu_of_an_outer_mask(self) -> None:
        self.write("mask.sh", "export CUDA_VISIBLE_DEVICES=7\n")
        ran = self.run_list("source ./mask.sh\nset -x\necho $CUDA_VISIBLE_DEVICES\n", "--gpus", "1", gpus="4,2")
        self.assertEqual(ran.text, "+ echo 4\n4\nAll tests passed\n")

    def test_each_line_is_there_before_the_test_goes_on(self) -> None:
        gate = Fifo(self, "gate")
        self.write("tests.txt", "echo first; read x <gate; echo second >&2; read x <gate; printf half; read x <gate; "
                                "echo\necho end\n")
        process = self.start("tests.txt", gpus="0")
        for said in (b"first\n", b"second\n", b"half"):
            self.assertEqual(self.read_until(process, said), said)
            gate.release()
        rest, errors = process.communicate(timeout=WAIT_S)
        self.assertEqual((rest, remarks(errors), process.returncode), (b"\nend\nAll tests passed\n", "", 0))

    def test_the_last_words_of_a_test_that_is_interrupted(self) -> None:
        up = Fifo(self, "up")
        self.write("test.sh", "trap 'echo last; exit 3' INT; echo first; echo up >up; while :; do sleep 0.1; done\n")
        self.write("tests.txt", "bash test.sh\necho never\n")
        process = self.start("tests.txt", gpus="0")
        up.lines()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(out, b"first\nlast\nInterrupted by SIGINT: 1 interrupted, 1 not run\n")

    def test_a_test_that_takes_its_log_away(self) -> None:
        """What it wrote before may be lost; the run is not."""
        ran = self.run_list("echo one; rm -r logs/*.log\necho two\n", gpus="0")
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertTrue(ran.out.endswith(b"two\nAll tests passed\n"))


if __name__ == "__main__":
    unittest.main()
