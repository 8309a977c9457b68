"""Stage: one model under shrinking budgets, each loss compared bit by bit with the unswapped ones.

TensorFlow on a GPU is deterministic only on request: ``enable_op_determinism`` makes cuDNN choose
the same algorithms each time, and none that add in varying order. All times here are with that
option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_check.comparison import broken, figures_of, same_bits, shown
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.machine import touch_gpu
from benchmarks.gpu_check.models import build
from benchmarks.gpu_check.subject import Subject, Trained

# Examples in a batch; pixels of a side, or tokens.
SHAPES = {
    "ResNet50": (128, 224),
    "VGG16": (64, 224),
    "DenseNet121": (96, 224),
    "Transformer": (32, 512),
}
# Parts of the unswapped peak; the most important ones first, since time may end early.
PARTS = (0.5, 0.8, 0.35, 0.65, 0.25)
# As many as the maximum of a swapped training, so that all its losses are compared.
_BASELINE_STEPS = 34


def run(model: str, dtype: str, context: Context) -> None:
    """Train unswapped twice, then under each budget for which there is time."""
    import keras
    import tensorflow as tf

    import tfswap

    tf.config.experimental.enable_op_determinism()
    keras.mixed_precision.set_global_policy(dtype)
    touch_gpu()
    batch, image = SHAPES[model]
    batch = 64 if context.quick else batch
    subject = Subject(build(model, batch, image, context.fake))
    least = 8 if context.quick else _BASELINE_STEPS
    baselines = [subject.train(least_steps=least) for _ in range(2)]
    figures = context.figures
    figures |= {
        "model": "dense" if context.fake else model,
        "dtype": dtype,
        "batch": batch,
        "image": image,
        "deterministic": True,
        "unswapped": [_unswapped(trained) for trained in baselines],
        "unswapped_repeats": None if context.fake else same_bits(baselines[:1], baselines[1]),
        "budgets": [],
    }
    name = f"{model} {dtype}, batch {batch}"
    context.line(f"{name}: unswapped", _shown_baseline(baselines))
    context.save()
    context.note("op determinism is on, for unswapped and swapped trainings alike")
    if context.fake:
        context.note("the GPU computes nothing: losses are not compared")
    longest_s = 0.0
    for part in PARTS[:2] if context.quick else PARTS:
        if context.seconds_left() < 1.1 * longest_s:
            context.note(f"no time for {part} and what follows")
            break
        budget_bytes = int(part * baselines[0].peak_bytes)
        swap = tfswap.AutoSwap(budget=budget_bytes, verbose=0)
        swapped = subject.train(swap, budget_bytes=budget_bytes, seconds=context.seconds_left())
        longest_s = max(longest_s, swapped.seconds)
        equal = None if context.fake else same_bits(baselines, swapped)
        values = {"part": part, **figures_of(baselines, swapped, equal)}
        figures["budgets"].append(values)
        context.line(f"{name}: {part}", shown(values), "losses equal, peak within")
        context.broken += broken(f"at {part}", values)
        context.save()


def _unswapped(trained: Trained) -> dict[str, Any]:
    return {
        "step_s": trained.step_s,
        "block_s": trained.block_s,
        "peak_bytes": trained.peak_bytes,
        "losses": trained.losses,
        "seconds": trained.seconds,
        "error": trained.error,
    }


def _shown_baseline(baselines: Sequence[Trained]) -> str:
    times = " and ".join(
        f"{trained.step_s * 1e3:.1f} ms" if trained.step_s is not None else "no time"
        for trained in baselines
    )
    return f"{times} a step, peak {baselines[0].peak_bytes / 2**20:.0f} MiB"
