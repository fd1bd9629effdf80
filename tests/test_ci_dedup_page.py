"""The heat map of qa/ci_dedup.py in a real browser; skipped where there is no chromium."""
from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

from tests.support import ROOT

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
JOBS = ["plain", "<b>bold</b> & \"quoted\"", "</script><script>alert(1)</script>", "spaced  job \u00fc"]
COMMITS = ["1111", "0011", "1100", "0011", "1111", "1101", "1111", "0001"]      # a digit per job, whether it passed

WHAT_IT_SHOWS = """
(() => {
    const canvas = document.querySelector("canvas"), tip = document.getElementById("tip");
    const seen = [], box = canvas.getBoundingClientRect();
    for (let y = 0; y < count; y++)
        for (let x = 0; x < count; x++) {
            const at = {clientX: box.left + margin + (x + 0.5) * cell, clientY: box.top + margin + (y + 0.5) * cell};
            canvas.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, ...at}));
            const place = number => Math.round((margin + (number + 0.25) * cell) * sharp);
            seen.push([tip.hidden, tip.textContent, [...ink.getImageData(place(x), place(y), 1, 1).data].slice(0, 3)]);
        }
    canvas.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + 2, clientY: box.top + 2}));
    const outside = tip.hidden;
    return JSON.stringify({seen, outside, jobs: data.jobs, clusters: data.clusters, values: data.values,
                           title: document.title, scripts: document.scripts.length, bold: document.querySelector("b")});
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

    def evaluate(self, path: str, script: str) -> Any:
        """What a script says in a page, once that is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", session)
        self.ask("Page.navigate", session, url=f"file://{path}")
        while self.receive().get("method") != "Page.loadEventFired":
            pass
        result = self.ask("Runtime.evaluate", session, expression=script)
        assert "exceptionDetails" not in result, result
        return json.loads(result["result"]["value"])

    def close(self) -> None:
        """End the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self.send_to)
        os.close(self.read_from)


@unittest.skipUnless(BROWSER, "no chromium")
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
            rows.writerow(["commit", "job", "ok"])
            rows.writerows((number, job, digit) for number, digits in enumerate(COMMITS)
                           for job, digit in zip(JOBS, digits))
        subprocess.run([sys.executable, os.path.join(ROOT, "qa", "ci_dedup.py"), table, "--html", page,
                        "--holdout", "0"], check=True, stdout=subprocess.DEVNULL)
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
        boxed = {(first, first + length) for first, length in shown["clusters"]}
        self.assertTrue(boxed, "two jobs that are alike are in one box")
        for (y, x), (hidden, text, colour) in zip(cells, shown["seen"]):
            value = shown["values"][y][x]
            with self.subTest(row=y, column=x):
                self.assertEqual((hidden, text), (False, f"{y}. {shown['jobs'][y]}\n{x}. {shown['jobs'][x]}\n"
                                                         f"{value:.3f}"))
                for ours, theirs in zip(self.colour(value), colour):
                    self.assertAlmostEqual(ours, theirs, delta=1)


if __name__ == "__main__":
    unittest.main()
