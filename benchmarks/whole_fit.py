r"""Measure whole trainings, from the call of `fit` to its return, beside stock TensorFlow's.

    python -m benchmarks.whole_fit [--model ResNet50] [--batch 16] [--image 96] [--steps 30] \
        [--cases fits,swapped,cached,xla,xla_refused] [--budget 0.55] [--repeats 3]

For the model "Transformer", `--image` is the number of tokens. Each training runs in a separate
process, from the same weights on the same arrays, with AdamW and, without XLA, deterministic ops. A
stock training, in which tfswap is not imported, runs beside each of the others, in turns of five
steps, so that both see the same machine; their first steps come one after the other, in alternating
order.

    stock         without tfswap
    fits          a budget of 4 GiB, or twice the peak if that is more
    swapped       a budget below the peak (`--budget`), without a remembered plan
    cached        the same with the plan that another training has left in the cache
    xla           compiled by XLA (jit_compile=True), a budget that it fits in; so is its stock
    xla_refused   compiled by XLA, within the budget of `swapped`; its stock is without XLA

One JSON line a case, with medians: model, case, budget_bytes, steps, fit_s, stock_fit_s (without
the other's turns), ratio (median of the ratios to the stock training beside it), ratios (all of
them), first_step_s, stock_first_step_s, step_s and stock_step_s (of the last half of the steps),
step_ratio, step_ratio_interval (95 %, bootstrap over steps of all runs), unswapped_step_s (as
tfswap reports it), stalls (of the last run: index and seconds of each step above twice the median),
stock_stalls, graph_optimisations (of the training function; 1 in stock TensorFlow, null under XLA),
outcome, peak_bytes, loss_bit_equal (of all steps; null if stock TensorFlow does not repeat itself).

The exit status is 1 if a training fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.one_case import SERVE, answer, in_process
from benchmarks.turns import Turns

MODULE = "benchmarks.whole_fit"
STOCK, FITS, SWAPPED, CACHED, XLA, XLA_REFUSED = CASES = (
    "stock",
    "fits",
    "swapped",
    "cached",
    "xla",
    "xla_refused",
)
_FITS_BYTES = 4 << 30
# A step above this many medians is a stall.
_STALL = 2.0
_STEPS_A_TURN = 5
_LIMIT_S = 7200.0
_ALONE = {
    "budget_bytes": None,
    "xla": False,
    "deterministic": True,
    "folder": "",
    "turns": "",
    "number": 0,
}
_RESAMPLES = 1000


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run one training, beside another one if there is a folder for their turns."""
    if options.budget_bytes is not None:
        import tfswap
    import keras
    import tensorflow as tf

    from benchmarks.models import workload

    training = workload(options.model, options.batch, options.image)
    optimizer = keras.optimizers.AdamW(1e-4)
    model = training.model
    model.compile(optimizer=optimizer, loss=model.loss, jit_compile=options.xla)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    begun_s: list[float] = []
    seconds: list[float] = []
    losses: list[str] = []
    turns = None

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun_s.append(time.perf_counter())

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds.append(time.perf_counter() - begun_s[-1])
            losses.append(float(logs["loss"]).hex())
            if turns is not None and batch % _STEPS_A_TURN == 0:
                turns.pass_on()

    callbacks: list[Any] = [Steps()]
    swap = None
    if options.budget_bytes is not None:
        swap = tfswap.AutoSwap(
            budget=options.budget_bytes, plan_cache=options.folder or False, verbose=0
        )
        callbacks.insert(0, swap)
    data = tf.data.Dataset.from_tensors((training.x, training.y)).repeat()
    data = data.unbatch().batch(options.batch)  # of unknown size, as from arrays
    untuned = tf.data.Options()
    untuned.autotune.enabled = False  # its thread, which `fit` waits for, may sleep for a minute
    data = data.with_options(untuned)
    turns = Turns(options.turns, options.number) if options.turns else None
    clock_s = turns.clock_s if turns else time.perf_counter
    fit_begun_s = clock_s()
    model.fit(data, steps_per_epoch=options.steps, verbose=0, callbacks=callbacks)
    fit_s = clock_s() - fit_begun_s
    if turns is not None:
        turns.end()
    found: dict[str, Any] = {"fit_s": fit_s, "steps_s": seconds, "losses": losses}
    if swap is not None:
        from tfswap.ops import library

        records = library.load().pass_records()
        largest = max(records, key=lambda record: int(record["nodes"]), default=None)
        found["graph_optimisations"] = largest and sum(
            int(r["times"]) for r in records if r["function"] == largest["function"]
        )
        found["outcome"] = swap.report.outcome
        found["unswapped_step_s"] = swap.report.unswapped_step_s
        found["peak_bytes"] = tfswap.memory_stats()["peak_bytes"]
    return found


