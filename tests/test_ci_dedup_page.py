"""The heat map of qa/ci_dedup.py in a real browser; skipped where there is no chromium."""
from __future__ import annotations

import base64
import csv
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

from tests.support import ROOT

# BROWSER=1 says that pages are to be tried in one, as .ci/run does: it takes ten seconds.
BROWSER = os.environ.get("BROWSER") and (shutil.which("chromium") or shutil.which("google-chrome"))
JOBS = ["plain", "<b>bold</b> & \"quoted\"", "</script><script>alert(1)</script>", "spaced  job \u00fc"]
COMMITS = ["1111", "0011", "1100", "0011", "1111", "1101", "1111", "0001"]      # a digit per job, whether it passed

WHAT_IT_SHOWS = """
(() => {
    const seen = [], box = canvas.getBoundingClientRect(), cell = box.width / rows.length;
    for (let y = 0; y < rows.length; y++)
        for (let x = 0; x < rows.length; x++) {
            const at = {clientX: box.left + (x + 0.5) * cell, clientY: box.top + (y + 0.5) * cell};
            canvas.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, ...at}));
            seen.push([tip.hidden, tip.textContent, [...ink.getImageData(x, y, 1, 1).data].slice(0, 3)]);
        }
    canvas.dispatchEvent(new MouseEvent("mouseleave"));
    const tree = [...document.querySelectorAll("#tree path")].map(path => path.getAttribute("d"));
    return JSON.stringify({seen, outside: tip.hidden, jobs: data.jobs, tree,
                           boxes: document.querySelectorAll("#boxes rect").length,
                           labels: [...document.querySelectorAll("#rows div")].map(label => label.textContent),
                           points: [...document.querySelectorAll("#plot circle")].map(point => point.textContent),
                           ticks: [...document.querySelectorAll("#plot text[y='258']")].map(tick => +tick.textContent),
                           title: document.title, scripts: document.scripts.length, bold: document.querySelector("b")});
})()
"""
MANY = """
(() => {
    const inked = () => {
        const pixels = ink.getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let place = 0; place < pixels.length; place += 4)
            count += pixels[place] + pixels[place + 1] + pixels[place + 2] < 765;
        return count;
    };
    const said = {rows: rows.length, few: few.checked, first: inked()};
    few.checked = false;
    few.dispatchEvent(new Event("change"));
    said.all = rows.length;
    said.whole = inked();
    zoom.value = 20;
    zoom.dispatchEvent(new Event("input"));
    said.size = canvas.getBoundingClientRect().width;
    const label = byId("rows"), frame = map.getBoundingClientRect();
    map.scrollLeft = map.scrollTop = said.size / 2;
    said.left = label.getBoundingClientRect().left - frame.left;
    said.top = byId("columns").getBoundingClientRect().top - frame.top;
    const cell = canvas.getBoundingClientRect(), row = label.children[500], column = byId("columns").children[500];
    said.down = row.getBoundingClientRect().top - cell.top - 500 * 20;
    said.right = column.getBoundingClientRect().left - cell.left - 500 * 20;
    return JSON.stringify(said);
})()
"""


class Browser:
    """A headless chromium that is told what to do through two pipes, by the DevTools protocol."""

    def __init__(self, folder: str) -> None:
        to_browser, self.send_to = os.pipe()
        self.read_from, from_browser = os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        assert BROWSER
        self.process = subprocess.Popen(         # it reads from 3 and writes to 4
            ["bash", "-c", 'exec "$@" 3<&{} 4>&{}'.format(*theirs), "bash", BROWSER, "--headless", "--no-sandbox",
             "--disable-gpu", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=theirs)
        for end in (to_browser, from_browser, *theirs):
            os.close(end)
        self.asked, self.rest = 0, b""

    def ask(self, method: str, session: str = "", **params: Any) -> Dict[str, Any]:
        """The result of one command."""
        self.asked += 1
        message: Dict[str, Any] = {"id": self.asked, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.send_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.asked:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self) -> Dict[str, Any]:
        """The next message."""
        while b"\0" not in self.rest:
            data = os.read(self.read_from, 1 << 16)
            assert data, "the browser has ended"
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: str) -> str:
        """The session of a page, once that is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", session)
        self.ask("Page.navigate", session, url=f"file://{path}")
        while self.receive().get("method") != "Page.loadEventFired":
            pass
        return session

    def evaluate(self, path: str, script: str) -> Any:
        """What a script says in a page."""
        result = self.ask("Runtime.evaluate", self.open(path), expression=script)
        assert "exceptionDetails" not in result, result
        return json.loads(result["result"]["value"])

    def close(self) -> None:
        """End the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self.send_to)
        os.close(self.read_from)


