"""Out-of-memory errors: tfswap's part of the text, with the floor of the step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tfswap.report.out_of_memory import own_words, with_floor
from tfswap.step.op_floor import OpFloor, StepFloor

MIB = 1 << 20
STAYING = OpFloor("add", "AddV2", 0, 8 * MIB, 0, 0, 72 * MIB)
STREAMED = OpFloor("sub", "Sub", 4 * MIB, 4 * MIB, 4 * MIB, 0, 0)
FLOOR = StepFloor(STAYING, STREAMED)
REFUSAL = "tfswap: the memory budget of 10.0 MiB is exceeded: why. What to do:\n  - A.\n  - B."
TEXT = f"OOM when allocating. {REFUSAL}\n\t [[{{{{node x}}}}]]\nHint: more"


@dataclass
class Error(Exception):
    """Like TensorFlow's."""

    node_def: object
    op: object
    message: str


@pytest.mark.parametrize(
    ("budget_mib", "weights_leave", "must_stay", "lines"),
    [
        (
            10,
            True,
            False,
            [
                f"At least 12.0 MiB, the floor of the whole step: below it no swaps help. There, "
                f"{STREAMED}.",
            ],
        ),
        (
            20,
            True,
            False,
            [
                f"More above 12.0 MiB, the floor of the whole step: what runs at once needs more "
                f"than the largest op alone. There, {STREAMED}.",
            ],
        ),
        (
            20,
            False,
            True,
            [
                f"At least 80.0 MiB, the floor of the whole step: below it no swaps help. There, "
                f"{STAYING}.",
                f"Without stream_weights=False, weights and optimizer state may leave, too, and "
                f"the floor is 12.0 MiB. There, {STREAMED}.",
            ],
        ),
        (
            20,
            False,
            False,
            [
                f"At least 80.0 MiB, the floor of the whole step: below it no swaps help. There, "
                f"{STAYING}.",
            ],
        ),
    ],
)
def test_the_floor_is_added_to_what_to_do(
    budget_mib: int, weights_leave: bool, must_stay: bool, lines: list[str]
) -> None:
    error = with_floor(Error(1, 2, TEXT), FLOOR, budget_mib * MIB, weights_leave, must_stay)
    added = "".join(f"\n  - {line}" for line in lines)
    assert isinstance(error, Error) and (error.node_def, error.op) == (1, 2)
    assert error.message == TEXT.replace("  - B.", f"  - B.{added}")
    assert own_words(error.message) == f"{REFUSAL}{added}"


def test_no_advice_on_weights_that_need_nothing() -> None:
    error = with_floor(Error(1, 2, TEXT), StepFloor(STREAMED, STREAMED), MIB, False, True)
    assert "stream_weights" not in error.message and "At least 12.0 MiB" in error.message
