"""The page of qa/timeline.py in a real browser; skipped where there is no chromium."""
from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import unittest
from typing import Any, Dict, List

from tests.test_ci_dedup_page import BROWSER, Browser
from tests.test_timeline import HOSTILE, Record, a_run, ended, hostile_run, started, text_of, timeline

SAID = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
MANY = 5000                      # tests that a page has to bear
PHONE_PX = 360


class Watched(Browser):
    """A browser that keeps what pages say on their console."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.said: List[Dict[str, Any]] = []

    def receive(self) -> Dict[str, Any]:
        message = super().receive()
        if message.get("method") in SAID:
            self.said.append(message)
        return message

    def open(self, path: str, width: int = 1200, scheme: str = "light", medium: str = "", scripts: bool = True) -> None:
        """Load a page."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable", self.session)
        self.ask("Emulation.setDeviceMetricsOverride", self.session, width=width, height=800, deviceScaleFactor=1,
                 mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", self.session, media=medium,
                 features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Emulation.setScriptExecutionDisabled", self.session, value=not scripts)
        self.ask("Page.navigate", self.session, url=f"file://{path}")
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def get(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", self.session, expression=f"JSON.stringify([{script}])")
        assert "exceptionDetails" not in result, result
        return json.loads(result["result"]["value"])[0]


@unittest.skipUnless(BROWSER, "no chromium, or no BROWSER=1")
class Page(unittest.TestCase):
    """What a user sees and does."""

    folder: str
    browser: Watched

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp(prefix="timeline.")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.browser = Watched(os.path.join(cls.folder, "profile"))
        cls.addClassCleanup(cls.browser.close)

    def tearDown(self) -> None:
        """No page has said a word on its console."""
        self.assertEqual(self.browser.said, [])

    def page(self, events: List[Record]) -> str:
        """The page of a run; returns its path."""
        journal, page = (os.path.join(self.folder, f"{self.id()}.{end}") for end in ("jsonl", "html"))
        with open(journal, "w", encoding="utf-8") as file:
            file.write(text_of(events))
        with open(page, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            self.assertEqual(timeline.main([journal, "--html", "-"]), 0)
        return page

    def small(self) -> str:
        return self.page(a_run(started("b", 0), ended("b", 90, 90), started("a10", 0, ["1"]),
                               ended("a10", 5, 5, "failed"), started("a9", 5, ["1"]), ended("a9", 35, 28), end=100))

    def rows(self) -> List[str]:
        """The labels in the table of tests that are shown, in order."""
        return self.browser.get("[...document.querySelectorAll('#tests tbody tr:not([hidden])')]"
                                ".map(row => row.cells[0].textContent)")

    def put(self, name: str, value: str) -> None:
        """Type into a control."""
        self.browser.get(f"[by({name!r}).value = {value!r}, by({name!r}).dispatchEvent(new Event('input'))]")

    def test_sort(self) -> None:
        """A column of numbers begins with the largest, one of words with the first; once more turns it round."""
        self.browser.open(self.small())
        self.assertEqual(self.rows(), ["b", "a10", "a9"])
        for column, orders in ((0, ["a9 a10 b", "b a10 a9"]), (6, ["b a9 a10", "a10 a9 b"])):
            for order in orders * 2:
                self.browser.get(f"document.querySelectorAll('#tests th button')[{column}].click()")
                self.assertEqual(self.rows(), order.split())

    def test_filter(self) -> None:
        """By duration, outcome and name: rows go, bars fade, their number is told."""
        self.browser.open(self.small())
        every = "b a10 a9"
        for name, value, left in (("least", "28", "b a9"), ("least", "1m30s", "b"), ("least", "1.5m", "b"),
                                  ("least", "oops", every), ("least", "", every), ("outcome", "failed", "a10"),
                                  ("outcome", "", every), ("word", "A", "a10 a9")):
            self.put(name, value)
            self.assertEqual(self.rows(), left.split(), (name, value))
            bars = self.browser.get("[...document.querySelectorAll('g[data-t]:not(.off)')].map(bar => bar.dataset.t)")
            self.assertEqual(len(bars), len(left.split()))
            self.assertEqual(self.browser.get("by('shown').textContent"), f"{len(left.split())} of 3 tests")

    def test_zoom_and_a_touch_on_a_bar(self) -> None:
        self.browser.open(self.small())
        width = "document.querySelector('.wide').getBoundingClientRect().width"
        before = self.browser.get(width)
        self.put("zoom", "2")
        self.assertAlmostEqual(self.browser.get(width), 4 * before, delta=2)
        touch = "new MouseEvent('click', {bubbles: true})"
        self.browser.get(f"document.querySelector('g.failed rect').dispatchEvent({touch})")
        self.assertIn("a10; failed, exit 1; GPU 1, 5.0s from 0.0s", self.browser.get("by('tip').textContent"))
        self.assertEqual(self.browser.get("document.querySelector('.picked').id"), "t2")
        self.browser.get("document.body.click()")
        self.assertTrue(self.browser.get("by('tip').hidden"))

    def test_what_each_row_of_pixels_shows(self) -> None:
        """Bars lie where and as long as their attempts; the layers of the first graph fill it."""
        self.browser.open(self.small())
        boxes = self.browser.get("[...document.querySelectorAll('g[data-t]')].map(bar => {"
                                 "const box = bar.querySelector('rect').getBoundingClientRect(),"
                                 "all = document.querySelector('.wide').getBoundingClientRect();"
                                 "return [(box.left - all.left) / all.width, box.width / all.width]})")
        for box, (left, width) in zip(boxes, ((0, 0.9), (0, 0.05), (0.05, 0.28))):
            self.assertAlmostEqual(box[0], left, delta=0.003)
            self.assertAlmostEqual(box[1], width, delta=0.003)
        colours = self.browser.get("[...document.querySelectorAll('path')].map(path => getComputedStyle(path).fill)")
        self.assertNotIn("rgb(0, 0, 0)", colours, "each layer has a colour")
        self.assertEqual(len(set(colours)), len(colours))

    def test_hostile_texts(self) -> None:
        """They are text, in the table and on bars."""
        self.browser.open(self.page(hostile_run()))
        self.assertEqual(self.rows(), [timeline.clean(text) for text in HOSTILE])
        self.assertEqual(self.browser.get("document.querySelectorAll('script, b, img').length"), 1)

    def test_light_dark_print(self) -> None:
        """Text can be read on its ground (WCAG's contrast of 4.5); what is printed is light."""
        contrast = ("(() => { const shine = name => { const of = getComputedStyle(document.body)[name].match(/\\d+/g)"
                    ".map(part => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);"
                    "return 0.2126 * of[0] + 0.7152 * of[1] + 0.0722 * of[2]; };"
                    "return [shine('color'), shine('backgroundColor')]; })()")
        page = self.small()
        for scheme, medium, is_dark in (("light", "", False), ("dark", "", True), ("dark", "print", False)):
            self.browser.open(page, scheme=scheme, medium=medium)
            text, ground = self.browser.get(contrast)
            self.assertEqual(text > ground, is_dark, (scheme, medium))
            self.assertGreater((max(text, ground) + 0.05) / (min(text, ground) + 0.05), 4.5)
            controls = self.browser.get("getComputedStyle(document.querySelector('.controls')).display")
            self.assertEqual(controls, "none" if medium else "flex")

    def test_without_scripts(self) -> None:
        """All is there but the controls."""
        self.browser.open(self.small(), scripts=False)
        root = self.browser.ask("DOM.getDocument", self.browser.session, depth=1)["root"]["nodeId"]
        for selector, there in (("#tests tbody tr", 3), ("g[data-t]", 3), ("html.js", 0)):
            found = self.browser.ask("DOM.querySelectorAll", self.browser.session, nodeId=root, selector=selector)
            self.assertEqual(len(found["nodeIds"]), there, selector)

    def test_a_phone_and_many_tests(self) -> None:
        """The page is as wide as the screen; wide parts scroll by themselves."""
        chance = random.Random(5)
        events: List[Record] = []
        free = [0.0] * 8
        for number in range(MANY):
            at = min(free)
            gpu = free.index(at)
            free[gpu] = end = at + chance.uniform(0.1, 60)
            label = f"tests/test_file_{number % 97}.py::TestCase::test_{number}"
            events += [started(label, at, [str(gpu)]), ended(label, end, end - at, chance.choice(("passed", "failed")))]
        page = self.page(a_run(*events, end=max(free), gpus=list("01234567")))
        for width in (PHONE_PX, 1600):
            self.browser.open(page, width=width)
            self.assertLessEqual(self.browser.get("document.documentElement.scrollWidth"), width)
            self.assertEqual(self.browser.get("document.querySelectorAll('#tests tbody tr').length"), MANY)
        self.put("least", "59")
        self.assertLess(len(self.rows()), MANY / 10)


if __name__ == "__main__":
    unittest.main()
