"""The README and docs/ say what is so: commands parse, examples run and print what is shown, links lead somewhere."""
from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, List, NamedTuple, Sequence, Set, Tuple

import run_tests
from tests.support import ROOT, compiled_runner
from tests.test_contract import output_of

README = "README.md"
PAGES = [README, "CHANGELOG.md", "qa/bench/README.md",
         *sorted("docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))]
README_BYTES = (8_000, 10_000)
PAGE_BYTES = 16_000              # a page is short, but for the help of all options
# What would change the output of a run: masks, folders, the CI service that these tests run in.
OUTER = re.compile("CUDA_|HIP_|ROCR_|ZE_|XML_LOG|FAIL_DIR|RUN_TESTS|GITHUB_|GITLAB_|BUILDKITE|TF_BUILD|TEAMCITY")
PROGRAMS = ("run_tests.py", "qa/timeline.py", "qa/ci_dedup.py", "qa/ci_verdicts.py", "qa/bench/picture.py",
            "qa/bench/ci_history.py", "qa/bench/schedules.py", "qa/bench/planning.py", "qa/bench/overhead.py",
            "qa/bench/nodes.py", "qa/cluster.py", "qa/memory.py", "qa/pytest_parts.py")
SHELL = ("sh", "console", "yaml", "groovy")
# Options of other programs that the pages name.
FOREIGN = {"--junitxml", "--tb", "--nproc-per-node", "--rm", "--gpus", "--stop-timeout", "--init", "--format", "--from",
           "--lf", "--sw", "--dry-run", "--will-cite", "--gres", "--nodes", "--time", "--signal", "--array",
           "--limit", "--jq", "--workflow", "--paginate", "--branch", "--ntasks-per-node", "--gpus-per-node",
           "--exclusive", "--no-kill", "--report-log", "--basetemp", "--master-port", "--cov",
           "--maxfail", "--gpu-locks"}      # the last one was ours


class Block(NamedTuple):
    """A fenced block: language, what follows it on that line, and the lines within."""

    page: str
    language: str
    info: str
    text: str


def read(page: str) -> str:
    """A page's text."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def blocks(page: str) -> List[Block]:
    """All fenced blocks of a page, in order."""
    found = re.finditer(r"^( *)```(\w+) ?(.*)\n((?:.*\n)*?)\1```$", read(page), re.M)
    return [Block(page, match[2], match[3], re.sub("(?m)^" + match[1], "", match[4])) for match in found]


def anchors(page: str) -> Set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", read(page))
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def calls(block: Block) -> Iterator[List[str]]:
    """The calls of our programs in a block: path of the program, then its arguments."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    if block.language == "groovy":
        text = "\n".join(re.findall("sh '(.*?)'", text))
    for line in text.splitlines():
        for start in re.finditer(r"(?<![\w/.])[\w./]+\.py\b(?=\s|$)", line):
            if os.path.basename(start[0]) not in ours():
                continue
            lexer = shlex.shlex(line[start.start():], posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words = []
            for word in lexer:
                if word[0] in "|&;<>":
                    break
                words.append(word)
            yield words


def ours() -> Set[str]:
    """The names of the runner and its companions."""
    folders = ("", "qa", "qa/bench")
    return {name for folder in folders for name in os.listdir(os.path.join(ROOT, folder)) if name.endswith(".py")}


def same(line: str) -> str:
    """A line of output without what differs from run to run: durations, places, the order of ends."""
    if line.startswith("slowest: "):
        line = "slowest: " + ", ".join(sorted(line[len("slowest: "):].split(", ")))
    line = re.sub(r"\d+\.\d", "0.0", line)
    line = re.sub(r" at \d+:\d\d", " at 0:00", line)
    line = re.sub(r" on GPU \d+(,\d+)?", lambda found: " on GPU 0" + (",1" if found[1] else ""), line)
    return re.sub(r", \d+/(\d+)", r", N/\1", line)


class Pages(unittest.TestCase):
    """What can be held without a run."""

    def test_sizes(self) -> None:
        """The README is read at a sitting; what goes into detail lies behind it."""
        size = len(read(README).encode())
        self.assertTrue(README_BYTES[0] <= size <= README_BYTES[1], f"{README}: {size} bytes")
        for page in PAGES[3:]:
            self.assertLessEqual(len(read(page).encode()), PAGE_BYTES, page)

    def test_links_lead_somewhere(self) -> None:
        """Files and headings; and every page of docs/ can be reached from the README."""
        reached = set()
        for page in PAGES:
            for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"(?ms)^ *```.*?^ *```$", "", read(page))):
                if re.match("https?://", target):
                    continue
                path, _, anchor = target.partition("#")
                path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                self.assertTrue(os.path.exists(os.path.join(ROOT, path)), f"{page}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(path), page)
                if page == README:
                    reached.add(path)
        self.assertEqual({page for page in PAGES if page.startswith("docs/")} - reached, set())

    def test_options_exist(self) -> None:
        """Every option that a page names is one of ours, or of a program that is known here."""
        known = {"--help", "--version", *FOREIGN}
        self.assertEqual({option for option in FOREIGN if option not in "".join(map(read, PAGES))}, set())
        for path in PROGRAMS:
            known |= set(re.findall(r"--[a-z][\w-]+", output_of(sys.executable, path, "--help")))
        for page in PAGES:
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", read(page)))
            self.assertEqual(named - known, set(), page)

    def test_make_targets_and_files_exist(self) -> None:
        with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
            targets = set(re.findall(r"^(\w+):", file.read(), re.M))
        for page in PAGES:
            self.assertEqual(set(re.findall(r"`make (\w+)`", read(page))) - targets, set(), page)
            for path in re.findall(r"(?<![\w/.])(?:qa|docs)/[\w/.]+\.(?:py|sh|md|txt|svg)\b", read(page)):
                if page.startswith("docs/") and os.path.exists(os.path.join(ROOT, "docs", path)):
                    continue
                is_there = os.path.exists(os.path.join(ROOT, path))
                self.assertTrue(is_there or path.startswith("qa/L0/"), f"{page}: {path}")     # qa/L0: the reader's own

    def test_tables_name_all_there_is(self) -> None:
        """Outcomes, keys of a line, CI services that fold."""
        for page in (README, "docs/reference.md"):
            for outcome in run_tests.Outcome:
                self.assertRegex(read(page), rf"`{outcome.value}[`( ]", page)
        for key in (field.replace("_", "-") for field in run_tests.Attributes._fields):
            self.assertIn(f"| `{key}` |", read("docs/lists.md"))
            self.assertIn(f"`{key}`", read(README))
        for fold in run_tests.FOLDS:
            self.assertIn(f"`{fold.variable}`", read("docs/output.md"))
        for command, *_ in run_tests.TOOLS:
            self.assertIn(f"`{command[0]}`", read("docs/gpus.md"))

    def test_changes_name_this_version(self) -> None:
        self.assertIn(f"## {run_tests.VERSION}\n", read("CHANGELOG.md"))

    def test_the_picture_is_the_one_of_the_text(self) -> None:
        with open(os.path.join(ROOT, "docs", "before_after.svg"), encoding="utf-8") as file:
            gain = re.search('aria-label="(.*?)"', file.read())
        assert gain is not None
        self.assertIn(f"**{gain[1]} on 8 GPUs.**", read(README))


class Commands(unittest.TestCase):
    """Every command of every page is one that could be typed."""

    def test_bash_can_read_them(self) -> None:
        seen = 0
        for page in PAGES:
            for block in blocks(page):
                if block.language == "sh":
                    with self.subTest(page=page, text=block.text):
                        subprocess.run(["bash", "-n", "-c", block.text], check=True)
                        seen += 1
        self.assertGreater(seen, 15)

    def test_the_parser_knows_their_options(self) -> None:
        """Of the runner by its own parser; of its companions, `--help` names them."""
        seen = 0
        for page in PAGES:
            inline = [Block(page, "sh", "", text) for text in re.findall(r"`([^`\n]*\.py[^`\n]*)`", read(page))]
            for block in [*(each for each in blocks(page) if each.language in SHELL), *inline]:
                for program, *arguments in calls(block):
                    with self.subTest(page=page, call=shlex.join([program, *arguments])):
                        self.check(program, arguments)
                        seen += 1
        self.assertGreater(seen, 40)

    def check(self, program: str, arguments: List[str]) -> None:
        name = os.path.basename(program)
        if name != "run_tests.py":
            folder = next(folder for folder in ("qa", "qa/bench") if os.path.exists(os.path.join(ROOT, folder, name)))
            options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
            self.assertEqual({option for option in options - {"--help"}
                              if option not in output_of(sys.executable, os.path.join(folder, name), "--help")}, set())
            return
        if not arguments or {"--version", "--help"} & set(arguments):
            return
        said = io.StringIO()
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder, contextlib.redirect_stderr(said):
            arguments = list(arguments)
            for number, word in enumerate(arguments[:-1]):
                if word in ("--only", "--known-failures"):           # they are read at once
                    arguments[number + 1] = os.path.join(folder, "labels")
                    with open(arguments[number + 1], "w", encoding="utf-8") as file:
                        file.write("label # reason\n")
            try:
                options = run_tests.parse_command_line(arguments, {})
            except run_tests.UsageError as error:
                self.fail(str(error))
        self.assertTrue(options.lists)

    def test_lists_are_lists(self) -> None:
        seen = 0
        for page in PAGES:
            for block in blocks(page):
                if block.language == "sh" and block.info == "list":
                    with self.subTest(page=page), tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
                        command = [sys.executable, "-S", compiled_runner(), "--list", "-"]
                        ran = subprocess.run(command, input=block.text.encode(), cwd=folder, check=False,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                        self.assertEqual((ran.returncode, ran.stderr.decode()), (0, ""))
                        seen += 1
        self.assertGreaterEqual(seen, 2)


class Examples(unittest.TestCase):
    """Blocks that run, in a folder with the runner, `qa` and the files of the page's own blocks."""

    def test_they_print_what_is_shown(self) -> None:
        """`console`: a command behind `$`, then lines that are among its output; … stands for what is left out."""
        with ThreadPoolExecutor(len(PAGES)) as pool:      # they sleep a little
            ran = [each for page in pool.map(self.run_page, PAGES) for each in page]
        for block, code, said in ran:
            with self.subTest(page=block.page, text=block.text):
                self.compare(block, code, said)
        self.assertGreaterEqual(len(ran), 5)

    def run_page(self, page: str) -> List[Tuple[Block, int, str]]:
        """Exit code and output of each of a page's blocks that run, one after another."""
        ran = []
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
            for name in ("run_tests.py", "qa"):
                os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
            for block in blocks(page):
                if re.fullmatch(r"\w+\.\w+", block.info):
                    with open(os.path.join(folder, block.info), "w", encoding="utf-8") as file:
                        file.write(block.text)
                elif block.language == "console" or block.info == "run":
                    command = block.text.split("\n")[0][2:] if block.language == "console" else block.text
                    ran.append((block, *self.run_command(command, folder)))
        return ran

    def compare(self, block: Block, code: int, said: str) -> None:
        """What a block has done against what its page shows."""
        first, *shown = block.text.splitlines() if block.language == "console" else ["$ "]
        self.assertTrue(first.startswith("$ "), first)
        self.assertEqual(code != 0, block.info == "fails", said)
        lines = [same(line) for line in said.splitlines()]
        for line in filter(None, map(same, shown)):
            if line != "\u2026":
                fits = [other for other in lines if other == line or
                        line.endswith("\u2026") and other.startswith(line[:-1])]
                self.assertTrue(fits, f"{line!r} is not in\n{said}")

    def run_command(self, command: str, folder: str) -> Tuple[int, str]:
        """Exit code and output. The interpreter is that of these tests."""
        environment = {name: value for name, value in os.environ.items() if not OUTER.match(name)}
        environment.update(LC_ALL="C.UTF-8", DEMO_TENTH_S="0.01")
        names = os.path.join(folder, ".bin")
        if not os.path.isdir(names):
            os.mkdir(names)
            os.symlink(sys.executable, os.path.join(names, "python3"))
        environment["PATH"] = names + os.pathsep + environment["PATH"]
        ran = subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return ran.returncode, ran.stdout.decode()


class Shown(unittest.TestCase):
    """Named blocks of long output: help, a plan, a choice of tests."""

    def block(self, name: str) -> str:
        """The block of that name, on whichever page."""
        found = [block.text for page in PAGES for block in blocks(page)
                 if (block.language, block.info) == ("text", name)]
        self.assertEqual(len(found), 1, f"one block between ```text {name} and ``` in README.md and docs/")
        return found[0]

    def assert_shows(self, shown: Sequence[str], lines: Sequence[str]) -> None:
        """Each line that is shown is one of these; … stands for what is cut off."""
        self.assertGreater(len(list(filter(None, shown))), 5)
        for line in shown:
            self.assertTrue(any(other.startswith(line.rstrip("\u2026")) for other in lines), line)

    def test_help(self) -> None:
        """Titles as newer versions of argparse print them: 3.8 and 3.9 have another one for the options."""
        shown, said = (text.replace("\noptional arguments:\n", "\noptions:\n").strip("\n") for text in (
            self.block("help"), output_of(sys.executable, "run_tests.py", "--help")))
        self.assertEqual(shown, said)

    def test_plan(self) -> None:
        """The block begins with the command whose output it shows, but for the folders of the labels."""
        command, output, rest = self.block("plan").partition("Expected durations:")
        self.assertIn("qa/plan.py", command)
        said = output_of("bash", "-c", re.sub(r"^\$ ", "", command).replace("python3", shlex.quote(sys.executable)))
        self.assert_shows((output + rest).splitlines(), re.sub(r"\S+/(?=\S+ \()", "", said).splitlines())

    def test_dedup(self) -> None:
        with tempfile.TemporaryDirectory(prefix="run_tests.") as folder:
            said = [output_of(sys.executable, os.path.join("qa", script), folder)
                    for script in (os.path.join("bench", "ci_history.py"), "ci_dedup.py")]
        self.assert_shows(self.block("dedup").splitlines(), said[-1].splitlines())


if __name__ == "__main__":
    unittest.main()
