"""The report's page, pictures and traces."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from timelines import make_timeline

from tfswap.machine.machine import Machine
from tfswap.plan.slots import OUTSIDE, Slot
from tfswap.planning.least_budget import least_budgets
from tfswap.planning.planners.assignment import Place
from tfswap.planning.simulator import Swap
from tfswap.report import page
from tfswap.report.address_map import AddressMap, Box
from tfswap.report.address_strips import strips_to_svg
from tfswap.report.page import step_data
from tfswap.report.step_story import StepStory, lanes
from tfswap.report.summary import Report
from tfswap.step.op_floor import OpFloor, StepFloor
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Absence

MIB = 1 << 20
ERROR = (
    "tfswap: the memory budget of 1.0 GiB is exceeded: op 'a<b>' asks for 2.0 MiB. Addresses, low "
    "to high (# taken, + in part, . idle): planned [##+. ], others [#.]."
)
MAP = AddressMap(
    "0123456789abcdef",
    (
        Box(Slot("conv<1>", 0, 0, 0, 2 * MIB), 1_000_000, 3_000_000),
        Box(Slot("tfswap/in/x_0/0", 0, 0, 2 * MIB, 2 * MIB), 2_000_000, 5_000_000),
        Box(Slot("mean", 1, 2, 0, MIB), 4_000_000, 5_000_000),
        Box(Slot("update", 1, 0, OUTSIDE, MIB), 4_000_000, 5_000_000),
    ),
    4 * MIB,
    4 * MIB,
)


def rectangles(svg: str) -> list[dict[str, str]]:
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"]
    return [{**rect.attrib, "title": rect[0].text or ""} for rect in root.iter("rect")]


def test_the_address_map_of_an_error_is_drawn() -> None:
    classes = [box["class"] for box in rectangles(strips_to_svg(ERROR))]
    assert classes == ["taken", "taken", "part", "idle", "taken", "idle"]
    assert strips_to_svg("memory ran out") == ""


class _Tags(HTMLParser):
    """Collects unclosed tags, links to other files and the embedded data."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links = 0
        self.data: dict[str, Any] = {}
        self._in_data = False

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.links += sum(
            not (named.get(name) or "data:").startswith("data:") for name in ("src", "href")
        )
        self._in_data = named.get("id") == "data"
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_data(self, data):
        if self._in_data:
            self.data = json.loads(gzip.decompress(base64.b64decode(data)))

    def handle_endtag(self, tag):
        self._in_data = False
        assert self.open.pop() == tag


def read(path: Path) -> _Tags:
    tags = _Tags()
    tags.feed(path.read_text())
    assert tags.open == [] and tags.links == 0
    return tags


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    report = Report(outcome="fits", budget_bytes=MIB, addresses=(MAP,), out_of_memory=ERROR)
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    for part in ("the model fits", "a&lt;b&gt;", MAP.fingerprint, "4 allocations"):
        assert part in text
    data = read(tmp_path / "report.html").data
    assert data["step"] is None
    (map_,) = data["maps"]
    assert map_["names"] == ["conv<1>", "tfswap/in/x_0/0", "mean"]  # "update" has no address
    assert map_["kind"] == [0, 3, 1]
    assert (map_["begin"], map_["end"]) == ([0, 1000, 3000], [2000, 4000, 4000])
    assert map_["offset"] == [0, 2 * MIB, 0] and map_["end_us"] == 4000
    Report().to_html(tmp_path / "nothing.html")
    assert "no effect" in (tmp_path / "nothing.html").read_text()


