"""ModelBytes: when variables that stay leave too little room."""

from __future__ import annotations

import pytest

from tfswap.devices.model_bytes import ModelBytes


@pytest.mark.parametrize(
    ("model", "leave"),
    [
        (ModelBytes(50), False),
        (ModelBytes(51), True),
        (ModelBytes(10, dequantized=40), False),
        (ModelBytes(10, dequantized=41), True),
        (ModelBytes(10, largest_output=15), False),
        (ModelBytes(10, largest_output=16), True),
        (ModelBytes(9, largest_output=100), False),  # would not help
    ],
)
def test_variables_leave_where_they_leave_too_little_of_100_bytes(
    model: ModelBytes, leave: bool
) -> None:
    assert model.leave_too_little(100) == leave


def test_variables_leave_where_nothing_is_free() -> None:
    assert ModelBytes(1).leave_too_little(0)
