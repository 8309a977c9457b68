"""Stage: VGG-16 at batch 256 under 12 GB, where vDNN lost 18 % on a Titan X.

GPUs have grown faster than their links: with tensor cores a step takes a small part of a Titan X's
time, and its copies a fourth. So it is also timed in plain float32, where the two are nearer to
what they were.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_check.comparison import broken, figures_of, shown
from benchmarks.gpu_check.context import Context, Skip
from benchmarks.gpu_check.machine import gpu_bytes, touch_gpu
from benchmarks.gpu_check.models import build
from benchmarks.gpu_check.subject import Subject

MODEL, BATCH, IMAGE = "VGG16", 256, 224
BUDGET_BYTES = 12 * 10**9
VDNN_LOSS = 0.18
_QUICK_PART = 0.6


def run(context: Context) -> None:
    """Time it unswapped and under the budget, with and without tensor cores.

    Raises:
        Skip: The GPU has less memory than the budget.
    """
    import tensorflow as tf

    import tfswap

    touch_gpu()
    if not context.quick and gpu_bytes() < BUDGET_BYTES:
        raise Skip("the GPU has less than 12 GB")
    batch = 64 if context.quick else BATCH
    subject = Subject(build(MODEL, batch, IMAGE, context.fake))
    model = "dense" if context.fake else MODEL
    context.figures |= {
        "model": model,
        "batch": batch,
        "image": IMAGE,
        "published": {"vDNN_loss": VDNN_LOSS},
    }
    pair_s = 0.0
    for precision, tensor_cores in (("TF32", True), ("float32", False)):
        if context.seconds_left() < pair_s:
            context.note(f"no time for {precision}")
            break
        tf.config.experimental.enable_tensor_float_32_execution(tensor_cores)
        unswapped = subject.train()
        budget_bytes = BUDGET_BYTES
        if context.quick:
            budget_bytes = int(_QUICK_PART * unswapped.peak_bytes)
        swap = tfswap.AutoSwap(budget=budget_bytes, verbose=0)
        swapped = subject.train(swap, budget_bytes=budget_bytes, seconds=context.seconds_left())
        pair_s = unswapped.seconds + swapped.seconds
        values: dict[str, Any] = figures_of([unswapped], swapped)
        values["unswapped_peak_bytes"] = unswapped.peak_bytes
        values["throughput_loss"] = _loss(values["step_ratio"])
        context.figures[precision] = values
        context.broken += broken(precision, values)
        loss = values["throughput_loss"]
        context.line(
            f"{model}, batch {batch}, under {budget_bytes / 1e9:.1f} GB, {precision}",
            ("" if loss is None else f"loss {100 * loss:.1f} %, ") + shown(values),
            f"vDNN: {100 * VDNN_LOSS:.0f} % loss",
        )
        context.save()


def _loss(step_ratio: float | None) -> float | None:
    """Return the lost part of the unswapped throughput."""
    return None if step_ratio is None else 1 - 1 / step_ratio
