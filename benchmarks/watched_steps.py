"""Observe time, loss and memory of each step of a training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WatchedStep:
    """One step.

    Attributes:
        seconds: Its duration.
        phase: Phase of its plan, as in `tfswap.status()`; "" without tfswap's callback.
        loss: Loss of its batch, with every bit (float.hex).
        peak_bytes: Peak of the device.
    """

    seconds: float
    phase: str
    loss: str
    peak_bytes: int


def watching(steps: list[WatchedStep]) -> Any:
    """Return a Keras callback that records each step; put it last in a list of callbacks.

    Args:
        steps: The list to append to.
    """
    import keras

    import tfswap

    class Watching(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            tfswap.reset_memory_stats()
            self.begun_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            took_s = time.perf_counter() - self.begun_s
            trainings = tfswap.status()["trainings"]
            phase = trainings[0]["phase"] if trainings else ""
            peak_bytes = tfswap.memory_stats()["peak_bytes"]
            steps.append(WatchedStep(took_s, phase, float(logs["loss"]).hex(), peak_bytes))

    return Watching()
