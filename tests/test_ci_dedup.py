"""qa/ci_dedup.py and qa/ci_verdicts.py: what they read, correlate, cluster, choose, judge and write."""
from __future__ import annotations

import ast
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
from tests.support import ROOT, Ran, RunnerCase, interrupted

sys.path.insert(0, os.path.join(ROOT, "qa"))
sys.path.insert(0, os.path.join(ROOT, "qa", "bench"))

import ci_dedup
import ci_history
import ci_verdicts
from ci_dedup import Merge, cheapest
from ci_verdicts import Job, Mistake, Reader, Verdicts

SCRIPT = os.path.join(ROOT, "qa", "ci_dedup.py")
TABLE = os.path.join(ROOT, "qa", "ci_verdicts.py")
NO_COMMIT = dict.fromkeys(run_tests.COMMIT_VARIABLES, "")
FUNCTION_LINES = 45

IMPORT = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
def world():
    return [os.getcwd(), sorted(os.listdir(".")), dict(os.environ), sys.path[:], len(threading.enumerate())]
import argparse, csv, html, statistics, xml.etree.ElementTree             # what they do at import is theirs
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
5 jobs, 10 commits from c1 to c10, 5 failing commits
Recommended: 2 of 5 jobs, 30.0 s of 175.0 s a commit (17.1 %); the cheapest set there is that catches 4 of 5 \
breakages so far (80.0 %)
Walked forward through the newest 7 commits, choosing anew 7 times: caught 2 of 4 failing commits (50.0 %; 95 % \
sure: 15.0 % to 85.0 %) and 2 of 4 breakages, at 15.5 % of the cost; in hindsight 3 of 4 at 17.1 %
warning: with fewer than 30 failing commits to judge by a share says little; take a longer history, or trust the \
interval alone
this history does not allow 80 % for 20 % of the cost: in 2 of 4 only jobs failed that had never failed before, and \
in hindsight it takes 40.0 %

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

3 clusters, 1 of more than one job (* recommended):
  *fast | slow

Chosen:
    cost  catches  alone   phi  job | the recommended one most like it
   5.7 %        3      3  0.00  fast
  11.4 %        1      1  0.00  other

Left out, since they never failed anew:
calm

Left out:
    cost  catches  alone   phi  job | the recommended one most like it
  57.1 %        3      0  1.00  slow | fast
  22.9 %        1      1  0.00  rare

Missed, walking forward:
  c4: other
  c9: rare
