r"""Run one case, in a process that `benchmarks.large_weights` starts; print a JSON object.

    python -m benchmarks.large_weights.case MODEL MODE LAYERS WIDTH VOCABULARY BATCH TOKENS \
        INTERMEDIATE STEPS [PRESET]

With a folder of a KerasHub preset, the weights are loaded from there; MODE "save" makes such a
folder. Under tfswap if TFSWAP_BUDGET is set, from the first allocation on.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from typing import Any

IS_SWAPPED = "TFSWAP_BUDGET" in os.environ
if IS_SWAPPED:
    import tfswap

import keras  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.large_weights.hub_models import Size, build, build_backbone, data  # noqa: E402

GENERATED_TOKENS = 16


class Steps(keras.callbacks.Callback):
    """Keep the time of each batch, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.step_s: list[float] = []
        self.losses: list[str] = []
        self._begin_s = 0.0

    def _begin(self, batch: int, logs: Any = None) -> None:
        self._begin_s = time.perf_counter()

    def _end(self, batch: int, logs: Any = None) -> None:
        self.step_s.append(time.perf_counter() - self._begin_s)
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]).hex())

    on_train_batch_begin = on_predict_batch_begin = _begin
    on_train_batch_end = on_predict_batch_end = _end


def _digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def _generate(model: Any, size: Size, steps: int) -> tuple[list[float], str]:
    """Generate tokens some times; return the seconds for a token, and a digest of all tokens."""
    x, _ = data("gemma", size, 1)
    length = size.tokens + GENERATED_TOKENS
    tokens = np.zeros((size.batch, length), int)
    tokens[:, : size.tokens] = x["token_ids"]
    prompt = {
        "token_ids": tokens,
        "padding_mask": np.tile(np.arange(length) < size.tokens, (size.batch, 1)),
    }
    seconds = []
    for _ in range(steps):
        begin_s = time.perf_counter()
        made = model.generate(prompt, stop_token_ids=None)
        seconds.append((time.perf_counter() - begin_s) / GENERATED_TOKENS)
    return seconds, _digest(made["token_ids"])


def main(model_name: str, mode: str, *numbers: str) -> None:
    """Build the model, run the mode, and print what was measured."""
    import tensorflow as tf

    *sizes, steps = map(int, numbers[:7])
    size, preset = Size(*sizes), "".join(numbers[7:])
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    if mode == "save":
        build_backbone(model_name, size).save_to_preset(preset)
        print("{}")
        return
    begin_s = time.perf_counter()
    model = build(model_name, mode, size, preset)
    built_s = time.perf_counter() - begin_s
    clock = Steps()
    x, y = data(model_name, size, steps)
    if mode == "generate":
        step_s, digest = _generate(model, size, steps)
    elif mode == "predict":
        predicted = model.predict(x, batch_size=size.batch, verbose=0, callbacks=[clock])
        step_s, digest = clock.step_s, _digest(predicted)
    else:
        model.fit(x, y, batch_size=size.batch, shuffle=False, verbose=0, callbacks=[clock])
        step_s, digest = clock.step_s, " ".join(clock.losses)
    result = {
        "built_s": round(built_s, 2),
        "step_s": [round(seconds, 4) for seconds in step_s],
        "digest": digest,
        "weights_bytes": sum(int(np.prod(w.shape)) * 4 for w in model.weights),
        "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if IS_SWAPPED:
        on_gpu = tf.config.list_physical_devices("GPU")
        stats = tfswap.memory_stats("GPU:0" if on_gpu else "CPU:0")
        result |= {name: value for name, value in stats.items() if name.startswith("far_")}
        result["peak_bytes"] = stats["peak_bytes"]
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
