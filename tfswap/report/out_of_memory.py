"""tfswap's part of TensorFlow's out-of-memory errors: the allocator's text, the step's floor."""

from __future__ import annotations

import re
from typing import Any

from tfswap.step.op_floor import StepFloor

_OWN_WORDS = re.compile(r"tfswap: the .*(?:\n  - .*)*")


def own_words(text: str) -> str:
    """Return tfswap's part of an error text; all of it if there is none."""
    found = _OWN_WORDS.search(text)
    return text if found is None else found[0]


def is_out_of_memory(error: Any) -> bool:
    """Return whether an error is of an allocation that tfswap refused."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.ResourceExhaustedError):
        return False
    return _OWN_WORDS.search(error.message) is not None


def with_floor(error: Any, floor: StepFloor, budget_bytes: int, weights_leave: bool) -> Any:
    """Return an out-of-memory error that also names the floor of the step.

    Args:
        error: The error, for which `is_out_of_memory` is true.
        floor: The floors.
        budget_bytes: The budget.
        weights_leave: Whether values of variables may leave the device.
    """
    end = _OWN_WORDS.search(error.message).end()  # type: ignore[union-attr]
    lines = "".join(f"\n  - {line}" for line in _advice(floor, budget_bytes, weights_leave))
    message = f"{error.message[:end]}{lines}{error.message[end:]}"
    return type(error)(error.node_def, error.op, message)


def _advice(floor: StepFloor, budget_bytes: int, weights_leave: bool) -> list[str]:
    least = floor.streamed if weights_leave else floor.staying
    if budget_bytes < least.bytes:
        lines = [f"At least {least.least}, the floor of the whole step: below it no swaps help."]
    else:
        lines = [
            f"More above {least.least}, the floor of the whole step: what runs at once needs more "
            f"than the largest op alone."
        ]
    lines[0] += f" There, {least}."
    if not weights_leave and floor.streamed.bytes < least.bytes:
        lines.append(
            f"stream_weights=True: weights and optimizer state then leave, too, and the floor is "
            f"{floor.streamed.least}. There, {floor.streamed}."
        )
    return lines