"""


def verdicts_of(*lines: str) -> Dict[str, Dict[str, bool]]:
    """By commit and job whether it passed, from lines `name: job+ job- …`."""
    commits = {}
    for line in lines:
        name, _, words = line.partition(":")
        commits[name] = {word[:-1]: word[-1] == "+" for word in words.split()}
    return commits


def bits_of(*lines: str) -> Dict[str, Verdicts]:
    """By job its verdicts as bits, from lines as of `verdicts_of`."""
    found: Dict[str, Verdicts] = {}
    for number, verdicts in enumerate(verdicts_of(*lines).values()):
        for job, passed in verdicts.items():
            ran, before = found.get(job, (0, 0))
            found[job] = ran | 1 << number, before | passed << number
    return found


def told(reader: Reader) -> List[str]:
    """What was read as lines that `verdicts_of` reads, the jobs by name; commits of which nobody spoke are left out."""
    lines = []
    for commit, number in reader.commits.items():
        said = [job + chr(signs[number]) for job, signs in sorted(reader.jobs.items()) if spoke(signs, number)]
        lines += [f"{commit}: {' '.join(said)}"] * bool(said)
    return lines


def spoke(signs: bytearray, number: int) -> bool:
    return chr(signs[number : number + 1].ljust(1)[0]) in "+-"


def prices(reader: Reader) -> List[Dict[str, Optional[float]]]:
    """What each job of each commit has cost, where it spoke."""
    return [{job: reader.costs[job].get(number) for job, signs in reader.jobs.items() if spoke(signs, number)}
            for number in reader.commits.values()]


def table_of(*lines: str, costs: Mapping[str, str] = {}, blank: str = ",") -> str:  # noqa: B006
    """A CSV file from lines as of `verdicts_of`, with `seconds,gpus` by job."""
    rows = [f"{line.partition(':')[0]},{word[:-1]},{int(word[-1] == '+')},{costs.get(word[:-1], blank)}\n"
            for line in lines for word in line.partition(":")[2].split()]
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

    def dedup(self, *arguments: str, code: int = 0, err: str = "", env: Mapping[str, str] = {},  # noqa: B006
              stdout: int = subprocess.PIPE) -> Ran:
        """Run the command line; hold exit code, stderr (a pattern for all of it) and stdout against each other."""
        environment = {"PYTHONIOENCODING": "utf-8:surrogateescape", "COLUMNS": "100", **env}
        ran = subprocess.run([sys.executable, "-S", SCRIPT, *arguments], cwd=self.folder, check=False, stdout=stdout,
                             stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment(None, environment))
        said = ran.stderr.decode("utf-8", "replace")
        self.assertEqual(ran.returncode, code, said)
        self.assertRegex(said, rf"(?s)\A{err}\n?\Z")
        if code in (2, 3):
            self.assertFalse(ran.stdout, "a mistake is told on stderr alone")
        return Ran(ran.returncode, ran.stdout or b"", said, self.folder)

    def inside(self, source: str, *options: str, code: int = 0, err: str = "") -> str:
        """The same in this process, in which tables of many cases are quicker; returns what is printed."""
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            try:
                found: Any = ci_dedup.main([self.path(source), *options])
            except SystemExit as error:
                found = error.code
        self.assertEqual(found, code, said.getvalue())
        self.assertRegex(said.getvalue(), rf"(?s)\A{err}\n?\Z")
        return out.getvalue()

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def options(self, sources: str, *options: str) -> Any:
        """The command line for files and folders of the test's folder, named in one text."""
        return ci_dedup.build_parser().parse_args([*map(self.path, sources.split()), *options])

    def read_from(self, sources: str, *options: str) -> Reader:
        """What is read from these."""
        reader = Reader(self.options(sources, *options))
        reader.read()
        return reader

    def history(self, sources: str, *options: str) -> ci_verdicts.History:
        """The jobs and commits of these that count."""
        return ci_verdicts.History(self.read_from(sources, *options), self.options(sources, *options))

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
        with self.assertRaises(Mistake) as caught:
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
    """They are files that any Python from 3.8 runs, and a page."""

    def setUp(self) -> None:
        super().setUp()
        self.sources = []
        for path in (SCRIPT, TABLE):
            with open(path, encoding="utf-8") as file:
                self.sources.append(file.read())
        self.trees = [ast.parse(source, feature_version=(3, 8)) for source in self.sources]

    def nodes(self, kind: Any) -> List[Any]:
        return [node for tree in self.trees for node in ast.walk(tree) if isinstance(node, kind)]

    def test_imports_are_of_the_standard_library(self) -> None:
        imported = {alias.name.partition(".")[0] for node in self.nodes(ast.Import) for alias in node.names}
        imported |= {(node.module or ".").partition(".")[0] for node in self.nodes(ast.ImportFrom)}
        self.assertIn("argparse", imported)
        self.assertEqual(imported - getattr(sys, "stdlib_module_names", imported) - {"ci_verdicts"}, set())

    def test_who_copies_too_few_files_is_told(self) -> None:
        table = self.write("h.csv", table_of(*TEN))
        lacking = "ci_dedup.py: error: {} is not beside ci_dedup.py; copy it, too\n"
        for copied, options, expected in (
                ([SCRIPT], [], (2, lacking.format("ci_verdicts.py"))), ([TABLE], [], (0, "")),
                ([], ["--html", "p.html"], (2, lacking.format("ci_dedup.html")))):
            for path in copied:
                shutil.copy(path, self.folder)
            command = [sys.executable, "-IS", os.path.join(self.folder, "ci_dedup.py"), table, *options]
            ran = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE)
            self.assertEqual((ran.returncode, ran.stderr.decode()), expected)

    def test_newer_spellings_of_types_are_not_evaluated(self) -> None:
        for source in self.sources:
            self.assertIn("from __future__ import annotations", source)
        for node in self.nodes(ast.Subscript):
            if isinstance(node.value, ast.Name):
                self.assertNotIn(node.value.id, ("list", "dict", "set", "tuple", "type"), f"line {node.lineno}")

    def test_functions_and_lines_are_short(self) -> None:
        lengths = {node.name: node.end_lineno - node.lineno + 1 for node in self.nodes(ast.FunctionDef)}
        self.assertEqual({name: length for name, length in lengths.items() if length > FUNCTION_LINES}, {})
        lines = [line for source in self.sources for line in source.splitlines()]
        self.assertEqual([line for line in lines if len(line) > 120 or line != line.rstrip()], [])
        self.assertLessEqual(len(self.sources[0].splitlines()), 1000)

    def test_importing_it_has_no_side_effects(self) -> None:
        ran = subprocess.run([sys.executable, "-B", "-c", IMPORT, os.path.dirname(SCRIPT)], cwd=self.folder,
                             check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((ran.returncode, ran.stdout), (0, b""))


class Folders(DedupCase):
    """One JSON file of job statuses per commit."""

    def test_suffixes_are_folded_in_turn(self) -> None:
        for job, expected in (
                ("x", "x"), ("x_build", "x"), ("x-test", "x"), ("x_multigpu", "x"), ("x_NO_AVX_NO_AVX2", "x"),
                ("x_NO_AVX2_multigpu_test", "x"), ("x_test_build", "x"), ("x_build_test", "x_build"),
                ("x_NO_AVX", "x_NO_AVX"), ("x_tests", "x_tests"), ("test", "test"), ("x_Test", "x_Test"),
                ("pr/py2-cuda_build", "pr/py2-cuda"), ("ci/circleci: a_b_test", "ci/circleci: a_b")):
            with self.subTest(job):
                self.assertEqual(ci_verdicts.folded(job), expected)

    def test_a_job_passes_if_all_its_parts_do(self) -> None:
        """What is neither a success nor says nothing has failed."""
        for parts, passed in (("success success", "+"), ("success failure", "-"), ("error success", "-"),
                              ("UNSTABLE x", "-"), ("Success", "+"), ("success canceled", "+"), ("pending broken", "-"),
                              ("skipped success", "+"), ("blocked success", "+")):
            with self.subTest(parts):
                self.statuses("s/c1.json", {"a": "success", **dict(zip(("x_build", "x_test"), parts.split()))})
                self.assertEqual(told(self.read_from("s")), ["c1: a+ x" + passed])

    def test_tests_alone_are_kept_apart(self) -> None:
        self.statuses("s/c1", {"x_build": "success", "x_test": "success", "x_multigpu_test": "failure",
                               "y-build": "failure", "y-test": "success", "y_NO_AVX2_test": "success",
                               "lint": "failure", "z_test": "failure", "a_multigpu": "success"})
        self.assertEqual(told(self.read_from("s", "--tests")), ["c1: x_multigpu_test- x_test+ z_test-"])
        self.assertEqual(told(self.read_from("s")), ["c1: a+ lint- x- y- z-"])

    def test_the_order_of_names_is_natural(self) -> None:
        for name in ("c10", "c9.json", "c100", "b2", "c9a", "c009b", "c"):
            self.statuses("s/" + name, {"a": "success"}, 5)
        expected = ["b2", "c", "c9", "c9a", "c009b", "c10", "c100"]
        for options in ([], ["--order", "name"]):    # the times are equal
            with self.subTest(options):
                self.assertEqual([*self.read_from("s", *options).commits], expected)

    def test_other_files_are_left_alone(self) -> None:
        self.statuses("s/c1", {"a": "success"})
        for name in ("s/README.md", "s/c2.txt", "s/c3.json.gz", "s/.c4", "s/.c5.json", "s/c6.jsonl", "s/c7.JSON~"):
            self.write(name, "{")
        reader = self.read_from("s")
        self.assertEqual((told(reader), reader.skipped), (["c1: a+"], []))

    def test_files_that_are_not_whole_are_skipped_and_told(self) -> None:
        self.statuses("s/good", {"a": "success"})
        for name, text in (("empty", ""), ("half.json", '{"a": {"status": "succ'), ("bytes", '{"a\udcff": {}}'),
                           ("text", "no JSON"), ("deep", "[" * 200_000)):
            self.write("s/" + name, text)
        reader = self.read_from("s")
        names = ["bytes", "deep", "empty", "half.json", "text"]
        self.assertEqual((told(reader), sorted(reader.skipped)),
                         (["good: a+"], [self.path("s", name) for name in names]))
        self.assertIn("\nskipped, not whole: 5: s/", self.dedup("s", code=5).text)

    def test_files_of_another_form_are_mistakes(self) -> None:
        for text in ("7", '"text"', "null", '[{"a": {"status": "success"}}]', "{} {}"):
            with self.subTest(text):
                self.write("s/c1.json", text)
                self.assertRegex(self.refused("s"), r"^s/c1\.json: neither \{job: .*; fix or remove the file$")

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
                self.assertRegex(self.refused("s"), r"^s/c1: neither .*'bad one'.*; fix or remove the file$")
        self.dedup("s", code=2, err=r"ci_dedup\.py: error: s/c1: neither [^\n]+; fix or remove the file")

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
                self.assertEqual(prices(self.read_from("s")), [{"x": expected}])


class Services(DedupCase):
    """Jobs as CI services print them, in a folder of files or in one file."""

    def test_github(self) -> None:
        """As `gh api --paginate` prints them: pages one behind the other. The order is that of time, not of names."""
        pages = [{"jobs": [github_job("a", "success", "late", 2), github_job("b", "failure", "late", 2)]},
                 {"jobs": [github_job("c", "cancelled", "late", 2), github_job("d", None, "late", 2)]}]
        self.write("runs/1.json", "".join(map(json.dumps, pages)))
        self.write("runs/2.json", json.dumps([{"jobs": [github_job("a", "timed_out", "early")]}]))     # --slurp
        for sources in ("runs", "runs/2.json runs/1.json"):
            reader = self.read_from(sources)
            self.assertEqual(told(reader), ["early: CI / a-", "late: CI / a+ CI / b-"])
        self.assertEqual(prices(reader)[1], {"CI / a": 90.0, "CI / b": 90.0})
        self.assertEqual({job for job, signs in reader.jobs.items() if signs[1:] == b"*"}, {"CI / c", "CI / d"})

    def test_gitlab(self) -> None:
        jobs = [{"id": number, "name": name, "status": status,
                 "started_at": "2026-03-01T10:00:00.12Z", "finished_at": "2026-03-01T10:00:12.12Z",
                 "commit": {"id": "c1"},
                 "pipeline": {"id": 3, "sha": "c1"}, "created_at": "2026-03-01T09:00:00.000Z"}
                for number, (name, status) in enumerate((("a", "success"), ("b", "failed"), ("c", "skipped"),
                                                         ("d", "manual"), ("b", "success")))]
        self.write("runs/p.json", json.dumps(jobs))
        reader = self.read_from("runs/p.json")
        self.assertEqual((told(reader), prices(reader)), (["c1: a+ b+"], [{"a": 12.0, "b": 12.0}]))

    def test_buildkite(self) -> None:
        def build(commit: str, state: str, minute: int) -> Dict[str, Any]:
            times = {"started_at": f"2026-03-01T10:{minute:02}:00Z", "finished_at": f"2026-03-01T10:{minute:02}:30Z"}
            return {"id": "x", "number": 1, "commit": commit, "created_at": "2026-03-01T09:00:00Z", "pipeline": {},
                    "jobs": [{"type": "script", "name": "a", "state": state, **times}, {"type": "waiter"},
                             {"type": "script", "name": "b", "state": "canceled", **times}]}
        self.write("builds.json", json.dumps([build("two", "timed_out", 20), build("one", "passed", 5)]))
        reader = self.read_from("builds.json")
        self.assertEqual((told(reader), prices(reader)), (["one: a+", "two: a-"], [{"a": 30.0}] * 2))

    def test_buildkites_steps_need_no_name_of_their_own(self) -> None:
        """Those of one step that run in parallel share one; what waited for a failure is `broken`, and says nothing."""
        def job(name: Optional[str], state: str, part: Optional[int] = None) -> Dict[str, Any]:
            return {"type": "script", "name": name, "command": "make", "state": state, "parallel_group_index": part,
                    "created_at": "2026-03-01T09:00:00Z"}
        jobs = [job("s", "failed", 0), job("s", "passed", 1), job(None, "passed"), job("late", "broken")]
        self.write("builds.json", json.dumps([{"commit": "c", "jobs": jobs}]))
        self.assertEqual(told(self.read_from("builds.json")), ["c: make+ s (0)- s (1)+"])

    def test_what_is_none_of_them_is_told(self) -> None:
        for text in ('{"jobs": [{"name": "a"}]}', '{"jobs": [7]}', '[{"pipeline": {}, "id": 1}]',
                     '{"jobs": [{"name": "a", "head_sha": "c", "started_at": "yesterday"}]}',
                     '{"jobs": [{"name": "a", "head_sha": ["c"]}]}'):
            with self.subTest(text):
                self.write("s/c1.json", text)
                self.assertRegex(self.refused("s"), r"^s/c1\.json: neither .* nor jobs as GitHub, GitLab or Buildkite ")


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
        reader = self.read_from("r")
        self.assertEqual(told(reader), ["c1: more/two- one-", "c2: one+"])
        self.assertEqual(prices(reader), [{"one": 2.0, "more/two": 1.0}, {"one": 1.0}])
        self.assertEqual(told(self.read_from("r", "--cases"))[1], "c2: t.a+")

    def test_a_file_for_each_run(self) -> None:
        self.xml("r/c1.xml", a="", b="failure")
        self.xml("r/c2.xml", a="skipped", b="")
        self.assertEqual(told(self.read_from("r")), ["c1: t.a+ t.b-", "c2: t.b+"])

    def test_a_pattern_gives_the_commit(self) -> None:
        self.xml("r/run-7/sha-abc/x.xml", a="")
        self.xml("r/run-8/sha-abc/x.xml", a="failure")
        self.xml("r/run-9/sha-def/x.xml", a="")
        self.assertEqual(told(self.read_from("r", "--commit", "sha-([a-f]+)")), ["abc: x-", "def: x+"])
        self.assertEqual(told(self.read_from("r", "--commit", "run-.")), ["run-7: x+", "run-8: x-", "run-9: x+"])
        self.assertRegex(self.refused("r", "--commit", "nothing"), r"^r/run-./sha-.../x\.xml: --commit nothing finds ")
        self.dedup("r", "--commit", "(", code=2, err=r"usage: .*argument --commit: '\(' is no regular expression: .*")

    def test_a_namespace_and_what_only_the_suite_counts(self) -> None:
        case = '<testcase classname="t" name="a" time="1.0">'
        self.write("r/c1/one.xml", f'<testsuite xmlns="x">{case}<failure/></testcase></testsuite>')
        self.write("r/c1/two.xml", f'<testsuite errors="1" failures="">{case}</testcase></testsuite>')
        self.write("r/c1/three.xml", f'<testsuite failures="1">{case}<failure/></testcase></testsuite>')
        self.write("r/c1/four.xml", f'<testsuite failures="0">{case}</testcase></testsuite>')
        self.assertEqual(told(self.read_from("r")), ["c1: four+ one- three- two-"])

    def test_an_odd_number_loses_no_failure(self) -> None:
        """A time that is none is not known; a count may have a point, and one that is no number is a mistake."""
        suite = "<testsuite name='s' {}><testcase name='a' time='{}'>{}</testcase></testsuite>"
        for time in ("-0.001", "nan", "1e400", "soon"):
            with self.subTest(time):
                self.write("r/c1/one.xml", suite.format("", time, "<failure/>"))
                reader = self.read_from("r")
                self.assertEqual((told(reader), prices(reader), reader.skipped), (["c1: one-"], [{"one": None}], []))
        self.write("r/c1/one.xml", suite.format("failures='1.0'", "", ""))
        self.assertEqual(told(self.read_from("r")), ["c1: one-"])
        for count in ("some", "inf"):
            self.write("r/c1/one.xml", suite.format(f"errors='{count}'", "", ""))
            self.assertEqual(self.refused("r"), f"r/c1/one.xml: errors of the test suite 's' is {count!r}, and no "
                             "number; fix or remove the file")

    def test_an_encoding_that_python_does_not_know(self) -> None:
        for name, why in ("klingon", "unknown encoding: klingon"), ("gbk", "multi-byte encodings are not supported"):
            self.write("r/c1/one.xml", f'<?xml version="1.0" encoding="{name}"?><testsuite/>')
            self.assertEqual(self.refused("r"), f"r/c1/one.xml: cannot be read ({why}); fix or remove the file")

    def test_a_torn_file_is_skipped_and_told(self) -> None:
        self.xml("r/c1/one.xml", a="")
        self.write("r/c1/two.xml", "<testsuites><testcase")
        reader = self.read_from("r")
        self.assertEqual((told(reader), reader.skipped), (["c1: one+"], [self.path("r/c1/two.xml")]))


class Journals(DedupCase):
    """Journals of run_tests.py."""

    def test_each_run_is_a_commit_by_itself_unless_it_names_one(self) -> None:
        self.journal(started("r1"), ended("a", run="r1"), started("r2", "C"), ended("a", "failed", run="r2"),
                     started("r3", "C"), ended("b", run="r3"), started("r4", ""), ended("b", "failed", run="r4"))
        self.assertEqual(told(self.read_from("j.jsonl")), ["r1: a+", "C: a- b+", "r4: b-"])

    def test_outcomes(self) -> None:
        verdicts = {"passed": "+", "flaky": "+", "failed": "-", "crashed": "-", "timeout": "-", "blocked": "",
                    "unrunnable": "", "skipped": "", "failed as known": "", "deferred": "",
                    "interrupted": "", "not run": ""}
        self.assertEqual(set(verdicts), {outcome.value for outcome in run_tests.Outcome})
        for outcome, verdict in verdicts.items():
            with self.subTest(outcome):
                self.journal(started("r"), ended("z"), ended("a", outcome))
                self.assertEqual(told(self.read_from("j.jsonl")), [f"r: a{verdict} z+" if verdict else "r: z+"])

    def test_the_last_attempt_counts(self) -> None:
        for outcomes, expected in (("failed flaky", "+"), ("failed failed", "-"), ("crashed timeout", "-"),
                                   ("failed interrupted", "-"), ("passed not_run", "+")):
            with self.subTest(outcomes):
                self.journal(started("r"), *(ended("a", word.replace("_", " ")) for word in outcomes.split()))
                self.assertEqual(told(self.read_from("j.jsonl")), ["r: a" + expected])

    def test_a_part_of_a_split_test_is_no_job(self) -> None:
        self.journal(started("r"), {**ended("a (part 1 of 2)", "failed"), "origin": "a"}, {**ended("a"), "origin": "b"})
        self.assertEqual(told(self.read_from("j.jsonl")), ["r: a+"])

    def test_the_cost_is_seconds_times_need(self) -> None:
        for need, expected in ((1, 6), (2, 12), (0.5, 3), (0, 0), ("all", 18), (None, 6)):
            with self.subTest(need):
                self.journal(started("r", gpus="012"), ended("a", seconds=6.0, need=need))
                self.assertEqual(prices(self.read_from("j.jsonl")), [{"a": expected}])

    def test_torn_lines_cost_themselves_alone(self) -> None:
        for line in ('{"event": "test_end", "run": "r", "tes\n', "{\n", "null\n", "7\n", '"text"\n', "[]\n", "{}\n",
                     "\udcff\udcfe\n", "\0\n", '{"event": "test_end"}\n', "9" * 5000 + "\n",
                     "[" * 200_000 + "\n", '{"event":' * 200_000 + "\n",
                     '{"event": "run_start", "run": "r", "time": 1, "gpus": 3}\n', "half a line",
                     json.dumps({**ended("a"), "outcome": ["passed"]}) + "\n", json.dumps(ended(["a"])) + "\n",
                     json.dumps(ended("a", seconds="x")) + "\n", json.dumps(ended("a", seconds=-1)) + "\n",
                     json.dumps(ended("a", time=10**400)) + "\n", json.dumps(ended("a", need="some")) + "\n",
                     json.dumps(ended("a", run=["r"])) + "\n"):
            with self.subTest(line[:70]):
                path = self.journal(started("r"), ended("a", "failed"), line)
                reader = self.read_from("j.jsonl")
                self.assertEqual((told(reader), reader.skipped), (["r: a-"], [f"{path} (1 line)"]))

    def test_an_event_behind_a_torn_line_is_read(self) -> None:
        """A run that was killed leaves half a line, to which the next one appends."""
        self.journal('{"event": "test_end", "run": "r0", "ti', started("r"), '{"ev', ended("a", "failed"),
                     '\x00\x00{"event": "test_', ended("b"), "x\n", "\n", "  \n", ended("c"))
        reader = self.read_from("j.jsonl")
        self.assertEqual((told(reader), len(reader.skipped)), (["r: a- b+ c+"], 1))
        self.assertRegex(reader.skipped[0], r"/j\.jsonl \(1 line\)$")

    def test_several_journals_are_one_history_in_order_of_time(self) -> None:
        self.journal(started("r3", time=30), ended("a", run="r3", time=31), started("r1", "C", time=10),
                     ended("a", "failed", "r1", time=11), name="one.jsonl")
        self.journal(started("r2", time=20), ended("a", run="r2", time=21), started("r4", "C", time=40),
                     ended("b", "failed", "r4", time=41), name="two.jsonl")
        for sources in ("one.jsonl two.jsonl", "one.jsonl ./two.jsonl"):
            with self.subTest(sources):
                self.assertEqual(told(self.read_from(sources)), ["C: a- b-", "r2: a+", "r3: a+"])

    def test_a_journal_must_be_there_and_say_something(self) -> None:
        self.assertEqual(self.refused("none.jsonl"),
                         f"none.jsonl: cannot be read (No such file or directory); name {ci_verdicts.FORMS}")
        self.journal(started("r"), ended("a", "deferred"), "torn\n")
        self.assertRegex(self.refused("j.jsonl"), r"^j\.jsonl: no job passed in a commit that counts; .*; skipped, "
                         r"not whole: 1: j\.jsonl \(1 line\)$")


class TheTable(DedupCase):
    """What ci_verdicts.py writes of what was read."""

    def table(self, *arguments: str, code: int = 0) -> Ran:
        ran = subprocess.run([sys.executable, "-S", TABLE, *arguments], cwd=self.folder, check=False,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=self.environment(None, {"PYTHONIOENCODING": "utf-8:surrogateescape"}))
        said = ran.stderr.decode("utf-8", "replace")
        self.assertEqual(ran.returncode, code, said)
        return Ran(ran.returncode, ran.stdout, said, self.folder)

    def test_it_says_the_same_as_what_it_was_read_from(self) -> None:
        jobs = [github_job(name, word, commit, day) for day, commit in enumerate("cab", 1)
                for name, word in (("x", "success"), ("y, z", ("failure", "success")[day % 2]), ("w", "skipped"))]
        self.write("runs/1.json", json.dumps({"jobs": jobs[::-1]}))
        self.write("history.csv", self.table("runs").text)
        self.assertEqual(self.read("history.csv").splitlines()[:4], [
            "commit,job,ok,seconds", "c,CI / w,,", 'c,"CI / y, z",1,90.0', "c,CI / x,1,90.0"])
        one, other = self.read_from("runs"), self.read_from("history.csv")
        self.assertEqual((told(one), prices(one)), (told(other), prices(other)))
        self.assertEqual(self.dedup("runs").text, self.dedup("history.csv").text)

    def test_what_is_not_whole_and_what_is_not_there(self) -> None:
        self.statuses("s/good", {"a_build": {"status": "success", "seconds": 2, "gpus": 4}, "a_test": "failure"})
        self.write("s/half.json", "{")
        ran = self.table("s")
        self.assertEqual((ran.text, ran.err), ("commit,job,ok,seconds\ngood,a,0,8.0\n",
                                               "ci_verdicts.py: skipped, not whole: 1: s/half.json\n"))
        for source, why in (("none", "none: cannot be read (No such file or directory); "), ("e", "e: no verdicts; ")):
            os.makedirs(self.path("e"), exist_ok=True)
            ran = self.table(source, code=2)
            self.assertEqual(ran.text, "")
            self.assertTrue(ran.err.startswith("ci_verdicts.py: error: " + why), ran.err)


class RealJournals(DedupCase):
    """Journals that run_tests.py has written in the test's folder."""

    def run_at(self, commit: str, text: str, *arguments: str) -> Ran:
        return self.run_list(text, *arguments, env={**NO_COMMIT, "GITHUB_SHA": commit})

    def test_two_runs_of_one_commit(self) -> None:
        text = ('true  #: label="all good"\ntest -e fixed  #: label=broken\ntrue  #: label=later after=broken\n'
                "test -e once || { touch once; false; }  #: label=shaky retries=1\n"
                f"'{sys.executable}' -c pass  #: label=wide gpus=all\n")
        self.assertEqual(self.run_at("abc", text).code, 1)
        reader = self.read_from("logs/run_tests.jsonl")
        self.assertEqual((told(reader), {job: others for job, others in reader.waits.items() if others}),
                         (["abc: all good+ broken- shaky+ wide+"], {"later": {"broken"}}))
        self.write("fixed", "")
        ran = self.run_at("abc", text)
        self.assertEqual(ran.code, 0, ran.text)
        reader = self.read_from("logs/run_tests.jsonl")
        self.assertEqual((told(reader), reader.skipped), (["abc: all good+ broken+ later+ shaky+ wide+"], []))
        last = {record["label"]: record["seconds"] for record in ran.journal("test_end")}
        self.assertGreater(last["wide"], 0)
        self.assertEqual(prices(reader), [{**last, "wide": 2 * last["wide"]}])

    def test_runs_without_a_commit_and_one_with_a_torn_end(self) -> None:
        for _ in range(2):
            ran = self.run_list("false  #: label=a\n", env=NO_COMMIT)
            with open(self.path("logs", "run_tests.jsonl"), "ab") as file:
                file.write(b'{"event": "test_st')
        runs = list(dict.fromkeys(re.findall(r'"run": "([^"]+)"', ran.read("logs", "run_tests.jsonl"))))
        reader = self.read_from("logs/run_tests.jsonl")
        self.assertEqual(told(reader), [f"{run}: a-" for run in runs])
        self.assertEqual((len(runs), len(reader.skipped)), (2, 1))

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
        self.dedup("logs/run_tests.jsonl", "--keep", "*", "--write", "all.txt")
        ran = self.run_at("c6", text + "false  #: label=added\n", "--only", "all.txt", "--log-dir", "all")
        self.assertEqual(ran.journal("run_end", "all/run_tests.jsonl")[0]["outcomes"], {"passed": 4, "failed": 1})


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
                reader = self.read_from("h.csv")
                self.assertEqual((told(reader), prices(reader), reader.skipped),
                                 (["c1: a+ b-"], [{"a": 6, "b": 5}], []))

    def test_semicolons_part_columns_too(self) -> None:
        self.write("h.csv", "job;commit;ok;seconds\na,x;c1;1.0;2,5\nb;c1;0.0;\n")
        reader = self.read_from("h.csv")
        self.assertEqual((told(reader), prices(reader)), (["c1: a,x+ b-"], [{"a,x": 2.5, "b": None}]))

    def test_missing_columns_are_named(self) -> None:
        for header, lacking in (("", "commit, job, ok"), ("job,ok", "commit"), ("commit,ok,seconds", "job"),
                                ("commit,job,status", "ok"), ("Commit,job,ok", "commit"),
                                ("c1,a,1", "commit, job, ok")):
            with self.subTest(header):
                self.write("h.csv", header + "\nc1,a,1\n")
                self.assertRegex(self.refused("h.csv"), rf"^h\.csv:1: no column {lacking}; the first line names ")
        self.write("none.csv", "")
        self.assertRegex(self.refused("none.csv"), r"^none\.csv:1: no column commit, job, ok;")
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: h\.csv:1: no column commit, job, ok; [^\n]+")

    def test_words_for_ok(self) -> None:
        for word, sign in (("1", "+"), ("true", "+"), ("True", "+"), (" yes ", "+"), ("OK", "+"), ("success", "+"),
                           ("passed", "+"), ("flaky", "+"), ("0", "-"), ("FALSE", "-"), ("no", "-"), ("failure", "-"),
                           ("failed", "-"), ("crashed", "-"), ("timeout", "-"), ("error", "-"), ("", ""), ("  ", ""),
                           ("1.0", "+"), ("0.0", "-"),
                           ("skipped", ""), ("Cancelled", ""), ("nan", ""), ("blocked", ""), ("Not run", "")):
            with self.subTest(word):
                self.write("h.csv", f"commit,job,ok\nc1,b,1\nc1,a,{word}\nc2,b,1\n")
                self.assertEqual(told(self.read_from("h.csv"))[0], f"c1: a{sign} b+" if sign else "c1: b+")

    def test_mistakes_above_the_last_row_are_told_with_their_line(self) -> None:
        for row, why in (("c2,a,maybe,1,1", "ok is 'maybe' and not 1, .*, or empty"), ("c2,a,2,1,1", "ok is '2' .*"),
                         ("c2,a,1,x,1", "'x' seconds or '1' GPUs .*"), ("c2,a,1,-1,1", "'-1' seconds or .*"),
                         ("c2,a,1,nan,1", "'nan' seconds .*"),
                         ("c2,a,1,inf,1", "'inf' seconds .*"), ("c2,a,1,1,few", ".*'few' GPUs .*"),
                         ("c2,a,1,1,-2", "'1' seconds or '-2' GPUs are no .*"), ("c2,a,1,-1,-2", "'-1' seconds .*"),
                         ("c2,a", "commit, job or ok is missing"), ("c2", "commit, job or ok is missing"),
                         (",a,1", "commit, job or ok is missing"), ("c2,,1", "commit, job or ok is missing")):
            with self.subTest(row):
                self.write("h.csv", f"commit,job,ok,seconds,gpus\nc1,a,1,1,1\n\n{row}\nc3,a,1,1,1\n")
                self.assertRegex(self.refused("h.csv"), rf"^h\.csv:4: {why}; fix the row$")
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: h\.csv:4: commit, job or ok is missing; fix the row")

    def test_a_torn_last_row_is_skipped_and_told(self) -> None:
        whole = "commit,job,ok,seconds,gpus\nc1,a,0,1,1\nc1,b,1,1,1\n"
        for row in ("c2", "c2,a", "c2,", "c2,a,fals", "c2,a,1,1e", 'c2,"a', "c2,a,1,1,-\n"):
            with self.subTest(row):
                path = self.write("h.csv", whole + row)
                reader = self.read_from("h.csv")
                self.assertEqual(told(reader), ["c1: a- b+"])
                self.assertEqual(len(reader.skipped), 1)
                self.assertTrue(reader.skipped[0].startswith(path + ":4: "), reader.skipped)
        out = self.dedup("h.csv", code=5).text         # a never passed, b never failed
        self.assertRegex(out, r"\nskipped, not whole: 1: h\.csv:4: ")

    def test_rows_of_one_commit_and_job_are_its_parts(self) -> None:
        self.write("h.csv", "commit,job,ok,seconds,gpus\nc1,a,1,5,\nc2,a,1,1,1\nc1,a,0,7,2\nc1,a,1,,\n")
        self.write("more.csv", "commit,job,ok,seconds\nc3,b,1,1\nc2,a,1,10\nc1,b,1,\n")
        self.assertEqual(told(self.read_from("h.csv")), ["c1: a-", "c2: a+"])
        self.assertEqual(prices(self.read_from("h.csv")), [{"a": 19}, {"a": 1}])
        reader = self.read_from("h.csv more.csv")
        self.assertEqual(told(reader), ["c1: a- b+", "c2: a+", "c3: b+"])
        self.assertEqual(prices(reader), [{"a": 19, "b": None}, {"a": 11}, {"b": 1}])

    def test_the_order_is_that_of_the_rows(self) -> None:
        self.write("h.csv", table_of("c9: a+", "c10: a-", "c1: a+"))
        self.write("g.csv", table_of("c0: a-", "c10: b+"))
        self.assertEqual(told(self.read_from("h.csv g.csv")), ["c9: a+", "c10: a- b+", "c1: a+", "c0: a-"])
        self.assertEqual(told(self.read_from("g.csv h.csv")), ["c0: a-", "c10: a- b+", "c9: a+", "c1: a+"])

    def test_what_is_no_table(self) -> None:
        self.assertRegex(self.refused("none.csv"), r"^none\.csv: cannot be read \(.*No such file")
        self.write("h.csv", "commit,job,ok\nc1," + "x" * 200_000 + ",1\nc2,a,1\n")
        self.assertRegex(self.refused("h.csv"), r"^h\.csv: cannot be read \(field larger than .*; name journals")


class Costs(DedupCase):
    """What a job costs, from what it has cost."""

    def test_what_a_job_waits_for(self) -> None:
        """It is found without a look at all jobs: of each of 20,000 jobs that took minutes."""
        class Unlisted(Dict[str, Job]):
            def __iter__(self) -> Iterator[str]:
                raise AssertionError("a look at all")

        history = ci_verdicts.History.__new__(ci_verdicts.History)
        history.waits = {"a": frozenset(["b", "gone"]), "b": frozenset("c")}
        history.jobs = Unlisted.fromkeys("abcd")
        self.assertEqual(history.closed(["a"]), {*"abc"})

    def test_the_median(self) -> None:
        """That of the others where a job's own is unknown; nothing is known where nothing costs anything."""
        for known, expected in (
                ({"a": [1, 2, 90], "b": [4, 1], "c": [7], "d": [5, None, 3]}, {"a": 2, "b": 2.5, "c": 7, "d": 4}),
                ({"a": [1], "b": [None], "c": [9], "d": [2, 4]}, {"a": 1, "b": 3, "c": 9, "d": 3}),
                ({"a": [None], "b": [None]}, {}), ({"a": [0], "b": [None], "c": [0, 0, 5]}, {}),
                ({"a": [0], "b": [None], "c": [0], "d": [4]}, {"a": 0, "b": 0, "c": 0, "d": 4})):
            reader = Reader(self.options("x"))
            for job, costs in known.items():
                for number, cost in enumerate(costs):
                    reader.add(str(number), job, ci_verdicts.PASSED, cost)
            with self.subTest(known):
                self.assertEqual(ci_verdicts.costs_of(reader, known, [True] * 9), expected)


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
        bits = bits_of(*lines)
        matrix = ci_dedup.matrix_of([*bits.values()], ci_dedup.phi_of)
        values = {one + other: value for one, row in zip(bits, matrix) for other, value in zip(bits, row)}
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

    def test_as_by_definition_on_random_verdicts(self) -> None:
        rng = random.Random(20190521)
        for number in range(40):
            jobs = "abcdefgh"[:rng.randint(2, 8)]
            lines = [f"{commit}: " + " ".join(job + rng.choice("++-") for job in jobs if rng.random() < 0.8)
                     for commit in range(rng.randint(1, 80))]
            commits, found = [*verdicts_of(*lines).values()], self.phi(*lines)
            for one, other in itertools.product(sorted(set().union(*commits)), repeat=2):
                both = [(commit[one], commit[other]) for commit in commits if one in commit and other in commit]
                expected = pearson([float(x) for x, _ in both], [float(y) for _, y in both])
                with self.subTest(number=number, one=one, other=other):
                    self.assertEqual(math.isnan(found[one + other]), math.isnan(expected))
                    if not math.isnan(expected):
                        self.assertAlmostEqual(found[one + other], expected, places=12)


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
    return leaves_of(tree, merge[0]) | leaves_of(tree, merge[1])


def random_distances(rng: random.Random, count: int) -> List[List[float]]:
    """Distances without ties."""
    apart = [[0.0] * count for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        apart[one][other] = apart[other][one] = rng.random()
    return apart


def distances_of(rows: Sequence[Tuple[float, ...]]) -> List[List[float]]:
    """The distances of rows from each other."""
    return ci_dedup.matrix_of(rows, ci_dedup.distance_of)


class Linkage(unittest.TestCase):
    """The tree of complete linkage."""

    def test_rounding_breaks_no_tie(self) -> None:
        """0.1 + 0.2 is not 0.3; what differs by less than twelve digits is equal."""
        self.assertEqual(distances_of([(0.0,), (0.1 + 0.2,), (0.3,)])[0][1:], [0.3, 0.3])
        self.assertNotEqual(*distances_of([(0.0,), (0.3,), (0.3000000001,)])[0][1:])

    def test_as_by_definition_on_random_distances(self) -> None:
        rng = random.Random(1983)
        for number in range(120):
            distances = random_distances(rng, rng.randint(1, 24))
            before = [row[:] for row in distances]
            tree, expected = ci_dedup.linkage(distances), naive_linkage(distances)
            with self.subTest(number=number, leaves=len(distances)):
                self.assertEqual(distances, before, "the argument has changed")
                self.assertEqual([Joined(leaves_of(tree, len(distances) + place), merge[2])
                                  for place, merge in enumerate(tree)], expected)
                self.assertTrue(all(merge[0] < merge[1] < len(distances) + place
                                    for place, merge in enumerate(tree)))

    def test_ties_give_a_tree_of_all_leaves(self) -> None:
        rng = random.Random(7)
        for number in range(60):
            count = rng.randint(2, 16)
            distances = distances_of([(rng.randint(0, 3), rng.randint(0, 3)) for _ in range(count)])
            tree = ci_dedup.linkage(distances)
            with self.subTest(number):
                self.assertEqual(leaves_of(tree, 2 * len(tree)), frozenset(range(count)))
                self.assertEqual([merge[2] for merge in tree], sorted(merge[2] for merge in tree))
                for place, merge in enumerate(tree):
                    self.assertEqual(merge[2], max(distances[one][other] for one in leaves_of(tree, merge[0])
                                                       for other in leaves_of(tree, merge[1])), place)

    def test_cuts_as_by_definition(self) -> None:
        rng = random.Random(11)
        for number in range(60):
            distances = random_distances(rng, rng.randint(1, 20))
            tree, cut = ci_dedup.linkage(distances), rng.random()
            groups = ci_dedup.groups_at(tree, cut)
            with self.subTest(number):
                self.assertEqual(set(map(frozenset, groups)), naive_groups(distances, cut))
                self.assertEqual(sum(map(len, groups)), len(distances))

    def test_a_deep_tree_is_no_recursion(self) -> None:
        count = 3000
        tree = [(0, 1, 1.0)] + [(number, count + number - 2, float(number)) for number in range(2, count)]
        self.assertEqual(len(ci_dedup.groups_at(tree, 0.0)), count)


class Clustering(unittest.TestCase):
    """Jobs by what they tell."""

    def cluster(self, *lines: str) -> ci_dedup.Clusters:
        return ci_dedup.Clusters(bits_of(*lines))

    def phi(self, one: str, other: str, *lines: str) -> float:
        bits = bits_of(*lines)
        return ci_dedup.phi_of(bits[one], bits[other])

    def test_by_hand(self) -> None:
        """a and c are alike; b is their opposite, so as far as can be; k and l never changed."""
        lines = "1: a+ b- c+ k+ l-", "2: a- b+ c- k+ l-", "3: a- b+ c- k+ l-"
        found = self.cluster(*lines)
        self.assertEqual((found.jobs, found.groups), (["b", "a", "c", "k", "l"], [["b"], ["a", "c"]]))
        self.assertEqual(found.number_of, {"b": 1, "a": 2, "c": 2})
        self.assertEqual([self.phi("a", other, *lines) for other in "abc"], [1, -1, 1])
        self.assertTrue(all(math.isnan(self.phi(one, other, *lines)) for one in "kl" for other in "abckl"))

    def test_what_cannot_be_told_counts_as_nothing_in_common(self) -> None:
        """a and b never met; both go with c, so that only their own two values keep them apart."""
        lines = "1: a+ c+", "2: a- c-", "3: b+ c+", "4: b- c-"
        self.assertEqual(sorted(map(sorted, self.cluster(*lines).groups)), [["a"], ["b"], ["c"]])
        self.assertTrue(math.isnan(self.phi("a", "b", *lines)))
        self.assertEqual(self.phi("a", "c", *lines), 1.0)

    def test_the_cut_is_a_tenth_of_the_largest_distance(self) -> None:
        """Noise of a percent leaves jobs together, noise of a fifth does not."""
        self.assertEqual(ci_dedup.CUT, 0.1)
        rng = random.Random(5)
        for noise, count in ((0.004, 3), (0.2, 9)):
            base = [[rng.random() < 0.5 for _ in range(1000)] for _ in range(3)]
            lines = [f"{number}: " + " ".join(f"{group}{copy}{'+-'[base[group][number] ^ (rng.random() < noise)]}"
                                              for group in range(3) for copy in range(3)) for number in range(1000)]
            with self.subTest(noise):
                self.assertEqual(len(self.cluster(*lines).groups), count)


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

    def plan(self, instance: Instance, kept: FrozenSet[str] = frozenset()) -> ci_dedup.Plan:
        """The same to choose from: each failure is one of as many commits."""
        bits = dict.fromkeys(instance.costs, 0)
        commits = itertools.chain(*([jobs] * weight for jobs, weight in instance.failures.items()))
        for number, jobs in enumerate(commits):
            for job in jobs:
                bits[job] |= 1 << number
        total = sum(instance.costs.values())
        return ci_dedup.Plan(bits, dict.fromkeys(bits, 0), instance.costs, total, kept)

    def test_a_choice_keeps_what_is_to_be_kept(self) -> None:
        """Against all sets that hold it."""
        for number, instance in enumerate(instances(5, 150)):
            rng = random.Random(number)
            plan = self.plan(instance, frozenset(job for job in instance.costs if rng.random() < 0.2))
            catch = rng.choice((0, 50, 90, 99, 100))
            rest = {jobs: weight for jobs, weight in instance.failures.items() if not jobs & plan.kept}
            still = plan.needed(catch) - plan.caught(plan.kept)
            best = plan.cost(plan.kept)
            if still > 0:
                best += Instance(rest, instance.costs, still).cheapest()
            jobs, bound = ci_dedup.final_choice(plan, (catch, 0.0))
            with self.subTest(number=number, catch=catch, instance=instance, kept=plan.kept):
                self.assertLessEqual(plan.kept, jobs)
                self.assertGreaterEqual(plan.caught(jobs), plan.needed(catch))
                self.assertAlmostEqual(plan.cost(jobs), best, delta=1e-6)
                self.assertAlmostEqual(bound, best, delta=1e-5)

    def greedy(self, instance: Instance, need: int, limit: float) -> Set[str]:
        """Each the cheapest by what it catches that none before does: till enough are, then none over a limit."""
        chosen: Set[str] = set()
        while True:
            caught, spent = instance.caught(chosen), sum(instance.costs[job] for job in chosen)
            ranks = [(instance.costs[job] / (instance.caught(chosen | {job}) - caught), instance.costs[job], job)
                     for job in instance.costs if instance.caught(chosen | {job}) > caught
                     and (caught < need or spent + instance.costs[job] <= limit)]
            if not ranks:
                return chosen
            chosen.add(min(ranks)[2])

    def test_greed_takes_one_by_one_what_costs_least(self) -> None:
        for number, instance in enumerate(instances(6, 150)):
            limit = random.Random(number).choice((math.inf, sum(instance.costs.values()) / 3))
            for need, most in ((0, limit), (instance.need, 0.0)):
                with self.subTest(number=number, instance=instance, need=need):
                    self.assertEqual(self.plan(instance).greedy(need, most), self.greedy(instance, need, most))

    def test_a_budget_is_kept_where_it_buys_enough(self) -> None:
        """What is dear, and so would be taken first, is left aside where the rest of the budget catches enough."""
        failures = {frozenset([job]): weight for job, weight in (("a", 4), ("b", 30), ("c", 16), ("d", 14), ("e", 36))}
        plan = self.plan(Instance(failures, {"a": 1.0, "b": 13.0, "c": 8.0, "d": 8.0, "e": 70.0}, 0))
        self.assertEqual(plan.bought((50.0, 24.0)), {"a", "b", "c"})
        self.assertEqual(plan.bought((60.0, 24.0)), {"a", "b", "c", "d"}, "the budget is not enough")

    # Greedy takes `both` (3 a commit), then `a` and `d`; the cheapest is `left` and `right`.
    TRAP = Instance({frozenset(["both", "left"]): 2, frozenset(["both", "right"]): 2, frozenset(["a", "left"]): 1,
                     frozenset(["d", "right"]): 1}, {"both": 12, "left": 10, "right": 10, "a": 5, "d": 5}, 6)

    def test_as_good_as_the_best_of_all_sets(self) -> None:
        for number, instance in enumerate(instances(1, 400)):
            found, bound = cheapest(*instance)
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
            with unittest.mock.patch.object(ci_dedup, "SEARCH_STEPS", 0):
                found, bound = cheapest(*instance)
            cost, best = sum(instance.costs[job] for job in found), instance.cheapest()
            harmonic = sum(1 / count for count in range(1, instance.most() + 1))
            tight += bound >= best * (1 - 1e-9)
            with self.subTest(number=number, instance=instance):
                self.assertGreaterEqual(instance.caught(found), instance.need)
                self.assertLessEqual(cost, best * harmonic * (1 + 1e-9))
                self.assertLessEqual(bound, best * (1 + 1e-9))
                self.assertGreaterEqual(bound, 0)
        self.assertGreater(tight, 150, "a bound that is seldom near ends no search")


class Walking(DedupCase):
    """New failures, who is red for long, and what a choice by the past would have done."""

    def job(self, signs: str, counts_red: bool = False) -> Job:
        """A job by its signs, `.` where it was not there."""
        return ci_verdicts.job_of(signs.replace(".", " ").encode(), 1.0, counts_red)

    def places(self, bits: int) -> List[int]:
        return [number for number in range(bits.bit_length()) if bits >> number & 1]

    def test_a_failure_is_new_where_the_job_passed_or_was_unseen(self) -> None:
        for signs, anew in (("---+--", [0, 4]), ("+-+-", [1, 3]), ("..-.-+.-", [2, 7]), ("+..-.-", [3]), ("++.", [])):
            with self.subTest(signs):
                job = self.job(signs)
                self.assertEqual(self.places(job.anew), anew)
                red = self.job(signs, counts_red=True)
                self.assertEqual(self.places(red.anew), [place for place, sign in enumerate(signs) if sign == "-"])
                self.assertEqual((job.red, red.red), (0, 0))

    def test_who_is_red_for_long_stays_so_until_it_passes(self) -> None:
        """Before which commits it is, and, by one bit more, whether it is now."""
        runs = ci_verdicts.RED_RUNS
        self.assertEqual(self.places(self.job("-" * runs + ".-+-").red), [*range(runs, runs + 3)])
        self.assertEqual(self.places(self.job("+" + "-." * runs).red), [2 * runs, 2 * runs + 1])

    def test_new_jobs_are_those_of_the_newest_commits_alone(self) -> None:
        self.write("h.csv", table_of("1: a+", *(f"{number}: a+ b+" for number in range(2, 9))))
        old = self.history("h.csv").old
        self.assertEqual([sorted(old(number)) for number in (0, 1, 2, 3, 4)], [["a"]] * 4 + [["a", "b"]])

    def test_breakages_are_pairs_of_commit_and_cluster(self) -> None:
        bits = {"a": 0b011, "b": 0b110, "c": 0b100, "d": 0b100, "e": 0b100}
        plan = ci_dedup.Plan(bits, {"a": 1, "b": 1, "c": 2, "d": 2}, {}, 0.0, frozenset())
        self.assertEqual([plan.caught(jobs) for jobs in ("abcde", "ab", "cd", "ce", "")], [5, 3, 1, 2, 0])
        self.assertEqual(plan.events(), {frozenset("a"): 1, frozenset("ab"): 1, frozenset("b"): 1,
                                         frozenset("cd"): 1, frozenset("e"): 1})

    def test_walking_forward_by_hand(self) -> None:
        """a breaks in each second commit of twenty; b for the first time in the last one, so that nobody chose it."""
        lines = [f"c{number}: a{'+-'[number % 2]} b{'+-'[number == 19]} calm+" for number in range(20)]
        self.write("h.csv", table_of(*lines))
        out = self.inside("h.csv", "--catch", "100")
        self.assertIn("\nWalked forward through the newest 14 commits, choosing anew 10 times: caught 7 of 7 failing "
                      "commits (100.0 %; 95 % sure: 64.6 % to 100.0 %) and 7 of 8 breakages, at 33.3 % of "
                      "the cost; in hindsight 7 of 7 at 66.7 %\n", out)
        self.assertIn("\nwarning: with fewer than 30 failing commits to judge by a share says ", out)
        self.assertEqual(len(re.findall(r"(?m)^ *[0-9]+ % +[0-9]+ ", out)), 11)

    def test_a_line_of_the_table_that_does_better_is_named(self) -> None:
        """The budget pays for one of the two jobs that break."""
        lines = [f"c{number}: a{'+-'[number > 3 and number % 4 == 1]} b{'+-'[number % 4 == 2]} c+ d+ e+ f+ g+ h+ i+ j+"
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.inside("h.csv", "--budget", "10")
        self.assertIn("\nof the lines below at most 20 % of the cost, --catch 65 caught most: 100.0 % at 20.0 %\n",
                      out)
        self.assertNotIn("does not allow", out)

    def test_clusters_are_those_of_what_came_before(self) -> None:
        """a and b fail together at first, so one breakage; from the 21st commit on b also fails alone."""
        lines = [f"c{number}: a{'+-'[number % 4 == 1]} b{'+-'[number % 4 == 1 or number > 20 and number % 4 == 3]} "
                 f"x{'+-'[number % 6 == 2]} c+" for number in range(60)]
        self.write("h.csv", table_of(*lines))
        self.assertIn(" and 25 of 33 breakages, ", self.inside("h.csv"))
        with unittest.mock.patch.object(ci_dedup, "CLUSTER_WORK", 0):      # once, where it takes long
            self.assertIn(" and 19 of 27 breakages, ", self.inside("h.csv"))

    def test_the_interval_is_wilsons(self) -> None:
        for caught, failing, expected in ((18, 18, (0.824, 1.0)), (0, 10, (0.0, 0.278)), (50, 100, (0.404, 0.596))):
            breakages = {"all": (1 << failing) - 1, "chosen": (1 << caught) - 1}
            came = ci_dedup.Plan(breakages, {}, {}, 0.0, frozenset())
            low, high = ci_dedup.Score([(came, frozenset(["chosen"]))]).interval()
            self.assertAlmostEqual(low, expected[0], places=3)
            self.assertAlmostEqual(high, expected[1], places=3)

    def test_a_job_that_is_red_costs_nothing_where_it_is_judged(self) -> None:
        """It is left out until it passes."""
        lines = [f"c{number}: a{'-+'[number < 3 or number > 35]} b{'+-'[number % 5 == 4]}" for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.inside("h.csv", "--catch", "100")
        self.assertIn(" at 57.1 % of the cost; ", out)       # of 28 commits a in 4, b in all

    def test_half_of_the_time_that_a_job_was_red_is_taken_off_its_cost(self) -> None:
        """a is red in 20 of 40 commits, in 10 of them (and the one that ends it) for long: a half of 11 of 40."""
        lines = [f"c{number}: a{'+-'[4 <= number < 24]} b+" for number in range(40)]
        self.write("h.csv", table_of(*lines))
        self.assertIn("\nRecommended: 1 of 2 jobs, 0.8625 jobs of 2 jobs a commit ", self.inside("h.csv"))

    def test_jobs_red_for_long_are_named_and_left_out(self) -> None:
        """Since the first failure after the last pass, not since the commit between in which it did not run."""
        lines = [f"c{number}:" + f" a{'+-'[number > 3]}" * (number != 4) + f" b{'+-'[number % 3 == 1]}"
                 for number in range(20)]
        self.write("h.csv", table_of(*lines))
        out = self.inside("h.csv", "--catch", "100", "--complete", "0", "--write", self.path("w"))
        self.assertIn("\nTo fix, red for 10 runs or more, and left out until they pass:\n"
                      "  a: since c5, 15 of 19 runs\n", out)
        self.assertIn("\nRecommended: 1 of 2 jobs, 1 job of 2 jobs a commit (50.0 %); with 1 red for long, ",
                      out)
        self.assertEqual(self.read("w").splitlines()[-4:], [
            "# Left out, but for those below (what is named nowhere here is new, and runs):", "# a", "# Chosen:", "b"])

    def test_a_job_that_is_red_for_weeks_catches_nothing(self) -> None:
        """By the old count it catches all, and is all that is chosen."""
        rng = random.Random(2)
        lines = [f"c{number}: red{'+-'[number > 0]} " + " ".join(
            f"j{job}{'+-'[number > 0 and rng.random() < 0.1]}" for job in range(6)) for number in range(60)]
        self.write("h.csv", table_of(*lines))
        self.inside("h.csv", "--count", "red", "--catch", "99", "--write", self.path("w"))
        self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "], ["red"])
        self.inside("h.csv", "--catch", "99", "--write", self.path("w"))
        self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "],
                         [f"j{job}" for job in range(6)])

    def test_a_budget_buys_what_it_can_and_the_usual_one_at_least_half(self) -> None:
        lines = [f"c{number}: " + " ".join(f"j{job}{'+-'[number % 5 == job]}" for job in range(5))
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        for options, expected in (([], 3), (["--budget", "20"], 1), (["--budget", "45%"], 2), (["--budget", "5"], 0),
                                  (["--catch", "60"], 3), (["--catch", "100"], 5)):
            with self.subTest(options):
                out = self.inside("h.csv", *options)
                self.assertIn(f"\nRecommended: {expected} of 5 jobs, ", out)
                self.assertEqual("\nwarning: nothing is chosen, " in out, expected == 0)
        self.inside("h.csv", "--budget", "5", "--catch", "5", code=2,
                    err="usage: .*argument --catch: not allowed with argument --budget")

    def test_jobs_that_no_longer_run_are_not_recommended(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]}" + (f" old{'+-'[number % 3 == 1]}" if number < 20 else "")
                 for number in range(40)]
        self.write("h.csv", table_of(*lines))
        for options in ([], ["--keep", "old"]):
            out = self.inside("h.csv", "--catch", "100", "--write", self.path("w"), *options)
            self.assertIn("\nno longer run, and not recommended: 1: old\n", out)
            self.assertNotIn("old", self.read("w"))

    def test_new_jobs_run_apart_from_the_choice(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]} b+ c+" + " new+" * (number > 37) for number in range(40)]
        self.write("h.csv", table_of(*lines))
        out = self.inside("h.csv", "--budget", "30", "--write", self.path("w"))
        self.assertIn("\nnew, and run too until more is known of them, 25.0 % of the cost: 1: new\n", out)
        self.assertIn("\nRecommended: 1 of 4 jobs, 1 job of 4 jobs a commit (25.0 %)", out)
        self.assertTrue(self.read("w").endswith("# Chosen:\na\n# New:\nnew\n"))

    def test_what_failed_lately_runs_too(self) -> None:
        lines = [f"c{number}: a{'+-'[number % 4 == 1]} b{'+-'[number == 38]} c+ d+" for number in range(40)]
        self.write("h.csv", table_of(*lines, "part: d-"))       # a reduced run, which is left aside otherwise
        for recent, expected in (("0", "# Chosen:\na\n"), ("1", "# Failed lately:\nd\n"),
                                 ("3", "# Failed lately:\nb\nd\n")):
            with self.subTest(recent):
                self.inside("h.csv", "--budget", "25", "--recent", recent, "--write", self.path("w"))
                self.assertTrue(self.read("w").endswith(expected), self.read("w"))
        for recent in ("x", "-1"):
            self.inside("h.csv", f"--recent={recent}", code=2,
                        err=f"usage: .*argument --recent: '{recent}' is no whole number from 0")

    def test_more_recent_runs_than_there_are_are_all(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.inside("h.csv", "--budget", "0", "--recent", "12", "--write", self.path("w"))
        self.assertTrue(self.read("w").endswith("# Failed lately:\nfast\nother\nrare\nslow\n"), self.read("w"))

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
                self.inside("j.jsonl", "--catch", "100", "--write", self.path("w"))
                self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "], expected)
        out = self.inside("j.jsonl", "--catch", "100", "--drop", "alone", "--write", self.path("w"))
        self.assertIn("; a cheap set that catches ", out)
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
                self.inside("h.csv", "--catch", "100", "--write", self.path("w"))
                chosen = [line for line in self.read("w").splitlines() if line[:2] != "# "]
                self.assertEqual(chosen, jobs[::3])
        self.write("h.csv", table_of(*rows, costs=costs))
        mixed = self.inside("h.csv", "--catch", "100", "--write", self.path("w"))
        self.assertIn("\nleft aside: 1,000 commits of 1,100, in which less than 90 % of the jobs ran; ", mixed)
        self.write("n.csv", table_of(*nightly, costs=costs))
        self.assertEqual(re.sub("left aside: .*\n", "", mixed),
                         self.inside("n.csv", "--catch", "100", "--write", self.path("v")))
        self.assertEqual(self.read("w"), self.read("v"))

    def test_no_commit_is_complete(self) -> None:
        """Half of the jobs were skipped, each time others."""
        rows = [f"c{number},{job},{'' if (number + place) % 2 else number % 2}\n" for number in range(8)
                for place, job in enumerate("abcd")]
        self.write("h.csv", "commit,job,ok\n" + "".join(rows))
        self.inside("h.csv", code=2, err="ci_dedup.py: error: .*; left aside: 8 commits of 8, in which less than 90 % "
                    "of the jobs ran; --complete 0 takes all")
        self.inside("h.csv", "--complete", "50", code=5)         # a and c never failed, b and d never passed


class Choosing(DedupCase):
    """What the command line recommends, and how it judges that."""

    def ten(self, *options: str, code: int = 0, err: str = "") -> str:
        """The report on TEN."""
        self.write("h.csv", table_of(*TEN, costs=TEN_COSTS))
        return self.inside("h.csv", *options, code=code, err=err)

    def chosen(self, *options: str) -> List[str]:
        """The labels that are written for TEN."""
        self.ten("--write", self.path("w"), *options)
        return [line for line in self.read("w").splitlines() if not line.startswith("# ")]

    def test_all_that_is_said(self) -> None:
        self.assertEqual(self.ten(), TEN_TEXT)
        self.assertEqual(self.dedup("h.csv").text, TEN_TEXT)

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
        self.assertRegex(out, r"\nRecommended: 2 of 5 jobs, 120\.0 s of 175\.0 s a commit \(68\.6 %\); the cheapest "
                         "set there is with those to keep that catches 4 of 5 breakages so far ")
        self.assertRegex(out, r"\n +57\.1 % +3 +3  0\.00  slow\n")

    def test_a_pattern_that_names_none_is_a_mistake(self) -> None:
        for option in ("--keep", "--drop"):
            for name in ("none", "FAST", "f", "*x"):
                with self.subTest(option=option, name=name):
                    pattern = re.escape(f"ci_dedup.py: error: {option} {name}: no job has such a name; there are "
                                        "calm | fast | other | rare | slow")
                    self.ten("--write", self.path("w"), option, "calm", option, name, code=2, err=pattern)
        self.assertFalse(os.path.exists(self.path("w")))

    def test_a_name_is_taken_as_it_is_too(self) -> None:
        jobs = ["a[1]", "a1", "b"]
        for patterns, expected in ((["a[1]"], {"a[1]", "a1"}), (["b", "a1"], {"a1", "b"}), (["*"], set(jobs)),
                                   ([], set())):
            with self.subTest(patterns):
                self.assertEqual(ci_verdicts.matching("--keep", patterns, jobs), expected)

    def test_drop(self) -> None:
        """What failed in the dropped job alone is no failing commit any more."""
        self.assertEqual(self.chosen("--drop", "f*", "--catch", "100"), ["other", "rare", "slow"])
        out = self.ten("--drop", "rare", "--drop", "fast")
        self.assertTrue(out.startswith("3 jobs, 10 commits from c1 to c10, 4 failing commits\n"), out)
        self.ten("--drop", "fast", "--keep", "fast", code=2, err=".*--keep fast: no job has such a name; .*")

    def test_nothing_to_choose_by(self) -> None:
        for name, lines, options in (("none failed", ["1: a+ b+", "2: a+ b+"], []),
                                     ("a lone one never passed", ["1: a- b+", "2: b+"], [])):
            with self.subTest(name):
                self.write("h.csv", table_of(*lines))
                out = self.inside("h.csv", "--write", self.path("w"), "--csv", self.path("m.csv"), "--html",
                                  self.path("p.html"), *options, code=5)
                self.assertEqual(self.numbers("m.csv")[0], ["a", "b"] if name == "none failed" else ["b"])
                self.assertEqual(Page(self.read("p.html")).data()["points"], [])
                self.assertIn("\nNo commit failed on which to choose; nothing is recommended.\n", out)
                self.assertNotIn("Walked", out)
                self.assertFalse(os.path.exists(self.path("w")))

    def test_costs_that_are_zero_or_unknown(self) -> None:
        lines = ("1: a- b- c+", "2: a+ b+ c+", "3: a+ b- c+", "4: a+ b+ c+")
        for costs, chosen, said in (({}, "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    (dict.fromkeys("abc", "0,1"), "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    ({"a": "0,1", "b": "5,0"}, "b", "1 job of 3 jobs a commit (33.3 %)"),
                                    ({"a": "5,1", "b": "5,0"}, "b", "0.0 s of 7.5 s a commit (0.0 %)"),
                                    ({"a": "6,1", "c": "2,1"}, "b", "4.0 s of 12.0 s a commit (33.3 %)")):
            with self.subTest(costs):
                self.write("h.csv", table_of(*lines, costs=costs))
                out = self.inside("h.csv", "--catch", "99", "--count", "red", "--write", self.path("w"))
                self.assertEqual([line for line in self.read("w").splitlines() if line[:2] != "# "][0], chosen)
                self.assertIn(f"Recommended: 1 of 3 jobs, {said}; the cheapest set there is ", out)

    def test_a_search_that_was_ended_says_how_far_it_came(self) -> None:
        """Each commit is followed by one in which all passed, so that all failures are new."""
        jobs = sorted(Covers.TRAP.costs)
        failures = [failed for failed, weight in Covers.TRAP.failures.items() for _ in range(weight)]
        lines = [f"{number}: " + " ".join(job + "+-"[job in failed] for job in jobs)
                 for number, failed in enumerate(itertools.chain(*((failed, ()) for failed in failures)))]
        self.write("h.csv", table_of(*lines, costs={job: f"{cost},1" for job, cost in Covers.TRAP.costs.items()}))
        for steps, said in ((0, "22.0 s of 42.0 s a commit (52.4 %); no more than "),
                            (10 ** 6, "20.0 s of 42.0 s a commit (47.6 %); the cheapest set there is that ")):
            with self.subTest(steps), unittest.mock.patch.object(ci_dedup, "SEARCH_STEPS", steps):
                self.assertIn(said, self.inside("h.csv", "--count", "red", "--catch", "100"))

    def test_a_job_that_never_passed_catches_nothing(self) -> None:
        """It would have caught all that others failed in, and would be all that is recommended."""
        self.write("h.csv", table_of("1: a- b+ red-", "2: a+ b- red-", "3: a+ b+ red-", "4: a- b+ red-"))
        for count in ("new", "red"):
            out = self.inside("h.csv", "--catch", "99", "--count", count, "--write", self.path("w"))
            self.assertIn("\nleft out, since they never passed: 1: red\n", out)
            self.assertEqual(self.read("w").splitlines()[-2:], ["a", "b"])
        self.write("h.csv", table_of("1: a- b-", "2: a-"))
        self.dedup("h.csv", code=2, err=r"ci_dedup\.py: error: h\.csv: no job passed in .*; left out, "
                   r"since they never passed: 2: a \| b")

    def test_a_job_that_passed_where_too_few_ran(self) -> None:
        """As in shards of which each is a commit by itself."""
        self.write("h.csv", table_of("1: a+ b+ c+", "2: d+ e-", "3: a- b+ c+", "4: a+ b- c+", "5: a+ b+ c+"))
        self.assertIn("\nleft aside: 1 commit of 5, in which less than 90 % of the jobs ran; --complete 0 takes all\n"
                      "left out, since they never passed: 1: e\n"
                      "left out, since they passed only in commits that are left aside: 1: d\n",
                      self.inside("h.csv", "--catch", "100"))

    def test_a_long_report_has_its_summary_first_and_cuts_its_lists(self) -> None:
        rng = random.Random(6)
        lines = [f"c{number}: " + " ".join(f"j{job}{'+-'[rng.random() < 0.05]}" for job in range(200))
                 for number in range(60)]
        self.write("h.csv", table_of(*lines))
        told = self.inside("h.csv").splitlines()
        self.assertLess(len(told), 200)
        self.assertLess(next(number for number, line in enumerate(told) if line.startswith("Cost against catch")), 8)
        self.assertIn(" more", "".join(told))

    def test_no_output_is_a_source_or_another_output(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.statuses("s/c1", {"a": "success"})
        os.link(self.path("h.csv"), self.path("hard"))
        for source, *options in (["h.csv", "--write", "h.csv"], ["h.csv", "--html", "./h.csv"],
                                 ["h.csv", "--html", "x", "--csv", "x"], ["h.csv", "--csv", "hard"],
                                 ["s", "--csv", "s/c1"]):
            with self.subTest(options):
                self.dedup(source, *options, code=2,
                           err=r"ci_dedup\.py: error: \S+ is a source, or another output; [^\n]+")
        self.assertEqual(self.read("h.csv"), table_of(*TEN))

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
            ran = self.dedup(name, "--write", "w", "--csv", "m.csv", "--html", "p.html", env={"PYTHONHASHSEED": seed})
            found.add((ran.text, self.read("w"), self.read("m.csv"), self.read("p.html")))
        self.assertEqual(len(found), 1)

    def test_bad_percentages(self) -> None:
        for option in ("--catch", "--budget", "--complete"):
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
        for cluster, job in (("macos", "ci/circleci: binary_macos_conda_3.5_cpu"),
                             ("caffe2-clang", "ci/circleci: caffe2_py2_clang3_9_ubuntu16_04"),
                             ("rocm", "pr/py2-clang7-rocmdeb-ubuntu16.04")):
            self.assertEqual(self.answer & frozenset(self.clusters[cluster]), {job})
        self.assertEqual(len(self.answer), 15)

    def test_what_is_chosen_is_the_right_answer(self) -> None:
        script = os.path.join(ROOT, "qa", "bench", "ci_history.py")
        command = [sys.executable, "-S", script, self.path("history"), "--commits", "1500", "--seed", "2"]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.decode()
        out = self.dedup("history", "--catch", "98", "--write", "chosen.txt").text
        self.assertEqual(made.splitlines()[1:], sorted(self.answer))
        self.assertEqual([line for line in self.read("chosen.txt").splitlines() if not line.startswith("# ")],
                         sorted(self.answer))
        self.assertEqual(self.groups(out), {frozenset(group) for group in self.clusters.values() if group[1:]})
        self.assertIn("40 jobs, 1,500 commits from c00000 to c01499, ", out)
        self.assertIn("\nRecommended: 15 of 40 jobs, ", out)


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
        history = self.history("h.csv", "--complete", "0")
        found = ci_dedup.Clusters(history.verdicts(len(history.commits)))
        names, numbers, values = self.numbers("m.csv")
        self.assertEqual((names, sorted(names)), (found.jobs, sorted(jobs)))
        said = [history.jobs[name][:2] for name in names]
        self.assertEqual([*map(repr, itertools.chain(*values))],
                         [repr(ci_dedup.phi_of(*pair)) for pair in itertools.product(said, said)])
        self.assertEqual(numbers, [str(number) for number, group in enumerate(found.groups, 1) for _ in group] + [""])
        self.assertEqual((names[-1], set(map(str, values[-1]))), ("calm", {"nan"}))
        self.assertTrue(self.read("m.csv").endswith("\ncalm,," + "," * (len(jobs) - 1) + "\n"))

    def test_page_holds_the_verdicts_and_the_clusters(self) -> None:
        self.nasty(self.NASTY)
        ran = self.dedup("h.csv", "--csv", "m.csv", "--html", "p.html", "--catch", "60", "--complete", "0")
        data = Page(self.read("p.html")).data()
        names, numbers, _ = self.numbers("m.csv")
        self.assertEqual(data["jobs"], names)
        self.assertEqual(data["groups"], [numbers.count(number) for number in dict.fromkeys(numbers) if number])
        history = self.history("h.csv", "--complete", "0")
        said = [(int(ran, 16), int(passed, 16)) for ran, passed in zip(data["ran"], data["passed"])]
        self.assertEqual(said, [history.jobs[name][:2] for name in names])
        self.assertEqual({len(text) % 8 for text in data["ran"] + data["passed"]}, {0})
        self.assertEqual(len(data["points"]), 12)
        found = re.search(r"Recommended: (\d+) of 19 jobs", ran.text)
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

    def test_names_cannot_break_the_page(self) -> None:
        self.nasty([f"j{number:02}" for number in range(len(self.NASTY))])
        self.dedup("h.csv", "--html", "plain.html", "--complete", "0")
        self.nasty(self.NASTY)
        ran = self.dedup("h.csv", "--html", "p.html", "--complete", "0")
        plain, page = Page(self.read("plain.html")), Page(self.read("p.html"))
        self.assertEqual([tag for tag, _ in page.tags], [tag for tag, _ in plain.tags])
        self.assertEqual(page.open, [])
        self.assertEqual(page.texts["pre"].replace("\n", ""), ran.text.replace("\n", ""))
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
        for word in ("http", "href", "url(", "import ", "fetch", "XMLHttp", "://", "<link"):
            with self.subTest(word):
                self.assertNotIn(word, text)
        for tag, attributes in Page(text).tags:
            self.assertNotIn("src", dict(attributes), tag)

    def test_labels(self) -> None:
        self.write("h.csv", table_of(*TEN, costs=TEN_COSTS))
        ran = self.dedup("h.csv", "--catch", "80", "--write", "w")
        about = [line for line in ran.text.splitlines() if line.startswith(("Recommended", "Walked"))]
        self.assertEqual(self.read("w").splitlines(), [
            "# Chosen by ci_dedup.py, for run_tests.py --only.", *("# " + line for line in about),
            "# Left out, but for those below (what is named nowhere here is new, and runs):", "# calm", "# rare",
            "# slow", "# Chosen:", "fast", "other"])
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
        self.dedup("j.jsonl", "--write", "w", "--csv", "m.csv", "--html", "p.html")
        with open(self.path("w"), "rb") as file:
            self.assertEqual(file.read().splitlines()[-1], b"a \xff")
        self.assertIn("a \udcff", run_tests.parse_only(self.path("w")).labels)

    def test_a_file_that_cannot_be_written(self) -> None:
        self.write("h.csv", table_of(*TEN))
        os.mkdir(self.path("folder"))
        for option in ("--html", "--csv", "--write"):
            for path, why in (("none/file", "No such file or directory"), ("folder", "Is a directory"),
                              ("h.csv/x", "Not a directory")):
                with self.subTest(option=option, path=path):
                    self.dedup("h.csv", option, path, code=3,
                               err=rf"ci_dedup\.py: error: cannot write {path} \([^\n]*{why}.*; name another place")


class CommandLine(DedupCase):
    """Help, and mistakes in what is asked."""

    def options(self) -> Set[str]:
        return {option for action in ci_dedup.build_parser()._actions for option in action.option_strings}

    def test_help_tells_of_each_option_and_exit_codes(self) -> None:
        shown = self.dedup("--help").text
        for action in ci_dedup.build_parser()._actions:
            self.assertTrue(action.help, action.dest)
        self.assertRegex(shown, r"exit codes:\n  0 done   2 usage or bad input   3 a file cannot be written   5 ")
        self.assertRegex(shown, r"(?s)--budget PERCENT .* default: +20, +or +more .*")

    def test_the_examples_run(self) -> None:
        """Those of the help, on sources of their names."""
        self.statuses("statuses/c1", {"x_build": "success", "x_asan_test": "failure"}, 1)
        self.statuses("statuses/c2", {"x_build": "success", "x_asan_test": "success"}, 2)
        self.journal(started("r"), ended("a", "failed"), started("s"), ended("a", run="s"), name="logs/one.jsonl")
        self.write("history.csv", table_of("1: a_asan- b+", "2: a_asan+ b+"))
        self.write("runs/1.json", json.dumps({"jobs": [github_job("a", "failure"), github_job("b")]}))
        self.write("runs/2.json", json.dumps({"jobs": [github_job("a", commit="d"), github_job("b", commit="d")]}))
        ran = 0
        for line in (ci_dedup.__doc__ or "").splitlines():
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
                self.dedup(*sources, code=2, err="ci_dedup.py: error: sources are of different kinds; name [^\n]*")


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
                    self.dedup(name, stdout=writing)
            finally:
                os.close(writing)

    def test_names_that_the_terminal_cannot_show(self) -> None:
        self.journal(started("r"), ended("a \udcff", "failed"), ended("\u00fc"), started("s"),
                     ended("a \udcff", run="s"))
        for encoding in ("ascii:strict", "utf-8:strict", "latin-1:strict"):
            with self.subTest(encoding):
                self.dedup("j.jsonl", env={"PYTHONIOENCODING": encoding})

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk(self) -> None:
        self.write("h.csv", table_of(*TEN))
        for option in ("--html", "--csv", "--write"):
            with self.subTest(option):
                self.dedup("h.csv", option, "/dev/full", code=3,
                           err=r"ci_dedup\.py: error: cannot write /dev/full \([^\n]*No space left on device\); [^\n]*")
        with self.subTest("stdout"), open("/dev/full", "wb") as full:
            self.dedup("h.csv", code=3, stdout=full.fileno(),
                       err=r"ci_dedup\.py: error: [^\n]*No space left on device[^\n]*")

    def test_nothing_is_to_be_caught(self) -> None:
        self.write("h.csv", table_of(*TEN))
        self.assertIn("\nRecommended: 0 of 5 jobs, 0 jobs of 5 jobs a commit (0.0 %); ",
                      self.dedup("h.csv", "--catch", "0").text)
        self.assertIn("\nRecommended: 1 of 5 jobs, 1 job of 5 jobs a commit (20.0 %); ",
                      self.dedup("h.csv", "--catch", "0", "--keep", "calm").text)

    def test_an_interrupt(self) -> None:
        for number, name in enumerate(("ci_dedup.py", "ci_verdicts.py")):
            self.assertEqual(interrupted(self, os.path.join(ROOT, "qa", name), f"never{number}"), (130, b""), name)

    def test_a_name_that_is_no_text(self) -> None:
        """JSON can name what no file can hold."""
        self.write("s/c1", '{"\\ud800": {"status": "failure"}}')
        self.write("s/c2", '{"\\ud800": {"status": "success"}}')
        for option in ("--html", "--csv", "--write"):
            with self.subTest(option):
                self.dedup("s", option, "file", code=3, err="ci_dedup.py: error: cannot write .*")

    def test_numbers_that_are_too_large(self) -> None:
        for number in ("1" + "0" * 400, "1e400"):
            with self.subTest(number[:9]):
                self.write("s/c1", '{"good": {"status": "success"}, "bad": {"status": "x", "seconds": ' + number + "}}")
                self.dedup("s", code=2, err="ci_dedup.py: error: s/c1: neither [^\n]*'bad'[^\n]+")
                self.journal(started("r"), ended("a", "failed"), started("s"), ended("a", run="s"),
                             json.dumps(ended("b", seconds="HERE")).replace('"HERE"', number) + "\n")
                self.assertIn("\nskipped, not whole: 1: j.jsonl (1 line)\n",
                              self.dedup("j.jsonl").text)


if __name__ == "__main__":
    unittest.main()
