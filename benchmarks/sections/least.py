"""The least budget that a model trains in: with swaps only, and with sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.models import TRANSFORMER, UNET
from benchmarks.sections.lines import line
from benchmarks.sections.search import rising_budgets
from benchmarks.sections.training import Case, relative_error, trained
from benchmarks.trainings import PLENTY_BYTES

MODELS = ("ResNet50", "DenseNet121", "VGG16", UNET, TRANSFORMER)
QUICK_MODELS = (UNET,)
BATCH, IMAGE, UNET_IMAGE = 16, 224, 256
SECTIONS = (4, 8)
QUICK_SECTIONS, QUICK_BATCH, QUICK_IMAGE = (4,), 4, 64

_UNSWAPPED_STEPS = 5
# The final plan exists after about six steps; later trials make little difference.
_MAX_STEPS = 14
_COMPARED_STEPS = 3


def least(
    models: Sequence[str], sections: Sequence[int], batch: int, image: int | None
) -> Iterator[dict[str, Any]]:
    """Yield a line for each model unswapped, under swaps only, and for each number of sections.

    Args:
        models: Names in `benchmarks.models`.
        sections: Numbers of sections.
        batch: Number of examples.
        image: Pixels, or tokens; None: 256 for the U-Net, else 224.
    """
    for model in models:
        pixels = image or (UNET_IMAGE if model == UNET else IMAGE)
        case = Case(model, batch, pixels, _UNSWAPPED_STEPS)
        unswapped = trained(case)
        beside = {
            "unswapped_peak_bytes": unswapped.peak_bytes,
            "unswapped_step_s": round(unswapped.step_s or 0, 3),
        }
        said: dict[str, Any] = {"mode": "unswapped", "sections": None}
        yield {**line(case, unswapped, unswapped.step_s, None), **said, **beside}
        for number in (None, *sections):
            said = {"mode": "sections" if number else "swapped", "sections": number}
            cut = replace(case, steps=_MAX_STEPS, sections=number)
            yield {**_at_the_least(cut, unswapped.losses), **said, **beside}


def _at_the_least(case: Case, losses: Sequence[float]) -> dict[str, Any]:
    """Return the line of the least budget that trains; of the largest tried one, if none trains."""
    asked = replace(case, budget_bytes=PLENTY_BYTES, until="profiled")
    recorded = trained(asked)
    if not recorded.profile:
        raise SystemExit(f"no step was recorded: {recorded.out_of_memory or asked}")
    possible = {
        "possible_bytes": recorded.profile["least_bytes"],
        "limiting_op": recorded.profile["limiting_op"],
        "resident_bytes": recorded.profile["resident_bytes"],
    }
    tries = 0
    for budget_bytes in rising_budgets(possible["possible_bytes"]):
        tries += 1
        at = replace(case, budget_bytes=budget_bytes, until="timed")
        training = trained(at)
        if not training.out_of_memory:
            break
    else:
        return {**line(at, None, None, None), **possible, "tries": tries}
    error = relative_error(training.losses[:_COMPARED_STEPS], losses)
    told = {
        "tries": tries,
        "settled": training.settled_steps > 0,
        "first_loss_relative_error": relative_error(training.losses[:1], losses),
    }
    return {**line(at, training, training.step_s, error), **possible, **told}
