"""What each step of a training took, lost and needed, seen from outside."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WatchedStep:
    """One step.

    Attributes:
        seconds: It took.
        phase: Of the plan behind it, as in `tfswap.status()`; "" without tfswap's callback.
        loss: Of its batch, every bit of it (float.hex).
        peak_bytes: Of the device.
    """

    seconds: float
    phase: str
    loss: str
    peak_bytes: int


def watching(steps: list[WatchedStep]) -> Any:
    """A Keras callback that appends each step; the last of a list of callbacks.

    Args:
        steps: Appended to.
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
