"""The floor of a step that was not recorded, from its graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfswap.cost_model.model_source import ModelSource
from tfswap.cost_model.model_timeline import model_step
from tfswap.cost_model.traced_step import trace_step, traced_function
from tfswap.machine.machine import Device
from tfswap.step.op_floor import OpFloor, StepFloor

# Any device: the floor does not depend on speeds.
_DEVICE = Device(1, 1e12, 1e12, 1e12)


def model_floor(
    model: Any,
    spec: Any,
    examples: int,
    min_bytes: int,
    others_bytes: int,
    other_variable_bytes: int,
) -> StepFloor:
    """Return the floor of a step of a Keras model, which is traced again.

    Args:
        model: The compiled model.
        spec: TensorSpecs of a batch, as `train_step` gets it.
        examples: The most examples of a batch.
        min_bytes: Smaller tensors do not leave.
        others_bytes: What is on the device beside the step's data and variables.
        other_variable_bytes: How much of that are variables, which leave where weights do.

    Raises:
        ValueError: The step cannot be predicted without a run.
    """
    traced = trace_step(ModelSource(model, spec))
    floor = model_step(traced, examples, _DEVICE, min_bytes).floor

    def beside(own: OpFloor, size: int) -> OpFloor:
        return dataclasses.replace(own, staying_bytes=own.staying_bytes + size)

    unmovable_bytes = max(0, others_bytes - other_variable_bytes)
    return StepFloor(beside(floor.staying, others_bytes), beside(floor.streamed, unmovable_bytes))


def function_floor(function: Any, min_bytes: int) -> StepFloor:
    """Return the floor of a concrete function, without what is on the device beside it.

    Args:
        function: The concrete function; its inputs have known shapes.
        min_bytes: Smaller tensors do not leave.

    Raises:
        ValueError: It cannot be predicted without a run.
    """
    return model_step(traced_function(function), None, _DEVICE, min_bytes).floor
