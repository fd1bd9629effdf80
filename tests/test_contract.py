"""What run_tests.py promises about itself: one file, stdlib only, Python 3.8, no side effects, plain code."""
from __future__ import annotations

import ast
import functools
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import unittest
from typing import Iterator, List, Sequence, Set, Tuple

import run_tests
from tests.support import ROOT, RUNNER

with open(RUNNER, encoding="utf-8") as runner_file:
    SOURCE = runner_file.read()
TREE = ast.parse(SOURCE)
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
TOP_LEVEL = [node for node in TREE.body if isinstance(node, (*Function, ast.ClassDef))]

FUNCTION_LINES = 45              # the signature, the docstring and the body
LINE_CHARACTERS = 120
TOKENS = 48_357
TOKENS_A_LINE = 8.5
CONDITIONAL_EXPRESSIONS = 1.5    # per 100 code lines
LATE = {"ast", "ctypes", "pynvml", "socket", "statistics", "tempfile", "traceback", "xml"}      # slow to import

SECTIONS = ["Constants", "Model", "Parse", "Select", "Devices", "Schedule", "Execute", "Record", "Report",
            "Command line", "Scripts"]

SIDE_EFFECTS = """
import argparse, concurrent.futures, json, os, signal, subprocess, sys, threading, warnings
sys.path.insert(0, sys.argv[1])
def world():
    return {"handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
            "threads": str(threading.enumerate()), "environ": dict(os.environ), "cwd": os.getcwd(),
            "files": os.listdir("."), "streams": [str(sys.stdout), str(sys.stderr)], "path": list(sys.path),
            "descriptors": os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else [],
            "hook": str(sys.excepthook), "filters": str(warnings.filters), "recursion": sys.getrecursionlimit()}
before = world()
import run_tests
after = world()
json.dump({key: [before[key], after[key]] for key in before if before[key] != after[key]}, sys.stdout)
"""


def functions(node: ast.AST = TREE, prefix: str = "") -> Iterator[Tuple[str, ast.FunctionDef]]:
    """Every function and method, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        is_scope = isinstance(child, (*Function, ast.ClassDef))
        yield from functions(child, f"{prefix}{child.name}." if is_scope else prefix)


def banners() -> List[Tuple[int, str, str, int]]:
    """Number, title, the sentence after the title, line: one per section."""
    pattern = re.compile(r"^# -{80,}\n# (\d+)\. ([A-Z][^:.\n]*)[:.] *((?:.*\n#.*)*?.*)\n# -{80,}$", re.M)
    return [(int(found.group(1)), found.group(2), found.group(3), SOURCE.count("\n", 0, found.start()) + 1)
            for found in pattern.finditer(SOURCE)]


def section(*numbers: int) -> List[ast.stmt]:
    """The statements of some sections."""
    starts = [line for _, _, _, line in banners()] + [SOURCE.count("\n") + 2]
    return [node for number in numbers for node in TREE.body if starts[number - 1] < node.lineno < starts[number]]


def names_in(nodes: Sequence[ast.stmt]) -> Set[str]:
    """All plain names that some statements read, call or bind, annotations included."""
    return {node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)}


def defined_in(nodes: Sequence[ast.stmt]) -> Set[str]:
    """The names that some statements of the module bind."""
    targets = [target for node in nodes for target in getattr(node, "targets", [getattr(node, "target", node)])]
    return {getattr(target, "id", getattr(target, "name", "")) for target in targets}


def code_tokens() -> List[tokenize.TokenInfo]:
    """The tokens of the file without comments, docstrings and what only makes lines."""
    docs: Set[int] = set()
    for node in ast.walk(TREE):
        if isinstance(node, (ast.Module, ast.ClassDef, *Function)) and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    return [token for token in tokenize.generate_tokens(io.StringIO(SOURCE).readline)
            if token.type not in blank and token.start[0] not in docs]


@functools.lru_cache(maxsize=None)
def output_of(*command: str, folder: str = ROOT) -> str:
    """What a program prints; it has to succeed."""
    environment = {**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE)
    return ran.stdout.decode()


class OneFile(unittest.TestCase):
    """It can be copied anywhere and run by any Python from 3.8."""

    def test_imports(self) -> None:
        """Of the standard library; what is slow to import is imported where it is used."""
        imported = {}
        for node in ast.walk(TREE):
            if isinstance(node, ast.Import):
                imported.update({alias.name.partition(".")[0]: node for alias in node.names})
            elif isinstance(node, ast.ImportFrom):
                self.assertEqual(node.level, 0, f"line {node.lineno}: a relative import")
                imported[str(node.module).partition(".")[0]] = node
        self.assertLessEqual({"argparse", "xml"}, imported.keys())
        if hasattr(sys, "stdlib_module_names"):
            self.assertEqual(imported.keys() - sys.stdlib_module_names, set())
        self.assertEqual({name for name, node in imported.items() if node in TREE.body} & LATE, set())

    def test_compiles_for_3_8(self) -> None:
        """Newer spellings of types, `list[int]` or `int | None`, would fail where they are evaluated."""
        self.assertEqual(len(ast.parse(SOURCE, feature_version=(3, 8)).body), len(TREE.body))
        self.assertIn("from __future__ import annotations", SOURCE)
        for node in ast.walk(TREE):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                self.assertNotIn(node.value.id, ("list", "dict", "set", "tuple", "type"), f"line {node.lineno}")

    def test_it_is_a_script(self) -> None:
        self.assertTrue(SOURCE.startswith("#!/usr/bin/env python3\n"))
        self.assertTrue(SOURCE.endswith('\n\nif __name__ == "__main__":\n    leave(main())\n'))

    def test_it_says_where_it_is_from(self) -> None:
        """A copy carries the licence's notice with it, word for word."""
        head = SOURCE.partition('"""')[0]
        with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as file:
            notice = file.read().split()
        said = re.sub("(?m)^# ?", "", head).split()
        self.assertIn(" ".join(notice[2:]).partition(" Permission")[0].rstrip("."), " ".join(said))     # whose it is
        self.assertIn(" ".join(notice[notice.index("Permission"):]), " ".join(said))

    def test_pip_installs_it_as_a_command(self) -> None:
        """One module, under a name of which no other file of `bin` hides it."""
        with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as file:
            settings = file.read()
        self.assertIn('py-modules = ["run_tests"]', settings)
        self.assertEqual(re.findall(r'(?m)^(.*) = "run_tests:(\w+)"$', settings), [("run_tests", "command")])
        self.assertTrue(callable(run_tests.command))
        self.assertEqual(re.findall(r'attr = "run_tests\.(\w+)"', settings), ["VERSION"])

    def test_importing_it_has_no_side_effects(self) -> None:
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
            changed = output_of(sys.executable, "-B", "-c", SIDE_EFFECTS, ROOT, folder=folder)
        self.assertEqual(json.loads(changed), {})


