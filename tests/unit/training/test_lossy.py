"""The lossy rate in the course of a training, when lossy codecs may be used, and errors."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
from timelines import make_timeline

from tfswap.devices.sampling import RatioSamples
from tfswap.machine import codecs
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.planning.planners.lossy_choice import LossyChoice, RateRange
from tfswap.step.profile import Profile
from tfswap.step.timeline import Absence
from tfswap.training.lossy import LossyRun, check_plan

LOSSY = codecs.LOSSY[0]


@dataclasses.dataclass
class Loss:
    label: str
    relative_error: float
    largest_error: float


class FakeLibrary:
    def __init__(self) -> None:
        self.rates: list[int | None] = []
        self.found: list[Loss] = []

    def set_lossy_rate(self, percent: int | None) -> None:
        self.rates.append(percent)
        self.found = []

    def losses(self) -> list[Loss]:
        return self.found


class AllDense:
    def is_dense(self, tensor: str) -> bool:
        return tensor != "sparse:0"


def swap(tensor: str, codec: str, rate_percent: int = 100) -> TensorSwap:
    back = (Return("t", ("c",)),)
    return TensorSwap(tensor, 9, (), back, False, "compressed", codec, rate_percent)


def plan(*swaps: TensorSwap) -> SwapPlan:
    return SwapPlan((FunctionPlan("0" * 16, swaps),))


PLAN = plan(swap("a:0", LOSSY, 80), swap("b:0", "zvc"), swap("c:1", LOSSY, 80))


def run_of(epochs: int | None) -> tuple[LossyRun, FakeLibrary]:
    lib = FakeLibrary()
    return LossyRun(cast(Library, lib), cast(RatioSamples, AllDense()), epochs), lib


def rates_in(run: LossyRun, lib: FakeLibrary, epochs: Any) -> list[int | None]:
    rates = []
    for epoch in epochs:
        run.epoch_begins(epoch)
        if run.rates is None:
            run.rates = RateRange(80, 40)
            run.adopt(PLAN)
        rates.append(lib.rates[-1])
    return rates


def test_the_rate_slides_from_the_top_to_the_bottom() -> None:
    assert rates_in(*run_of(4), range(4)) == [80, 70, 60, 50]
    assert rates_in(*run_of(1), range(1)) == [80]


def test_a_continued_fit_begins_at_the_top_again() -> None:
    assert rates_in(*run_of(12), range(8, 12)) == [80, 70, 60, 50]


def test_without_a_number_of_epochs_the_rate_stays_at_the_top() -> None:
    assert rates_in(*run_of(None), range(3)) == [80, 80, 80]


def test_epochs_beyond_the_last_stay_above_the_bottom() -> None:
    assert rates_in(*run_of(2), range(4))[-1] >= 40


def test_the_lossy_rate_is_set_only_while_a_plan_needs_it() -> None:
    run, lib = run_of(4)
    run.epoch_begins(0)
    run.adopt(plan(swap("b:0", "zvc")))
    assert not lib.rates and run.use() is None
    rates_in(run, lib, [0])
    assert lib.rates == [80]
    run.adopt(plan())
    assert lib.rates == [80, None]
    run.end()
    run.end()
    assert lib.rates[-1] is None


def test_a_given_plan_keeps_its_rates() -> None:
    run, lib = run_of(4)
    run.adopt(plan(swap("a:0", LOSSY, 35), swap("c:1", LOSSY, 20)))
    for epoch in range(4):
        run.epoch_begins(epoch)
    assert lib.rates == [100]  # no lower than in the plan
    use = run.use()
    assert use is not None
    assert (use.tensors, use.rate, use.top, use.bottom) == (2, 35, 35, 35)


def test_the_error_of_a_tensor_is_its_largest_at_any_rate() -> None:
    run, lib = run_of(2)
    rates_in(run, lib, [0])
    lib.found = [
        Loss("tfswap/out/a_0", 0.1, 0.5),
        Loss("tfswap/out/c_1", 0.0, 0.0),
        Loss("tfswap/out/old_0", 1.0, 1.0),
    ]
    run.epoch_begins(1)
    lib.found = [Loss("tfswap/out/a_0", 0.05, 0.75)]
    use = run.use()
    assert use is not None
    assert [dataclasses.astuple(loss) for loss in use.losses] == [
        ("a:0", 0.1, 0.75),
        ("c:1", 0.0, 0.0),
    ]
    assert (use.tensors, use.rate, use.top, use.bottom) == (2, 60, 80, 40)
    assert (use.worst_relative_error, use.mean_relative_error) == (0.1, 0.05)


def test_candidates_are_dense_activations() -> None:
    run, _ = run_of(4)
    run.epoch_begins(0)
    assert "no dense float32 activation" in run.why_unused()
    absences = tuple(Absence(0, name, 0, 0, 1) for name in ("w:0", "a:0", "sparse:0"))
    timeline = make_timeline([(0, 1), (2, 3)], [(9, 0, 3)], absences[:1])
    timeline = dataclasses.replace(timeline, absences=absences)
    profile = Profile(timeline, "", (), 0, 0, activations=frozenset({1, 2}))
    assert run.choice(profile) == LossyChoice(frozenset({1}), 0, 4)
    assert "at no rate" in run.why_unused()
    run.rates = RateRange(80, 40)
    assert "no step shorter" in run.why_unused()
    run.adopt(PLAN)
    assert run.why_unused() == ""


def test_a_lossy_plan_needs_the_lossy_option() -> None:
    check_plan(PLAN, lossy=True)
    check_plan(plan(swap("b:0", "zvc")), lossy=False)
    with pytest.raises(ValueError) as error:
        check_plan(PLAN, lossy=False)
    assert str(error.value) == (
        f"the plan that was given keeps 2 tensors by a lossy codec ('a:0' by {LOSSY!r}), so losses "
        "would differ from exact training: pass lossy=True if that is wanted, or make the plan "
        "again"
    )
