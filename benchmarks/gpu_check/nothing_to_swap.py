"""Stage: the cost of the callback when the model fits and nothing has to move."""

from __future__ import annotations

import statistics

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.machine import touch_gpu
from benchmarks.gpu_check.models import build
from benchmarks.gpu_check.subject import Subject, Trained

MODEL, BATCH, IMAGE = "ResNet50", 128, 224
RATIO_TARGET = 1.005
_BUDGET = "90%"
_PAIRS = 3
_BLOCKS, _STEPS_A_BLOCK = 3, 6


def run(context: Context) -> None:
    """Train without and with the callback in turns, in one process."""
    import tfswap

    touch_gpu()
    batch, blocks = (64, 2) if context.quick else (BATCH, _BLOCKS)
    steps_a_block = 2 if context.quick else _STEPS_A_BLOCK
    subject = Subject(build(MODEL, batch, IMAGE, context.fake))
    figures = context.figures
    figures |= {"model": "dense" if context.fake else MODEL, "batch": batch, "pairs": []}
    pair_s = 0.0
    for turn in range(_PAIRS):
        if turn and context.seconds_left() < 1.2 * pair_s:
            break
        without = subject.train(blocks=blocks, steps_a_block=steps_a_block)
        swap = tfswap.AutoSwap(budget=_BUDGET, verbose=0)
        with_callback = subject.train(swap, blocks=blocks, steps_a_block=steps_a_block)
        # The first pair also builds the graphs.
        pair_s = with_callback.seconds + without.seconds
        figures["pairs"].append(_pair(without, with_callback))
        context.save()
    ratios = [pair["ratio"] for pair in figures["pairs"] if pair["ratio"] is not None]
    copied = max(pair["bytes_out"] or 0 for pair in figures["pairs"])
    if copied:
        context.broken.append(f"the model fits, and {copied} bytes leave the GPU in a step")
    if not ratios:
        context.line("callback on, nothing to swap", "no step was timed", f"{RATIO_TARGET}")
        return
    figures["ratio"] = statistics.median(ratios)
    shown = ", ".join(f"{ratio:.4f}" for ratio in ratios)
    context.line(
        f"callback on, nothing to swap ({figures['model']}, {batch}): step time over that without",
        f"{figures['ratio']:.4f} (of {shown})",
        f"at most {RATIO_TARGET}",
    )


def _pair(without: Trained, with_callback: Trained) -> dict[str, object]:
    times = (without.step_s, with_callback.step_s)
    known = times[0] is not None and times[1] is not None
    return {
        "without_s": times[0],
        "with_s": times[1],
        "ratio": times[1] / times[0] if known else None,
        "without_block_s": without.block_s,
        "with_block_s": with_callback.block_s,
        "bytes_out": with_callback.bytes_out,
        "settled": with_callback.settled,
        "report": with_callback.report,
        "error": with_callback.error or without.error,
    }
