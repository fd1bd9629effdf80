"""qa/ci_dedup.py: what it reads, correlates, clusters, chooses, judges and writes; its made-up history."""
from __future__ import annotations

import ast
import collections
import contextlib
import csv
import html.parser
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import unittest
import unittest.mock
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import run_tests
from tests.support import ROOT, Ran, RunnerCase

sys.path.insert(0, os.path.join(ROOT, "qa"))
sys.path.insert(0, os.path.join(ROOT, "qa", "bench"))

import ci_dedup
import ci_dedup_choose
import ci_dedup_cluster
import ci_dedup_read
import ci_history
from ci_dedup_choose import Cover
from ci_dedup_cluster import Merge
from ci_dedup_read import Commit, History, UsageError, Verdict

SCRIPT = os.path.join(ROOT, "qa", "ci_dedup.py")
FILES = ("ci_dedup.py", "ci_dedup_read.py", "ci_dedup_cluster.py", "ci_dedup_choose.py", "ci_dedup_page.py")
NO_COMMIT = dict.fromkeys(run_tests.COMMIT_VARIABLES, "")
FUNCTION_LINES, FILE_LINES = 45, 1000

IMPORT = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
def world():
    return [os.getcwd(), sorted(os.listdir(".")), dict(os.environ), sys.path[:], len(threading.enumerate())]
import argparse, csv, statistics, xml.etree.ElementTree             # what they do at import is theirs
before = world()
import ci_dedup
assert before == world(), "it changes something at import"
"""

# Ten commits that a reader can judge: `slow` repeats `fast`, `rare` first fails where the choice is judged.
TEN = ("c1: fast+ slow+ other+ rare+ calm+", "c2: fast- slow- other+ rare+ calm+",
       "c3: fast+ slow+ other+ rare+ calm+", "c4: fast+ slow+ other- rare+ calm+",
       "c5: fast- slow- other+ rare+ calm+", "c6: fast+ slow+ other+ rare+ calm+",
       "c7: fast+ slow+ other+ rare+ calm+", "c8: fast- slow- other+ rare+ calm+",
       "c9: fast+ slow+ other+ rare- calm+", "c10: fast+ slow+ other+ rare+ calm+")
TEN_COSTS = {"fast": "10,1", "slow": "50,2", "other": "20,", "rare": "40,1", "calm": "10,0.5"}
TEN_TEXT = """\
5 jobs, 10 commits from c1 to c10, 5 commits with new failures
Recommended: 2 of 5 jobs, 30.0 s of 2.9 min a commit (17.1 %); the cheapest set there is that catches 4 of 5 \
breakages so far (80.0 %)
Walked forward through the newest 7 commits, choosing anew 7 times: caught 2 of 4 commits with new failures (50.0 \
%; 95 % sure: 15.0 % to 85.0 %) and 2 of 4 breakages, at 15.5 % of the cost; in hindsight 3 of 4 at 17.1 %
warning: 4 commits with new failures to judge by: with fewer than 30 a share says little; take a longer history, or \
trust the interval alone
this history does not allow 80 % for 20 % of the cost; the best is 50.0 %: in 2 of 4 only jobs failed that had \
never failed before the choice, and the cheapest set that was found in hindsight takes 40.0 % of the cost

Cost against catch (--catch takes a line, --budget a cost):
  asked  jobs  cost now |  walking forward: cost      caught    share        95 % sure | in hindsight: cost    share
   50 %     1     5.7 % |                  5.7 %         2/4   50.0 %  15.0 %-  85.0 % |              5.7 %   50.0 %
   55 %     1     5.7 % |                  7.3 %         2/4   50.0 %  15.0 %-  85.0 % |              5.7 %   50.0 %
   60 %     1     5.7 % |                  7.3 %         2/4   50.0 %  15.0 %-  85.0 % |              5.7 %   50.0 %
   65 %     2    17.1 % |                  9.0 %         2/4   50.0 %  15.0 %-  85.0 % |             17.1 %   75.0 %
   70 %     2    17.1 % |                 13.9 %         2/4   50.0 %  15.0 %-  85.0 % |             17.1 %   75.0 %
   75 %     2    17.1 % |                 13.9 %         2/4   50.0 %  15.0 %-  85.0 % |             17.1 %   75.0 %
   80 %     2    17.1 % |                 15.5 %         2/4   50.0 %  15.0 %-  85.0 % |             17.1 %   75.0 %
   85 %     3    40.0 % |                 18.8 %         2/4   50.0 %  15.0 %-  85.0 % |             40.0 %  100.0 %
   90 %     3    40.0 % |                 18.8 %         2/4   50.0 %  15.0 %-  85.0 % |             40.0 %  100.0 %
   95 %     3    40.0 % |                 18.8 %         2/4   50.0 %  15.0 %-  85.0 % |             40.0 %  100.0 %
  100 %     3    40.0 % |                 18.8 %         2/4   50.0 %  15.0 %-  85.0 % |             40.0 %  100.0 %

never failed: 1: calm
3 clusters, 1 of more than one job (* recommended):
  *fast | slow

    cost/s  catches  alone  job: breakages so far that it catches
     10.00        3      3  fast
     20.00        1      1  other
Left out, since they never failed anew: 1: calm
Left out:
    cost/s failures uncaught   phi  job | the recommended one most like it
    100.00        3        0  1.00  slow | fast
     40.00        1        1        rare
Missed, walking forward:
  c4: other
  c9: rare
"""


def commits_of(*lines: str, costs: Mapping[str, float] = {}) -> List[Commit]:  # noqa: B006
    """Commits from lines `name: job+ job- …`: a job that passed, one that failed."""
    commits = []
    for line in lines:
        name, _, words = line.partition(":")
        commits.append(Commit(name, {word[:-1]: Verdict(word[-1] == "+", costs.get(word[:-1]))
                                     for word in words.split()}))
    return commits


def told(history: History) -> List[str]:
    """A history as lines that `commits_of` reads, the jobs by name."""
    return [f"{commit.name}: " + " ".join(f"{job}{'-+'[verdict.passed]}" for job, verdict in
                                          sorted(commit.verdicts.items())) for commit in history.commits]


def prices(history: History) -> List[Dict[str, Optional[float]]]:
    """What each job of each commit has cost."""
    return [{job: verdict.cost for job, verdict in commit.verdicts.items()} for commit in history.commits]


def table_of(*lines: str, costs: Mapping[str, str] = {}, blank: str = ",") -> str:  # noqa: B006
    """A CSV file from lines as of `commits_of`, with `seconds,gpus` by job."""
    rows = [f"{commit.name},{job},{int(verdict.passed)},{costs.get(job, blank)}\n"
            for commit in commits_of(*lines) for job, verdict in commit.verdicts.items()]
    return "".join(["commit,job,ok,seconds,gpus\n", *rows])


def started(run: str, commit: Optional[str] = None, gpus: Sequence[str] = ("0", "1"), time: float = 0.0
            ) -> Dict[str, Any]:
    """A `run_start` record of run_tests.py, as far as it is read."""
    return {"event": "run_start", "run": run, "time": time, "commit": commit, "gpus": list(gpus)}


def ended(label: Any, outcome: Any = "passed", run: Any = "r", seconds: Any = 1.0, *, need: Any = 1,
          time: Any = 1.0) -> Dict[str, Any]:
    """A `test_end` record of run_tests.py, as far as it is read."""
    return {"event": "test_end", "run": run, "time": time, "test": "0" * 12, "label": label, "attempt": 1,
            "outcome": outcome, "seconds": seconds, "need": need}


def github_job(name: str, conclusion: Optional[str] = "success", commit: str = "c", day: int = 1) -> Dict[str, Any]:
    """A job as `gh api repos/…/actions/runs/…/jobs` prints it, as far as it is read; it took a minute and a half."""
    return {"id": 1, "head_sha": commit, "status": "completed", "conclusion": conclusion, "name": name,
            "started_at": f"2026-03-{day:02}T10:00:00Z", "completed_at": f"2026-03-{day:02}T10:01:30Z",
            "workflow_name": "CI"}


class DedupCase(RunnerCase):
    """A test case with a folder of its own, in which the real command line runs."""

    def process(self, *arguments: str, code: int = 0, err: str = "", env: Mapping[str, str] = {},  # noqa: B006
                stdout: int = subprocess.PIPE) -> str:
        """What the real command line prints; `err` is a pattern for all of stderr."""
        environment = {"PYTHONIOENCODING": "utf-8:surrogateescape", "COLUMNS": "100", **env}
        ran = subprocess.run([sys.executable, "-S", SCRIPT, *arguments], cwd=self.folder, check=False, stdout=stdout,
                             stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment(None, environment))
        out, said = ((data or b"").decode("utf-8", "surrogateescape") for data in (ran.stdout, ran.stderr))
        return self.held(ran.returncode, out, said, code, err)

    def dedup(self, *arguments: str, code: int = 0, err: str = "") -> str:
        """The same in this process, which is quicker."""
        out, said = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape"), io.StringIO()
        before = os.getcwd()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), \
                unittest.mock.patch.dict(os.environ, {"COLUMNS": "100"}):
            os.chdir(self.folder)
            try:
                found: Any = ci_dedup.main(arguments)
            except SystemExit as error:
                found = error.code
            finally:
                os.chdir(before)
        out.seek(0)
        return self.held(found, out.read(), said.getvalue(), code, err)

    def held(self, found: Any, out: str, said: str, code: int, err: str) -> str:
        """What was printed, once it is held against exit code and stderr."""
        self.assertEqual(found, code, said)
        self.assertRegex(said, rf"(?s)\A{err}\n?\Z")
        if code in (2, 3):
            self.assertFalse(out, "a mistake is told on stderr alone")
        return out

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def history(self, sources: str, *options: str) -> History:
        """What is read from files and folders of the test's folder, named in one text."""
        arguments = [*map(self.path, sources.split()), *options]
        return ci_dedup_read.read_history(ci_dedup.build_parser().parse_args(arguments))

    def statuses(self, name: str, jobs: Any, at: float = 0.0) -> str:
        """A file of job statuses, changed at that time; a job's status, or all that is said of it, by job."""
        said = {job: {"status": what} if isinstance(what, str) else what for job, what in jobs.items()}
        path = self.write(name, json.dumps(said))
        os.utime(path, (1_500_000_000 + at,) * 2)
        return path

    def journal(self, *records: Any, name: str = "j.jsonl") -> str:
        """A journal of records, and of text as it is."""
        return self.write(name, "".join(record if isinstance(record, str) else json.dumps(record) + "\n"
                                        for record in records))

    def refused(self, sources: str, *options: str) -> str:
        """The mistake that is told of these sources, their paths as in `sources`."""
        with self.assertRaises(UsageError) as caught:
            self.history(sources, *options)
        return str(caught.exception).replace(self.folder + os.sep, "")

    def numbers(self, name: str) -> Tuple[List[str], List[str], List[List[float]]]:
        """Jobs, numbers of their clusters and phi, of a matrix that was written."""
        rows = list(csv.reader(io.StringIO(self.read(name))))
        self.assertEqual(rows[0], ["job", "cluster", *(row[0] for row in rows[1:])])
        return ([row[0] for row in rows[1:]], [row[1] for row in rows[1:]],
                [[float(value or "nan") for value in row[2:]] for row in rows[1:]])

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8", newline="") as file:
            return file.read()


