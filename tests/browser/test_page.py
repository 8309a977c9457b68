"""The report's page in a real browser: an empty console, hover, zoom, sort and search.

Needs chromium and playwright; `make test-browser` installs both.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfswap.machine.machine import Machine
from tfswap.plan.slots import Slot
from tfswap.planning.planners import portfolio
from tfswap.report.address_map import AddressMap, Box
from tfswap.report.step_story import StepStory
from tfswap.report.summary import Report
from tfswap.step.timeline import Absence, Timeline, peak_load

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("chromium is not installed: apt-get install chromium", allow_module_level=True)

MIB = 1 << 20


def step(layers: int) -> Timeline:
    """Return a chain of layers, with 20 forward and 20 backward ops that read activations."""
    each = 20
    count = 2 * layers * each
    ends = np.arange(1, count + 1, dtype=np.int64) * 100_000
    names, sizes, alloc, free, absences = [], [], [], [], []
    for op in range(count):
        layer = min(op // each, 2 * layers - 1 - op // each)
        names.append(f"model/layer_{layer}/op_{op}<script>")
        first = op % each == 0 and op // each < layers
        back = count - 1 - op
        sizes.append(8 * MIB if first else 64 << 10)
        alloc.append(int(ends[op]) - 100_000)
        free.append(int(ends[back]) if first else int(ends[min(op + 1, count - 1)]))
        if first and back > op + 3:
            reader = (f"model/layer_{layer}/op_{back}<script>",)
            absences.append(Absence(op, f"model/layer_{layer}:0", op, op + 1, back, reader))
    return Timeline(
        op_names=tuple(names),
        op_start_ns=ends - 100_000,
        op_end_ns=ends,
        op_gateable=np.ones(count, dtype=np.bool_),
        op_context=np.zeros(count, dtype=np.int32),
        resident_bytes=4 * MIB,
        buffer_bytes=np.array(sizes, dtype=np.int64),
        buffer_alloc_ns=np.array(alloc, dtype=np.int64),
        buffer_free_ns=np.array(free, dtype=np.int64),
        absences=tuple(absences),
        step_ns=int(ends[-1]),
    )


def report(layers: int, link_gb_s: float = 1.0) -> Report:
    timeline = step(layers)
    link = Machine("a link", link_gb_s * 1e9, link_gb_s * 1e9)
    budget = int(0.6 * peak_load(timeline))
    decision = portfolio.plan("greedy", timeline, link, budget)
    boxes = tuple(
        Box(Slot(f"op{i}", 0, 0, i * MIB, MIB), i * 1_000_000, (i + 2) * 1_000_000)
        for i in range(20)
    )
    return Report(
        outcome="swapped",
        budget_bytes=budget,
        story=StepStory(timeline, decision.swaps, {}, link, (link,), budget),
        addresses=(AddressMap("0123456789abcdef", boxes, 20 * MIB, 2 * MIB),),
    )


class Page:
    """An open page and its console messages."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 1000})
        self.messages: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=20_000)

    def hover(self, canvas: str, across: float, down: float) -> str:
        box = self.page.locator(canvas).bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down)
        return self.tip(canvas)

    def tip(self, canvas: str) -> str:
        return self.page.locator(canvas).locator("xpath=../div[@class='tip']").inner_text()

    def rows(self) -> list[str]:
        return self.page.locator("#buffers tbody tr").all_inner_texts()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    report(20).to_html(path)
    opened = Page(browser, path)
    yield opened
    assert opened.messages == []


def test_hovering_over_the_load_shows_the_largest_buffers(small):
    tip = small.hover("#chart", 0.5, 100)
    assert "without swaps" in tip and "with " in tip
    assert "8.00 MiB model/layer_" in tip and "weights and other resident memory" in tip
    assert "<script> runs" in tip or "runs" in tip
    small.page.mouse.move(5, 5)
    assert not small.page.locator(".tip").first.is_visible()


def test_hovering_over_the_arcs_shows_the_swapped_tensors(small):
    tip = small.hover("#chart", 0.5, 300)
    assert "in host" in tip and "back at" in tip


def test_hovering_over_the_addresses_shows_their_ops(small):
    small.page.locator("#map0").scroll_into_view_if_needed()
    assert "(output) at" in small.hover("#map0", 0.12, 305)


