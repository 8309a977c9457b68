"""SectionSearch: which number of sections is tried next, and which one is used."""

from __future__ import annotations

import pytest

from tfswap.devices.swap_options import parse_options
from tfswap.options import from_environment
from tfswap.plan.schema import FunctionPlan
from tfswap.training.section_search import SectionSearch, SectionTrial


def search(examples: int = 64) -> SectionSearch:
    return SectionSearch(True, examples)


def planned(sections: int, step_ns: int, wait_ns: int) -> SectionTrial:
    function = FunctionPlan(f"graph{sections}")
    return SectionTrial(sections, function.fingerprint, function, step_ns=step_ns, wait_ns=wait_ns)


def lacking(sections: int) -> SectionTrial:
    return SectionTrial(sections, f"graph{sections}", problem="too small")


def test_a_plan_that_hardly_waits_is_used() -> None:
    found = search().add(planned(4, 1000, 100))
    assert found.next() is None
    assert found.best.fingerprint == "graph4"


def test_the_search_continues_while_waits_are_long_and_steps_get_shorter() -> None:
    found = search().add(planned(1, 1000, 500))
    assert found.next() == 2
    assert "hold a step up for" in found.reason
    found = found.add(planned(2, 800, 300))
    assert found.next() == 4
    found = found.add(planned(4, 900, 400))
    assert found.next() is None
    assert found.best.sections == 2


def test_without_a_plan_more_sections_are_tried_until_there_is_one() -> None:
    found = search().add(lacking(2))
    assert found.next() == 4
    assert "there is no plan for the budget" in found.reason
    found = found.add(planned(4, 5000, 10))
    assert found.next() is None
    assert found.best.sections == 4


def test_without_any_plan_the_number_with_the_least_need_is_used() -> None:
    found = search()
    for sections, following in ((1, 2), (2, 4), (4, 8), (8, None)):
        found = found.add(lacking(sections))
        assert found.next() == following
    assert found.best.sections == 8


def test_a_plan_is_better_than_none() -> None:
    found = search().add(planned(2, 1000, 900)).add(lacking(4))
    assert found.next() is None
    assert found.best.sections == 2


@pytest.mark.parametrize(
    "examples, sections, following",
    [
        (64, 8, 16),
        (100, 2, 4),
        (100, 4, 10),
        (36, 4, 9),
        (37, 2, 4),
        (8, 8, 16),
        (0, 128, 256),
        (512, 256, None),
    ],
)
def test_numbers_divide_the_batch_if_possible(
    examples: int, sections: int, following: int | None
) -> None:
    assert search(examples).add(lacking(sections)).next() == following


def test_a_given_number_is_used() -> None:
    assert SectionSearch(False, 64).add(lacking(4)).next() is None


@pytest.mark.parametrize("sections", [0, -1, 2.5, "4", "most", True])
def test_an_invalid_number_of_sections_is_an_error(sections: object) -> None:
    with pytest.raises(ValueError, match="sections must be a positive integer, 'auto' or None"):
        parse_options(sections=sections)


def test_sections_may_be_automatic() -> None:
    assert parse_options(sections="auto").wants_sections
    assert parse_options(sections=2).wants_sections
    assert not parse_options(sections=1).wants_sections
    assert not parse_options().wants_sections
    assert from_environment({"TFSWAP_SECTIONS": "auto"}) == {"sections": "auto"}
    assert from_environment({"TFSWAP_SECTIONS": "8"}) == {"sections": 8}