def stalls(seconds: Sequence[float]) -> list[list[float]]:
    """Return index and seconds of each step after the first that takes above twice the median."""
    most_s = _STALL * statistics.median(seconds)
    return [[i, round(s, 2)] for i, s in enumerate(seconds) if i and s > most_s]


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the ratio of two medians."""
    chance = random.Random(1)
    ratios = sorted(
        statistics.median(chance.choices(ours, k=len(ours)))
        / statistics.median(chance.choices(theirs, k=len(theirs)))
        for _ in range(_RESAMPLES)
    )
    return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES)]


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all trainings; yield a line for each case."""
    common = {key: getattr(options, key) for key in ("model", "batch", "image", "steps")}

    def run(case: str, **changes: Any) -> dict[str, Any]:
        found = in_process(MODULE, _ALONE | common | changes | {"case": case}, limit_s=_LIMIT_S)
        took = "failed" if "failed" in found else f"{found['fit_s']:.1f} s"
        print(f"{case}: {took}", file=sys.stderr, flush=True)
        return found

    measured = run(FITS, budget_bytes=1 << 40, steps=3)
    if "failed" in measured:
        yield {"model": options.model, "failed": measured["failed"]}
        return
    peak_bytes = measured["peak_bytes"]
    fits_bytes = max(_FITS_BYTES, 2 * peak_bytes)
    swapped_bytes = int(options.budget * peak_bytes)
    budgets = {
        FITS: fits_bytes,
        SWAPPED: swapped_bytes,
        CACHED: swapped_bytes,
        XLA: fits_bytes,
        XLA_REFUSED: swapped_bytes,
    }
    with tempfile.TemporaryDirectory() as folder:
        if CACHED in options.cases:
            run(SWAPPED, budget_bytes=swapped_bytes, folder=folder)
        for case in options.cases:
            pairs = []
            for repeat in range(options.repeats):
                with tempfile.TemporaryDirectory() as pipes, ThreadPoolExecutor() as both:
                    Turns.make(pipes)
                    compiled = case in (XLA, XLA_REFUSED)
                    # Under deterministic ops Keras turns XLA off, and XLA has no max pooling.
                    shared = {"deterministic": not compiled, "turns": pipes}
                    stock = both.submit(run, STOCK, xla=case == XLA, number=repeat % 2, **shared)
                    ours = both.submit(
                        run,
                        case,
                        budget_bytes=budgets[case],
                        xla=compiled,
                        folder=folder if case == CACHED else "",
                        number=1 - repeat % 2,
                        **shared,
                    )
                    pairs.append((stock.result(), ours.result()))
            found = {"model": options.model, "case": case, "budget_bytes": budgets[case]}
            yield found | line(pairs)


def line(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return the measurements of a case, each training beside its stock one."""
    for found in (run for pair in pairs for run in pair):
        if "failed" in found:
            return {"failed": found["failed"]}
    stocks, ours = zip(*pairs, strict=True)
    ratios = [mine["fit_s"] / stock["fit_s"] for stock, mine in pairs]

    def settled(runs: Sequence[dict[str, Any]]) -> list[float]:
        return [s for each in runs for s in each["steps_s"][len(each["steps_s"]) // 2 :]]

    step_s, stock_step_s = settled(ours), settled(stocks)
    low, high = interval(step_s, stock_step_s)
    repeats = all(stock["losses"] == stocks[0]["losses"] for stock in stocks)
    equal = all(mine["losses"] == stock["losses"] for stock, mine in pairs)
    return {
        "steps": len(ours[0]["steps_s"]),
        "fit_s": round(statistics.median(mine["fit_s"] for mine in ours), 2),
        "stock_fit_s": round(statistics.median(stock["fit_s"] for stock in stocks), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "first_step_s": round(statistics.median(mine["steps_s"][0] for mine in ours), 2),
        "stock_first_step_s": round(statistics.median(s["steps_s"][0] for s in stocks), 2),
        "step_s": round(statistics.median(step_s), 4),
        "stock_step_s": round(statistics.median(stock_step_s), 4),
        "step_ratio": round(statistics.median(step_s) / statistics.median(stock_step_s), 3),
        "step_ratio_interval": [round(low, 3), round(high, 3)],
        "unswapped_step_s": ours[-1]["unswapped_step_s"],
        "stalls": stalls(ours[-1]["steps_s"]),
        "stock_stalls": stalls(stocks[-1]["steps_s"]),
        "graph_optimisations": ours[-1]["graph_optimisations"],
        "outcome": ours[-1]["outcome"],
        "peak_bytes": max(mine["peak_bytes"] for mine in ours),
        "loss_bit_equal": equal if repeats else None,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whole_fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def cases(text: str) -> list[str]:
        names = text.split(",")
        unknown = set(names) - set(CASES[1:])
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(sorted(unknown))}")
        return names

    parser.add_argument("--model", default="ResNet50", help="as in benchmarks.models (ResNet50)")
    parser.add_argument("--batch", type=int, default=16, help="examples in a batch (16)")
    parser.add_argument("--image", type=int, default=96, help="pixels of a side, or tokens (96)")
    parser.add_argument("--steps", type=int, default=30, help="of each training (30)")
    parser.add_argument("--cases", type=cases, default=list(CASES[1:]), help="(all of them)")
    parser.add_argument("--budget", type=float, default=0.55, help="of the peak (0.55)")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each case (3)")
    parser.add_argument(SERVE, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if options.serve:
        return answer(options.serve, lambda case: train(argparse.Namespace(**case)))
    failed = False
    for found in compare(options):
        failed = failed or "failed" in found
        print(json.dumps(found), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
