"""What run_tests.py promises about itself: one file, stdlib only, Python 3.8, no side effects, help in the README."""
from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Iterator, List, Tuple, Union

import run_tests
from tests.support import ROOT, RUNNER

with open(RUNNER, encoding="utf-8") as runner_file:
    SOURCE = runner_file.read()
TREE = ast.parse(SOURCE)
Function = (ast.FunctionDef, ast.AsyncFunctionDef)

FUNCTION_LINES = 46              # the signature, the docstring and the body
LINE_CHARACTERS = 120
OPTIONAL = frozenset(["pynvml"])

# The names that older interpreters do not list; those that run_tests.py may use.
OLD_STDLIB = """
    __future__ abc argparse array ast asyncio atexit base64 bisect builtins codecs collections concurrent contextlib
    copy csv ctypes dataclasses datetime enum errno fcntl fnmatch functools gc getpass glob gzip hashlib heapq hmac html
    io inspect itertools json locale logging math mmap operator os pathlib platform pprint pty pwd queue random re
    resource secrets select selectors shlex shutil signal socket statistics string struct subprocess sys tempfile
    termios textwrap threading time timeit traceback types typing unicodedata uuid warnings weakref xml zlib
"""
STDLIB = frozenset(getattr(sys, "stdlib_module_names", re.findall(r"\w+", OLD_STDLIB)))

SECTIONS = ["Constants", "Model", "Parse", "Select", "Devices", "Schedule", "Execute", "Record", "Report",
            "Command line"]

SIDE_EFFECTS = """
import json, os, signal, sys, threading, warnings
sys.path.insert(0, sys.argv[1])
def world():
    handlers = {number: str(signal.getsignal(number)) for number in sorted(signal.valid_signals())}
    return {"handlers": str(handlers), "threads": [thread.name for thread in threading.enumerate()],
            "environ": dict(os.environ), "cwd": os.getcwd(), "files": sorted(os.listdir(".")),
            "descriptors": sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [],
            "streams": [str(sys.stdout), str(sys.stderr)], "path": sys.path, "hook": str(sys.excepthook),
            "filters": str(warnings.filters), "recursion": sys.getrecursionlimit()}
import argparse, concurrent.futures, subprocess, xml.etree.ElementTree    # what they do at import is theirs
before = world()
import run_tests
after = world()
assert "pynvml" not in sys.modules, "pynvml is imported before it is needed"
changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
with open(sys.argv[2], "w") as file:
    json.dump(changed, file)
"""


def functions() -> Iterator[Tuple[str, ast.FunctionDef]]:
    """Every function and method, with its qualified name."""
    def below(node: ast.AST, prefix: str) -> Iterator[Tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            inner = prefix + child.name + "." if isinstance(child, (*Function, ast.ClassDef)) else prefix
            yield from below(child, inner)
    yield from below(TREE, "")


def top_level() -> List[Union[ast.FunctionDef, ast.ClassDef]]:
    """The functions and classes of the module itself."""
    return [node for node in TREE.body if isinstance(node, (*Function, ast.ClassDef))]


def banners() -> List[Tuple[int, str, str, int]]:
    """Number, title, the sentence after the title, line: one per section."""
    pattern = re.compile(r"^# -{80,}\n# (\d+)\. ([A-Z][^:.\n]*)[:.] *((?:.*\n#.*)*?.*)\n# -{80,}$", re.M)
    return [(int(found.group(1)), found.group(2), found.group(3), SOURCE.count("\n", 0, found.start()) + 1)
            for found in pattern.finditer(SOURCE)]


def section(number: int) -> List[ast.stmt]:
    """The statements of one section."""
    starts = [line for _, _, _, line in banners()] + [SOURCE.count("\n") + 2]
    return [node for node in TREE.body if starts[number - 1] < node.lineno < starts[number]]


def names_in(nodes: List[ast.stmt]) -> List[str]:
    """All plain names that are read or called in some statements, annotations included."""
    return [node.id for top in nodes for node in ast.walk(top) if isinstance(node, ast.Name)]


def help_text(text: str) -> str:
    """Help as all versions of argparse would print it: 3.8 and 3.9 have another title for the options."""
    return text.replace("\noptional arguments:\n", "\noptions:\n").strip("\n")


class OneFile(unittest.TestCase):
    """It can be copied anywhere and run by any Python from 3.8."""

    def test_imports_are_of_the_standard_library(self) -> None:
        imported = set()
        for node in ast.walk(TREE):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                self.assertEqual(node.level, 0, f"line {node.lineno}: a relative import")
                imported.add((node.module or "").partition(".")[0])
        self.assertIn("argparse", imported)
        self.assertEqual(imported - STDLIB - OPTIONAL, set())

    def test_the_optional_import_is_guarded(self) -> None:
        inside = {alias.name for name, function in functions() for node in ast.walk(function)
                  if isinstance(node, ast.Import) for alias in node.names}
        top = {alias.name for node in TREE.body if isinstance(node, ast.Import) for alias in node.names}
        self.assertEqual((OPTIONAL & top, OPTIONAL & inside), (set(), OPTIONAL))

    def test_compiles_for_3_8(self) -> None:
        tree = ast.parse(SOURCE, feature_version=(3, 8))
        self.assertEqual(len(tree.body), len(TREE.body))

    def test_newer_spellings_of_types_are_not_evaluated(self) -> None:
        """`list[int]` and `int | None` fail on 3.8 where they are evaluated, postponed annotations or not."""
        self.assertIn("from __future__ import annotations", SOURCE)
        for node in ast.walk(TREE):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                self.assertNotIn(node.value.id, ("list", "dict", "set", "tuple", "type"), f"line {node.lineno}")

    def test_it_is_a_script(self) -> None:
        self.assertTrue(SOURCE.startswith("#!/usr/bin/env python3\n"))
        self.assertTrue(SOURCE.endswith('\n\nif __name__ == "__main__":\n    sys.exit(main())\n'))

    def test_importing_it_has_no_side_effects(self) -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
            answer = os.path.join(elsewhere, "changed.json")
            ran = subprocess.run([sys.executable, "-B", "-c", SIDE_EFFECTS, ROOT, answer], cwd=folder, check=False,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, b"", b""))
            with open(answer, encoding="utf-8") as file:
                self.assertEqual(json.load(file), {})
            self.assertEqual(os.listdir(folder), [])


