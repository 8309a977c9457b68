"""Compare a swapped training with unswapped ones: figures, bits, requirements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.budget_sweep import losses_equal
from benchmarks.gpu_check.subject import Trained


def figures_of(
    baselines: Sequence[Trained], swapped: Trained, equal: bool | None = None
) -> dict[str, Any]:
    """Return the figures of one training under a budget.

    Args:
        baselines: Unswapped trainings of the same model; the faster of the first two counts.
        swapped: The training.
        equal: Whether its losses equal the unswapped ones; None: not compared.
    """
    unswapped = [trained.step_s for trained in baselines[:2] if trained.step_s is not None]
    unswapped_s = min(unswapped, default=None)
    known = swapped.step_s is not None and unswapped_s is not None
    report = swapped.report or {}
    return {
        "budget_bytes": swapped.budget_bytes,
        "peak_bytes": swapped.peak_bytes,
        "resident_bytes": swapped.resident_bytes,
        "over_budget": swapped.over_budget,
        "predicted_peak_bytes": report.get("predicted_peak_bytes"),
        "unswapped_step_s": unswapped_s,
        "step_s": swapped.step_s,
        "predicted_step_s": report.get("predicted_step_s"),
        "step_ratio": swapped.step_s / unswapped_s if known else None,
        "exposed_copy_s": max(swapped.step_s - unswapped_s, 0.0) if known else None,
        "predicted_wait_s": report.get("predicted_wait_s"),
        "least_wait_s": report.get("least_wait_s"),
        "bytes_out": swapped.bytes_out,
        "bytes_in": swapped.bytes_in,
        "copied_bytes_per_s": swapped.copied_bytes_per_s,
        "far_peak_bytes": swapped.far_peak_bytes,
        "losses_equal": equal,
        "losses_compared": 0 if equal is None else common_steps([*baselines, swapped]),
        "steps": swapped.steps,
        "outcome": report.get("outcome"),
        "settled": swapped.settled,
        "block_s": swapped.block_s,
        "seconds": swapped.seconds,
        "error": swapped.error,
        "needed_bytes": swapped.needed_bytes,
        "warnings": swapped.warnings,
    }


def shown(values: dict[str, Any]) -> str:
    """Format the figures for the table."""
    from tfswap.report.summary import readable_bytes

    if values["error"] is not None:
        of, needed = readable_bytes(values["budget_bytes"]), values["needed_bytes"]
        return f"fails: needs {readable_bytes(needed)} of {of}" if needed else f"fails under {of}"
    equal = {True: "losses equal", False: "LOSSES DIFFER", None: "losses not compared"}
    texts = [f"peak {values['peak_bytes'] / values['budget_bytes']:.3f} of the budget"]
    if values["step_ratio"] is not None:
        text = f"step x{values['step_ratio']:.3f}"
        if values["least_wait_s"] is not None:  # the link allows no less
            text += f" (link: x{1 + values['least_wait_s'] / values['unswapped_step_s']:.3f})"
        texts.insert(0, text)
        texts.append(f"exposed {values['exposed_copy_s'] * 1e3:.1f} ms")
        texts.append(f"{readable_bytes(values['bytes_out'])} out")
        texts.append(f"{values['copied_bytes_per_s'] / 1e9:.1f} GB/s")
    return ", ".join([*texts, equal[values["losses_equal"]], values["outcome"] or "?"])


def broken(name: str, values: dict[str, Any]) -> list[str]:
    """Return the requirements that do not hold; `name` is the case's."""
    found = []
    if values["over_budget"]:
        found.append(f"{name}: peak {values['peak_bytes']} over {values['budget_bytes']} bytes")
    if values["losses_equal"] is False:
        found.append(f"{name}: the losses differ from the unswapped ones, which repeat")
    return found


def same_bits(baselines: Sequence[Trained], other: Trained) -> bool | None:
    """Return whether losses have the same bits for common steps; None if unswapped ones differ."""
    count = common_steps([*baselines, other])
    if count == 0 or not all(map(_is_finite, other.losses[:count])):
        return None
    *before, last = (
        {"steps": [{"loss": loss} for loss in trained.losses[:count]]}
        for trained in [*baselines, other]
    )
    return losses_equal(before, last)


def common_steps(trainings: Sequence[Trained]) -> int:
    """Return for how many steps all of them have a loss."""
    return min(len(trained.losses) for trained in trainings)


def _is_finite(loss: str) -> bool:
    return math.isfinite(float.fromhex(loss))