@unittest.skipUnless(BROWSER, "no chromium, or no BROWSER=1")
class Page(unittest.TestCase):
    """What a user sees."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ci_dedup.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def page(self) -> str:
        """The page of a small history, whose names try to break it."""
        table, page = os.path.join(self.folder, "history.csv"), os.path.join(self.folder, "map.html")
        with open(table, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["commit", "job", "ok", "seconds"])
            rows.writerows((number, job, digit, len(job)) for number, digits in enumerate(COMMITS)
                           for job, digit in zip(JOBS, digits))
        subprocess.run([sys.executable, os.path.join(ROOT, "qa", "ci_dedup.py"), table, "--html", page,
                        "--csv", os.path.join(self.folder, "map.csv")], check=True, stdout=subprocess.DEVNULL)
        return page

    def colour(self, value: float) -> List[int]:
        """Red for 1, white for 0, blue for -1."""
        rest = round(255 * (1 - abs(value)))
        return [rest, rest, 255] if value < 0 else [255, rest, rest]

    def test_values_on_hover_and_colours(self) -> None:
        page = self.page()
        browser = Browser(os.path.join(self.folder, "profile"))
        self.addCleanup(browser.close)
        shown = browser.evaluate(page, WHAT_IT_SHOWS)
        self.assertEqual(sorted(shown["jobs"]), sorted(JOBS))
        self.assertEqual((shown["title"], shown["scripts"], shown["bold"]), ("4 jobs over 8 commits", 1, None))
        self.assertTrue(shown["outside"], "no hint outside of the cells")
        cells = [(y, x) for y in range(len(JOBS)) for x in range(len(JOBS))]
        self.assertEqual(len(shown["seen"]), len(cells))
        self.assertEqual((shown["boxes"], len(shown["tree"]), len(shown["points"])), (1, 1, 12))
        dearest = max(float(point.split(" %")[0]) for point in shown["points"])
        for quarter, tick in enumerate(shown["ticks"]):
            self.assertAlmostEqual(tick, dearest * quarter / 4, delta=0.1)
        self.assertEqual(shown["labels"], [f"{number}. {job}" for number, job in enumerate(shown["jobs"])])
        verdicts = {job: [digits[place] == "1" for digits in COMMITS] for place, job in enumerate(JOBS)}
        numbers = self.matrix()
        for (y, x), (hidden, text, colour) in zip(cells, shown["seen"]):
            one, other = shown["jobs"][y], shown["jobs"][x]
            value = numbers[one][other]
            pairs = [*zip(verdicts[one], verdicts[other])]
            together, either = pairs.count((False, False)), len(pairs) - pairs.count((True, True))
            with self.subTest(row=y, column=x):
                self.assertEqual((hidden, text), (
                    False, f"{y}. {one}\n{x}. {other}\n{value:.3f}\nfailed together {together} of {either} "
                    f"(both ran {len(COMMITS)} times)"))
                for ours, theirs in zip(self.colour(value), colour):
                    self.assertAlmostEqual(ours, theirs, delta=1)

    def matrix(self) -> Dict[str, Dict[str, float]]:
        """Phi by job and job, of the CSV file that is written beside the page."""
        with open(os.path.join(self.folder, "map.csv"), encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        return {row[0]: {job: float(value) for job, value in zip(header[2:], row[2:])} for row in rows}

    def test_many_jobs_are_never_a_blank_page(self) -> None:
        """More than a canvas could hold that is as large as the map: clusters first, then all, scrolled, on paper."""
        rng = random.Random(3)
        table, page = os.path.join(self.folder, "history.csv"), os.path.join(self.folder, "map.html")
        with open(table, "w", encoding="utf-8") as file:
            file.write("commit,job,ok\n")
            for commit in range(30):
                broken = {cluster for cluster in range(250) if rng.random() < 0.1}
                file.writelines(f"c{commit},job{job},{int(job // 4 not in broken)}\n" for job in range(1000))
        subprocess.run([sys.executable, os.path.join(ROOT, "qa", "ci_dedup.py"), table, "--html", page],
                       check=True, stdout=subprocess.DEVNULL)
        browser = Browser(os.path.join(self.folder, "profile"))
        self.addCleanup(browser.close)
        said = browser.evaluate(page, MANY)
        self.assertTrue(said["few"])
        self.assertLess(said["rows"], 270)
        self.assertGreater(said["all"], 900)
        self.assertGreater(said["first"], 10_000)
        self.assertGreater(said["whole"], 100_000)
        self.assertEqual(said["size"], 20 * said["all"])
        self.assertLess(max(abs(said["left"]), abs(said["top"])), 3, "labels stay while the map is scrolled")
        self.assertLess(max(abs(said["down"]), abs(said["right"])), 1, "each at its row or column")
        paper = base64.b64decode(browser.ask("Page.printToPDF", browser.open(page))["data"])
        self.assertGreater(len(paper), 10_000)


if __name__ == "__main__":
    unittest.main()
