"""Small models whose trainings repeat exactly, and their unswapped losses."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfswap
from benchmarks.faults.cases import LAZY, PLANNED, STEPS, WHOLE
from tfswap.plan.schema import SwapPlan

MIB = 1 << 20
MAX_STEPS = max(STEPS.values())
# The budget of a case: a part of what a step needs, plus the bytes in use before.
MODELS = {"convolutions": 0.7, "dense": 0.92, "lstm": 0.92}
# The need is the minimum of several trainings: one and this many more.
_MORE_TRAININGS = 3


def _convolutions() -> tuple[keras.Model, int, tuple[int, ...], keras.optimizers.Optimizer]:
    x = inputs = keras.Input((48, 48, 3))
    for _ in range(6):
        x = keras.layers.Conv2D(16, 1, activation="relu")(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return model, 16, (48, 48, 3), keras.optimizers.SGD(0.05, momentum=0.9)


def _dense() -> tuple[keras.Model, int, tuple[int, ...], keras.optimizers.Optimizer]:
    x = inputs = keras.Input((64,))
    for _ in range(8):
        x = keras.layers.Dense(256, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return model, 2048, (64,), keras.optimizers.Adam(1e-3)


def _lstm() -> tuple[keras.Model, int, tuple[int, ...], keras.optimizers.Optimizer]:
    inputs = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(500, 128)(inputs)
    for _ in range(8):
        x = keras.layers.Dense(128, activation="tanh")(x)
    x = keras.layers.LSTM(64)(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return model, 128, (16,), keras.optimizers.Adam(1e-3)


_BUILDERS = {"convolutions": _convolutions, "dense": _dense, "lstm": _lstm}


class Losses(keras.callbacks.Callback):
    """Record each step's loss, with all bits."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[str] = []
        self.begun = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]).hex())


@dataclass
class Subject:
    """A model that was trained once without tfswap.

    Attributes:
        name: Of it.
        model: Compiled; its variables are `forget`-ten before each training.
        data: Inputs and targets, of `MAX_STEPS` batches.
        batch: Examples in one.
        losses: Of each step without tfswap.
        needed_bytes: By a step, beside what is there anyway.
    """

    name: str
    model: keras.Model
    data: tuple[np.ndarray, np.ndarray]
    batch: int
    losses: list[str]
    needed_bytes: int
    _values: list[np.ndarray]
    _plans: dict[tuple[str, ...], SwapPlan | None]

    def forget(self) -> None:
        """Gives all variables the values that they had first."""
        for variable, value in zip(_variables(self.model), self._values, strict=True):
            # A copy: an assignment shares NumPy's memory, which is not counted.
            variable.assign(tf.raw_ops.DeepCopy(x=value))

    def train(
        self, callbacks: Sequence[Any], steps: int, data: Any = None, **fit: Any
    ) -> list[str]:
        """Trains from the beginning; the losses so far, also if an exception ends it.

        Args:
            callbacks: Beside the one that looks at losses, which goes last.
            steps: So many batches.
            data: Instead of the model's own arrays.
            fit: Other arguments.
        """
        self.last = losses = Losses()  # first: what interrupts this may come at any time
        self.forget()
        if data is None:
            x, y = (each[: steps * self.batch] for each in self.data)
            fit = {"x": x, "y": y, "batch_size": self.batch, "shuffle": False, **fit}
        else:
            fit = {"x": data, **fit}
        self.model.fit(verbose=0, callbacks=[*callbacks, losses], **fit)
        return losses.losses

    def peak_bytes(self) -> int:
        """Return the peak of a training beyond the bytes in use before it."""
        tfswap.reset_memory_stats()
        before_bytes: int = tfswap.memory_stats()["bytes_in_use"]
        assert self.train([], MAX_STEPS) == self.losses, "unswapped losses do not repeat themselves"
        peak_bytes: int = tfswap.memory_stats()["peak_bytes"]
        return peak_bytes - before_bytes

    def budget_bytes(self) -> int:
        """Return the present budget of a training."""
        gc.collect()
        in_use_bytes: int = tfswap.memory_stats()["bytes_in_use"]
        return in_use_bytes + int(MODELS[self.name] * self.needed_bytes)

    def swap(self, start: str, options: Sequence[str], folder: Path, **others: Any) -> Any:
        """The `AutoSwap` of a case.

        Args:
            start: Of `cases.STARTS`.
            options: Of the case.
            folder: On a disk, for the file.
            others: Of `AutoSwap`'s.
        """
        given = dict(
            budget=self.budget_bytes(),
            policy="greedy",
            verify="verify" in options,
            codec="zvc" if "codec" in options else None,
            slab="slab" in options,
            stream_weights="stream" in options,
            plan_cache=None,
            verbose=0,
        )
        if "file" in options:
            given |= {"spill_dir": str(folder), "host_limit": MIB if "codec" in options else 1}
        if start == PLANNED:
            plan = self._plan(tuple(sorted({*options} & {"file", "codec"})), folder)
            given |= {} if plan is None else {"plan": plan}
        return tfswap.AutoSwap(**{**given, **others})

    def _plan(self, options: tuple[str, ...], folder: Path) -> SwapPlan | None:
        """Return the plan of a training, made once; None if it made none."""
        if options not in self._plans:
            swap = self.swap(WHOLE, options, folder)
            losses = self.train([swap], MAX_STEPS, epochs=2)
            assert losses[:MAX_STEPS] == self.losses, "without a fault losses differ"
            self._plans[options] = swap.report.plan
        return self._plans[options]


def _variables(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


@functools.cache
def subject(name: str) -> Subject:
    """Return a model of this process, after trainings without tfswap that gave equal losses."""
    keras.utils.set_random_seed(7)
    model, batch, shape, optimizer = _BUILDERS[name]()
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    optimizer.build(model.trainable_variables)
    dice = np.random.default_rng(0)
    count = batch * MAX_STEPS
    if name == "lstm":
        x = dice.integers(0, 500, (count, *shape)).astype(np.int32)
    else:
        x = dice.random((count, *shape), dtype=np.float32)
    data = (x, dice.integers(0, 4, count))
    values = [variable.numpy().copy() for variable in _variables(model)]
    made = Subject(name, model, data, batch, [], 0, values, {})
    made.train([], 2)
    made.losses = made.train([], MAX_STEPS)
    made.needed_bytes = made.peak_bytes()
    for _ in range(_MORE_TRAININGS):
        # Other work can change the order of ops, which may increase the need: in that much memory
        # nothing would have to leave, and there would be no copies to fail.
        made.needed_bytes = min(made.needed_bytes, made.peak_bytes())
    return made


__all__ = ["LAZY", "MIB", "PLANNED", "WHOLE", "Losses", "Subject", "subject"]
