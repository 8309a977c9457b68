"""Train in a separate process: brokered_training.py OUT SOCKET EPOCHS. Empty SOCKET: no broker.

Write a line of JSON for each change of the device's budget, each step and the end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
from models import compiled, convolutions, deterministic, images

import tfswap
from tfswap.ops import library

OUT, SOCKET, EPOCHS = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = open(OUT, "a", buffering=1)  # noqa: SIM115
native = type(library.load())
set_budget = native.set_budget


def write(**values: Any) -> None:
    out.write(json.dumps(values) + "\n")


def noted(device: int, budget_bytes: int | None) -> None:
    """Set the budget and write the earliest and latest time at which it became active."""
    before_s = time.monotonic()
    set_budget(device, budget_bytes)
    write(budget=budget_bytes, before_s=before_s, after_s=time.monotonic())


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        stats = tfswap.memory_stats()
        write(
            loss=float(logs["loss"]).hex(),
            in_use=stats["bytes_in_use"],
            within=stats["budget_bytes"] is None or stats["bytes_in_use"] <= stats["budget_bytes"],
            training=tfswap.status()["trainings"],
        )


deterministic()
keras.utils.set_random_seed(7)
model = compiled(convolutions())
callbacks: list[Any] = [Steps()]
if SOCKET:
    native.set_budget = staticmethod(noted)  # type: ignore[method-assign]
    swap = tfswap.AutoSwap(broker=SOCKET, share="minimum=24MiB,wait_s=60", verbose=0)
    callbacks.insert(0, swap)
x, y = images()
model.fit(x, y, batch_size=32, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
if SOCKET:
    share = swap.report.share
    write(
        end=swap.report.outcome,
        notes=swap.report.notes,
        share=None if share is None else vars(share),
    )
