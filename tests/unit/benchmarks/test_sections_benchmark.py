"""The sections benchmark: its search for budgets and images, and its output."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sections import images, least
from benchmarks.sections.__main__ import parse
from benchmarks.sections.search import IMAGE_STEP, MIB, largest_image, rising_budgets
from benchmarks.sections.training import Case, Training, relative_error

KEYS = (
    "model batch image budget_bytes measured_peak_bytes step_s images_per_s loss_relative_error"
).split()


@given(st.integers(0, 1 << 40))
def test_budgets_begin_just_above_the_minimum_and_rise_by_a_twentieth(possible: int) -> None:
    budgets = list(rising_budgets(possible))
    assert len(budgets) == 12
    assert all(budget % MIB == 0 for budget in budgets)
    assert 1.02 * possible <= budgets[0] + 1 <= 1.02 * possible + MIB + 1
    for one, next_one in pairwise(budgets):
        assert 0 <= next_one - 1.05 * one < MIB


def test_budgets_are_in_whole_mib() -> None:
    assert [budget // MIB for budget in rising_budgets(100 * MIB)][:3] == [102, 108, 114]


@given(st.integers(0, 9000), st.integers(0, 8192))
def test_the_largest_image_that_fits_is_found(largest: int, limit: int) -> None:
    tried: list[int] = []

    def fits(image: int) -> bool:
        tried.append(image)
        return image <= largest

    found = largest_image(fits, limit)
    assert found == min(largest, limit) // IMAGE_STEP * IMAGE_STEP
    assert len(tried) == len(set(tried)) <= 13
    assert all(0 < image <= limit and image % IMAGE_STEP == 0 for image in tried)


def test_images_double_until_one_is_too_large() -> None:
    tried: list[int] = []

    def fits(image: int) -> bool:
        tried.append(image)
        return image <= 1400

    assert largest_image(fits, 4096) == 1344
    assert tried == [256, 512, 1024, 2048, 1536, 1280, 1408, 1344]


def test_the_limit_is_tried_and_nothing_above() -> None:
    tried: list[int] = []
    assert largest_image(lambda image: not tried.append(image), 1100) == 1088  # type: ignore[func-returns-value]
    assert tried == [256, 512, 1024, 1088]


class Device:
    """Answer with the result of a training that needs a known budget."""

    def __init__(self, swapped_bytes: int, sections_bytes: int) -> None:
        self.cases: list[Case] = []
        self._least = {None: swapped_bytes, 4: sections_bytes}

    def trained(self, case: Case) -> Training:
        self.cases.append(case)
        need = self._least[case.sections] * (case.image * case.image if case.batch == 1 else 1)
        too_small = case.budget_bytes is not None and case.budget_bytes < need
        profile = {"least_bytes": need * 10 // 11, "limiting_op": "op", "resident_bytes": 3}
        losses = [2.0, 1.0, 0.5] if case.sections is None else [2.0, 1.25, 9.0]
        return Training(
            "too small" if too_small else "",
            case.budget_bytes or 100 * MIB,
            [] if too_small else losses,
            [9.0, 5.0, 0.5],
            0,
            profile if case.until == "profiled" else {},
        )


def test_a_line_unswapped_one_by_swaps_and_one_with_sections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(66 * MIB, 22 * MIB)
    monkeypatch.setattr(least, "trained", device.trained)
    unswapped, swapped, sections = least.least(["VGG16"], [4], 16, None)
    assert [line["mode"] for line in (unswapped, swapped, sections)] == [
        "unswapped",
        "swapped",
        "sections",
    ]
    for line in (unswapped, swapped, sections):
        assert list(line)[:8] == KEYS
        assert line["unswapped_peak_bytes"] == 100 * MIB
        assert line["unswapped_step_s"] == 0.5
    assert (swapped["budget_bytes"], swapped["tries"]) == (66 * MIB, 2)  # 62 is too small
    assert swapped["possible_bytes"] == 60 * MIB and swapped["limiting_op"] == "op"
    assert (sections["sections"], sections["loss_relative_error"]) == (4, 17.0)


def test_a_model_that_fits_no_budget_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(66 * MIB, 22 * MIB)
    monkeypatch.setattr(least, "trained", device.trained)
    monkeypatch.setattr(least, "rising_budgets", lambda possible: iter([MIB, 2 * MIB]))
    line = list(least.least(["VGG16"], [], 16, 32))[1]
    assert list(line)[:8] == KEYS and line["image"] == 32
    assert (line["tries"], line["budget_bytes"], line["step_s"]) == (2, 2 * MIB, None)


def test_the_largest_image_of_each_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(4, 1)
    monkeypatch.setattr(images, "trained", device.trained)
    swapped, sections = images.largest_images(["U-Net"], 4, 4 * 300 * 300, 512)
    assert list(swapped)[:8] == list(sections)[:8] == KEYS
    assert (swapped["image"], swapped["limited_by"]) == (256, "memory")
    assert (sections["image"], sections["limited_by"]) == (512, "limit")
    assert sections["compared_image"] == 256 and sections["loss_relative_error"] == 17.0
    assert swapped["compared_image"] is None and swapped["loss_relative_error"] is None


def test_the_step_time_is_of_the_final_plan() -> None:
    times = [9.0, 5.0, 1.0, 3.0, 2.0]
    assert Training("", 0, [], times, 0, {}).step_s == 2.0
    assert Training("", 0, [], times, 2, {}).step_s == 2.5
    assert Training("", 0, [], [9.0, 5.0], 0, {}).step_s == 5.0
    assert Training("no memory", 0, [], [], 0, {}).step_s is None


def test_losses_are_compared_for_the_common_steps() -> None:
    assert relative_error([2.0, 3.0, 7.0], [2.0, 4.0]) == 0.25


@pytest.mark.parametrize(
    "arguments",
    [
        ["--budget", "1GiB"],
        ["--least", "--limit", "512"],
        ["--images", "--batch", "2"],
        ["--sections", "4"],
        ["--least", "--images"],
    ],
)
def test_options_of_another_mode_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