class Style(unittest.TestCase):
    """DESIGN, section 7, as far as a program can see it."""

    def test_functions_are_short(self) -> None:
        long = {name: node.end_lineno - node.lineno + 1 for name, node in functions()
                if node.end_lineno - node.lineno + 1 > FUNCTION_LINES}
        self.assertEqual(long, {})

    def test_lines_are_short(self) -> None:
        self.assertEqual([number for number, line in enumerate(SOURCE.splitlines(), 1)
                          if len(line) > LINE_CHARACTERS or line != line.rstrip()], [])

    def test_functions_and_classes_have_a_docstring(self) -> None:
        bare = [node.name for node in top_level() if not (ast.get_docstring(node) or "").strip()]
        self.assertEqual(bare, [])

    def test_docstrings_begin_with_a_sentence(self) -> None:
        for node in (TREE, *top_level()):
            first = (ast.get_docstring(node) or "").partition("\n\n")[0]
            self.assertRegex(first, r"(?s)^[^\s].*[.:)]$", getattr(node, "name", "the module"))

    def test_sections_are_in_the_order_of_the_data(self) -> None:
        self.assertEqual([(number, re.sub(" and main$", "", title)) for number, title, _, _ in banners()],
                         list(enumerate(SECTIONS, 1)))

    def test_each_banner_has_a_sentence(self) -> None:
        self.assertEqual(len(banners()), len(SECTIONS))
        for _, title, sentence, line in banners():
            if title != "Command line and main":         # its title says all there is
                self.assertRegex(sentence, r"\.\)?$", f"line {line}")

    def test_the_docstring_maps_the_sections(self) -> None:
        described = re.findall(r"^ +(\d+)  (\w[\w ]*?)  +\S", ast.get_docstring(TREE, clean=False) or "", re.M)
        self.assertEqual([(int(number), name) for number, name in described],
                         [(number, name.lower()) for number, name in enumerate(SECTIONS, 1)])

    def test_the_docstring_tells_all_exit_codes(self) -> None:
        text = re.sub(r"\s+", " ", run_tests.__doc__ or "")
        told = text[text.index("Exit codes:"):]
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
            self.assertNotIsInstance(node, ast.AugAssign, f"line {node.lineno}")
            typed = isinstance(node, ast.AnnAssign) and re.match(
                r"(Mapping|Sequence)\[", ast.get_source_segment(SOURCE, node.annotation) or "")
            if typed:
                continue
            self.assertNotIsInstance(node.value, mutable, f"line {node.lineno}: not typed as Mapping or Sequence")
            if isinstance(node.value, ast.Call):
                called = node.value.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                self.assertNotIn(name, makers, f"line {node.lineno}")

    def test_no_global_statement_and_no_mutable_default(self) -> None:
        for node in ast.walk(TREE):
            self.assertNotIsInstance(node, (ast.Global, ast.Nonlocal), getattr(node, "lineno", 0))
        for name, function in functions():
            for default in (*function.args.defaults, *function.args.kw_defaults):
                self.assertNotIsInstance(default, (ast.List, ast.Dict, ast.Set, ast.Call), name)

    def test_no_private_double_underscores_and_no_misc(self) -> None:
        names = {node.id for node in ast.walk(TREE) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
        names |= {name.rpartition(".")[2] for name, _ in functions()} | {node.name for node in top_level()}
        self.assertEqual([name for name in names if re.match(r"__(?!\w+__$)", name) or "misc" in name.lower()], [])

    def test_outcomes_are_compared_by_predicate(self) -> None:
        """`result.outcome == "failed"` and `.value == …` would pass a misspelling."""
        words = {outcome.value for outcome in run_tests.Outcome}
        for node in ast.walk(TREE):
            if isinstance(node, ast.Compare):
                for side in (node.left, *node.comparators):
                    value = getattr(side, "value", None) if isinstance(side, ast.Constant) else None
                    self.assertNotIn(value, words, f"line {node.lineno}")

    def test_frozen_models(self) -> None:
        """Options, Test, Device, Lease, Result cannot be changed once they are made."""
        for name in ("Options", "Attributes", "Test", "Device", "Lease", "Result", "Machine"):
            with self.subTest(name):
                model = getattr(run_tests, name)
                self.assertTrue(issubclass(model, tuple) or model.__dataclass_params__.frozen)

    def test_the_schedule_has_no_clock_no_process_and_no_output(self) -> None:
        world = {"time", "os", "sys", "open", "print", "subprocess", "threading", "queue", "socket", "shutil", "warn"}
        self.assertIn("Schedule", [getattr(node, "name", "") for node in section(6)])
        self.assertEqual(world & set(names_in(section(6))), set())

    def test_parse_and_select_do_not_write(self) -> None:
        nodes = section(3) + section(4)
        self.assertIn("parse_lists", [getattr(node, "name", "") for node in nodes])
        self.assertEqual({"print", "warn", "threading", "queue", "time", "socket"} & set(names_in(nodes)), set())

    def test_one_place_prints_and_one_opens_stdout(self) -> None:
        printing = {name for name, function in functions() for node in ast.walk(function)
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"}
        stdout = {name for name, function in functions() for node in ast.walk(function)
                  if isinstance(node, ast.Attribute) and node.attr == "stdout"
                  and getattr(node.value, "id", "") == "sys"}
        self.assertEqual((printing, stdout), ({"warn"}, {"open_stdout"}))


class Help(unittest.TestCase):
    """What the README shows is what the program says."""

    def help(self) -> str:
        environment = {**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
        ran = subprocess.run([sys.executable, RUNNER, "--help"], env=environment, check=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        return ran.stdout.decode()

    def test_readme_shows_it(self) -> None:
        path = os.path.join(ROOT, "README.md")
        if not os.path.exists(path):
            self.skipTest("README.md does not exist yet")
        with open(path, encoding="utf-8") as file:
            block = re.search(r"^```text help\n(.*?)^```$", file.read(), re.M | re.S)
        self.assertIsNotNone(block, "README.md has no block between ```text help and ```")
        assert block is not None
        self.assertEqual(help_text(block.group(1)), help_text(self.help()))

    def test_it_names_every_option_of_the_parser(self) -> None:
        shown = self.help()
        options = [option for action in run_tests.build_parser()._actions for option in action.option_strings]
        self.assertIn("--gpus", options)
        for option in options:
            self.assertRegex(shown, rf"(?m)(^|[ ,\[]){re.escape(option)}\b")

    def test_every_option_says_what_it_does(self) -> None:
        for action in run_tests.build_parser()._actions:
            with self.subTest(action.dest):
                self.assertTrue(action.help)

    def test_its_examples_are_of_its_own_options(self) -> None:
        used = set(re.findall(r"--[a-z][a-z-]+", run_tests.EXAMPLES))
        known = {option for action in run_tests.build_parser()._actions for option in action.option_strings}
        self.assertTrue(used)
        self.assertEqual(used - known, set())

    def test_readme_shows_what_ci_dedup_finds(self) -> None:
        """The lines of the README's example are lines of its own commands' output; … stands for what is cut off."""
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            block = re.search(r"^```text dedup\n(.*?)^```$", file.read(), re.M | re.S)
        assert block is not None
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
            for script in (os.path.join("bench", "ci_history.py"), "ci_dedup.py"):
                ran = subprocess.run([sys.executable, os.path.join(ROOT, "qa", script), folder], check=True,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        said = ran.stdout.decode().splitlines()
        shown = [line.rstrip("\u2026") for line in block.group(1).splitlines()]
        self.assertGreater(len(list(filter(None, shown))), 5)
        for line in shown:
            self.assertTrue(any(other.startswith(line) for other in said), line)


if __name__ == "__main__":
    unittest.main()
