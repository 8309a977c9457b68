"""The output for a training: keys that all modes have, in one order."""

from __future__ import annotations

from typing import Any

from benchmarks.sections.training import Case, Training


def line(
    case: Case, training: Training | None, step_s: float | None, error: float | None
) -> dict[str, Any]:
    """Return the line.

    Args:
        case: The trained case; without a budget, its number is None.
        training: The result; None: it did not train.
        step_s: The step time.
        error: The error of its losses, as the mode defines it.
    """
    return {
        "model": case.model,
        "batch": case.batch,
        "image": case.image,
        "budget_bytes": case.budget_bytes,
        "measured_peak_bytes": training.peak_bytes if training else None,
        "step_s": round(step_s, 3) if step_s else None,
        "images_per_s": round(case.batch / step_s, 3) if step_s else None,
        "loss_relative_error": error,
    }
