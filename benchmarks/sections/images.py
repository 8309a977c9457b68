"""The largest image that trains by itself within a budget: by swaps alone, and with sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.models import PUBLISHED_UNET, UNET
from benchmarks.sections.lines import line
from benchmarks.sections.search import IMAGE_STEP, largest_image
from benchmarks.sections.training import Case, Training, relative_error, trained

# The net as published has no batch norm: of one image, its statistics say nothing of others, and
# each part of an image would wait in it for all parts.
MODELS = ("ResNet50", PUBLISHED_UNET)
QUICK_MODELS = (UNET,)
SECTIONS = 16
BUDGET, LIMIT = "2GiB", 4096
QUICK_BUDGET, QUICK_LIMIT = "100MiB", 512
# Under on-demand swaps: final plans take ten steps, and do not need more than those did.
_STEPS = 3
# By 0.01 a ResNet50 knows one image after a step: losses are 0, and say nothing.
_LEARNING_RATE = 1e-4


def largest_images(
    models: Sequence[str],
    sections: int,
    budget_bytes: int,
    limit: int,
    spill_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """A line for each model under swaps alone, and one with sections.

    Args:
        models: Of `benchmarks.models`.
        sections: How many.
        budget_bytes: What the device may hold.
        limit: No larger image is tried.
        spill_dir: A folder on a disk, for what host memory does not hold.
    """
    for model in models:
        swapped: dict[int, Training] = {}
        for number in (None, sections):
            case = Case(model, 1, 0, _STEPS, budget_bytes, number, _LEARNING_RATE)
            case = replace(case, spill_dir=spill_dir)
            tried = swapped if number is None else {}
            answer = _largest(case, limit, tried)
            if number is not None:
                answer |= _compared(tried, swapped)
            yield answer


def _largest(case: Case, limit: int, tried: dict[int, Training]) -> dict[str, Any]:
    """The line of the largest image; what was tried is added by its pixels."""

    def fits(image: int) -> bool:
        tried[image] = trained(replace(case, image=image))
        return not tried[image].out_of_memory

    image = largest_image(fits, limit)
    training = tried.get(image)
    fully = image + IMAGE_STEP > limit
    return {
        **line(replace(case, image=image), training, training.step_s if training else None, None),
        "mode": "sections" if case.sections else "swapped",
        "sections": case.sections,
        "limited_by": "limit" if fully else "memory",
        "steps_s": [round(each, 2) for each in training.steps_s] if training else [],
        "tries": len(tried),
        "compared_image": None,
    }


def _compared(tried: dict[int, Training], swapped: dict[int, Training]) -> dict[str, Any]:
    """The error of losses beside those without sections, at the largest image that both trained."""
    both = [
        image
        for image in tried.keys() & swapped.keys()
        if not tried[image].out_of_memory and not swapped[image].out_of_memory
    ]
    if not both:
        return {}
    image = max(both)
    error = relative_error(tried[image].losses, swapped[image].losses)
    return {"loss_relative_error": error, "compared_image": image}