def story(names: tuple[str, ...] = ("a", "b", "c", "d")) -> StepStory:
    """Ops of 10 ms; the output of a is read again by d and swapped out in between."""
    timeline = make_timeline(
        [(10_000_000 * i, 10_000_000 * (i + 1)) for i in range(len(names))],
        [(4 * MIB, 0, 40_000_000), (2 * MIB, 10_000_000, 30_000_000)],
        (Absence(0, "a:0", 0, 0, 3, ("d",)),),
        resident_bytes=MIB,
        op_names=names,
    )
    link = Machine("a link", 1e9, 1e9, 0, 0)
    swaps = (Swap(0, gate_op=2, trigger_op=1, far_bytes=MIB),)
    places = {"a:0": Place("compressed", "zvc", 0.25)}
    return StepStory(timeline, swaps, places, link, (link,), 6 * MIB, "by hand")


def test_the_data_of_a_step() -> None:
    data = step_data(story())
    (trip,) = data["trips"]
    assert (trip["tensor"], trip["bytes"], trip["kept"]) == ("a:0", 4 * MIB, MIB)
    assert (trip["tier"], trip["codec"]) == ("compressed", "zvc")
    assert trip["out_begin"] == 10_000 and trip["in_begin"] == 20_000
    assert data["before"]["bytes"][0] == 5 * MIB and data["unswapped_peak_bytes"] == 7 * MIB
    assert list(data["buffers"]["names"]) == ["a:0", "(of b)"]
    assert data["buffers"]["absence"] == [20_000, 0]
    assert data["ops"]["row"] == [0, 0, 0, 0] and data["rows"] == 1


def test_the_largest_holders_at_a_time() -> None:
    step = story()
    assert step.holders(5_000_000) == [("a:0", 4 * MIB)]
    assert step.holders(18_000_000) == [("(of b)", 2 * MIB)]  # a:0 is swapped out
    assert step.holders(35_000_000) == [("a:0", 4 * MIB)]


def test_stalls_shift_later_ops() -> None:
    step = story()
    slow = Machine("slow", 2e8, 2e8, 0, 0)
    late = replace(step, swaps=(replace(step.swaps[0], far_bytes=-1),), links=(slow,), machine=slow)
    assert late.stalls
    first = late.stalls[0]
    assert late.op_times[0][first.op] == first.begin_ns + first.wait_ns
    assert late.op_times[1][-1] == late.result.step_ns
    assert [stall["wait"] for stall in step_data(late)["stalls"]] == [
        stall.wait_ns // 1000 for stall in late.stalls
    ]


def test_a_page_of_a_step(tmp_path: Path) -> None:
    report = Report(outcome="swapped", story=story(("a<b>", "b", "c", "d")))
    report.to_html(tmp_path / "report.html")
    tags = read(tmp_path / "report.html")
    assert tags.data["step"]["ops"]["names"] == ["a<b>", "b", "c", "d"]
    text = (tmp_path / "report.html").read_text()
    for part in ("Far memory and its links", "Other budgets, faster links", "a link x 2"):
        assert part in text
    report.to_html(tmp_path / "short.html", what_if=False)
    assert "faster links" not in (tmp_path / "short.html").read_text()


def test_a_cell_of_a_notebook() -> None:
    report = Report(outcome="swapped", story=story(("a<b>", "b", "c", "d")), out_of_memory=ERROR)
    cell = report._repr_html_()
    text, _, frame = cell.partition("</pre>")
    assert text.removeprefix("<pre>") == escape(report.summary())
    attributes = dict(ElementTree.fromstring(frame).attrib)
    tags = _Tags()
    tags.feed(attributes["srcdoc"])
    assert tags.open == [] and tags.links == 0
    assert tags.data["step"]["ops"]["names"] == ["a<b>", "b", "c", "d"]
    for part in ('<canvas id="chart"', "a&lt;b&gt;", "Out of memory"):
        assert part in attributes["srcdoc"]
    assert "<script" not in cell and "<style" not in cell  # outside of the frame
    assert len(cell) < 50_000


def test_a_cell_without_a_step_is_text() -> None:
    fits = Report(outcome="fits", budget_bytes=MIB)
    assert fits._repr_html_() == f"<pre>{escape(fits.summary())}</pre>"


