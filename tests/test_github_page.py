"""qa/github_page.py: the page that it makes of a run's journal and logs."""
from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import unittest
from typing import Any, Dict, List, Sequence, Tuple

from tests.support import ROOT, RunnerCase, interrupted

sys.path.insert(0, os.path.join(ROOT, "qa"))

import github_page

SCRIPT = os.path.join(ROOT, "qa", "github_page.py")


class PageTest(RunnerCase):
    def page(self, *arguments: str, workspace: str = "", commit: str = "") -> subprocess.CompletedProcess[str]:
        """What a copy of the program prints in the test's folder; `workspace`, `commit`: GitHub's, none if empty."""
        program = shutil.copy(SCRIPT, os.path.join(self.folder, "alone.py"))
        return subprocess.run([sys.executable, "-IS", program, *arguments], cwd=self.folder, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "GITHUB_WORKSPACE": workspace, "GITHUB_SHA": commit})

    def test_a_run(self) -> None:
        """The last one alone; nothing in a log ends its fence."""
        self.run_list("true #: label=old\n")
        self.run_list("echo '```'; echo '<b>'; exit 3 #: label='t|0% <x>'\nkill -SEGV $$ #: label=dies\n"
                      "[ $RUN_TESTS_ATTEMPT = 2 ] #: label=shaky retries=1\ntrue #: label=wide gpus=2\n"
                      "true #: label=waits after=dies\ntrue #: label=cpu gpus=0\n")
        with open(os.path.join(self.folder, "logs", "run_tests.jsonl"), "a", encoding="utf-8") as file:
            file.write('[]\n{"event": "torn')
        ran = self.page()
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertRegex(ran.stdout, r"^### 6 tests in [\d.]+s: .*\b1 flaky\b.* \(exit code 1\)\n\nFlaky: shaky\n\n"
                                     r"Slowest: [^\n]*\n\n<details>")
        self.assertNotIn("old", ran.stdout)
        for part in ("<summary>t|0% &lt;x&gt;: failed, exit 3: &lt;b&gt;</summary>\n\n"
                     "````text\n```\n<b>\n\n````\n", "<summary>dies: crashed (SIGSEGV): ",
                     "\n\nwaits: blocked: waits for dies, which did not pass\n\n",
                     "gantt\n", "  section GPU 0\n", "  section GPU 1\n", "  section CPU\n    \u200bcpu :",
                     " :crit, 2000-01-01T00:00:00, 2000-01-01T00:00:01\n"):
            self.assertIn(part, ran.stdout)

    def test_a_label_stands_as_it_is(self) -> None:
        """Markdown would show `a/__x__` in bold, and the stars of a glob not at all."""
        self.run_list("[ $RUN_TESTS_ATTEMPT = 2 ] #: label='a/*_x.py b/*_[y](z)' retries=1\n"
                      "false #: label='#1 `a`'\ntrue #: label=@b after='#1 `a`'\n")
        page = self.page().stdout
        self.assertIn("Flaky: a/&#42;&#95;x.py b/&#42;&#95;&#91;y&#93;(z)\n", page)
        self.assertIn("<summary>&#35;1 &#96;a&#96;: failed, exit 1", page)
        self.assertIn("\n&#64;b: blocked: waits for &#35;1 &#96;a&#96;, which did not pass\n", page)

    def test_a_script_that_fails_by_itself(self) -> None:
        """Its log is its own; it is no test, and takes no time. The log dir stands for the journal."""
        self.write("test.sh", "test_fail() { :; }\ntrue || test_fail a\necho 'no room'; exit 4\n")
        self.run_command("test.sh")
        ran = self.page("logs")
        self.assertIn("<summary>test.sh: failed, exit 4</summary>\n\n```text\nno room\n", ran.stdout)
        self.assertIn("### 1 test in ", ran.stdout)

    def test_failed_tests_become_annotations(self) -> None:
        """With the last place that the log tells, where there is such a file."""
        self.write("tests/x,y.py", "")
        trace = "a.py:1: in f\\nlib/y.py:3: Warning: x\\n\\ntests/x,y.py:12: AssertionError\\n=\\n"
        self.run_list(f"printf '{trace}'; exit 3 #: label='t|0%, a:b'\n"
                      "echo gone.py:1: KeyError; echo 50%; false #: label=elsewhere\ntrue #: label=passes\n"
                      "true #: label=waits after=elsewhere\n")
        ran = self.page(workspace=os.path.dirname(self.folder))
        top = os.path.basename(self.folder)
        self.assertTrue(ran.stdout.startswith("### 4 tests in "), ran.stdout)
        self.assertEqual(sorted(ran.stderr.splitlines()), [
            f"::error file={top}/tests/x%2Cy.py,line=12,title=t|0%25%2C a%3Ab::"
            "failed, exit 3: =",
            "::error title=elsewhere::failed, exit 1: 50%25",
            "::error title=waits::blocked: waits for elsewhere, which did not pass"])

    def test_what_the_deadline_has_ended_is_shown(self) -> None:
        """It is the test that hangs, as a rule; what did not run is only counted."""
        self.run_list("echo where it hangs; sleep 60 #: label=hangs\nwait\ntrue\n", "--deadline", "1s")
        ran = self.page(workspace=self.folder)
        self.assertRegex(ran.stdout, r"^### 2 tests in .*\b1 interrupted\b.* \(exit code 1\)\n")
        self.assertRegex(ran.stdout, "<summary>hangs: interrupted.*</summary>\n\n```text\nwhere it hangs\n")
        self.assertRegex(ran.stderr, r"\A::error title=hangs::interrupted.*\n\Z")

    def test_github_shows_ten_annotations(self) -> None:
        self.run_list("false\n" * 12)
        self.assertEqual(len(self.page(workspace=self.folder).stderr.splitlines()), 10)

    def test_what_is_no_journal(self) -> None:
        self.write("notes", "a note\n" + "[" * 100_000 + "\n")
        for path, why in (("notes", "no line of it is a journal's"), ("none", "cannot be read (No such file")):
            ran = self.page(path)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertTrue(ran.stderr.startswith(f"github_page.py: {path}: {why}"), ran.stderr)

    def test_a_run_of_another_commit_is_not_this_jobs(self) -> None:
        """Where the runner has refused the list, the journal is as the cache had it. A run outside of CI has none."""
        self.run_list("false\n", env={"GITHUB_SHA": "c0ffee"})
        for commit, code in (("c0ffee", 0), ("", 0), ("facade", 2)):
            ran = self.page(workspace=self.folder, commit=commit)
            self.assertEqual((ran.returncode, ran.stdout == ""), (code, code == 2))
        self.assertEqual(ran.stderr, "github_page.py: logs/run_tests.jsonl: its last run was of commit c0ffee; "
                                     "to show that, set GITHUB_SHA to it for this command\n")
        self.run_list("false\n")
        self.assertEqual(self.page(commit="facade").returncode, 0)

    def test_an_event_that_lacks_something_costs_only_itself(self) -> None:
        """As in a journal made by hand; `run` is what each has at least."""
        self.run_list("echo why; false #: label=fails\ntrue\n")
        with open(os.path.join(self.folder, "logs", "run_tests.jsonl"), "r+", encoding="utf-8") as file:
            for event in list(map(json.loads, file)):
                for key in {*event} & {*"event time directory label log gpus seconds status exit".split()}:
                    file.write(json.dumps({name: event[name] for name in event if name != key}) + "\n")
        ran = self.page(workspace=self.folder)
        self.assertIn("<summary>fails: failed, exit 1: why</summary>\n\n```text\nwhy\n", ran.stdout)
        self.assertEqual((ran.returncode, ran.stderr), (0, "::error title=fails::failed, exit 1: why\n"))

    def test_a_value_that_no_runner_writes_costs_only_its_event(self) -> None:
        self.run_list("echo why; false #: label=fails\ntrue\n")
        with open(os.path.join(self.folder, "logs", "run_tests.jsonl"), "r+", encoding="utf-8") as file:
            for event in list(map(json.loads, file)):
                for key in {*event} & {*"time label log gpus seconds outcome attempt cause said".split()}:
                    for value in None, -1e300, math.inf, math.nan, 10**400, [[]], {}:
                        file.write(json.dumps({**event, "label": "odd", key: value}) + "\n")
        ran = self.page(workspace=self.folder)
        self.assertIn("<summary>fails: failed, exit 1: why</summary>\n\n```text\nwhy\n", ran.stdout)
        self.assertEqual((ran.returncode, ran.stderr.splitlines()[0]), (0, "::error title=fails::failed, exit 1: why"))

    def test_a_test_that_was_split_is_one(self) -> None:
        """With the log of the first part that failed, else its own; its parts are in the chart alone."""
        self.write("logs/t.log", "in its log\n")
        events = [{"event": "run_start", "time": 1, "directory": "/"}]
        for number in (1, 2):
            label = f"t (run 2) (part {number} of 2)"
            common = {"label": label, "attempt": 1, "time": number}
            end = {"event": "test_end", "outcome": "failed", "status": 1, "signal": None, "seconds": 1.0, **common}
            events += [{"event": "test_start", "log": f"logs/t.parts/{number}.log", "gpus": [str(number)], **common},
                       {**end, "origin": "t"}]
        events.append({**end, "label": "t (run 2)", "seconds": 2.0, "reason": None})
        self.write("logs/run_tests.jsonl", "".join(json.dumps({**event, "run": "r"}) + "\n" for event in events))
        page = self.page().stdout
        self.assertTrue(page.startswith("### 1 test in 1.0s: 1 failed (no end in the journal)\n\nSlowest: t (run 2) "
                                        "2.0s\n\n<details><summary>t (run 2): failed, exit 1</summary>\n\n```text\n"
                                        "in its log\n"), page)
        self.assertEqual(page.count("  part "), 2)
        self.write("logs/t.parts/1.log", "in the log of the first part\n")
        self.assertIn("```text\nin the log of the first part\n", self.page().stdout)

    def test_a_part_that_passed_is_no_test_that_did(self) -> None:
        """Where the run was killed before all of its test had ended."""
        events = [{"event": "run_start", "time": 1, "directory": "/"}]
        for number, outcome in enumerate(("passed", "failed"), 1):
            events.append({"event": "test_end", "label": f"t (part {number} of 3)", "attempt": 1, "time": 2.0,
                           "outcome": outcome, "status": number - 1, "signal": None, "seconds": 1.0, "origin": "t"})
        ends = github_page.ends_of([*events, {**events[1], "label": "u (part 1 of 2)", "origin": "u"}])
        self.assertEqual({label: end["outcome"] for label, end in ends.items()}, {"t (part 2 of 3)": "failed"})
        self.assertEqual([*github_page.named({})], [])

    def chart(self, *tests: Tuple[str, Sequence[str]]) -> str:
        """The chart of a run of these tests, by label and GPUs, one behind the other for 61 s each."""
        run: List[Dict[str, Any]] = [{"event": "run_start", "time": 5}]
        for number, (label, gpus) in enumerate(tests):
            start = {"label": label, "attempt": 1, "time": 5.2 + 61 * number, "gpus": gpus}
            end = {"outcome": "passed", "seconds": 61.0, **start}
            run += [{"event": "test_start", **start}, {"event": "test_end", **end}]
        return github_page.chart(run)

    def test_the_chart_tells_the_time_of_no_place(self) -> None:
        """Mermaid shows seconds since 1970 by the reader's clock: a run would begin at 19:00:00 in New York."""
        chart = self.chart(("a", ["0"]), ("b", ["1"]))
        self.assertIn("\n  dateFormat YYYY-MM-DDTHH:mm:ss\n", chart)
        self.assertIn("a :2000-01-01T00:00:00, 2000-01-01T00:01:01\n", chart)
        self.assertIn("b :2000-01-01T00:01:01, 2000-01-01T00:02:02\n", chart)

    def test_no_label_ends_the_chart(self) -> None:
        """Mermaid reads a name of its own words, or of blanks alone, as something else, and shows an error."""
        labels = ["gantt", "title x", "section y", "click z", "2024-01-01", "???"]
        chart = self.chart(*((label, ["0"]) for label in labels))
        for line in chart.splitlines()[5:-1]:
            self.assertRegex(line, "^    \u200b[^:]+:2000")

    def test_a_chart_of_wide_tests_is_small_enough(self) -> None:
        """Each GPU has a bar: Mermaid refuses more than 50,000 characters."""
        chart = self.chart(*((f"{number:0200}", [str(gpu) for gpu in range(16)]) for number in range(100)))
        self.assertLess(len(chart), 50_000)

    def test_a_page_that_cannot_be_written(self) -> None:
        self.run_list("true\n")
        said = "github_page.py: the page cannot be written ("
        for output, code, why in ((">/dev/full", 3, said + "No space left on device)\n"),
                                  (">&-", 3, said + "Bad file descriptor)\n"), ("| true", 0, "")):
            bash = ["bash", "-c", f'"$@" {output}; exit ${{PIPESTATUS[0]}}', "bash", sys.executable, SCRIPT]
            ran = subprocess.run(bash, cwd=self.folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env={**os.environ, "GITHUB_WORKSPACE": ""})
            self.assertEqual((ran.returncode, ran.stderr), (code, why), output)

    def test_an_interrupt(self) -> None:
        self.assertEqual(interrupted(self, SCRIPT), (130, b""))

    def test_a_page_fits(self) -> None:
        self.assertEqual(github_page.fitting(["a", "b" * 100], 60), b"a\nMore does not fit: see the logs.\n")
        self.assertEqual(github_page.fitting(["a", "b"], 60), b"ab")


if __name__ == "__main__":
    unittest.main()
