"""tfswap's part of TensorFlow's out-of-memory errors: the allocator's text, the step's floor."""

from __future__ import annotations

import re
from typing import Any

from tfswap.step.op_floor import OpFloor, StepFloor

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


def with_floor(
    error: Any, floor: StepFloor, budget_bytes: int, weights_leave: bool, weights_must_stay: bool
) -> Any:
    """Return an out-of-memory error that also names the floor of the step.

    Args:
        error: The error, for which `is_out_of_memory` is true.
        floor: The floors.
        budget_bytes: The budget.
        weights_leave: Whether values of variables may leave the device.
        weights_must_stay: Whether an option forbids it.
    """
    least = floor.streamed if weights_leave else floor.staying
    advice = [_about(least, budget_bytes)]
    if weights_must_stay and floor.streamed.bytes < least.bytes:
        advice.append(
            f"Without stream_weights=False, weights and optimizer state may leave, too, and the "
            f"floor is {floor.streamed.least}. There, {floor.streamed}."
        )
    end = _OWN_WORDS.search(error.message).end()  # type: ignore[union-attr]
    lines = "".join(f"\n  - {line}" for line in advice)
    message = f"{error.message[:end]}{lines}{error.message[end:]}"
    return type(error)(error.node_def, error.op, message)


def _about(least: OpFloor, budget_bytes: int) -> str:
    if budget_bytes < least.bytes:
        begin = f"At least {least.least}, the floor of the whole step: below it no swaps help."
    else:
        begin = (
            f"More above {least.least}, the floor of the whole step: what runs at once needs more "
            f"than the largest op alone."
        )
    return f"{begin} There, {least}."
