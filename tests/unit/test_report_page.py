"""The report's page, and its pictures of addresses."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tfswap.report.address_map import AddressMap, Box, strips_to_svg
from tfswap.report.summary import Report
from tfswap.slots import OUTSIDE, Slot

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


def test_a_box_for_each_place_in_time_and_address() -> None:
    conv, back, mean = rectangles(MAP.to_svg())
    assert [box["class"] for box in (conv, back, mean)] == ["output", "swap", "temporary"]
    # Half of the step and half of the height; the second begins a quarter later, above the first.
    assert float(conv["width"]) == pytest.approx(904 / 2, abs=0.1)
    assert float(back["x"]) - float(conv["x"]) == pytest.approx(904 / 4, abs=0.1)
    assert float(back["y"]) + float(back["height"]) == pytest.approx(float(conv["y"]), abs=0.2)
    assert mean["title"] == "mean, temporary 2: 1,048,576 bytes at 0, 3.00 to 4.00 ms"
    assert conv["title"].startswith("conv<1>, output 0")


def test_a_map_of_nothing_is_a_picture() -> None:
    assert rectangles(AddressMap("0123456789abcdef", (), 0, 0).to_svg()) == []


def test_the_errors_addresses_in_colours() -> None:
    classes = [box["class"] for box in rectangles(strips_to_svg(ERROR))]
    assert classes == ["taken", "taken", "part", "idle", "taken", "idle"]
    assert strips_to_svg("memory ran out") == ""


class _Tags(HTMLParser):
    """Counts what is opened and not closed, and all addresses of other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links = 0

    def handle_starttag(self, tag, attrs):
        self.links += sum(name in ("src", "href") for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    report = Report(outcome="fits", budget_bytes=MIB, addresses=(MAP,), out_of_memory=ERROR)
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    tags = _Tags()
    tags.feed(text)
    assert tags.open == [] and tags.links == 0
    for part in ("the model fits", "a&lt;b&gt;", MAP.fingerprint, "4 allocations", "swapped in"):
        assert part in text
    Report().to_html(tmp_path / "nothing.html")
    assert "no effect" in (tmp_path / "nothing.html").read_text()


def test_a_report_is_a_mapping() -> None:
    report = Report(budget_bytes=5)
    assert report["budget_bytes"] == dict(report)["budget_bytes"] == 5
    assert report.get("unknown") is None and "outcome" in report
    with pytest.raises(KeyError):
        report["to_html"]