def test_a_cell_without_a_chart_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_MAX_CELL_BYTES", 1000)
    cell = Report(outcome="swapped", story=story())._repr_html_()
    assert "<iframe" not in cell and "write it with to_html(path)" in cell


def test_the_page_has_the_least_budgets(tmp_path: Path) -> None:
    report = Report(story=story(), least_budgets=least_budgets(story().timeline, story().machine))
    report.to_html(tmp_path / "report.html", what_if=False)
    read(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<td>without swapping</td><td>7 MiB</td>" in text
    assert '<td>with swapping</td><td>5 MiB</td><td class="op">a</td>' in text
    assert "sections=" not in text
    floors = (SectionFloor(2, 4 * MIB, "a<b>"), SectionFloor(4, 3 * MIB, "c"))
    report.least_budgets = replace(report.least_budgets, sections=floors)
    report.to_html(tmp_path / "report.html", what_if=False)
    read(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert '<td>sections=2</td><td>4 MiB</td><td class="op">a&lt;b&gt;</td>' in text
    assert "AutoSwap(sections=4) does." in text
    assert "floor, weights" not in text
    floor = StepFloor(OpFloor("a<b>", "A", 0, MIB, 0, 0, MIB), OpFloor("c", "C", MIB, 0, 0, 0, 0))
    report.least_budgets = replace(report.least_budgets, floor=floor)
    report.to_html(tmp_path / "report.html", what_if=False)
    read(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert '<td>floor, weights staying</td><td>2 MiB</td><td class="op">op &#x27;a&lt;b&gt;' in text
    assert "<td>floor, weights streamed</td><td>1 MiB</td>" in text
    assert Report()["least_budgets"] is None


def test_the_page_of_20000_ops_is_small(tmp_path: Path) -> None:
    count = 20_000
    random = np.random.default_rng(0)
    ends = np.cumsum(random.integers(1_000, 100_000, count)).tolist()
    begins = [0, *ends[:-1]]
    names = tuple(f"functional_1/block_{i % 97}/conv2d_{i}/Conv2D" for i in range(count))
    buffers = [
        (int(random.integers(1 << 10, 1 << 24)), begin, ends[min(i + 40, count - 1)])
        for i, begin in enumerate(begins)
    ]
    ops = list(zip(begins, ends, strict=True))
    timeline = make_timeline(ops, buffers, op_names=names)
    link = Machine("a link", 1e9, 1e9)
    Report(story=StepStory(timeline, (), {}, link, (link,), 1 << 30)).to_html(
        tmp_path / "large.html", what_if=False
    )
    assert (tmp_path / "large.html").stat().st_size < 2 << 20


def test_the_trace_for_perfetto(tmp_path: Path) -> None:
    Report(story=story()).to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = {(event["name"], event["pid"]): event for event in events if event["ph"] == "X"}
    assert slices["b", 1]["ts"] == 10_000 and slices["b", 1]["dur"] == 10_000
    assert slices["a:0", 2]["args"]["codec"] == "zvc"
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads == {"ops 1", "waits", "out to compressed", "in from compressed"}
    loads = [e["args"]["bytes"] for e in events if e["ph"] == "C" and "without" in e["name"]]
    assert max(loads) == 7 * MIB


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Report(story=story()).to_png(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_planned_step_there_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no planned step to show: the outcome is 'no effect'"):
        Report().to_png(tmp_path / "step.png")
    assert not (tmp_path / "step.png").exists()


def test_overlapping_intervals_get_different_lanes() -> None:
    assert lanes([0, 1, 2, 5], [4, 2, 9, 6]) == [0, 1, 1, 0]
    assert lanes([], []) == []


def test_a_report_is_a_mapping() -> None:
    report = Report(budget_bytes=5)
    assert report["budget_bytes"] == dict(report)["budget_bytes"] == 5
    assert report.get("unknown") is None and "outcome" in report
    with pytest.raises(KeyError):
        report["to_html"]
