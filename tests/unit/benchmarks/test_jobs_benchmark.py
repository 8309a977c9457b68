"""How the benchmark of several trainings evaluates their steps."""

from __future__ import annotations

from benchmarks.job import Step
from benchmarks.jobs import largest_sum


def test_steps_count_together_only_while_both_jobs_run() -> None:
    a = [Step(0, 2, 10, True), Step(2, 4, 30, True)]
    b = [Step(1, 1.9, 5, True)]
    assert largest_sum([a, b]) == 30
    assert largest_sum([a, [Step(1, 3, 5, True)]]) == 35


def test_between_two_steps_a_job_has_the_budget_of_the_second() -> None:
    a = [Step(0, 2, 10, True), Step(3, 4, 10, True, before_bytes=4)]
    assert largest_sum([a, [Step(2.1, 2.9, 10, True)]]) == 14


def test_a_budget_that_grew_in_a_step_counts_from_its_growth() -> None:
    """A step that waits for memory has it only when another job has released it."""
    gives_up = [Step(0, 5, 60, True), Step(5, 8, 40, True, before_bytes=40)]
    waits = [Step(1, 8, 55, False, grew=((6, 38),))]
    assert largest_sum([gives_up, waits]) == 60 + 38
    assert largest_sum([gives_up, [Step(1, 8, 55, False)]]) == 60 + 55