class Style(unittest.TestCase):
    """DESIGN, section 7, as far as a program can see it."""

    @unittest.skipIf(sys.version_info >= (3, 12), "an f-string is several tokens there")
    def test_the_code_is_not_dense(self) -> None:
        tokens = code_tokens()
        lines = len({token.start[0] for token in tokens})
        self.assertLessEqual(len(tokens) / lines, TOKENS_A_LINE)
        conditional = sum(isinstance(node, ast.IfExp) for node in ast.walk(TREE))
        self.assertLessEqual(100 * conditional / lines, CONDITIONAL_EXPRESSIONS)

    @unittest.skipIf(sys.version_info >= (3, 12), "an f-string is several tokens there")
    def test_the_file_is_not_large(self) -> None:
        self.assertLessEqual(len(code_tokens()), TOKENS)

    def test_functions_and_lines_are_short(self) -> None:
        sizes = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
        self.assertEqual({name: size for name, size in sizes.items() if size > FUNCTION_LINES}, {})
        self.assertEqual([number for number, line in enumerate(SOURCE.splitlines(), 1)
                          if len(line) > LINE_CHARACTERS or line != line.rstrip()], [])

    def test_docstrings_begin_with_a_sentence(self) -> None:
        """Functions and classes have one, methods may."""
        for node in (TREE, *TOP_LEVEL):
            with self.subTest(getattr(node, "name", "the module")):
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                self.assertRegex(first, r"(?s)^[^\s].*[.:)]$")

    def test_sections_are_in_the_order_of_the_data(self) -> None:
        """Each has a banner with a sentence, and its line in the docstring."""
        self.assertEqual([(number, title) for number, title, _, _ in banners()], list(enumerate(SECTIONS, 1)))
        for _, _, sentence, line in banners():
            self.assertRegex(sentence, r"\.\)?$", f"line {line}")
        described = re.findall(r"^ +(\d+)  (\w[\w ]*?)  +\S", ast.get_docstring(TREE, clean=False) or "", re.M)
        self.assertEqual([(int(number), name) for number, name in described],
                         [(number, name.lower()) for number, name in enumerate(SECTIONS, 1)])

    def test_the_docstring_tells_all_exit_codes(self) -> None:
        told = re.sub(r"\s+", " ", run_tests.__doc__ or "").partition("Exit codes:")[2]
        for code in ("0", "1", "2", "3", "5", "128+N"):
            self.assertRegex(told, rf"[ ;]{re.escape(code)} [a-z]")

    def test_no_mutable_globals(self) -> None:
        """A display bound at the top of the module is typed as what it is used as: a Mapping or a Sequence."""
        mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
        makers = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "Queue",
                  "SimpleQueue", "Lock", "Event", "count"}
        for node in TREE.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                continue
            with self.subTest(line=node.lineno):
                self.assertNotIsInstance(node, ast.AugAssign)
                kind = getattr(getattr(node, "annotation", None), "value", None)
                if getattr(kind, "id", "") not in ("Mapping", "Sequence"):
                    self.assertNotIsInstance(node.value, mutable, "not typed as Mapping or Sequence")
                called = getattr(node.value, "func", None)
                self.assertNotIn(getattr(called, "attr", getattr(called, "id", "")), makers)

    def test_no_global_statement_and_no_mutable_default(self) -> None:
        self.assertEqual([node.lineno for node in ast.walk(TREE) if isinstance(node, ast.Global)], [])
        for name, function in functions():
            for default in (*function.args.defaults, *function.args.kw_defaults):
                self.assertNotIsInstance(default, (ast.List, ast.Dict, ast.Set, ast.Call), name)

    def test_no_private_double_underscores_and_no_misc(self) -> None:
        names = names_in(TREE.body) | {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
        names |= {name.rpartition(".")[2] for name, _ in functions()} | {node.name for node in TOP_LEVEL}
        self.assertEqual([name for name in names if re.match(r"__(?!\w+__$)", name) or "misc" in name.lower()], [])

    def test_outcomes_are_compared_by_predicate(self) -> None:
        """`result.outcome == "failed"` and `.value == …` would pass a misspelling."""
        words = {outcome.value for outcome in run_tests.Outcome}
        for node in ast.walk(TREE):
            if isinstance(node, ast.Compare):
                for side in (node.left, *node.comparators):
                    self.assertFalse(isinstance(side, ast.Constant) and side.value in words, f"line {node.lineno}")

    def test_frozen_models(self) -> None:
        """Options, Test, Device, Lease, Result cannot be changed once they are made."""
        for name in ("Options", "Attributes", "Test", "Device", "Lease", "Result", "Machine"):
            with self.subTest(name):
                model = getattr(run_tests, name)
                self.assertTrue(issubclass(model, tuple) or model.__dataclass_params__.frozen)

    def test_what_sections_do_not_touch(self) -> None:
        """The schedule has no clock, process or output; parse and select do not write; 1 to 9 know of no scripts."""
        world = {"print", "warn", "threading", "queue", "time", "sleep", "socket"}
        for numbers, has, foreign in (
                ((6,), "Schedule", world | {"os", "sys", "open", "Popen", "subprocess", "shutil", *vars(os.path)}),
                ((3, 4), "parse_lists", world), (range(1, 10), "Test", defined_in(section(11)))):
            nodes = section(*numbers)
            self.assertIn(has, defined_in(nodes))
            self.assertEqual(foreign & names_in(nodes), set())
        self.assertLessEqual({"ScriptFile", "HOOK"}, defined_in(section(11)))

    def test_one_place_prints_and_one_opens_stdout(self) -> None:
        printing = {name for name, function in functions() for node in ast.walk(function)
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"}
        stdout = {name for name, function in functions() for node in ast.walk(function)
                  if isinstance(node, ast.Attribute) and node.attr == "stdout"
                  and getattr(node.value, "id", "") == "sys"}
        opening = {name for name, function in functions() for node in ast.walk(function)
                   if isinstance(node, ast.Call) and [getattr(value, "value", 0) for value in node.args[:1]] == [1]
                   and getattr(node.func, "id", "") in ("open", "fdopen")}
        self.assertEqual((printing, opening, stdout), ({"tell"}, {"open_stdout"}, {"leave"}))    # which flushes it


class Help(unittest.TestCase):
    """`--help` leaves nothing out."""

    def test_help_names_every_option_and_what_it_does(self) -> None:
        shown, actions = output_of(sys.executable, "run_tests.py", "--help"), run_tests.build_parser()._actions
        options = {option for action in actions for option in action.option_strings}
        self.assertIn("--gpus", options)
        for option in options:
            self.assertRegex(shown, rf"(?m)(^|[ ,\[]){re.escape(option)}\b")
        self.assertEqual([action.dest for action in actions if not action.help], [])
        used = set(re.findall(r"--[a-z][a-z-]+", run_tests.EXAMPLES))
        self.assertTrue(used)
        self.assertEqual(used - options, set())


if __name__ == "__main__":
    unittest.main()
