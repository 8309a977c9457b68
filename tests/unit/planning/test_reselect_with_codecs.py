"""Swaps are selected again with the compression ratio of each tensor."""

from __future__ import annotations

from timelines import FakeMachine, training_step

from tfswap.machine.far_tier import HOST, CodecSpeed, CodecTime, FarTier
from tfswap.machine.link import NO_LIMIT
from tfswap.planning.planners import plan
from tfswap.planning.planners.assignment import FarMemory, Ratios
from tfswap.planning.planners.place_search import assign, fastest_forms
from tfswap.planning.planners.reselect_with_codecs import reselect_with_codecs
from tfswap.step.timeline import Timeline, peak_load

# ns for a byte read and for a byte kept, in both directions.
CODEC = CodecSpeed("zvc", 1, CodecTime(0, 0.01, 0.01), CodecTime(0, 0.01, 0.01))
BYTES_PER_S = 0.5e9
HOST_LINK = FarTier(HOST, BYTES_PER_S, BYTES_PER_S, 0, 0, NO_LIMIT)
FAR = FarMemory(HOST_LINK, codecs=(CODEC,))


def every_second(timeline: Timeline, ratio: float) -> Ratios:
    """Make every second tensor compressible, as after ReLUs."""
    tensors = sorted({absence.tensor for absence in timeline.absences})
    return {tensor: {"zvc": ratio} for tensor in tensors[::2]}


def test_fastest_forms() -> None:
    timeline = training_step(blocks=4)
    ratios = every_second(timeline, 0.25)
    found = fastest_forms(timeline, FAR, ratios)
    assert found.shape == (len(timeline.absences), 3)
    for absence, (far_bytes, _, _) in zip(timeline.absences, found.tolist(), strict=True):
        size_bytes = int(timeline.buffer_bytes[absence.buffer])
        assert far_bytes == (size_bytes // 4 if absence.tensor in ratios else -1)


def test_compressible_tensors_are_preferred() -> None:
    timeline = training_step(blocks=6)
    budget = peak_load(timeline) * 6 // 10
    decision = plan("auto", timeline, FakeMachine(BYTES_PER_S, BYTES_PER_S), budget)
    ratios = every_second(timeline, 0.25)
    assignment = assign(timeline, decision.swaps, FAR, ratios)
    chosen, placed = reselect_with_codecs(timeline, decision, assignment, FAR, ratios, budget, 1.0)
    assert placed.cost_ns < assignment.cost_ns
    assert placed.result.peak_bytes <= budget
    assert {swap.absence for swap in chosen.swaps} == {swap.absence for swap in placed.swaps}

    def encoded(places: dict[str, object]) -> float:
        return sum(tensor in ratios for tensor in places) / len(places)

    assert encoded({**placed.places}) > encoded({**assignment.places})


def test_without_encoded_places_the_decision_is_kept() -> None:
    timeline = training_step(blocks=4)
    budget = peak_load(timeline) * 6 // 10
    decision = plan("auto", timeline, FakeMachine(BYTES_PER_S, BYTES_PER_S), budget)
    assignment = assign(timeline, decision.swaps, FAR, {})
    assert reselect_with_codecs(timeline, decision, assignment, FAR, {}, budget, 0.1) == (
        decision,
        assignment,
    )