def test_dragging_zooms_in(small):
    small.page.locator("#chart").scroll_into_view_if_needed()
    before = small.hover("#chart", 0.9, 100).split()[0]
    box = small.page.locator("#chart").bounding_box()
    small.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 100)
    small.page.mouse.down()
    small.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 100)
    small.page.mouse.up()
    assert float(small.hover("#chart", 0.9, 100).split()[0]) < float(before)
    small.page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 100)
    assert small.hover("#chart", 0.9, 100).split()[0] == before


def test_the_table_is_sorted_and_searched(small):
    sizes = [row.split("\t")[1] for row in small.rows()]
    assert sizes[0] == "8.00 MiB" and sizes[-1] == "64.0 KiB"
    small.page.get_by_role("button", name="bytes").click()
    assert small.rows()[0].split("\t")[1] == "64.0 KiB"
    small.page.get_by_role("button", name="swapped out").click()
    assert "host" in small.rows()[0]
    small.page.get_by_label("Search buffers").fill("LAYER_7:")
    assert [row.split("\t")[0] for row in small.rows()] == ["model/layer_7:0"]
    assert small.page.locator("#count").inner_text() == "1"
    small.page.get_by_label("Search buffers").fill("")


def test_hovering_over_a_stall_shows_the_wait(browser, tmp_path):
    slow = report(20, link_gb_s=0.4)
    assert slow.story is not None and slow.story.stalls
    slow.to_html(tmp_path / "slow.html", what_if=False)
    opened = Page(browser, tmp_path / "slow.html")
    longest = max(slow.story.stalls, key=lambda stall: stall.wait_ns)
    middle = (longest.begin_ns + longest.wait_ns / 2) / slow.story.result.step_ns
    width = opened.page.locator("#chart").bounding_box()["width"]
    across = (64 + middle * (width - 74)) / width
    assert "waits (" in opened.hover("#chart", across, 100)
    assert opened.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_dark_where_the_system_is(browser, tmp_path, scheme):
    Report().to_html(tmp_path / "report.html")
    page = browser.new_page(color_scheme=scheme)
    page.goto((tmp_path / "report.html").as_uri())
    paper = page.locator("body").evaluate("each => getComputedStyle(each).backgroundColor")
    assert paper == {"light": "rgb(252, 252, 250)", "dark": "rgb(22, 25, 28)"}[scheme]


@pytest.mark.parametrize(("text", "paper"), [("#111", "252, 252, 250"), ("#eee", "22, 25, 28")])
def test_a_cell_of_a_notebook(browser, tmp_path, text, paper):
    notebook = f"<style>body {{ color: {text} }}</style><h2 id='before'>a cell</h2>"
    (tmp_path / "notebook.html").write_text(notebook + report(20)._repr_html_())
    page = browser.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for(timeout=20_000)
    box = page.locator("iframe").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100)
    assert "without swaps" in frame.locator(".tip").inner_text()
    assert (
        frame.locator("body").evaluate("each => getComputedStyle(each).backgroundColor")
        == f"rgb({paper})"
    )
    assert (
        page.locator("#before").evaluate("each => getComputedStyle(each).fontSize") == "24px"
    )  # not the frame's
    below = "() => document.documentElement.scrollHeight - innerHeight"
    assert page.frames[1].evaluate(below) <= 0  # all of the chart is visible
    assert messages == []


def test_20000_ops_open_quickly(browser, tmp_path):
    large = report(500)
    assert large.story is not None and len(large.story.timeline.op_names) == 20_000
    large.to_html(tmp_path / "large.html", what_if=False)
    assert (tmp_path / "large.html").stat().st_size < 5_000_000
    opened = Page(browser, tmp_path / "large.html")  # within 20 s
    assert "with " in opened.hover("#chart", 0.5, 100)
    opened.page.get_by_role("button", name="buffer", exact=True).click()
    assert len(opened.rows()) == 500
    assert opened.page.locator("#count").inner_text() == "500 of 20000"
    assert opened.messages == []


def test_a_page_without_a_step(browser, tmp_path):
    Report().to_html(tmp_path / "nothing.html")
    assert Page(browser, tmp_path / "nothing.html").messages == []