class Contract(RunnerCase):
    """It is five files that any Python from 3.8 runs."""

    def setUp(self) -> None:
        super().setUp()
        self.sources = {}
        for name in FILES:
            with open(os.path.join(os.path.dirname(SCRIPT), name), encoding="utf-8") as file:
                self.sources[name] = file.read()
        self.trees = {name: ast.parse(source, feature_version=(3, 8)) for name, source in self.sources.items()}

    def nodes(self, kind: Any) -> List[Any]:
        return [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, kind)]

    def test_imports_are_of_the_standard_library_and_of_each_other(self) -> None:
        imported = {alias.name.partition(".")[0] for node in self.nodes(ast.Import) for alias in node.names}
        imported |= {(node.module or ".").partition(".")[0] for node in self.nodes(ast.ImportFrom)}
        ours = {name[:-3] for name in FILES[1:]}
        self.assertLessEqual(ours | {"argparse"}, imported)
        self.assertEqual(imported - ours - getattr(sys, "stdlib_module_names", imported), set())

    def test_who_copies_it_is_told_which_files_belong_together(self) -> None:
        for missing in FILES[1:]:
            folder = self.path_of(missing)
            for name in FILES:
                if name != missing:
                    shutil.copy(os.path.join(os.path.dirname(SCRIPT), name), folder)
            with self.subTest(missing):
                ran = subprocess.run([sys.executable, "-S", os.path.join(folder, "ci_dedup.py"), "x"], check=False,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((ran.returncode, ran.stdout.decode()),
                                 (2, f"ci_dedup.py: error: {missing} is not beside it; copy it, too\n"))
                self.assertIn(missing, ci_dedup.__doc__ or "")

    def path_of(self, name: str) -> str:
        """A new folder."""
        folder = os.path.join(self.folder, name + ".d")
        os.mkdir(folder)
        return folder

    def test_newer_spellings_of_types_are_not_evaluated(self) -> None:
        for name, source in self.sources.items():
            self.assertIn("from __future__ import annotations", source, name)
        for node in self.nodes(ast.Subscript):
            if isinstance(node.value, ast.Name):
                self.assertNotIn(node.value.id, ("list", "dict", "set", "tuple", "type"), f"line {node.lineno}")

    def test_functions_files_and_lines_are_short(self) -> None:
        functions = self.nodes(ast.FunctionDef)
        self.assertGreater(len(functions), 30)
        self.assertEqual({node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions
                          if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES}, {})
        for name, source in self.sources.items():
            lines = source.splitlines()
            self.assertLessEqual(len(lines), FILE_LINES, name)
            self.assertEqual([line for line in lines if len(line) > 120 or line != line.rstrip()], [], name)

    def test_docstrings_are_sentences(self) -> None:
        for node in self.nodes((ast.FunctionDef, ast.ClassDef)):
            if ast.get_docstring(node):
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                self.assertRegex(first, r"(?s)^[^\s].*[.:)]$", node.name)

    def test_importing_it_has_no_side_effects(self) -> None:
        ran = subprocess.run([sys.executable, "-B", "-c", IMPORT, os.path.dirname(SCRIPT)], cwd=self.folder,
                             check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((ran.returncode, ran.stdout), (0, b""))


class Folders(DedupCase):
    """One JSON file of job statuses per commit."""

    def test_suffixes_are_folded_in_turn(self) -> None:
        for job, expected in (
                ("x", "x"), ("x_build", "x"), ("x_test", "x"), ("x-build", "x"), ("x-test", "x"), ("x_multigpu", "x"),
                ("x_NO_AVX_NO_AVX2", "x"), ("x_NO_AVX2", "x"), ("x_multigpu_test", "x"), ("x_NO_AVX2_test", "x"),
                ("x_NO_AVX_NO_AVX2-build", "x"), ("x_multigpu-test", "x"), ("x_NO_AVX2_multigpu_test", "x"),
                ("x_test_build", "x"), ("x_build_test", "x_build"), ("x_test_NO_AVX2", "x_test"),
                ("x_build_build", "x_build"), ("x_build-test", "x_build"), ("x-build_build", "x"),
                ("x-test_build", "x"), ("x_NO_AVX", "x_NO_AVX"), ("x_tests", "x_tests"), ("test", "test"),
                ("build_x", "build_x"), ("xbuild", "xbuild"), ("x_Test", "x_Test"),
                ("pr/py2-cuda_build", "pr/py2-cuda"), ("ci/circleci: a_b_test", "ci/circleci: a_b")):
            with self.subTest(job):
                self.assertEqual(ci_dedup_read.folded(job), expected)

    def test_a_job_passes_if_all_its_parts_do(self) -> None:
        for parts, passed in ((("success", "success"), "+"), (("success", "failure"), "-"),
                              (("failure", "success"), "-"), (("failure", "failure"), "-"), (("success",), "+")):
            with self.subTest(parts):
                names = ("x_build", "x_test")
                self.statuses("s/c1", dict(zip(names, parts)))
                self.assertEqual(told(self.history("s")), ["c1: x" + passed])

    def test_what_is_no_success_has_failed(self) -> None:
        for status in ("failure", "error", "pending", "canceled", "skipped", "", "Success", "SUCCESS", "successful",
                       "passed"):
            with self.subTest(status):
                self.statuses("s/c1.json", {"a": "success", "b": status})
                self.assertEqual(told(self.history("s")), ["c1: a+ b-"])

    def test_no_verdict_names_statuses_that_say_nothing(self) -> None:
        self.statuses("s/c1", {"a": "success", "b": "pending", "d": "canceled", "e": "failure"}, 1)
        self.statuses("s/c2", dict.fromkeys("abde", "success"), 2)
        for option, expected in ((None, "a+ b- d- e-"), ("pending", "a+ d- e-"), ("pending,canceled", "a+ e-"),
                                 ("canceled,failure,pending", "a+"), ("success", "b- d- e-")):
            with self.subTest(option):
                options = ["--no-verdict", option] if option else []
                self.assertEqual(told(self.history("s", "--jobs", "all", *options))[0], "c1: " + expected)

    def test_a_status_that_no_job_has_is_a_mistake(self) -> None:
        self.statuses("s/c1", {"a": "success", "b": "canceled"}, 1)
        self.assertEqual(self.refused("s", "--no-verdict", "cancelled"),
                         "--no-verdict cancelled: no job has such a status; there are canceled success")

    def test_statuses_that_count_as_failed_are_told(self) -> None:
        self.statuses("s/c1", {"a": "success", "b": "canceled", "c": "failure", "d": "failure"}, 1)
        self.statuses("s/c2", dict.fromkeys("abcd", "success"), 2)
        note = "statuses that count as failed: failure 2, canceled 1; --no-verdict makes some say nothing"
        self.assertEqual([*self.history("s").notes], [note])
        self.assertEqual([*self.history("s", "--no-verdict", "canceled").notes], [])

    def test_jobs_that_the_newest_commit_lacks_are_told(self) -> None:
        self.statuses("s/c1", dict.fromkeys("abc", "success"), 1)
        self.statuses("s/c2", dict.fromkeys("ad", "success"), 2)
        self.assertEqual([*self.history("s").notes],
                         ["left out: 2 that the newest commit, c2, lacks; --jobs all keeps them: b c"])
        self.assertEqual([*self.history("s", "--jobs", "all").notes], [])

    def test_files_as_old_as_each_other_are_told(self) -> None:
        for number in range(4):
            self.statuses(f"s/c{number}", {"a": "success"}, 7)
        (note,) = self.history("s").notes
        self.assertTrue(note.startswith("order: most files are as old as others"), note)
        self.assertEqual([*self.history("s", "--order", "name").notes], [])

    def test_a_part_without_verdict_is_none(self) -> None:
        self.statuses("s/c1", {"x_build": "success", "x_test": "canceled", "y_build": "canceled", "y_test": "failure"})
        self.assertEqual(told(self.history("s", "--no-verdict", "canceled")), ["c1: x+ y-"])

    def test_a_commit_without_a_verdict_is_none(self) -> None:
        self.statuses("s/c1", {"a": "success"}, 1)
        self.statuses("s/c2", {"a": "pending"}, 2)
        self.statuses("s/c3", {}, 3)
        self.assertEqual(told(self.history("s", "--no-verdict", "pending")), ["c1: a+"])
        self.assertRegex(self.refused("s", "--no-verdict", "pending,success"),
                         r"^s: no verdict of any job; a folder holds [^;]*$")

    def test_tests_alone_are_kept_apart(self) -> None:
        self.statuses("s/c1", {"x_build": "success", "x_test": "success", "x_multigpu_test": "failure",
                               "y-build": "failure", "y-test": "success", "y_NO_AVX2_test": "success",
                               "lint": "failure", "z_test": "failure", "a_multigpu": "success"})
        self.assertEqual(told(self.history("s", "--tests")), ["c1: x_multigpu_test- x_test+ z_test-"])
        self.assertEqual(told(self.history("s")), ["c1: a+ lint- x- y- z-"])

    def test_the_newest_file_says_which_jobs_there_are(self) -> None:
        self.statuses("s/b", {"a": "success", "gone": "failure"}, 2)
        self.statuses("s/c", {"gone": "success"}, 1)
        self.statuses("s/a", {"a": "failure", "new": "success"}, 3)
        for options, expected in (([], ["b: a+", "a: a- new+"]), (["--jobs", "newest"], ["b: a+", "a: a- new+"]),
                                  (["--jobs", "all"], ["c: gone+", "b: a+ gone-", "a: a- new+"]),
                                  (["--order", "time"], ["b: a+", "a: a- new+"]),
                                  (["--order", "name"], ["b: gone-", "c: gone+"]),
                                  (["--order", "name", "--jobs", "all"], ["a: a- new+", "b: a+ gone-", "c: gone+"])):
            with self.subTest(options):
                self.assertEqual(told(self.history("s", *options)), expected)

    def test_the_order_of_names_is_natural(self) -> None:
        for name in ("c10", "c9.json", "c100", "b2", "c9a", "c009b", "c"):
            self.statuses("s/" + name, {"a": "success"}, 5)
        expected = ["b2", "c", "c9", "c9a", "c009b", "c10", "c100"]
        for options in ([], ["--order", "name"]):    # the times are equal
            with self.subTest(options):
                self.assertEqual([commit.name for commit in self.history("s", *options).commits], expected)

    def test_fractions_of_a_second_count(self) -> None:
        for number, name in enumerate("badc"):
            self.statuses(name.join(["s/", ""]), {"j": "success"}, number / 8)
        self.assertEqual([commit.name for commit in self.history("s").commits], list("badc"))

    def test_several_folders_and_those_below_are_one_history(self) -> None:
        self.statuses("s/x/y/c3", {"a": "success"}, 3)
        self.statuses("s/c1", {"a": "failure"}, 1)
        self.statuses("more/c2.json", {"a": "success"}, 2)
        self.assertEqual(told(self.history("s more")), ["c1: a-", "c2: a+", "c3: a+"])
        self.assertEqual(told(self.history("more s")), ["c1: a-", "c2: a+", "c3: a+"])

    def test_other_files_are_left_alone(self) -> None:
        self.statuses("s/c1", {"a": "success"})
        for name in ("s/README.md", "s/c2.txt", "s/c3.json.gz", "s/.c4", "s/.c5.json", "s/c6.jsonl", "s/c7.JSON~"):
            self.write(name, "{")
        history = self.history("s")
        self.assertEqual((told(history), history.skipped), (["c1: a+"], []))

    def test_files_that_are_not_whole_are_skipped_and_told(self) -> None:
        self.statuses("s/good", {"a": "success"})
        for name, text in (("empty", ""), ("half.json", '{"a": {"status": "succ'), ("bytes", '{"a\udcff": {}}'),
                           ("text", "no JSON"), ("deep", "[" * 200_000), ("two", "{} {}")):
            self.write("s/" + name, text)
        history = self.history("s")
        names = ["bytes", "deep", "empty", "half.json", "text", "two"]
        self.assertEqual((told(history), history.skipped), (["good: a+"], [self.path("s", name) for name in names]))
        out = self.dedup("s", code=5)
        self.assertIn("\nskipped, not whole: 6: " + " ".join("s/" + name for name in names) + "\n", out)

    def test_no_file_that_can_be_read_is_a_mistake(self) -> None:
        os.mkdir(self.path("none"))
        said = ("no verdict of any job; a folder holds one JSON file per commit (of journals, name the files), "
                "JUnit files, or a CI service's JSON")
        self.assertEqual(self.refused("none"), "none: " + said)
        self.write("half/c1", '{"a"')
        self.assertEqual(self.refused("half none"), f"half, none: {said}; skipped half/c1")
        self.process("none", code=2, err=rf"ci_dedup\.py: error: none: {re.escape(said)}")

    def test_files_of_another_form_are_mistakes(self) -> None:
        for text in ("[]", "7", '"text"', "null", '[{"a": {"status": "success"}}]'):
            with self.subTest(text):
                self.write("s/c1.json", text)
                self.assertRegex(self.refused("s"), r"^s/c1\.json: not a JSON object .*; name a folder of such files$")

    def test_jobs_of_another_form_are_mistakes(self) -> None:
        for said in ('"success"', "null", "3", "[]", "{}", '{"state": "success"}',
                     '{"status": "success", "seconds": "x"}',
                     '{"status": "success", "seconds": -1}', '{"status": "success", "seconds": NaN}',
                     '{"status": "success", "seconds": Infinity}', '{"status": "success", "seconds": [1]}',
                     '{"status": "success", "seconds": 1, "gpus": "many"}',
                     '{"status": "failure", "seconds": 1, "gpus": -1}',
                     '{"status": "success", "seconds": 1, "gpus": {}}'):
            with self.subTest(said):
                self.write("s/c1", f'{{"good": {{"status": "success"}}, "bad one": {said}}}')
                self.assertRegex(self.refused("s"), r"^s/c1: job 'bad one': not .*; mend or remove the file$")
        self.dedup("s", code=2, err=r"ci_dedup\.py: error: s/c1: job 'bad one': not [^\n]+; mend or remove the file")

    def test_the_cost_is_seconds_times_gpus_of_all_parts(self) -> None:
        for build, test, expected in (
                ({"seconds": 10}, {"seconds": 5}, 15), ({"seconds": 10, "gpus": 2}, {"seconds": 5, "gpus": 4}, 40),
                ({"seconds": 10}, {}, 10), ({}, {"seconds": 5, "gpus": 3}, 15), ({}, {}, None),
                ({"seconds": 10, "gpus": 0}, {"seconds": 2.5}, 2.5), ({"seconds": "10", "gpus": "2"}, {}, 20),
                ({"seconds": None, "gpus": 8}, {"seconds": 7, "gpus": None}, 7), ({"gpus": 8}, {}, None),
                ({"seconds": 0}, {}, 0), ({"seconds": "", "gpus": ""}, {"seconds": 1, "gpus": ""}, 1)):
            with self.subTest(build=build, test=test):
                self.statuses("s/c1", {"x_build": {"status": "success", **build},
                                       "x_test": {"status": "failure", **test}})
                self.assertEqual(prices(self.history("s")), [{"x": expected}])


class Services(DedupCase):
    """Jobs as CI services print them, in a folder of files or in one file."""

    def test_github(self) -> None:
        """As `gh api --paginate` prints them: pages one behind the other. The order is that of time, not of names."""
        pages = [{"jobs": [github_job("a", "success", "late", 2), github_job("b", "failure", "late", 2)]},
                 {"jobs": [github_job("c", "cancelled", "late", 2), github_job("d", None, "late", 2)]}]
        self.write("runs/1.json", "".join(map(json.dumps, pages)))
        self.write("runs/2.json", json.dumps([{"jobs": [github_job("a", "timed_out", "early")]}]))     # --slurp
        for sources in ("runs", "runs/2.json runs/1.json"):
            history = self.history(sources)
            self.assertEqual(told(history), ["early: CI / a-", "late: CI / a+ CI / b-"])
        self.assertEqual(prices(history)[1], {"CI / a": 90.0, "CI / b": 90.0})
        self.assertEqual(history.commits[1].silent, {"CI / c", "CI / d"})

    def test_gitlab(self) -> None:
        jobs = [{"id": number, "name": name, "status": status, "duration": 12.5,
                 "started_at": "2026-03-01T10:00:00.123Z", "commit": {"id": "c1"},
                 "pipeline": {"id": 3, "sha": "c1"}, "created_at": "2026-03-01T09:00:00.000Z"}
                for number, (name, status) in enumerate((("a", "success"), ("b", "failed"), ("c", "skipped"),
                                                         ("d", "manual"), ("b", "success")))]
        self.write("runs/p.json", json.dumps(jobs))
        history = self.history("runs/p.json")
        self.assertEqual((told(history), prices(history)), (["c1: a+ b+"], [{"a": 12.5, "b": 12.5}]))

    def test_buildkite(self) -> None:
        def build(commit: str, state: str, minute: int) -> Dict[str, Any]:
            times = {"started_at": f"2026-03-01T10:{minute:02}:00Z", "finished_at": f"2026-03-01T10:{minute:02}:30Z"}
            return {"id": "x", "number": 1, "commit": commit, "created_at": "2026-03-01T09:00:00Z", "pipeline": {},
                    "jobs": [{"type": "script", "name": "a", "state": state, **times}, {"type": "waiter"},
                             {"type": "script", "name": "b", "state": "canceled", **times}]}
        self.write("builds.json", json.dumps([build("two", "timed_out", 20), build("one", "passed", 5)]))
        history = self.history("builds.json")
        self.assertEqual((told(history), prices(history)), (["one: a+", "two: a-"], [{"a": 30.0}] * 2))

    def test_what_is_none_of_them_is_told(self) -> None:
        for text in ('{"jobs": [{"name": "a"}]}', '{"jobs": [7]}', '[{"pipeline": {}, "id": 1}]',
                     '{"jobs": [{"name": "a", "head_sha": "c", "started_at": "yesterday"}]}'):
            with self.subTest(text):
                self.write("s/c1.json", text)
                self.assertRegex(self.refused("s"), r"^s/c1\.json: a job has no .* as GitHub, GitLab or Buildkite ")

    def test_no_jobs_yet(self) -> None:
        self.write("s/c1.json", json.dumps({"total_count": 0, "jobs": []}))
        self.assertRegex(self.refused("s"), "^s: no verdict of any job; a folder holds ")


class Junit(DedupCase):
    """Folders of JUnit files."""

    def xml(self, name: str, **cases: str) -> None:
        """A file with these test cases, each a second long: passed, or with one tag."""
        text = "".join(f'<testcase classname="t" name="{case}" time="1.0">{f"<{tag}/>" if tag else ""}</testcase>'
                       for case, tag in cases.items())
        path = self.write(name, f'<testsuites><testsuite name="s">{text}</testsuite></testsuites>')
        os.utime(path, (1_500_000_000 + sum(map(ord, name)),) * 2)

    def test_a_folder_for_each_run(self) -> None:
        self.xml("r/c1/one.xml", a="", b="failure")
        self.xml("r/c1/more/two.xml", a="error", b="skipped")
        self.xml("r/c2/one.xml", a="", b="skipped")
        self.xml("r/c2/skip.xml", a="skipped")
        history = self.history("r")
        self.assertEqual(told(history), ["c1: more/two- one-", "c2: one+"])
        self.assertEqual(prices(history), [{"one": 2.0, "more/two": 1.0}, {"one": 1.0}])
        self.assertEqual(history.commits[1].silent, {"skip"})
        self.assertEqual(told(self.history("r", "--cases"))[1], "c2: t.a+")

    def test_a_file_for_each_run(self) -> None:
        self.xml("r/c1.xml", a="", b="failure")
        self.xml("r/c2.xml", a="skipped", b="")
        self.assertEqual(told(self.history("r")), ["c1: t.a+ t.b-", "c2: t.b+"])

    def test_a_pattern_gives_the_commit(self) -> None:
        self.xml("r/run-7/sha-abc/x.xml", a="")
        self.xml("r/run-8/sha-abc/x.xml", a="failure")
        self.xml("r/run-9/sha-def/x.xml", a="")
        self.assertEqual(told(self.history("r", "--commit", "sha-([a-f]+)")), ["abc: x-", "def: x+"])
        self.assertEqual(told(self.history("r", "--commit", "run-.")), ["run-7: x+", "run-8: x-", "run-9: x+"])
        self.assertRegex(self.refused("r", "--commit", "nothing"), r"^r/run-./sha-.../x\.xml: --commit nothing finds ")
        self.dedup("r", "--commit", "(", code=2, err=r"usage: .*argument --commit: '\(' is not a regular expression .*")

    def test_a_torn_file_is_skipped_and_told(self) -> None:
        self.xml("r/c1/one.xml", a="")
        self.write("r/c1/two.xml", "<testsuites><testcase")
        history = self.history("r")
        self.assertEqual((told(history), history.skipped), (["c1: one+"], [self.path("r/c1/two.xml")]))


class Journals(DedupCase):
    """Journals of run_tests.py."""

    def test_each_run_is_a_commit_by_itself_unless_it_names_one(self) -> None:
        self.journal(started("r1"), ended("a", run="r1"), started("r2", "C"), ended("a", "failed", run="r2"),
                     started("r3", "C"), ended("b", run="r3"), started("r4", ""), ended("b", "failed", run="r4"))
        self.assertEqual(told(self.history("j.jsonl")), ["r1: a+", "C: a- b+", "r4: b-"])

    def test_the_last_run_of_a_commit_counts(self) -> None:
        self.journal(started("r1", "C"), ended("a", "failed", "r1", 7), ended("b", "passed", "r1"),
                     started("r2", "C"), ended("a", "passed", "r2", 9), ended("b", "timeout", "r2"))
        history = self.history("j.jsonl")
        self.assertEqual((told(history), prices(history)), (["C: a+ b-"], [{"a": 9, "b": 1}]))

    def test_outcomes(self) -> None:
        verdicts = {"passed": "+", "flaky": "+", "failed": "-", "crashed": "-", "timeout": "-", "blocked": "",
                    "unrunnable": "", "skipped": "", "failed as known": "", "deferred": "",
                    "interrupted": "", "not run": ""}
        self.assertEqual(set(verdicts), {outcome.value for outcome in run_tests.Outcome})
        for outcome, verdict in verdicts.items():
            with self.subTest(outcome):
                self.journal(started("r"), ended("z"), ended("a", outcome))
                self.assertEqual(told(self.history("j.jsonl")), [f"r: a{verdict} z+" if verdict else "r: z+"])

    def test_the_last_attempt_counts(self) -> None:
        for outcomes, expected in (("failed flaky", "+"), ("failed failed", "-"), ("crashed timeout", "-"),
                                   ("failed interrupted", "-"), ("passed not_run", "+")):
            with self.subTest(outcomes):
                self.journal(started("r"), *(ended("a", word.replace("_", " ")) for word in outcomes.split()))
                self.assertEqual(told(self.history("j.jsonl")), ["r: a" + expected])

    def test_the_cost_is_seconds_times_need(self) -> None:
        for need, expected in ((1, 6), (2, 12), (0.5, 3), (0, 0), ("all", 18), (None, 6)):
            with self.subTest(need):
                self.journal(started("r", gpus="012"), ended("a", seconds=6.0, need=need))
                self.assertEqual(prices(self.history("j.jsonl")), [{"a": expected}])

    def test_all_gpus_are_those_of_the_run(self) -> None:
        self.journal(started("r1", gpus="01234567"), ended("a", run="r1", seconds=2, need="all"),
                     started("r2", gpus="0"), ended("a", run="r2", seconds=2, need="all"),
                     ended("a", run="torn", seconds=2, need="all"))
        self.assertEqual(prices(self.history("j.jsonl")), [{"a": 16}, {"a": 2}, {"a": 2}])

    def test_torn_lines_cost_themselves_alone(self) -> None:
        for line in ('{"event": "test_end", "run": "r", "tes\n', "{\n", "null\n", "7\n", '"text"\n', "[]\n", "{}\n",
                     "\udcff\udcfe\n", "\0\n", '{"event": "test_end"}\n', "9" * 5000 + "\n",
                     "[" * 200_000 + "\n", '{"event":' * 200_000 + "\n",
                     '{"event": "run_start", "run": "r", "time": 1, "gpus": 3}\n', "half a line",
                     json.dumps({**ended("a"), "outcome": ["passed"]}) + "\n", json.dumps(ended(["a"])) + "\n",
                     json.dumps(ended("a", seconds="x")) + "\n", json.dumps(ended("a", seconds=-1)) + "\n",
                     json.dumps(ended("a", need="some")) + "\n", json.dumps(ended("a", run=["r"])) + "\n"):
            with self.subTest(line[:70]):
                path = self.journal(started("r"), ended("a", "failed"), line)
                history = self.history("j.jsonl")
                self.assertEqual((told(history), history.skipped), (["r: a-"], [f"{path} (1 line)"]))

    def test_events_of_other_kinds_are_passed_over(self) -> None:
        for line in ('{"event": null}\n', '{"event": {}, "run": [], "time": 1}\n', '{"event": "note", "run": "r"}\n'):
            with self.subTest(line):
                self.journal(started("r"), ended("a", "failed"), line)
                history = self.history("j.jsonl")
                self.assertEqual((told(history), history.skipped), (["r: a-"], []))

    def test_an_event_behind_a_torn_line_is_read(self) -> None:
        """A run that was killed leaves half a line, to which the next one appends."""
        self.journal('{"event": "test_end", "run": "r0", "ti', started("r"), '{"ev', ended("a", "failed"),
                     '\x00\x00{"event": "test_', ended("b"), "x\n", "\n", "  \n", ended("c"))
        history = self.history("j.jsonl")
        self.assertEqual((told(history), len(history.skipped)), (["r: a- b+ c+"], 1))
        self.assertRegex(history.skipped[0], r"/j\.jsonl \(1 line\)$")

    def test_labels_and_commits_may_hold_anything(self) -> None:
        for label in ('{"event": "x"}', 'a {"event"', "ä ö", "\udcff", "a,b", "#", "\u2028"):
            with self.subTest(ascii(label)):
                self.journal(started("r", label), ended(label, "failed"))
                commit, = self.history("j.jsonl").commits
                self.assertEqual((commit.name, list(commit.verdicts)), (label, [label]))

    def test_several_journals_are_one_history_in_order_of_time(self) -> None:
        self.journal(started("r3", time=30), ended("a", run="r3", time=31), started("r1", "C", time=10),
                     ended("a", "failed", "r1", time=11), name="one.jsonl")
        self.journal(started("r2", time=20), ended("a", run="r2", time=21), started("r4", "C", time=40),
                     ended("b", "failed", "r4", time=41), name="two.jsonl")
        for sources in ("one.jsonl two.jsonl", "one.jsonl ./two.jsonl"):
            with self.subTest(sources):
                self.assertEqual(told(self.history(sources)), ["C: a- b-", "r2: a+", "r3: a+"])

    def test_jobs_that_are_gone_stay_unless_asked(self) -> None:
        self.journal(started("r1"), ended("a", run="r1"), ended("b", run="r1"), started("r2", time=2),
                     ended("a", run="r2", time=2))
        self.assertEqual(told(self.history("j.jsonl")), ["r1: a+ b+", "r2: a+"])
        self.assertEqual(told(self.history("j.jsonl", "--jobs", "newest")), ["r1: a+", "r2: a+"])

    def test_a_journal_must_say_something(self) -> None:
        self.journal(started("r"), ended("a", "deferred"), "torn\n")
        self.assertRegex(self.refused("j.jsonl"), r"^j\.jsonl: no verdict of any job; a journal holds the events of "
                         r"run_tests\.py, one a line; skipped j\.jsonl \(1 line\)$")

    def test_options_of_folders_are_refused(self) -> None:
        """For tables, too."""
        self.journal(started("r"), ended("a"))
        self.write("h.csv", table_of("1: a+"))
        for options in (["--tests"], ["--no-verdict", "pending"], ["--order", "name"], ["--order", "time"]):
            for source in ("j.jsonl", "h.csv"):
                with self.subTest(options, source=source):
                    self.assertEqual(self.refused(source, *options), "--tests, --no-verdict and --order are for "
                                     "folders of job statuses; leave them out")


class RealJournals(DedupCase):
    """Journals that run_tests.py has written in the test's folder."""

    def run_at(self, commit: str, text: str, *arguments: str) -> Ran:
        return self.run_list(text, *arguments, env={**NO_COMMIT, "GITHUB_SHA": commit})

    def test_two_runs_of_one_commit(self) -> None:
        text = ('true  #: label="all good"\ntest -e mended  #: label=broken\ntrue  #: label=later after=broken\n'
                "test -e once || { touch once; false; }  #: label=shaky retries=1\n"
                f"'{sys.executable}' -c pass  #: label=wide gpus=all\n")
        self.assertEqual(self.run_at("abc", text).code, 1)
        history = self.history("logs/run_tests.jsonl")
        self.assertEqual((told(history), history.waits),
                         (["abc: all good+ broken- shaky+ wide+"], {"later": {"broken"}}))
        self.write("mended", "")
        ran = self.run_at("abc", text)
        self.assertEqual(ran.code, 0, ran.text)
        history = self.history("logs/run_tests.jsonl")
        self.assertEqual((told(history), history.skipped), (["abc: all good+ broken+ later+ shaky+ wide+"], []))
        last = {record["label"]: record["seconds"] for record in ran.journal("test_end")}
        self.assertGreater(last["wide"], 0)
        self.assertEqual(prices(history), [{**last, "wide": 2 * last["wide"]}])

    def test_runs_without_a_commit_and_one_with_a_torn_end(self) -> None:
        for _ in range(2):
            ran = self.run_list("false  #: label=a\n", env=NO_COMMIT)
            with open(self.path("logs", "run_tests.jsonl"), "ab") as file:
                file.write(b'{"event": "test_st')
        runs = list(dict.fromkeys(re.findall(r'"run": "([^"]+)"', ran.read("logs", "run_tests.jsonl"))))
        history = self.history("logs/run_tests.jsonl")
        self.assertEqual(told(history), [f"{run}: a-" for run in runs])
        self.assertEqual((len(runs), len(history.skipped)), (2, 1))

    def test_the_chosen_labels_are_run_by_only(self) -> None:
        text = ('test ! -e down  #: label="needs the net"\ntest ! -e down  #: label="prüft das Netz"\n'
                'test ! -e wet  #: label="roof & \'walls\', dry"\ntrue  #: label=#calm\n')
        for commit, file in (("c1", "sun"), ("c2", "down"), ("c3", "wet")):
            self.write(file, "")
            self.run_at(commit, text)
            os.unlink(self.path(file))
        self.dedup("logs/run_tests.jsonl", "--catch", "99", "--keep", "pr*", "--write", "reduced.txt")
        chosen = ["prüft das Netz", "roof & 'walls', dry"]
        self.assertEqual([line for line in self.read("reduced.txt").splitlines() if not line.startswith("# ")], chosen)
        ran = self.run_at("c4", text, "--only", "reduced.txt", "--log-dir", "few")
        self.assertEqual((ran.code, ran.err), (0, ""))
        self.assertEqual(sorted(record["label"] for record in ran.journal("test_end", "few/run_tests.jsonl")
                                if record["outcome"] == "passed"), chosen)
        self.assertEqual(ran.journal("run_end", "few/run_tests.jsonl")[0]["outcomes"], {"passed": 2, "deferred": 2})
        ran = self.run_at("c5", text + "true  #: label=added\n", "--only", "reduced.txt", "--log-dir", "more")
        self.assertEqual(ran.journal("run_end", "more/run_tests.jsonl")[0]["outcomes"], {"passed": 3, "deferred": 2})


class Tables(DedupCase):
    """CSV files with a header."""

    def test_columns_may_be_in_any_order_and_more(self) -> None:
        for text in ("commit,job,ok,seconds,gpus\nc1,a,1,2,3\nc1,b,0,5,\n",
                     "gpus,ok,seconds,who,job,commit\n3,1,2,me,a,c1\n,0,5,you,b,c1\n",
                     "\ufeffcommit,job,ok,seconds,gpus\r\nc1,a,1,2,3\r\nc1,b,0,5,\r\n",
                     '"commit","job","ok","seconds","gpus"\n\n"c1","a","1","2","3"\n\n\n"c1","b","0","5",""\n\n',
                     "commit,job,ok,seconds,gpus\nc1,a,1,2,3\nc1,b,0,5"):
            with self.subTest(text):
                self.write("h.csv", text)
                history = self.history("h.csv")
                self.assertEqual((told(history), prices(history), history.skipped),
                                 (["c1: a+ b-"], [{"a": 6, "b": 5}], []))

    def test_seconds_and_gpus_may_be_unknown(self) -> None:
        self.write("h.csv", "commit,job,ok\nc1,a,1\nc1,b,0\n")
        self.assertEqual(prices(self.history("h.csv")), [{"a": None, "b": None}])
        self.write("h.csv", "commit,job,ok,gpus,seconds\nc1,a,1,2\nc1,b,0,2,\nc1,c,1\n")
        self.assertEqual(prices(self.history("h.csv")), [{"a": None, "b": None, "c": None}])

    def test_semicolons_part_columns_too(self) -> None:
        self.write("h.csv", "job;commit;ok;seconds\na,x;c1;1.0;2,5\nb;c1;0.0;\n")
        history = self.history("h.csv")
        self.assertEqual((told(history), prices(history)), (["c1: a,x+ b-"], [{"a,x": 2.5, "b": None}]))

    def test_missing_columns_are_named(self) -> None:
        for header, lacking in (("", "commit, job, ok"), ("job,ok", "commit"), ("commit,ok,seconds", "job"),
                                ("commit,job,status", "ok"), ("Commit,job,ok", "commit"),
                                ("c1,a,1", "commit, job, ok")):
            with self.subTest(header):
                self.write("h.csv", header + "\nc1,a,1\n")
                self.assertRegex(self.refused("h.csv"), rf"^h\.csv:1: no column {lacking} in '.*'; the first ")
        self.write("none.csv", "")
        self.assertRegex(self.refused("none.csv"), r"^none\.csv:1: no column commit, job, ok in '';")
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: h\.csv:1: no column commit, job, ok in [^\n]+")

    def test_words_for_ok(self) -> None:
        for word, sign in (("1", "+"), ("true", "+"), ("True", "+"), (" yes ", "+"), ("OK", "+"), ("success", "+"),
                           ("passed", "+"), ("flaky", "+"), ("0", "-"), ("FALSE", "-"), ("no", "-"), ("failure", "-"),
                           ("failed", "-"), ("crashed", "-"), ("timeout", "-"), ("error", "-"), ("", ""), ("  ", ""),
                           ("1.0", "+"), ("0.0", "-"),
                           ("skipped", ""), ("Cancelled", ""), ("nan", "")):
            with self.subTest(word):
                self.write("h.csv", f"commit,job,ok\nc1,b,1\nc1,a,{word}\nc2,b,1\n")
                self.assertEqual(told(self.history("h.csv"))[0], f"c1: a{sign} b+" if sign else "c1: b+")

    def test_mistakes_above_the_last_row_are_told_with_their_line(self) -> None:
        for row, why in (("c2,a,maybe,1,1", "ok is 'maybe' and not .*, or empty"), ("c2,a,2,1,1", "ok is '2' .*"),
                         ("c2,a,1,x,1", "'x' seconds or '1' GPUs .*"), ("c2,a,1,-1,1", "'-1' seconds or .*"),
                         ("c2,a,1,nan,1", "'nan' seconds .*"),
                         ("c2,a,1,inf,1", "'inf' seconds .*"), ("c2,a,1,1,few", ".*'few' GPUs .*"),
                         ("c2,a,1,1,-2", "'1' seconds or '-2' GPUs are no .*"), ("c2,a,1,-1,-2", "'-1' seconds .*"),
                         ("c2,a", "commit, job or ok is missing"), ("c2", "commit, job or ok is missing"),
                         (",a,1", "commit, job or ok is missing"), ("c2,,1", "commit, job or ok is missing")):
            with self.subTest(row):
                self.write("h.csv", f"commit,job,ok,seconds,gpus\nc1,a,1,1,1\n\n{row}\nc3,a,1,1,1\n")
                self.assertRegex(self.refused("h.csv"), rf"^h\.csv:4: {why}; mend the row$")
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: h\.csv:4: commit, job or ok is missing; mend the row")

    def test_a_torn_last_row_is_skipped_and_told(self) -> None:
        whole = "commit,job,ok,seconds,gpus\nc1,a,0,1,1\nc1,b,1,1,1\n"
        for row in ("c2", "c2,a", "c2,", "c2,a,fals", "c2,a,1,1e", 'c2,"a', "c2,a,1,1,-\n"):
            with self.subTest(row):
                path = self.write("h.csv", whole + row)
                history = self.history("h.csv")
                self.assertEqual(told(history), ["c1: a- b+"])
                self.assertEqual(len(history.skipped), 1)
                self.assertTrue(history.skipped[0].startswith(path + ":4: "), history.skipped)
        out = self.dedup("h.csv", "--holdout", "0", code=5)         # a never passed, b never failed
        self.assertRegex(out, r"\nskipped, not whole: 1: h\.csv:4: ")

    def test_empty_ok_is_no_verdict(self) -> None:
        self.write("h.csv", "commit,job,ok\nc1,a,\nc2,a,0\nc2,b,\nc2,a,\n")
        history = self.history("h.csv")
        self.assertEqual((told(history), history.skipped), (["c2: a-"], []))
        self.write("h.csv", "commit,job,ok\nc1,a,\n")
        self.assertRegex(self.refused("h.csv"), r"^h\.csv: no verdict of any job; a table holds [^;]*$")

    def test_rows_of_one_commit_and_job_are_its_parts(self) -> None:
        self.write("h.csv", "commit,job,ok,seconds,gpus\nc1,a,1,5,\nc2,a,1,1,1\nc1,a,0,7,2\nc1,a,1,,\n")
        self.write("more.csv", "commit,job,ok,seconds\nc3,b,1,1\nc2,a,1,10\nc1,b,1,\n")
        self.assertEqual(told(self.history("h.csv")), ["c1: a-", "c2: a+"])
        self.assertEqual(prices(self.history("h.csv")), [{"a": 19}, {"a": 1}])
        history = self.history("h.csv more.csv")
        self.assertEqual(told(history), ["c1: a- b+", "c2: a+", "c3: b+"])
        self.assertEqual(prices(history), [{"a": 19, "b": None}, {"a": 11}, {"b": 1}])

    def test_equal_rows_are_parts_too(self) -> None:
        self.write("h.csv", "commit,job,ok,seconds\nc1,a,1,5\nc1,a,1,5\n")
        self.assertEqual(prices(self.history("h.csv")), [{"a": 10}])

    def test_the_order_is_that_of_the_rows(self) -> None:
        self.write("h.csv", table_of("c9: a+", "c10: a-", "c1: a+"))
        self.write("g.csv", table_of("c0: a-", "c10: b+"))
        self.assertEqual(told(self.history("h.csv g.csv")), ["c9: a+", "c10: a- b+", "c1: a+", "c0: a-"])
        self.assertEqual(told(self.history("g.csv h.csv")), ["c0: a-", "c10: a- b+", "c9: a+", "c1: a+"])

    def test_names_may_hold_anything(self) -> None:
        self.write("h.csv", 'commit,job,ok\n"c,1","a ""b"", \'c\'",0\n"c\n2",ä ö,1\n')
        self.assertEqual(told(self.history("h.csv")), ["c,1: a \"b\", 'c'-", "c\n2: ä ö+"])

    def test_what_is_no_table(self) -> None:
        self.write("h.csv", "commit,job,ok\nc1," + "x" * 200_000 + ",1\nc2,a,1\n")
        self.assertRegex(self.refused("h.csv"), r"^h\.csv: not a CSV file \(.*; name journals, CSV files or ")

    def test_bytes_that_are_not_utf_8_are_a_name_too(self) -> None:
        self.write("h.csv", "commit,job,ok\nc1,\udcff,1\nc2,a,1\n")
        self.assertEqual(told(self.history("h.csv")), ["c1: \udcff+", "c2: a+"])


class Costs(unittest.TestCase):
    """What a job costs, from what it has cost."""

    def costs(self, **known: Sequence[Optional[float]]) -> Dict[str, float]:
        rows = itertools.zip_longest(*known.values(), fillvalue=None)
        return History([Commit(str(number), {job: Verdict(True, cost) for job, cost in zip(known, row)})
                        for number, row in enumerate(rows)], []).costs()

    def test_the_median(self) -> None:
        """Of what is known; what is not costs the median of what others cost, if any of them costs something."""
        self.assertEqual(self.costs(a=[1, 2, 90], b=[4, 1], c=[7], d=[5, None, 3]), {"a": 2, "b": 2.5, "c": 7, "d": 4})
        self.assertEqual(self.costs(a=[1], b=[None], c=[9], d=[2, 4]), {"a": 1, "b": 3, "c": 9, "d": 3})
        self.assertEqual(self.costs(a=[0], b=[None], c=[0], d=[4]), {"a": 0, "b": 0, "c": 0, "d": 4})
        self.assertEqual(self.costs(a=[None], b=[None]), {})
        self.assertEqual(self.costs(a=[0], b=[None], c=[0, 0, 5]), {})


def pearson(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's coefficient from its definition; nan where either is constant."""
    means = [math.fsum(values) / len(values) if values else 0.0 for values in (one, other)]
    spreads = [math.fsum((value - mean) ** 2 for value in values) for values, mean in zip((one, other), means)]
    if len(set(one)) < 2 or len(set(other)) < 2:
        return math.nan
    return math.fsum((x - means[0]) * (y - means[1]) for x, y in zip(one, other)) / math.sqrt(spreads[0] * spreads[1])


class Correlations(unittest.TestCase):
    """Phi of each pair of jobs."""

    def phi(self, *lines: str) -> Dict[str, float]:
        """Phi by pair of jobs with names of one letter, both ways; it has to be the same."""
        commits = commits_of(*lines)
        jobs = History(commits, []).jobs()
        matrix = ci_dedup_cluster.correlations(commits, jobs)
        values = {one + other: value for one, row in zip(jobs, matrix) for other, value in zip(jobs, row)}
        for pair, value in values.items():
            self.assertEqual(repr(value), repr(values[pair[::-1]]), pair)
        return values

    def check(self, expected: Mapping[str, float], *lines: str) -> None:
        found = self.phi(*lines)
        for pair, value in expected.items():
            with self.subTest(pair):
                if math.isnan(value):
                    self.assertTrue(math.isnan(found[pair]), found[pair])
                else:
                    self.assertAlmostEqual(found[pair], value, places=12)

    def test_by_hand(self) -> None:
        self.check({"aa": 1, "ab": 0, "ac": -1, "ad": 2 / math.sqrt(12), "bd": 2 / math.sqrt(12), "bc": 0,
                    "cd": -2 / math.sqrt(12), "dd": 1, "ak": math.nan, "kk": math.nan, "kl": math.nan, "ll": math.nan},
                   "1: a+ b+ c- d+ k+ l-", "2: a+ b- c- d+ k+ l-", "3: a- b+ c+ d+ k+ l-", "4: a- b- c+ d- k+ l-")

    def test_only_commits_of_both_count(self) -> None:
        """Of a and b these are 1, 2, 3 and 5: a ++-+, b +-- +, so 4·2 − 3·2 over √(3·1·2·2)."""
        self.check({"ab": 2 / math.sqrt(12), "aa": 1, "bb": 1}, "1: a+ b+", "2: a+ b-", "3: a- b-", "4: a-", "5: a+ b+",
                   "6: b-", "7: c+")

    def test_what_cannot_be_told(self) -> None:
        """Both have varied, but not where both said something: on no common commit, on one, or one was constant."""
        self.check({"aa": 1, "bb": 1, "ab": math.nan}, "1: a+", "2: a-", "3: b+", "4: b-")
        self.check({"aa": 1, "bb": 1, "ab": math.nan}, "1: a+", "2: a- b-", "3: b+")
        self.check({"aa": 1, "bb": 1, "ab": math.nan}, "1: a+ b+", "2: a- b+", "3: b-")
        self.check({"aa": 1, "bb": 1, "ab": 1}, "1: a+ b+", "2: a- b-", "3: b-")

    def test_as_by_definition_on_random_verdicts(self) -> None:
        rng = random.Random(20190521)
        for number in range(40):
            jobs = "abcdefgh"[:rng.randint(2, 8)]
            lines = [f"{commit}: " + " ".join(job + rng.choice("++-") for job in jobs if rng.random() < 0.8)
                     for commit in range(rng.randint(1, 80))]
            commits, found = commits_of(*lines), self.phi(*lines)
            for one, other in itertools.product(History(commits, []).jobs(), repeat=2):
                both = [(commit.verdicts[one].passed, commit.verdicts[other].passed) for commit in commits
                        if one in commit.verdicts and other in commit.verdicts]
                expected = pearson([float(x) for x, _ in both], [float(y) for _, y in both])
                with self.subTest(number=number, one=one, other=other):
                    self.assertEqual(math.isnan(found[one + other]), math.isnan(expected))
                    if not math.isnan(expected):
                        self.assertAlmostEqual(found[one + other], expected, places=12)

    def test_many_commits_are_exact(self) -> None:
        lines = [f"{number}: a{'+-'[number % 7 == 0]} b{'-+'[number % 7 == 0]}" for number in range(5000)]
        self.assertEqual(self.phi(*lines), {"aa": 1.0, "bb": 1.0, "ab": -1.0, "ba": -1.0})

    def test_without_bit_count(self) -> None:
        """Python 3.8 and 3.9 count bits in another way."""
        lines = ("1: a+ b+", "2: a+ b-", "3: a- b-", "4: a- b-")
        expected = self.phi(*lines)
        with unittest.mock.patch.object(ci_dedup_cluster, "getattr", lambda *_: None, create=True):
            self.assertEqual(self.phi(*lines), expected)


class Joined(NamedTuple):
    """A cluster of the naive way: its leaves, and the height at which it was made."""

    leaves: FrozenSet[int]
    height: float


def naive_linkage(distances: Sequence[Sequence[float]]) -> List[Joined]:
    """Complete linkage as its definition has it: join the two nearest, again and again."""
    clusters = [frozenset([number]) for number in range(len(distances))]
    joined = []
    while len(clusters) > 1:
        height, one, other = min(
            ((max(distances[x][y] for x in one for y in other), one, other)
             for one, other in itertools.combinations(clusters, 2)), key=lambda entry: entry[0])
        clusters = [cluster for cluster in clusters if cluster not in (one, other)] + [one | other]
        joined.append(Joined(one | other, height))
    return joined


def naive_groups(distances: Sequence[Sequence[float]], cut: float) -> Set[FrozenSet[int]]:
    """The clusters of the naive way at a cut."""
    groups = {frozenset([number]) for number in range(len(distances))}
    for leaves, height in naive_linkage(distances):
        if height <= cut:
            groups = {group for group in groups if not group <= leaves} | {leaves}
    return groups


def leaves_of(tree: Sequence[Merge], node: int) -> FrozenSet[int]:
    """The leaves below a node, by the tree's own numbers."""
    if node <= len(tree):
        return frozenset([node])
    merge = tree[node - len(tree) - 1]
    return leaves_of(tree, merge.left) | leaves_of(tree, merge.right)


def random_distances(rng: random.Random, count: int) -> List[List[float]]:
    """Distances without ties."""
    apart = [[0.0] * count for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        apart[one][other] = apart[other][one] = rng.random()
    return apart


class Linkage(unittest.TestCase):
    """The tree of complete linkage."""

    def on_a_line(self, *points: float) -> List[Merge]:
        return ci_dedup_cluster.linkage(ci_dedup_cluster.distances_of([[point] for point in points]))

    def test_by_hand(self) -> None:
        for points, expected in (
                ((0, 1, 3, 7), [(0, 1, 1), (2, 4, 3), (3, 5, 7)]), ((0, 2, 3, 7), [(1, 2, 1), (0, 4, 3), (3, 5, 7)]),
                ((0, 10, 1, 12), [(0, 2, 1), (1, 3, 2), (4, 5, 12)]), ((5,), []), ((), []), ((4, 4), [(0, 1, 0)]),
                ((9, 2), [(0, 1, 7)]), ((0, 4, 9, 15.5), [(0, 1, 4), (2, 3, 6.5), (4, 5, 15.5)])):
            with self.subTest(points):
                self.assertEqual(self.on_a_line(*points), expected)

    def test_distances_are_euclidean(self) -> None:
        self.assertEqual(ci_dedup_cluster.distances_of([[0, 0], [3, 4], [3, 0]]), [[0, 5, 3], [5, 0, 4], [3, 4, 0]])
        self.assertEqual(ci_dedup_cluster.distances_of([]), [])

    def test_rounding_breaks_no_tie(self) -> None:
        """0.1 + 0.2 is not 0.3; what differs by less than twelve digits is equal."""
        self.assertEqual(ci_dedup_cluster.distances_of([[0.0], [0.1 + 0.2], [0.3]])[0][1:], [0.3, 0.3])
        self.assertNotEqual(*ci_dedup_cluster.distances_of([[0.0], [0.3], [0.3000000001]])[0][1:])

    def test_as_by_definition_on_random_distances(self) -> None:
        rng = random.Random(1983)
        for number in range(120):
            distances = random_distances(rng, rng.randint(1, 24))
            before = [row[:] for row in distances]
            tree, expected = ci_dedup_cluster.linkage(distances), naive_linkage(distances)
            with self.subTest(number=number, leaves=len(distances)):
                self.assertEqual(distances, before, "the argument has changed")
                self.assertEqual([Joined(leaves_of(tree, len(distances) + place), merge.height)
                                  for place, merge in enumerate(tree)], expected)
                self.assertTrue(all(merge.left < merge.right < len(distances) + place
                                    for place, merge in enumerate(tree)))

    def test_ties_give_a_tree_of_all_leaves(self) -> None:
        rng = random.Random(7)
        for number in range(60):
            count = rng.randint(2, 16)
            distances = ci_dedup_cluster.distances_of([[rng.randint(0, 3), rng.randint(0, 3)] for _ in range(count)])
            tree = ci_dedup_cluster.linkage(distances)
            with self.subTest(number):
                self.assertEqual(leaves_of(tree, 2 * len(tree)), frozenset(range(count)))
                self.assertEqual([merge.height for merge in tree], sorted(merge.height for merge in tree))
                for place, merge in enumerate(tree):
                    self.assertEqual(merge.height, max(distances[one][other] for one in leaves_of(tree, merge.left)
                                                       for other in leaves_of(tree, merge.right)), place)

    def test_groups_at_a_cut(self) -> None:
        tree = [Merge(1, 2, 1.0), Merge(0, 4, 3.0), Merge(3, 5, 7.0)]
        for cut, expected in ((7.0, [[3, 0, 1, 2]]), (6.9, [[3], [0, 1, 2]]), (3.0, [[3], [0, 1, 2]]),
                              (2.9, [[3], [0], [1, 2]]), (1.0, [[3], [0], [1, 2]]), (0.9, [[3], [0], [1], [2]])):
            with self.subTest(cut):
                self.assertEqual(ci_dedup_cluster.groups_at(tree, cut), expected)
        self.assertEqual(ci_dedup_cluster.groups_at([], 0.0), [[0]])

    def test_cuts_as_by_definition(self) -> None:
        rng = random.Random(11)
        for number in range(60):
            distances = random_distances(rng, rng.randint(1, 20))
            tree, cut = ci_dedup_cluster.linkage(distances), rng.random()
            groups = ci_dedup_cluster.groups_at(tree, cut)
            with self.subTest(number):
                self.assertEqual(set(map(frozenset, groups)), naive_groups(distances, cut))
                self.assertEqual(sum(map(len, groups)), len(distances))

    def test_a_deep_tree_is_no_recursion(self) -> None:
        count = 3000
        tree = [Merge(0, 1, 1.0)] + [Merge(number, count + number - 2, float(number)) for number in range(2, count)]
        self.assertEqual(len(ci_dedup_cluster.groups_at(tree, 0.0)), count)


class Clustering(unittest.TestCase):
    """Jobs by what they tell."""

    def cluster(self, *lines: str) -> ci_dedup_cluster.Clusters:
        return ci_dedup_cluster.cluster(History(commits_of(*lines), []))

    def test_by_hand(self) -> None:
        """a and c are alike; b is their opposite, so as far as can be; k and l never changed."""
        found = self.cluster("1: a+ b- c+ k+ l-", "2: a- b+ c- k+ l-", "3: a- b+ c- k+ l-")
        self.assertEqual(found[:3], (["b", "a", "c", "k", "l"], [["b"], ["a", "c"]], ["k", "l"]))
        at = {job: number for number, job in enumerate(found.jobs)}
        self.assertEqual([found.matrix[at["a"]][at[other]] for other in "abc"], [1, -1, 1])
        self.assertTrue(all(math.isnan(found.matrix[at[one]][at[other]]) for one in "kl" for other in at))

    def test_the_rows_of_the_matrix_are_in_the_order_of_jobs(self) -> None:
        rng = random.Random(3)
        commits = commits_of(*(f"{number}: " + " ".join(job + rng.choice("+-") for job in "abcdefgh")
                               for number in range(30)))
        found = ci_dedup_cluster.cluster(History(commits, []))
        self.assertEqual(sorted(found.jobs), list("abcdefgh"))
        self.assertEqual(found.matrix, ci_dedup_cluster.correlations(commits, found.jobs))

    def test_where_few_varied(self) -> None:
        for lines, expected in ((("1: a+", "2: a-"), (["a"], [["a"]], [])), (("1: a+", "2: a+"), (["a"], [], ["a"])),
                                (("1: a+ b+ c-", "2: a+ b- c-"), (["b", "a", "c"], [["b"]], ["a", "c"])),
                                (("1: b+ a-", "2: a- c+"), (["a", "b", "c"], [], ["a", "b", "c"]))):
            self.assertEqual(self.cluster(*lines)[:3], expected)
        self.assertEqual(self.cluster("1: a+", "2: a-").matrix, [[1.0]])

    def test_all_alike_are_one_cluster(self) -> None:
        found = self.cluster("1: a+ b+ c+ d+", "2: a- b- c- d-", "3: a+ b+ c+ d+")
        self.assertEqual((len(found.groups), sorted(found.groups[0]), found.constant), (1, list("abcd"), []))

    def test_what_cannot_be_told_counts_as_nothing_in_common(self) -> None:
        """a and b never met; both go with c, so that only their own two values keep them apart."""
        found = self.cluster("1: a+ c+", "2: a- c-", "3: b+ c+", "4: b- c-")
        self.assertEqual(sorted(map(sorted, found.groups)), [["a"], ["b"], ["c"]])
        at = {job: number for number, job in enumerate(found.jobs)}
        self.assertTrue(math.isnan(found.matrix[at["a"]][at["b"]]))
        self.assertEqual(found.matrix[at["a"]][at["c"]], 1.0)

    def test_the_cut_is_a_tenth_of_the_largest_distance(self) -> None:
        """Noise of a percent leaves jobs together, noise of a fifth does not."""
        self.assertEqual(ci_dedup_cluster.CUT, 0.1)
        rng = random.Random(5)
        for noise, count in ((0.004, 3), (0.2, 9)):
            base = [[rng.random() < 0.5 for _ in range(1000)] for _ in range(3)]
            lines = [f"{number}: " + " ".join(f"{group}{copy}{'+-'[base[group][number] ^ (rng.random() < noise)]}"
                                              for group in range(3) for copy in range(3)) for number in range(1000)]
            with self.subTest(noise):
                self.assertEqual(len(self.cluster(*lines).groups), count)

    def test_as_by_definition_on_random_histories(self) -> None:
        for seed in range(12):
            rng = random.Random(seed)
            base = [[rng.random() < 0.1 for _ in range(300)] for _ in range(5)]
            noises = [rng.choice((0.0, 0.001, 0.004, 0.01)) for _ in range(14)]
            commits = commits_of(*(
                f"{number}: " + " ".join(f"j{job}{'+-'[base[job % 5][number] ^ (rng.random() < noise)]}"
                                         for job, noise in enumerate(noises)) for number in range(300)))
            found = ci_dedup_cluster.cluster(History(commits, []))
            jobs = sorted(f"j{job}" for job in range(14))
            rows = ci_dedup_cluster.correlations(commits, jobs)
            distances = [[round(math.sqrt(sum((x - y) ** 2 for x, y in zip(one, other))), 10) for other in rows]
                         for one in rows]
            expected = naive_groups(distances, 0.1 * max(map(max, distances)))
            with self.subTest(seed):
                self.assertEqual({frozenset(group) for group in found.groups},
                                 {frozenset(jobs[number] for number in group) for group in expected})


class Instance(NamedTuple):
    """A partial weighted set cover."""

    failures: Dict[FrozenSet[str], int]
    costs: Dict[str, float]
    need: int

    def caught(self, jobs: Iterable[str]) -> int:
        chosen = frozenset(jobs)
        return sum(weight for failure, weight in self.failures.items() if failure & chosen)

    def cheapest(self) -> float:
        """By trying all sets of jobs."""
        jobs = sorted(self.costs)
        bits = [(sum(1 << place for place, job in enumerate(jobs) if job in failure), weight)
                for failure, weight in self.failures.items()]
        costs = [0.0]
        for job in jobs:
            costs += [cost + self.costs[job] for cost in costs]
        return min(cost for mask, cost in enumerate(costs)
                   if sum(weight for failure, weight in bits if failure & mask) >= self.need)

    def most(self) -> int:
        """The most commits that one job catches."""
        return max(sum(weight for failure, weight in self.failures.items() if job in failure) for job in self.costs)


def instances(seed: int, number: int) -> Iterator[Instance]:
    """Random ones of at most ten jobs, with costs of few values, many, or none at all."""
    rng = random.Random(seed)
    for _ in range(number):
        jobs = [f"j{index}" for index in range(rng.randint(1, 10))]
        most = rng.choice((1, 3, 20, 1000))
        costs = {job: float(rng.randint(0 if rng.random() < 0.1 else 1, most)) for job in jobs}
        failures: Dict[FrozenSet[str], int] = {}
        for _ in range(rng.randint(1, 14)):
            failure = frozenset(rng.sample(jobs, rng.randint(1, min(len(jobs), rng.choice((2, 4, 10))))))
            failures[failure] = failures.get(failure, 0) + rng.choice((1, 1, 2, 5))
        total = sum(failures.values())
        yield Instance(failures, costs, rng.choice((total, total, math.ceil(total * 0.9), rng.randint(1, total))))


class Covers(unittest.TestCase):
    """The cheapest set, against all sets."""

    # Greedy takes `both` (3 a commit), then `a` and `d`; the cheapest is `left` and `right`.
    TRAP = Instance({frozenset(["both", "left"]): 2, frozenset(["both", "right"]): 2, frozenset(["a", "left"]): 1,
                     frozenset(["d", "right"]): 1}, {"both": 12, "left": 10, "right": 10, "a": 5, "d": 5}, 6)

    def test_as_good_as_the_best_of_all_sets(self) -> None:
        for number, instance in enumerate(instances(1, 400)):
            found, bound = Cover(*instance).cheapest()
            cost, best = sum(instance.costs[job] for job in found), instance.cheapest()
            with self.subTest(number=number, instance=instance):
                self.assertGreaterEqual(instance.caught(found), instance.need)
                self.assertAlmostEqual(cost, best, delta=1e-6 * best)
                self.assertLessEqual(bound, best * (1 + 1e-9))
                self.assertGreaterEqual(bound, best * (1 - 1e-6))

    def test_what_is_proven_when_the_search_is_ended(self) -> None:
        """The bound holds, and the greedy set is as good as is proven of it."""
        tight = 0
        for number, instance in enumerate(instances(2, 300)):
            with unittest.mock.patch.object(ci_dedup_choose, "SEARCH_STEPS", 0):
                found, bound = Cover(*instance).cheapest()
            cost, best = sum(instance.costs[job] for job in found), instance.cheapest()
            harmonic = sum(1 / count for count in range(1, instance.most() + 1))
            tight += bound >= best * (1 - 1e-9)
            with self.subTest(number=number, instance=instance):
                self.assertGreaterEqual(instance.caught(found), instance.need)
                self.assertLessEqual(cost, best * harmonic * (1 + 1e-9))
                self.assertLessEqual(bound, best * (1 + 1e-9))
                self.assertGreaterEqual(bound, 0)
        self.assertGreater(tight, 150, "a bound that is seldom near ends no search")

    def test_where_greed_fails(self) -> None:
        self.assertEqual(self.TRAP.cheapest(), 20)
        cover = Cover(*self.TRAP)
        self.assertEqual(cover.greedy(frozenset(), frozenset()), frozenset(["both", "a", "d"]))
        self.assertEqual(cover.cheapest()[0], frozenset(["left", "right"]))
        with unittest.mock.patch.object(ci_dedup_choose, "SEARCH_STEPS", 0):
            found, bound = cover.cheapest()
        self.assertEqual(found, frozenset(["both", "a", "d"]))
        self.assertTrue(12 < bound <= 20, bound)

    def test_greed_takes_out_what_became_superfluous(self) -> None:
        """`a` is cheapest by the commit; `b` and `c`, which have to be, catch its commits too."""
        cover = Cover({frozenset("ab"): 2, frozenset("ac"): 2, frozenset("b"): 1, frozenset("c"): 1},
                      {"a": 1.0, "b": 9.0, "c": 9.0}, 6)
        self.assertEqual(cover.greedy(frozenset(), frozenset()), frozenset("bc"))
        self.assertEqual(cover.bound(frozenset(), frozenset("b"), [1.0])[0], math.inf)
        self.assertEqual(cover.greedy(frozenset("a"), frozenset()), frozenset("abc"), "what was given stays")

    def test_greed_counts_no_more_than_is_missing(self) -> None:
        """`big` catches five commits at two each, but one is enough."""
        cover = Cover({frozenset(["big"]): 5, frozenset(["small"]): 1}, {"big": 10.0, "small": 3.0}, 1)
        self.assertEqual(cover.greedy(frozenset(), frozenset()), frozenset(["small"]))
        self.assertEqual(cover.best(*cover.left(frozenset()), frozenset(["small"])), "big")

    def test_dominated_jobs_are_left_aside(self) -> None:
        costs = {"a": 2.0, "b": 2.0, "c": 3.0, "d": 1.0}
        for failures, expected in (([("a", "c"), ("a", "c")], "a"), ([("a", "c"), ("c",)], "ac"), ([("a", "b")], "a"),
                                   ([("a", "b"), ("b",)], "b"), ([("a", "d"), ("d", "c")], "d"),
                                   ([("a", "d"), ("a",)], "ad")):
            with self.subTest(failures):
                weights = {frozenset(jobs): 1 for jobs in failures}
                self.assertEqual(Cover(weights, costs, 1).undominated(weights), frozenset(expected))

    def test_the_bound_of_what_no_two_share_is_their_cost(self) -> None:
        alone = {frozenset("a"): 1, frozenset("b"): 1, frozenset("c"): 1}
        costs = {"a": 1.0, "b": 2.0, "c": 9.0}
        for need, expected in ((3, 12), (2, 3), (1, 1), (0, 0)):
            with self.subTest(need):
                cover = Cover(alone, costs, need)
                self.assertEqual(cover.bound(frozenset(), frozenset(), [math.inf])[0], expected)
                self.assertEqual(cover.cheapest()[1], expected)
        cover = Cover(alone, costs, 3)
        self.assertEqual(cover.bound(frozenset("a"), frozenset(), [math.inf])[0], 12)
        self.assertEqual(cover.bound(frozenset(), frozenset("c"), [math.inf])[0], math.inf)

    def test_capped_prices_bound_what_may_miss_some(self) -> None:
        """Three of four: b, c and d, 9. Without a cap the commit that is a's alone is worth 10, the others nothing."""
        cover = Cover({frozenset("a"): 1, frozenset("ab"): 1, frozenset("ac"): 1, frozenset("ad"): 1},
                      {"a": 10.0, "b": 3.0, "c": 3.0, "d": 3.0}, 3)
        nothing: FrozenSet[str] = frozenset()
        for caps, expected in (([math.inf], 0), ([3], 7), ([2.5], 7.5), ([1], 3), ([10, 5, 2.5, 1.25], 7.5)):
            with self.subTest(caps):
                self.assertEqual(cover.bound(nothing, nothing, caps)[0], expected)
        self.assertEqual(cover.bound(nothing, nothing, [10, 5, 2.5, 1.25])[1], 2.5)
        self.assertEqual(cover.cheapest(), (frozenset("bcd"), 9))

    def test_the_order_of_the_input_changes_nothing(self) -> None:
        rng = random.Random(4)
        for number, instance in enumerate(instances(3, 100)):
            found = Cover(*instance).cheapest()
            failures, costs = list(instance.failures.items()), list(instance.costs.items())
            rng.shuffle(failures)
            rng.shuffle(costs)
            with self.subTest(number=number, instance=instance):
                self.assertEqual(Cover(dict(failures), dict(costs), instance.need).cheapest(), found)
                with unittest.mock.patch.object(ci_dedup_choose, "SEARCH_STEPS", 0):
                    self.assertEqual(Cover(dict(failures), dict(costs), instance.need).cheapest(),
                                     Cover(*instance).cheapest())

    def test_the_catch_of_a_set_that_was_chosen(self) -> None:
        """`choose`, with jobs that are kept, against all sets that hold them."""
        for number, instance in enumerate(instances(5, 150)):
            rng = random.Random(number)
            kept = frozenset(job for job in instance.costs if rng.random() < 0.2)
            percent = rng.choice((0, 50, 90, 99, 100))
            events = collections.Counter(instance.failures)
            total = sum(events.values())
            need = math.ceil(total * percent / 100)
            rest = {jobs: weight for jobs, weight in instance.failures.items() if not jobs & kept}
            still = need - (total - sum(rest.values()))
            best = sum(instance.costs[job] for job in kept) + (
                Instance(rest, instance.costs, still).cheapest() if still > 0 else 0)
            choice = ci_dedup_choose.choose(events, instance.costs, percent, kept)
            assert choice is not None
            with self.subTest(number=number, percent=percent, instance=instance, kept=kept):
                self.assertLessEqual(kept, choice.jobs)
                self.assertGreaterEqual(instance.caught(choice.jobs), need)
                self.assertAlmostEqual(choice.cost, best, delta=1e-6)
                self.assertAlmostEqual(choice.cost, sum(instance.costs[job] for job in choice.jobs), delta=1e-6)
                self.assertAlmostEqual(choice.bound, best, delta=1e-5)

    def test_picks_are_what_greed_takes_one_by_one(self) -> None:
        """Each the cheapest by what it catches that none before does; none over the limit."""
        for number, instance in enumerate(instances(6, 150)):
            events = collections.Counter(instance.failures)
            limit = random.Random(number).choice((math.inf, sum(instance.costs.values()) / 3))
            chosen: Set[str] = set()
            dear: Set[str] = set()
            picks = ci_dedup_choose.picks_of(events, instance.costs, frozenset(), limit)
            for pick in picks:
                gains = {job: instance.caught(chosen | {job}) - instance.caught(chosen)
                         for job in set(instance.costs) - chosen - dear}
                fit = sum(instance.costs[job] for job in chosen)
                ratios = {job: instance.costs[job] / gain for job, gain in gains.items()
                          if gain and fit + instance.costs[job] <= limit + 1e-9}
                chosen.add(pick.job)
                with self.subTest(number=number, instance=instance):
                    self.assertAlmostEqual(ratios[pick.job], min(ratios.values()))
                    self.assertEqual(pick.caught, instance.caught(chosen))
                    self.assertAlmostEqual(pick.cost, sum(instance.costs[job] for job in chosen))
                    self.assertLessEqual(pick.cost, limit)
            if limit == math.inf:
                self.assertEqual(instance.caught(chosen), sum(events.values()))

    def test_nothing_failed(self) -> None:
        self.assertIsNone(ci_dedup_choose.choose(collections.Counter(), {"a": 1, "b": 1}, 99, frozenset("a")))


class Walking(DedupCase):
    """New failures, who is red for long, and what a choice by the past would have done."""

    def timeline(self, *lines: str, red: bool = False, costs: Mapping[str, float] = {}) -> Any:  # noqa: B006
        history = History(commits_of(*lines), [])
        return ci_dedup_choose.timeline_of(history, costs or dict.fromkeys(history.jobs(), 1.0), red)

    def test_a_failure_is_new_where_the_job_passed_or_was_unseen(self) -> None:
        lines = ("1: a- b+", "2: a- b-", "3: b-", "4: a- b+ c-", "5: a+ b- c-", "6: a- b- c+")
        found = self.timeline(*lines)
        self.assertEqual([" ".join(sorted(jobs)) for jobs in found.failures], ["a", "b", "", "c", "b", "a"])
        found = self.timeline(*lines, red=True)
        self.assertEqual([" ".join(sorted(jobs)) for jobs in found.failures], ["a", "a b", "b", "a c", "b c", "a b"])
        self.assertEqual(set(found.red), {frozenset()})

    def test_who_is_red_for_long_stays_so_until_it_passes(self) -> None:
        runs = ci_dedup_choose.RED_RUNS
        found = self.timeline(*["x: a- b+"] * runs, "x: b+", "x: a-", "x: a+", "x: a-")
        self.assertEqual([bool(jobs) for jobs in found.red], [False] * runs + [True] * 3 + [False] * 2)

    def test_new_jobs_are_those_of_the_newest_commits_alone(self) -> None:
        runs = ci_dedup_choose.NEW_RUNS
        found = self.timeline("1: a+", *["x: a+ b+"] * (runs + 2))
        self.assertEqual([sorted(jobs) for jobs in found.new], [[]] + [["b"]] * runs + [[]] * 3)

    def test_breakages_are_pairs_of_commit_and_cluster(self) -> None:
        groups = ci_dedup_choose.groups_in(frozenset("abcde"), {"a": 1, "b": 1, "c": 2, "d": 2})
        self.assertEqual(sorted(map(sorted, groups)), [["a", "b"], ["c", "d"], ["e"]])

    def test_walking_forward_by_hand(self) -> None:
        """a breaks in each second commit of twenty; b for the first time in the last one, so that nobody chose it."""
        lines = [f"c{number}: a{'+-'[number % 2]} b{'+-'[number == 19]} calm+" for number in range(20)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--holdout", "50", "--catch", "100")
        self.assertIn("\nWalked forward through the newest 10 commits, choosing anew 10 times: caught 5 of 5 commits "
                      "with new failures (100.0 %; 95 % sure: 56.6 % to 100.0 %) and 5 of 6 breakages, at 33.3 % of "
                      "the cost; in hindsight 5 of 5 at 66.7 %\n", out)
        self.assertIn("\nwarning: 5 commits with new failures to judge by: with fewer than 30 a share says ", out)
        self.assertEqual(len(re.findall(r"(?m)^ *[0-9]+ % +[0-9]+ ", out)), 11)

    def test_what_failed_first_where_it_is_judged_is_missed_and_told(self) -> None:
        lines = [f"c{number}: a{'+-'[number in (1, 5)]} b{'+-'[number == 8]} x+ y+ z+" for number in range(10)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--holdout", "30")
        self.assertIn(": caught 0 of 1 commit with new failures (0.0 %; ", out)
        self.assertIn("\nthis history does not allow 80 % for 20 % of the cost; the best is 0.0 %: in 1 of 1 only jobs "
                      "failed that had never failed before the choice, and the cheapest set that was found in "
                      "hindsight takes 20.0 % of the cost\n", out)
        self.assertTrue(out.endswith("\nMissed, walking forward:\n  c8: b\n"), out)

    def test_a_line_of_the_table_that_does_better_is_named(self) -> None:
        """The budget pays for one of the two jobs that break."""
        lines = [f"c{number}: a{'+-'[number > 3 and number % 4 == 1]} b{'+-'[number % 4 == 2]} c+ d+ e+ f+ g+ h+ i+ j+"
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--budget", "10")
        self.assertIn("\nof the lines below at most 20 % of the cost, --catch 65 caught most: 100.0 % at 20.0 %\n",
                      out)
        self.assertNotIn("does not allow", out)

    def test_the_interval_is_wilsons(self) -> None:
        for caught, failing, expected in ((18, 18, (0.824, 1.0)), (0, 10, (0.0, 0.278)), (50, 100, (0.404, 0.596))):
            low, high = ci_dedup_choose.Score(caught, failing, 0, 0, 0.0, 0.0).interval()
            self.assertAlmostEqual(low, expected[0], places=3)
            self.assertAlmostEqual(high, expected[1], places=3)

    def test_a_job_that_is_red_costs_nothing_where_it_is_judged(self) -> None:
        """It is left out until it passes."""
        lines = [f"c{number}: a{'-+'[number < 3 or number > 35]} b{'+-'[number % 5 == 4]}" for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--holdout", "50", "--catch", "100")
        self.assertIn(" at 57.5 % of the cost; ", out)       # a in 3 of 20 commits, b in all

    def test_jobs_red_for_long_are_named_and_left_out(self) -> None:
        lines = [f"c{number}: a{'+-'[number > 3]} b{'+-'[number % 3 == 1]}" for number in range(20)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--catch", "100", "--write", self.path("w"))
        self.assertIn("\nTo mend: red for 10 runs or more, and left out until they pass: 1\n"
                      "  a: since c4, 16 of 20 runs\n", out)
        self.assertIn("\nRecommended: 1 of 2 jobs, 1 job of 2 jobs a commit (50.0 %); with 1 that is red for long, ",
                      out)
        self.assertEqual(self.read("w").splitlines()[-4:],
                         ["# Left out until they pass, since they are red for long:", "# a", "# Chosen:", "b"])

    def test_a_job_that_is_red_for_weeks_catches_nothing(self) -> None:
        """By the old count it catches all, and is all that is chosen."""
        rng = random.Random(2)
        lines = [f"c{number}: red{'+-'[number > 0]} " + " ".join(
            f"j{job}{'+-'[number > 0 and rng.random() < 0.1]}" for job in range(6)) for number in range(60)]
        self.write("h.csv", table_of(*lines))
        self.dedup("h.csv", "--count", "red", "--catch", "99", "--write", self.path("w"))
        self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "], ["red"])
        self.dedup("h.csv", "--catch", "99", "--write", self.path("w"))
        self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "],
                         [f"j{job}" for job in range(6)])

    def test_a_budget_buys_what_it_can_and_the_usual_one_at_least_half(self) -> None:
        lines = [f"c{number}: " + " ".join(f"j{job}{'+-'[number % 5 == job]}" for job in range(5))
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        for options, expected in (([], 3), (["--budget", "20"], 1), (["--budget", "45%"], 2), (["--budget", "5"], 0),
                                  (["--catch", "60"], 3), (["--catch", "100"], 5)):
            with self.subTest(options):
                out = self.dedup("h.csv", *options)
                self.assertIn(f"\nRecommended: {expected} of 5 jobs, ", out)
                self.assertEqual("\nwarning: nothing is chosen, " in out, expected == 0)
        self.dedup("h.csv", "--budget", "5", "--catch", "5", code=2,
                    err="ci_dedup.py: error: --budget and --catch: name one of them")

    def test_jobs_that_no_longer_run_are_not_recommended(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]}" + (f" old{'+-'[number % 3 == 1]}" if number < 20 else "")
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--catch", "100", "--write", self.path("w"))
        self.assertIn("\nno longer run, and not recommended: 1: old\n", out)
        self.assertNotIn("old", self.read("w"))

    def test_new_jobs_run_apart_from_the_choice(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]} b+ c+" + " new+" * (number > 37) for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.dedup("h.csv", "--budget", "30", "--write", self.path("w"))
        self.assertIn("\nnew, and run too until more is known of them: 1, 25.0 % of the cost: new\n", out)
        self.assertIn("\nRecommended: 1 of 4 jobs, 1 job of 4 jobs a commit (25.0 %)", out)
        self.assertRegex(out, r"\nnew jobs, which run too, would have cost \d\.\d % more, and caught 0 more\n")
        self.assertTrue(self.read("w").endswith("# Chosen:\na\n# New:\nnew\n"))

    def test_what_failed_lately_runs_too(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]} b{'+-'[number == 38]} c+ d+" for number in range(40)]
        self.write("h.csv", table_of(*lines, "part: d-"))       # a reduced run, which is left aside otherwise
        for recent, expected in (("0", "# Chosen:\na\n"), ("1", "# Failed lately:\nd\n"),
                                 ("3", "# Failed lately:\nb\nd\n")):
            with self.subTest(recent):
                out = self.dedup("h.csv", "--budget", "25", "--recent", recent, "--write", self.path("w"))
                self.assertTrue(self.read("w").endswith(expected), self.read("w"))
        self.assertIn("\nwhat failed lately, which run too, would have cost ", out)
        self.dedup("h.csv", "--recent", "x", code=2, err="usage: .*argument --recent: 'x' is not a number of runs, .*")

    def test_what_a_job_waits_for_counts_as_cost(self) -> None:
        """`cheap` catches all that `alone` does, but waits for `dear`."""
        lines = [[("cheap", number % 3 == 1), ("alone", number % 3 == 1), ("dear", False)] for number in range(12)]
        for after, expected in (((), ["cheap"]), (("dear",), ["alone"])):
            records: List[Any] = []
            for number, jobs in enumerate(lines):
                records.append(started(f"r{number}", time=10 * number))
                records += [{**ended(job, "failed" if failed else "passed", f"r{number}", time=10 * number + 1,
                                     seconds={"cheap": 1, "alone": 2, "dear": 9}[job]),
                             **({"after": after} if job == "cheap" else {})} for job, failed in jobs]
            self.journal(*records)
            with self.subTest(after):
                self.dedup("j.jsonl", "--catch", "100", "--write", self.path("w"))
                self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "], expected)
        self.dedup("j.jsonl", "--catch", "100", "--drop", "alone", "--write", self.path("w"))
        self.assertEqual(self.read("w").splitlines()[-3:], ["# Chosen:", "cheap", "dear"])

    def test_runs_of_the_reduced_set_do_not_bias_it(self) -> None:
        """A hundred nightly runs and ten reduced ones after each, of what the runs so far have chosen."""
        rng = random.Random(17)
        jobs = [f"j{cluster}{copy}" for cluster in range(6) for copy in range(3)]
        costs = {job: "10,1" if job.endswith("0") else "40,1" for job in jobs}
        nightly: List[str] = []
        rows: List[str] = []
        chosen = jobs[1::3]      # at first not what should be
        for night in range(100):
            for run in range(11):
                broken = {cluster for cluster in range(6) if rng.random() < 0.08}
                line = f"n{night}.{run}: " + " ".join(f"{job}{'+-'[int(job[1]) in broken]}" for job in jobs
                                                      if run == 0 or job in chosen)
                rows.append(line)
                if run == 0:
                    nightly.append(line)
            if night in (30, 60):
                self.write("h.csv", table_of(*rows, costs=costs))
                self.dedup("h.csv", "--catch", "100", "--write", self.path("w"))
                chosen = [line for line in self.read("w").splitlines() if line[:2] != "# "]
                self.assertEqual(chosen, jobs[::3])
        self.write("h.csv", table_of(*rows, costs=costs))
        mixed = self.dedup("h.csv", "--catch", "100", "--write", self.path("w"))
        self.assertIn("\nleft aside: 1,000 commits of 1,100, in which less than 90 % of the jobs ran; ", mixed)
        self.write("n.csv", table_of(*nightly, costs=costs))
        self.assertEqual(re.sub("left aside: .*\n", "", mixed),
                         self.dedup("n.csv", "--catch", "100", "--write", self.path("v")))
        self.assertEqual(self.read("w"), self.read("v"))

    def test_no_commit_is_complete(self) -> None:
        """Half of the jobs were skipped, each time others."""
        rows = [f"c{number},{job},{'' if (number + place) % 2 else number % 2}\n" for number in range(8)
                for place, job in enumerate("abcd")]
        self.write("h.csv", "commit,job,ok\n" + "".join(rows))
        self.dedup("h.csv", code=2, err="ci_dedup.py: error: left aside: 8 commits of 8, in which less than 90 % of "
                    "the jobs ran; --complete 0 takes all")
        self.dedup("h.csv", "--complete", "50", code=5)         # a and c never failed, b and d never passed


class Choosing(DedupCase):
    """What the command line recommends, and how it judges that."""

    def ten(self, *options: str, code: int = 0, err: str = "") -> str:
        """The report on TEN."""
        self.write("h.csv", table_of(*TEN, costs=TEN_COSTS))
        return self.dedup("h.csv", *options, code=code, err=err)

    def chosen(self, *options: str) -> List[str]:
        """The labels that are written for TEN."""
        self.ten("--write", self.path("w"), *options)
        return [line for line in self.read("w").splitlines() if not line.startswith("# ")]

    def test_all_that_is_said(self) -> None:
        self.assertEqual(self.ten(), TEN_TEXT)
        self.assertEqual(self.process("h.csv"), TEN_TEXT)

    def test_catch(self) -> None:
        """Of five breakages three are fast's."""
        for percent, expected in (("100", ["fast", "other", "rare"]), ("90", ["fast", "other", "rare"]),
                                  ("80", ["fast", "other"]), ("61%", ["fast", "other"]), ("60", ["fast"]),
                                  ("0.1", ["fast"])):
            with self.subTest(percent):
                self.assertEqual(self.chosen("--catch", percent), expected)

    def test_keep(self) -> None:
        for options, expected in ((["calm"], ["calm", "fast", "other", "rare"]), (["s*"], ["other", "rare", "slow"]),
                                  (["slow", "fast"], ["fast", "other", "rare", "slow"])):
            with self.subTest(options):
                options = list(itertools.chain(*(("--keep", job) for job in options)))
                self.assertEqual(self.chosen("--catch", "100", *options), expected)
        out = self.ten("--keep", "slow", "--catch", "80")
        self.assertRegex(out, r"\nRecommended: 2 of 5 jobs, 2\.0 min of 2\.9 min a commit \(68\.6 %\); the cheapest "
                         "set there is with those to keep that catches 4 of 5 breakages so far ")
        self.assertRegex(out, r"\n +100\.00 +3 +3  slow \(--keep\)\n")

    def test_a_pattern_that_names_none_is_a_mistake(self) -> None:
        for option in ("--keep", "--drop"):
            for name in ("none", "FAST", "f", "*x"):
                with self.subTest(option=option, name=name):
                    pattern = re.escape(f"ci_dedup.py: error: {option} {name}: no job has such a name; there are "
                                        "calm fast other rare slow")
                    self.ten("--write", self.path("w"), option, "calm", option, name, code=2, err=pattern)
        self.assertFalse(os.path.exists(self.path("w")))

    def test_a_name_is_taken_as_it_is_too(self) -> None:
        jobs = ["a[1]", "a1", "b"]
        for patterns, expected in ((["a[1]"], {"a[1]", "a1"}), (["b", "a1"], {"a1", "b"}), (["*"], set(jobs)),
                                   ([], set())):
            with self.subTest(patterns):
                self.assertEqual(ci_dedup_read.matching("--keep", patterns, jobs), expected)

    def test_drop(self) -> None:
        """What failed in the dropped job alone is no failing commit any more."""
        self.assertEqual(self.chosen("--drop", "f*", "--catch", "100"), ["other", "rare", "slow"])
        out = self.ten("--drop", "rare", "--drop", "fast")
        self.assertTrue(out.startswith("3 jobs, 10 commits from c1 to c10, 4 commits with new failures\n"), out)
        self.ten("--drop", "fast", "--keep", "fast", code=2, err=".*--keep fast: no job has such a name; .*")

    def test_holdout(self) -> None:
        for percent, judged in (("0", 0), ("9", 0), ("10", 1), ("30", 3), ("39%", 3), ("80", 8)):
            with self.subTest(percent):
                found = re.findall(r"Walked forward through the newest (\d+) commit", self.ten("--holdout", percent))
                self.assertEqual(found, [str(judged)] * bool(judged))

    def test_nothing_to_choose_by(self) -> None:
        for name, lines, options in (("none failed", ["1: a+ b+", "2: a+ b+"], []),
                                     ("a lone one never passed", ["1: a- b+", "2: b+"], [])):
            with self.subTest(name):
                self.write("h.csv", table_of(*lines))
                out = self.dedup("h.csv", "--write", self.path("w"), *options, code=5)
                self.assertIn("\nNo commit failed on which to choose; nothing is recommended.\n", out)
                self.assertNotIn("Walked", out)
                self.assertFalse(os.path.exists(self.path("w")))

    def test_costs_that_are_zero_or_unknown(self) -> None:
        lines = ("1: a- b- c+", "2: a+ b+ c+", "3: a+ b- c+", "4: a+ b+ c+")
        for costs, chosen, said in (({}, "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    (dict.fromkeys("abc", "0,1"), "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    ({"a": "0,1", "b": "5,0"}, "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    ({"a": "5,1", "b": "5,0"}, "b", "0.000 s of 7.5 s a commit (0.0 %)"),
                                    ({"a": "6,1", "c": "2,1"}, "b", "4.0 s of 12.0 s a commit (33.3 %)")):
            with self.subTest(costs):
                self.write("h.csv", table_of(*lines, costs=costs))
                out = self.dedup("h.csv", "--catch", "99", "--count", "red", "--write", self.path("w"))
                self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "][0], chosen)
                self.assertIn(f"Recommended: 1 of 3 jobs, {said}; the cheapest set there is ", out)

    def test_costs_are_told_in_a_unit_that_suits(self) -> None:
        report = unittest.mock.Mock()
        report.is_timed = True
        for cost, expected in ((0, "0.000 s"), (0.012, "0.012 s"), (119.9, "119.9 s"), (120, "2.0 min"),
                               (7199, "120.0 min"), (7200, "2.0 h"), (3_600_000 * 2, "2,000.0 h")):
            with self.subTest(cost):
                self.assertEqual(ci_dedup.show_cost(report, cost), expected)
        report.is_timed = False
        self.assertEqual([ci_dedup.show_cost(report, cost) for cost in (0, 1.0, 2000)],
                         ["0 jobs", "1 job", "2,000 jobs"])

    def test_many_names_are_cut(self) -> None:
        names = [f"j{number:02}" for number in range(12)]
        self.assertEqual(ci_dedup_read.first_of(names), " ".join(names[:10]) + " \u2026 with 2 more")
        self.assertEqual(ci_dedup_read.first_of(names[:10]), " ".join(names[:10]))

    def test_a_search_that_was_ended_says_how_far_it_came(self) -> None:
        """Each commit is followed by one in which all passed, so that all failures are new."""
        jobs = sorted(Covers.TRAP.costs)
        failures = [failed for failed, weight in Covers.TRAP.failures.items() for _ in range(weight)]
        lines = [f"{number}: " + " ".join(job + "+-"[job in failed] for job in jobs)
                 for number, failed in enumerate(itertools.chain(*((failed, ()) for failed in failures)))]
        self.write("h.csv", table_of(*lines, costs={job: f"{cost},1" for job, cost in Covers.TRAP.costs.items()}))
        arguments = ci_dedup.build_parser().parse_args(
            [self.path("h.csv"), "--holdout", "0", "--count", "red", "--catch", "100"])
        for steps, pattern in ((0, r"22\.0 s of 42\.0 s a commit \(52\.4 %\); no more than (\d\.\d) s above the cheap"),
                               (10 ** 6, r"20\.0 s of 42\.0 s a commit \(47\.6 %\); the cheapest set there is ()that")):
            with self.subTest(steps), unittest.mock.patch.object(ci_dedup_choose, "SEARCH_STEPS", steps):
                report = ci_dedup.analyse(arguments)
                found = re.search(pattern, "\n".join(ci_dedup.summary_lines(report)))
                assert found is not None and report.choice is not None
                above = report.choice.cost - report.choice.bound
                self.assertAlmostEqual(float(found.group(1) or 0), above, delta=0.051)

    def test_what_never_changed_is_told(self) -> None:
        self.write("h.csv", table_of("1: a+ b- k+ l-", "2: a- b+ k+ l-"))
        out = self.dedup("h.csv", "--holdout", "0")
        self.assertIn("\nleft out, since they never passed: 1: l\n", out)
        self.assertIn("\nnever failed: 1: k\n2 clusters, 0 of more than one job (* recommended):\n\n", out)

    def test_a_job_that_never_passed_catches_nothing(self) -> None:
        """It would have caught all that others failed in, and would be all that is recommended."""
        self.write("h.csv", table_of("1: a- b+ red-", "2: a+ b- red-", "3: a+ b+ red-", "4: a- b+ red-"))
        for count in ("new", "red"):
            self.dedup("h.csv", "--catch", "99", "--count", count, "--write", self.path("w"))
            self.assertEqual(self.read("w").splitlines()[-2:], ["a", "b"])
        self.write("h.csv", table_of("1: a- b-", "2: a-"))
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: no job ever passed: a b; is this the whole history\?")

    def test_a_long_report_has_its_summary_first_and_cuts_its_lists(self) -> None:
        rng = random.Random(6)
        lines = [f"c{number}: " + " ".join(f"j{job}{'+-'[rng.random() < 0.05]}" for job in range(200))
                 for number in range(60)]
        self.write("h.csv", table_of(*lines))
        told = self.dedup("h.csv").splitlines()
        self.assertLess(len(told), 200)
        self.assertLess(next(number for number, line in enumerate(told) if line.startswith("Cost against catch")), 8)
        self.assertIn(" more (--write has all)", "".join(told))

    def test_no_output_is_a_source_or_another_output(self) -> None:
        self.write("h.csv", table_of(*TEN))
        for options in (["--write", "h.csv"], ["--html", "./h.csv"], ["--html", "x", "--csv", "x"]):
            with self.subTest(options):
                self.dedup("h.csv", *options, code=2,
                           err=r"ci_dedup\.py: error: \S+ is a source, or another output; [^\n]+")
        self.assertEqual(self.read("h.csv"), table_of(*TEN))

    def test_the_one_that_is_most_like_a_job_is_named(self) -> None:
        """Of those recommended; none is named for a job that is like none of them."""
        self.write("h.csv", table_of("1: a- x- b+ y+", "2: a- x- b+ y+", "3: a+ x+ b- y-", "4: a- x+ b+ y+",
                                     "5: a+ x+ b- y-", "6: a+ x+ b+ y+", costs={"x": "9,", "y": "9,"}, blank="1,"))
        out = self.dedup("h.csv", "--catch", "99", "--count", "red")
        self.assertRegex(out, r"\n +9\.00 +2 +0  0\.71  x \| a\n")
        self.assertRegex(out, r"\n +9\.00 +2 +0  1\.00  y \| b\n")

    def test_what_each_catches_alone(self) -> None:
        self.write("h.csv", table_of("1: a- b+ c+", "2: a+ b+ c+", "3: a- b- c+", "4: a+ b+ c-", "5: a+ b- c+"))
        out = self.dedup("h.csv", "--catch", "100", "--count", "red")
        for line in ("2 +1  a", "2 +1  b", "1 +1  c"):
            self.assertRegex(out, rf"\n +1\.00 +{line}\n")

    def test_the_same_whatever_the_hash_seed_and_the_order_of_jobs(self) -> None:
        rng = random.Random(42)
        jobs = [f"j{number}" for number in range(24)]
        lines = [f"c{commit}: " + " ".join(job + rng.choice("++++-") for job in rng.sample(jobs, 20))
                 for commit in range(60)]
        self.write("h.csv", table_of(*lines))
        shuffled = [line.split() for line in lines]
        for words in shuffled:
            words[1:] = rng.sample(words[1:], len(words) - 1)
        self.write("s.csv", table_of(*map(" ".join, shuffled)))
        found = set()
        for name, seed in (("h.csv", "0"), ("h.csv", "1"), ("s.csv", "2")):
            out = self.process(name, "--write", "w", "--csv", "m.csv", "--html", "p.html", env={"PYTHONHASHSEED": seed})
            found.add((out, self.read("w"), self.read("m.csv"), self.read("p.html")))
        self.assertEqual(len(found), 1)

    def test_the_order_of_breakages_changes_no_choice(self) -> None:
        rng = random.Random(9)
        for seed in range(5):
            lines = [f"c{commit}: " + " ".join(f"j{job}" + rng.choice("+++-") for job in range(12))
                     for commit in range(25)]
            events = [commit.failed() for commit in commits_of(*lines) if commit.failed()]
            costs = {f"j{job}": float(rng.randint(1, 4)) for job in range(12)}
            expected = ci_dedup_choose.choose(collections.Counter(events), costs, 90, frozenset())
            rng.shuffle(events)
            with self.subTest(seed):
                self.assertEqual(ci_dedup_choose.choose(collections.Counter(events), costs, 90, frozenset()), expected)

    def test_bad_percentages(self) -> None:
        for option in ("--catch", "--holdout", "--budget", "--complete"):
            for text in ("-1", "100.1", "nan", "x", "", "%", "inf"):
                with self.subTest(option=option, text=text):
                    self.ten(f"{option}={text}", code=2,
                             err=rf"usage: .*ci_dedup\.py: error: argument {option}: '{text}' is not a percentage "
                             "from 0 to 100")


class MadeUp(DedupCase):
    """The made-up history, of which the right answer is known."""

    def setUp(self) -> None:
        super().setUp()
        self.jobs = ci_history.read_jobs()
        self.answer, self.clusters = ci_history.right_answer(self.jobs)

    def groups(self, out: str) -> Set[FrozenSet[str]]:
        """The clusters of more than one job that are told."""
        told = out.partition(" of more than one job (* recommended):\n")[2].partition("\n\n")[0]
        return {frozenset(line.replace("*", "").strip().split(" | ")) for line in told.splitlines()}

    def test_the_table(self) -> None:
        """The forty jobs of the study in its clusters, and an answer by hand for three of these."""
        self.assertEqual((len(self.jobs), len({job.name for job in self.jobs}), len(self.clusters)), (40, 40, 15))
        self.assertEqual({job.alone for job in self.jobs}, {"", "flaky", "rare"})
        for cluster, cheapest in (("macos", "ci/circleci: binary_macos_conda_3.5_cpu"),
                                  ("caffe2-clang", "ci/circleci: caffe2_py2_clang3_9_ubuntu16_04"),
                                  ("rocm", "pr/py2-clang7-rocmdeb-ubuntu16.04")):
            self.assertEqual(self.answer & frozenset(self.clusters[cluster]), {cheapest})
        self.assertEqual(len(self.answer), 15)

    def test_what_is_chosen_is_the_right_answer(self) -> None:
        script = os.path.join(ROOT, "qa", "bench", "ci_history.py")
        command = [sys.executable, "-S", script, self.path("history"), "--commits", "500", "--seed", "2"]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.decode()
        out = self.dedup("history", "--catch", "98", "--write", "chosen.txt")
        self.assertEqual(made.splitlines()[1:], sorted(self.answer))
        self.assertEqual([line for line in self.read("chosen.txt").splitlines() if not line.startswith("# ")],
                         sorted(self.answer))
        self.assertEqual(self.groups(out), {frozenset(group) for group in self.clusters.values() if group[1:]})
        self.assertIn("40 jobs, 500 commits from c00000 to c00499, ", out)
        self.assertIn("\nRecommended: 15 of 40 jobs, ", out)

    def test_seconds_and_parts_are_those_of_the_table(self) -> None:
        ci_history.write_history(self.path("h"), self.jobs, 60, 3)
        costs = self.history("h").costs()
        self.assertEqual(sorted(costs), sorted(job.name for job in self.jobs))
        for job in self.jobs:
            self.assertAlmostEqual(costs[job.name], job.seconds * job.gpus, delta=0.1 * job.seconds * job.gpus)
        tests = self.history("h", "--tests", "--jobs", "all").jobs()
        self.assertEqual({ci_dedup_read.folded(job) for job in tests}, {job.name for job in self.jobs})
        self.assertTrue(all(job.endswith(("_test", "-test")) for job in tests))

    def test_failures_are_those_that_were_made_up(self) -> None:
        ci_history.write_history(self.path("h"), self.jobs, 300, 4)
        expected = list(ci_history.failures(self.jobs, 300, 4))
        self.assertGreater(sum(map(bool, expected)), 20)
        for options in ([], ["--order", "name"]):
            found = self.history("h", *options).commits
            self.assertEqual([commit.failed() for commit in found], expected)
            self.assertEqual([commit.name for commit in found], [f"c{number:05}" for number in range(300)])


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: its tags, and the text in each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: List[Tuple[str, Tuple[Any, ...]]] = []
        self.texts: Dict[str, str] = {}
        self.open: List[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("/" + tag, ()))
        self.open.pop()

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        self.texts[tag] = self.texts.get(tag, "") + data

    def data(self) -> Any:
        found = re.findall(r"(?m)^const data = (.*);$", self.texts["script"])
        return json.loads(found[0])


class Outputs(DedupCase):
    """What is written."""

    NASTY = ("plain", "<b>bold</b>", "a&amp;b & c", 'say "hi"', "it's", "</script><script>alert(1)</script>", "<!--",
             "TITLE", "DATA", "TEXT", "\\u003c \\", "]]>", "ä€😀", "\u2028", "`${1}`", "-->", "=1+1", "a,b", "</pre>")

    def nasty(self, names: Sequence[str]) -> List[str]:
        """Write a history of jobs with these names, and of one that never failed; returns all names."""
        rng = random.Random(13)
        rows = [["commit", "job", "ok"]]
        for commit in range(40):
            rows += [[f"c{commit}", name, str(int(rng.random() < 0.8))] for name in names if rng.random() < 0.9]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, ["c1", "calm", "1"], ["c2", "calm", "1"]])
        self.write("h.csv", text.getvalue())
        return [*names, "calm"]

    def test_matrix(self) -> None:
        jobs = self.nasty(self.NASTY)
        self.dedup("h.csv", "--csv", "m.csv", "--complete", "0")
        found = ci_dedup_cluster.cluster(self.history("h.csv"))
        names, numbers, values = self.numbers("m.csv")
        self.assertEqual((names, sorted(names)), (found.jobs, sorted(jobs)))
        self.assertEqual(list(map(repr, itertools.chain(*values))), list(map(repr, itertools.chain(*found.matrix))))
        self.assertEqual(numbers, [str(number) for number, group in enumerate(found.groups, 1) for _ in group] + [""])
        self.assertEqual((names[-1], set(map(str, values[-1]))), ("calm", {"nan"}))
        self.assertTrue(self.read("m.csv").endswith("\ncalm,," + "," * (len(jobs) - 1) + "\n"))

    def test_matrix_by_hand(self) -> None:
        self.write("h.csv", table_of("1: a+ b- c+ k+", "2: a- b+ c- k+", "3: a- b+ c-"))
        self.dedup("h.csv", "--csv", "m.csv")
        self.assertEqual(self.read("m.csv"), "job,cluster,b,a,c,k\nb,1,1.0,-1.0,-1.0,\na,2,-1.0,1.0,1.0,\n"
                         "c,2,-1.0,1.0,1.0,\nk,,,,,\n")

    def test_page_holds_the_verdicts_and_the_clusters(self) -> None:
        self.nasty(self.NASTY)
        out = self.dedup("h.csv", "--csv", "m.csv", "--html", "p.html", "--catch", "60", "--complete", "0")
        data = Page(self.read("p.html")).data()
        names, numbers, _ = self.numbers("m.csv")
        self.assertEqual(data["jobs"], names)
        self.assertEqual(data["groups"], [numbers.count(number) for number in dict.fromkeys(numbers) if number])
        history = self.history("h.csv")
        for job, texts in zip(names, zip(data["ran"], data["passed"])):
            bits = [bin(int(text, 16))[2:].zfill(4 * len(text)) for text in texts]
            said = ["".join(str(int(job in commit.verdicts and value(commit.verdicts[job])))
                            for commit in history.commits) for value in (bool, lambda verdict: verdict.passed)]
            self.assertEqual([text[:len(history.commits)] for text in bits], said)
        found = re.search(r"Recommended: (\d+) of 19 jobs", out)
        assert found is not None
        self.assertEqual(len(data["chosen"]), int(found.group(1)))
        self.assertTrue(0 < len(data["chosen"]) < len(names))

    def test_page_holds_the_dendrogram(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.dedup("h.csv", "--html", "p.html", "--catch", "80")
        data = Page(self.read("p.html")).data()
        self.assertEqual((sorted(data["groups"]), data["chosen"]), ([1, 1, 2], ["fast", "other"]))
        leaves = sum(data["groups"])
        self.assertEqual(len(data["merges"]), leaves - 1)
        nodes = [node for left, right, _ in data["merges"] for node in (left, right)]
        self.assertEqual(sorted(nodes), [*range(2 * leaves - 2)], "each node is merged once")
        first = data["groups"].index(2)
        self.assertEqual(data["merges"][0], [first, first + 1, 0.0])

    def test_the_plot_has_a_point_for_each_line_of_the_table(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.dedup("h.csv", "--html", "p.html")
        tags = [tag for tag, _ in Page(self.read("p.html")).tags]
        self.assertEqual(tags.count("circle"), 12)

    def test_names_cannot_break_the_page(self) -> None:
        self.nasty([f"j{number:02}" for number in range(len(self.NASTY))])
        self.dedup("h.csv", "--html", "plain.html", "--complete", "0")
        self.nasty(self.NASTY)
        out = self.dedup("h.csv", "--html", "p.html", "--complete", "0")
        plain, page = Page(self.read("plain.html")), Page(self.read("p.html"))
        self.assertEqual([tag for tag, _ in page.tags], [tag for tag, _ in plain.tags])
        self.assertEqual(page.open, [])
        self.assertEqual(page.texts["pre"].replace("\n", ""), out.replace("\n", ""))
        self.assertEqual(sorted(page.data()["jobs"]), sorted([*self.NASTY, "calm"]))
        self.assertEqual((page.texts["title"][:23], page.texts["h1"]), ("20 jobs over 40 commits",) * 2)
        one, other = (re.sub(r"(?m)^const data = .*$", "", each.texts["script"]) for each in (page, plain))
        self.assertEqual(one, other)

    def test_page_needs_nothing_else(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.dedup("h.csv", "--html", "p.html")
        text = self.read("p.html")
        self.assertTrue(text.startswith("<!DOCTYPE html>\n"))
        self.assertIn('<meta charset="utf-8">', text)
        for word in ("http", "href", "url(", "import", "fetch", "XMLHttp", "://", "<link"):
            with self.subTest(word):
                self.assertNotIn(word, text)
        for tag, attributes in Page(text).tags:
            self.assertNotIn("src", dict(attributes), tag)

    def test_labels(self) -> None:
        self.write("h.csv", table_of(*TEN, costs=TEN_COSTS))
        out = self.dedup("h.csv", "--catch", "80", "--write", "w")
        about = [line for line in out.splitlines() if line.startswith(("Recommended", "Walked"))]
        self.assertEqual(self.read("w").splitlines(), [
            "# Chosen by ci_dedup.py, for run_tests.py --only.", *("# " + line for line in about),
            "# Left out (what is named nowhere here is new, and runs):", "# calm", "# rare", "# slow", "# Chosen:",
            "fast", "other"])
        labels = run_tests.parse_only(self.path("w")).labels
        self.assertEqual({label for label in labels if not label.startswith("# ")}, {"fast", "other"})

    def test_labels_that_no_line_can_hold_are_run_as_new_ones(self) -> None:
        """They are named nowhere; no part of them becomes another label."""
        names = ["a\nb", " c", "# d", "e\rf", "good"]
        rows = [["commit", "job", "ok"]] + [[f"c{number}", name, str(int(number % 4 != place % 3))]
                                            for number in range(12) for place, name in enumerate(names)]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        self.write("h.csv", text.getvalue())
        self.dedup("h.csv", "--catch", "100", "--keep", "good", "--write", "w")
        lines = self.read("w").splitlines()
        self.assertEqual([line for line in lines if line[:2] != "# "], ["good"])
        self.assertEqual([line for line in lines if line.strip("# ") in ("a", "b", "c", "d", "e", "f")], [])

    def test_labels_that_are_no_text_are_the_same_bytes(self) -> None:
        self.journal(started("r"), ended("a \udcff", "failed"), ended("ü"), started("s"), ended("a \udcff", run="s"))
        self.dedup("j.jsonl", "--holdout", "0", "--write", "w", "--csv", "m.csv", "--html", "p.html")
        with open(self.path("w"), "rb") as file:
            self.assertEqual(file.read().splitlines()[-1], b"a \xff")
        self.assertIn("a \udcff", run_tests.parse_only(self.path("w")).labels)

    def test_what_is_written_where_nothing_is_recommended(self) -> None:
        """The correlations need no choice."""
        self.write("h.csv", table_of("1: a+ b+", "2: a+ b+"))
        self.dedup("h.csv", "--csv", "m.csv", "--html", "p.html", code=5)
        self.assertEqual(sorted(self.numbers("m.csv")[0]), ["a", "b"])
        self.assertEqual(Page(self.read("p.html")).data()["chosen"], [])

    def test_a_file_that_cannot_be_written(self) -> None:
        self.write("h.csv", table_of(*TEN))
        os.mkdir(self.path("folder"))
        for option in ("--html", "--csv", "--write"):
            for path, why in (("none/file", "No such file or directory"), ("folder", "Is a directory"),
                              ("h.csv/x", "Not a directory")):
                with self.subTest(option=option, path=path):
                    self.dedup("h.csv", option, path, code=3,
                               err=rf"ci_dedup\.py: error: cannot write {path} \({why}\); name another place")

    def test_nothing_else_is_written(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.dedup("h.csv")
        self.assertEqual(os.listdir(self.folder), ["h.csv"])


class CommandLine(DedupCase):
    """Help, and mistakes in what is asked."""

    def options(self) -> Set[str]:
        return {option for action in ci_dedup.build_parser()._actions for option in action.option_strings}

    def test_help_tells_of_each_option_and_exit_codes(self) -> None:
        shown = self.dedup("--help")
        for action in ci_dedup.build_parser()._actions:
            self.assertTrue(action.help, action.dest)
        self.assertRegex(shown, r"exit codes:\n  0 done   2 usage or bad input   3 a file cannot be written   5 ")
        self.assertRegex(shown, r"(?s)--budget PERCENT .* default: +20, +or +more .*--holdout PERCENT .*default: 70")

    def test_examples_name_only_options_that_there_are(self) -> None:
        theirs = {option for action in run_tests.build_parser()._actions for option in action.option_strings}
        for text in (ci_dedup.EXAMPLES, ci_dedup.__doc__ or ""):
            seen = 0
            for line in text.splitlines():
                command = re.search(r"\b(run_tests|ci_dedup)\.py [^`]*", line)
                if command and line.startswith(("  ", "`")):
                    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", command.group(0).split("$(")[0]))
                    self.assertLessEqual(used, theirs if command.group(1) == "run_tests" else self.options(), line)
                    seen += 1
            self.assertGreaterEqual(seen, 3)

    def test_the_examples_run(self) -> None:
        """Those of the help, on sources of their names."""
        self.statuses("statuses/c1", {"x_build": "success", "x_asan_test": "failure"}, 1)
        self.statuses("statuses/c2", {"x_build": "success", "x_asan_test": "success"}, 2)
        self.journal(started("r"), ended("a", "failed"), started("s"), ended("a", run="s"), name="logs/one.jsonl")
        self.write("history.csv", table_of("1: a_asan- b+", "2: a_asan+ b+"))
        self.write("runs/1.json", json.dumps({"jobs": [github_job("a", "failure"), github_job("b")]}))
        self.write("runs/2.json", json.dumps({"jobs": [github_job("a", commit="d"), github_job("b", commit="d")]}))
        ran = 0
        for line in ci_dedup.EXAMPLES.splitlines():
            if line.startswith("  ci_dedup.py "):
                words = re.split(r" {2,}", line.strip())[0].replace("'", "").replace("*.jsonl", "one.jsonl").split()[1:]
                with self.subTest(line):
                    self.dedup(*words)
                    ran += 1
        self.assertEqual(ran, 5)
        self.assertTrue(all(os.path.getsize(self.path(name)) for name in ("map.html", "map.csv", "reduced.txt")))

    def test_sources_of_different_kinds(self) -> None:
        self.statuses("s/c1", {"a": "success"})
        self.journal(started("r"), ended("a"))
        self.write("h.csv", table_of("1: a+"))
        for sources in (["s", "h.csv"], ["h.csv", "j.jsonl"], ["j.jsonl", "s"], ["s", "h.csv", "j.jsonl"]):
            with self.subTest(sources):
                self.dedup(*sources, code=2, err=r"ci_dedup\.py: error: sources are of different kinds; name folders, "
                           "or journals, or CSV files")

    def test_a_path_that_is_not_there(self) -> None:
        for name in ("none", "none.csv", "none.jsonl", "none/none"):
            with self.subTest(name):
                self.dedup(name, code=2, err=rf"ci_dedup\.py: error: {name}: cannot be read "
                           r"\(No such file or directory\); name journals[^\n]+")

    def test_bad_usage(self) -> None:
        for arguments in ([], ["--catch", "50"], ["x.csv", "--cat", "50"], ["x.csv", "--order", "size"],
                          ["x.csv", "--jobs", "some"], ["x.csv", "--none"], ["x.csv", "--html"]):
            with self.subTest(arguments):
                self.dedup(*arguments, code=2, err=r"usage: ci_dedup\.py .*\nci_dedup\.py: error: [^\n]+")


class Surroundings(DedupCase):
    """Odd input, odd options, an output that does not take it all: an answer or a mistake, never a traceback."""

    def test_a_reader_that_leaves_early(self) -> None:
        """As in `| head`, whether little is written or much."""
        self.write("few.csv", table_of(*TEN))
        self.write("many.csv", table_of(*(f"{number}: " + " ".join(f"{'long' * 20}{job}{'+-'[job == number]}"
                                                                 for job in range(60)) for number in range(60))))
        for name in ("few.csv", "many.csv"):
            reading, writing = os.pipe()
            os.close(reading)
            try:
                with self.subTest(name):
                    self.process(name, "--holdout", "0", stdout=writing)
            finally:
                os.close(writing)

    def test_names_that_the_terminal_cannot_show(self) -> None:
        self.journal(started("r"), ended("a \udcff", "failed"), ended("\u00fc"), started("s"),
                     ended("a \udcff", run="s"))
        for encoding in ("ascii:strict", "utf-8:strict", "latin-1:strict"):
            with self.subTest(encoding):
                self.process("j.jsonl", "--holdout", "0", env={"PYTHONIOENCODING": encoding})

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk(self) -> None:
        self.write("h.csv", table_of(*TEN))
        for option in ("--html", "--csv", "--write"):
            with self.subTest(option):
                self.dedup("h.csv", option, "/dev/full", code=3,
                           err=r"ci_dedup\.py: error: cannot write /dev/full \(No space left on device\); [^\n]*")
        with self.subTest("stdout"), open("/dev/full", "wb") as full:
            self.process("h.csv", code=3, stdout=full.fileno(),
                         err=r"ci_dedup\.py: error: [^\n]*No space left on device[^\n]*")

    def test_nothing_is_to_be_caught(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.assertIn("\nRecommended: 0 of 5 jobs, 0 jobs of 5 jobs a commit (0.0 %); ",
                      self.dedup("h.csv", "--catch", "0"))
        self.assertIn("\nRecommended: 1 of 5 jobs, 1 job of 5 jobs a commit (20.0 %); ",
                      self.dedup("h.csv", "--catch", "0", "--keep", "calm"))

    def test_a_name_that_is_no_text(self) -> None:
        """JSON can name what no file can hold."""
        self.write("s/c1", '{"\\ud800": {"status": "failure"}}')
        self.write("s/c2", '{"\\ud800": {"status": "success"}}')
        for option in ("--html", "--csv", "--write"):
            with self.subTest(option):
                self.dedup("s", "--holdout", "0", option, "file", code=3, err="ci_dedup.py: error: cannot write .*")

    def test_all_jobs_are_dropped(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.dedup("h.csv", "--drop", "*", code=2, err=r"ci_dedup\.py: error: [^\n]+")

    def test_numbers_that_are_too_large(self) -> None:
        for number in ("1" + "0" * 400, "1e400"):
            with self.subTest(number[:9]):
                self.write("s/c1", '{"good": {"status": "success"}, "bad": {"status": "x", "seconds": ' + number + "}}")
                self.dedup("s", code=2, err=r"ci_dedup\.py: error: s/c1: job 'bad': not [^\n]+")
                self.journal(started("r"), ended("a", "failed"), started("s"), ended("a", run="s"),
                             json.dumps(ended("b", seconds="HERE")).replace('"HERE"', number) + "\n")
                self.assertIn("\nskipped, not whole: 1: j.jsonl (1 line)\n",
                              self.dedup("j.jsonl", "--holdout", "0"))

    def test_events_of_another_form(self) -> None:
        good = [started("r"), ended("a", "failed"), started("s", time=5), ended("a", run="s", time=6)]
        for strange in (started("x", time=None), started("x", time="now"), ended(7), ended(None), ended(3.5),
                        ended("b", run="y", time=None), ended("b", run="y", time=[1])):
            with self.subTest(strange):
                self.journal(strange, *good)
                self.assertRegex(self.dedup("j.jsonl", "--holdout", "0"), "^1 job, 2 commits from r to s, 1 commit ")

    def test_journals_in_any_order(self) -> None:
        """A commit's last run counts, and its first says when, whichever journal they are in."""
        self.journal(started("r1", "C", time=10), ended("a", "failed", "r1", time=11),
                     ended("b", "failed", "r1", time=12), name="old.jsonl")
        self.journal(started("r2", "D", time=20), ended("a", run="r2", time=21), started("r3", "C", time=30),
                     ended("a", "passed", "r3", time=31), name="new.jsonl")
        for sources in ("old.jsonl new.jsonl", "new.jsonl old.jsonl"):
            with self.subTest(sources):
                self.assertEqual(told(self.history(sources)), ["C: a+ b-", "D: a+"])

    def test_a_row_that_is_torn_within_a_letter(self) -> None:
        path = self.write("h.csv", "commit,job,ok\nc1,a,0\nc1,b,1\nc2,\udcc3")
        history = self.history("h.csv")
        self.assertEqual((told(history), len(history.skipped)), (["c1: a- b+"], 1))
        self.assertIn(path, history.skipped[0])


if __name__ == "__main__":
    unittest.main()
