"""Which number of sections is tried next, and which one stays."""

from __future__ import annotations

import pytest

from tfswap.devices.swap_options import parse_options
from tfswap.options import from_environment
from tfswap.training.section_search import SectionSearch, Trial


def search(examples: int = 64, searches: bool = True) -> SectionSearch[str]:
    made: SectionSearch[str] = SectionSearch(searches)
    made.examples = examples
    return made


def planned(sections: int, step_ns: int, wait_ns: int) -> Trial[str]:
    return Trial(sections, f"plan {sections}", step_ns=step_ns, wait_ns=wait_ns)


def lacking(sections: int) -> Trial[str]:
    return Trial(sections, f"lazy {sections}", problem="too small")


def test_what_hardly_waits_stays():
    found = search()
    found.add(planned(4, 1000, 100))
    assert found.next() is None
    assert found.best.kept == "plan 4"


def test_it_goes_on_while_waits_are_long_and_steps_get_shorter():
    found = search()
    found.add(planned(1, 1000, 500))
    assert found.next() == 2
    assert "hold a step up for" in found.reason()
    found.add(planned(2, 800, 300))
    assert found.next() == 4
    found.add(planned(4, 900, 400))
    assert found.next() is None
    assert found.best.sections == 2


def test_where_there_is_no_plan_more_sections_are_tried_until_there_is_one():
    found = search()
    found.add(lacking(2))
    assert found.next() == 4
    assert "there is no plan for the budget" in found.reason()
    found.add(planned(4, 5000, 10))
    assert found.next() is None
    assert found.best.sections == 4


def test_without_any_plan_the_last_number_stays_which_needs_least():
    found = search()
    for sections, behind in ((1, 2), (2, 4), (4, 8), (8, None)):
        found.add(lacking(sections))
        assert found.next() == behind
    assert found.best.sections == 8


def test_a_plan_is_better_than_none():
    found = search()
    found.add(planned(2, 1000, 900))
    found.add(lacking(4))
    assert found.next() is None
    assert found.best.sections == 2


@pytest.mark.parametrize(
    "examples, sections, behind",
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
def test_numbers_divide_the_batch_where_they_can(examples, sections, behind):
    found = search(examples)
    found.add(lacking(sections))
    assert found.next() == behind


def test_a_number_that_was_given_is_not_left():
    found = search(searches=False)
    found.add(lacking(4))
    assert found.next() is None


def test_when_the_next_number_cuts_nothing_it_ends():
    found = search()
    found.add(planned(2, 1000, 900))
    assert found.next() == 4
    found.stop()
    assert found.next() is None
    assert found.best.sections == 2


@pytest.mark.parametrize("sections", [0, -1, 2.5, "4", "most", True])
def test_a_number_of_sections_is_a_number(sections):
    with pytest.raises(ValueError, match="sections must be a positive integer, 'auto' or None"):
        parse_options(sections=sections)


def test_sections_may_be_chosen():
    assert parse_options(sections="auto").wants_sections
    assert parse_options(sections=2).wants_sections
    assert not parse_options(sections=1).wants_sections
    assert not parse_options().wants_sections
    assert from_environment({"TFSWAP_SECTIONS": "auto"}) == {"sections": "auto"}
    assert from_environment({"TFSWAP_SECTIONS": "8"}) == {"sections": 8}
