"""The largest image that trains alone within a budget: with swaps only, and with sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.models import PUBLISHED_UNET, UNET
from benchmarks.sections.lines import line
from benchmarks.sections.search import IMAGE_STEP, largest_image
from benchmarks.sections.training import Case, Training, relative_error, trained

# The published net has no batch norm: statistics of one image do not apply to others, and
# each part of an image would wait for all parts.
MODELS = ("ResNet50", PUBLISHED_UNET)
QUICK_MODELS = (UNET,)
SECTIONS = 16
BUDGET, LIMIT = "2GiB", 4096
QUICK_BUDGET, QUICK_LIMIT = "100MiB", 512
# Under on-demand swaps: final plans take ten steps, and do not need more memory.
_STEPS = 3
# With 0.01, a ResNet50 knows one image after a step: losses are 0 and meaningless.
_LEARNING_RATE = 1e-4


def largest_images(
    models: Sequence[str],
    sections: int,
    budget_bytes: int,
    limit: int,
    spill_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a line for each model under swaps only, and one with sections.

    Args:
        models: Names in `benchmarks.models`.
        sections: Number of sections.
        budget_bytes: Budget of the device.
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
    """Return the line of the largest image; add the tried cases by image size."""

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
    """Return the error of losses against those without sections, at the largest common image."""
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
