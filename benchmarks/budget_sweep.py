r"""Step time, peak and losses of one model under shrinking budgets, and of unswapped trainings.

    python -m benchmarks.budget_sweep --model ResNet50 --batch 16 --image 224 \
        --budgets 0.8,0.65,0.55,0.4 --steps 6 [--policies auto,capuchin] [--link-bandwidth 1GB/s] \
        [--recompute-grad 4,8]

Each case trains in a separate process. One JSON line a budget and policy goes to stdout, progress
to stderr.

    unswapped ─▶ for each budget: unswapped under it (must fail),
                 AutoSwap under it with each policy                ─▶ unswapped

With --recompute-grad, the model is also trained with `tf.recompute_grad` by hand around that many
segments (`benchmarks.remat`), and each policy under the memory that this takes.

predicted_peak_bytes predicts settled_peak_load_bytes, the load in the timed steps.
measured_peak_bytes is the footprint in the whole training. It includes idle pages, which stay until
the budget needs them, and the first steps, which use on-demand swaps.

The two unswapped trainings show the machine's speed before and after, to reveal drift, and whether
losses repeat bit for bit at all: otherwise they are not compared. If they agree but a swapped
training differs, more unswapped ones are run before a difference is reported: with several threads
TensorFlow often repeats itself twice, and not the third time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reasons import reason

TREE = Path(__file__).resolve().parent.parent

# Batches before the timed ones: of an unswapped training; and the maximum until a plan has been
# made, checked and given addresses, and these have been tried.
SETTLING_BATCHES, MAX_SETTLING_BATCHES = 7, 60
# Enough for the optimizer's allocations, and for a whole step after them.
FITTING_BATCHES = 2
SETTLED_PHASES = ("measure", "steady")
# In a report.
REPORTED = (
    "outcome",
    "predicted_peak_bytes",
    "predicted_step_s",
    "bytes_out_per_step",
    "bytes_in_per_step",
    "recomputed_buffers",
)
# Unswapped trainings that must agree before a swapped one counts as different.
MAX_BASELINES = 5


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget_sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--model", default="ResNet50", help="of keras.applications, or Transformer (ResNet50)"
    )
    parser.add_argument("--batch", type=int, default=16, help="examples in a batch (16)")
    parser.add_argument(
        "--image", type=int, default=224, help="pixels of a side; tokens of a Transformer (224)"
    )
    parser.add_argument(
        "--budgets",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[0.8, 0.65, 0.55, 0.4],
        help="parts of the unswapped peak (0.8,0.65,0.55,0.4)",
    )
    parser.add_argument("--steps", type=int, default=6, help="timed steps (6)")
    parser.add_argument("--intra", type=int, help="intra-op threads (TensorFlow's choice)")
    parser.add_argument("--inter", type=int, help="inter-op threads (TensorFlow's choice)")
    parser.add_argument("--link-bandwidth", help='emulate a link, such as "12GB/s"')
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=["auto"],
        help="planners to compare (auto)",
    )
    parser.add_argument(
        "--recompute-grad",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[],
        help="numbers of segments to wrap in tf.recompute_grad (none)",
    )
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--case-budget-bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--case-policy", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--case-result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# One case, in a separate process.


def unswapped(options: argparse.Namespace) -> dict[str, Any]:
    """Train without a budget."""
    return _train(options, options.steps + SETTLING_BATCHES, [])


def unswapped_under_budget(options: argparse.Namespace) -> dict[str, Any]:
    """Train under the budget without AutoSwap, to see whether the model fits."""
    import tensorflow as tf

    try:
        _train(options, FITTING_BATCHES, [], options.case_budget_bytes)
    except tf.errors.ResourceExhaustedError as error:
        return {"fits": False, "reason": str(error)}
    return {"fits": True}


def swapped(options: argparse.Namespace) -> dict[str, Any]:
    """Train under the budget with AutoSwap."""
    import tfswap

    callback = tfswap.AutoSwap(
        budget=options.case_budget_bytes,
        policy=options.case_policy,
        link_bandwidth=options.link_bandwidth,
        verbose=0,
    )
    result = _train(options, options.steps + MAX_SETTLING_BATCHES, [callback])
    report = callback.report
    return {**result, "report": {key: report[key] for key in REPORTED}}


def recompute_grad(options: argparse.Namespace) -> dict[str, Any]:
    """Train without a budget, with segments wrapped by hand."""
    return _train(options, options.steps + SETTLING_BATCHES, [], segments=int(options.case_policy))


CASES = {
    "unswapped": unswapped,
    "unswapped_under_budget": unswapped_under_budget,
    "swapped": swapped,
    "recompute_grad": recompute_grad,
}


def _train(
    options: argparse.Namespace,
    batches: int,
    callbacks: list[Any],
    budget_bytes: int | None = None,
    segments: int = 0,
) -> dict[str, Any]:
    """Train; return each step's loss, seconds, phase and load, and the total peak."""
    import keras
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload
    from benchmarks.remat import with_recompute_grad

    tf.config.experimental.enable_op_determinism()
    if options.intra:
        tf.config.threading.set_intra_op_parallelism_threads(options.intra)
    if options.inter:
        tf.config.threading.set_inter_op_parallelism_threads(options.inter)

    class Recorder(keras.callbacks.Callback):
        """Record steps before other callbacks: their work at a step's end is not timed."""

        def __init__(self) -> None:
            super().__init__()
            self.steps: list[dict[str, Any]] = []
            self.peak_bytes = 0

        def take_peak(self) -> None:
            """Store the peak so far in `peak_bytes`; the device's peak starts again."""
            self.peak_bytes = max(self.peak_bytes, tfswap.memory_stats()["peak_bytes"])
            tfswap.reset_memory_stats()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            trainings = tfswap.status()["trainings"]
            self.phase = trainings[-1]["phase"] if trainings else SETTLED_PHASES[-1]
            self.take_peak()
            self.begun_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds = time.perf_counter() - self.begun_s
            # A running mean is a function of all losses so far: equal bits mean equal losses.
            step = {"loss": float(logs["loss"]).hex(), "seconds": seconds, "phase": self.phase}
            step["peak_load_bytes"] = tfswap.memory_stats()["peak_load_bytes"]
            self.steps.append(step)
            is_settled = len(settled(self.steps, options.steps)) == options.steps
            self.model.stop_training = is_settled and len(self.steps) >= least

    least = min(options.steps + SETTLING_BATCHES, batches)
    training = workload(options.model, options.batch, options.image)
    model = with_recompute_grad(training.model, segments) if segments else training.model
    data = tf.data.Dataset.from_tensors((training.x, training.y)).repeat(batches)
    recorder = Recorder()
    tfswap.set_budget(budget_bytes)
    tfswap.reset_memory_stats()
    model.fit(data, epochs=1, verbose=0, callbacks=[recorder, *callbacks])
    recorder.take_peak()
    return {"steps": recorder.steps, "peak_bytes": recorder.peak_bytes}


def run_case(options: argparse.Namespace) -> None:
    """Run the case that the options name; write its result, or the reason of its failure."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = CASES[options.case](options)
        except Exception as error:  # any error is this case's result
            result = {"error": f"{type(error).__name__}: {reason(str(error))}"}
    result["warnings"] = [str(w.message) for w in caught if str(w.message).startswith("tfswap")]
    options.case_result.write_text(json.dumps(result))


# All cases, one after the other.


def measure(
    options: argparse.Namespace, case: str, budget_bytes: int | None, policy: str = "auto"
) -> dict[str, Any]:
    """Run one case in a new process on the CPU; return its result."""
    shown = f", {budget_bytes / 2**20:.0f} MiB" if budget_bytes else ""
    shown += f", {policy}" if len(options.policies) > 1 else ""
    print(f"{case.replace('_', ' ')}{shown} ...", file=sys.stderr, end=" ", flush=True)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.budget_sweep", "--case", case]
        command += ["--case-result", str(result_file), "--model", options.model]
        command += ["--batch", str(options.batch), "--image", str(options.image)]
        command += ["--steps", str(options.steps)]
        for name in ("intra", "inter", "link_bandwidth"):
            if getattr(options, name):
                command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        command += ["--case-policy", policy]
        if budget_bytes:
            command += ["--case-budget-bytes", str(budget_bytes)]
        process = subprocess.run(
            command,
            cwd=TREE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if result_file.exists():
            result: dict[str, Any] = json.loads(result_file.read_text())
        else:
            last_lines = "\n".join(process.stderr.strip().splitlines()[-5:])
            result = {"error": f"the process ended with status {process.returncode}: {last_lines}"}
    outcome = "failed" if "error" in result else "done"
    print(f"{outcome} in {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
    return result


def settled(steps: list[dict[str, Any]], count: int, key: str = "seconds") -> list[Any]:
    """Return the last steps, at most `count`, after the last change or measurement of the plan."""
    found: list[Any] = []
    for step in reversed(steps):
        if step["phase"] not in SETTLED_PHASES or len(found) == count:
            break
        found.append(step[key])
    return found


def losses_equal(
    baselines: Sequence[dict[str, Any]], swapped_result: dict[str, Any]
) -> bool | None:
    """Return whether all losses have the same bits; None if two unswapped trainings disagree.

    Only the steps that an unswapped training has are compared.
    """
    losses = [[step["loss"] for step in result["steps"]] for result in baselines]
    if any(other != losses[0] for other in losses):
        return None
    ours = [step["loss"] for step in swapped_result["steps"]]
    return losses[0] == ours[: len(losses[0])]


def line(
    options: argparse.Namespace,
    budget_bytes: int,
    policy: str,
    baselines: Sequence[dict[str, Any]],
    fitting: dict[str, Any],
    result: dict[str, Any],
) -> dict[str, Any]:
    """Return the JSON line of one budget and policy; unknown values are None, "error" says why."""
    unswapped_step_s = statistics.median(
        seconds for baseline in baselines for seconds in settled(baseline["steps"], options.steps)
    )
    values: dict[str, Any] = {
        "model": options.model,
        "batch": options.batch,
        "image": options.image,
        "budget_bytes": budget_bytes,
        "unswapped_peak_bytes": baselines[0]["peak_bytes"],
        "predicted_peak_bytes": None,
        "measured_peak_bytes": None,
        "unswapped_step_s": round(unswapped_step_s, 4),
        "step_s": None,
        "step_ratio": None,
        "loss_bit_equal": None,
        "unswapped_fits": fitting.get("fits"),
        "bytes_out": None,
        "bytes_in": None,
        "policy": policy,
        "predicted_step_s": None,
        "recomputed_buffers": None,
        "link_bandwidth": options.link_bandwidth,
        "budget_share": round(budget_bytes / baselines[0]["peak_bytes"], 3),
        "settled_peak_load_bytes": None,
    }
    errors = [found["error"] for found in (fitting, result) if "error" in found]
    if "error" not in result:
        report = result.get("report", {"outcome": "fits"})
        values["measured_peak_bytes"] = result["peak_bytes"]
        values["predicted_peak_bytes"] = report.get("predicted_peak_bytes")
        values["predicted_step_s"] = report.get("predicted_step_s")
        values["bytes_out"] = report.get("bytes_out_per_step")
        values["bytes_in"] = report.get("bytes_in_per_step")
        values["recomputed_buffers"] = report.get("recomputed_buffers")
        values["loss_bit_equal"] = losses_equal(baselines, result)
        seconds = settled(result["steps"], options.steps)
        if seconds:
            peaks = settled(result["steps"], options.steps, "peak_load_bytes")
            values["settled_peak_load_bytes"] = max(peaks)
            values["step_s"] = round(statistics.median(seconds), 4)
            values["step_ratio"] = round(statistics.median(seconds) / unswapped_step_s, 4)
        else:
            errors.append("the plan was not settled after all steps: run more --steps")
        if report["outcome"] not in ("swapped", "fits"):
            errors += result["warnings"] or [f"the outcome was {report['outcome']!r}"]
    if errors:
        values["error"] = "; ".join(errors)
    return values


def sweep(options: argparse.Namespace) -> int:
    """Run all cases and print a JSON line for each budget; return the exit status."""
    before = measure(options, "unswapped", None)
    if "error" in before:
        print(before["error"], file=sys.stderr)
        return 1
    measured = []
    budgets = [int(part * before["peak_bytes"]) for part in options.budgets]
    for segments in options.recompute_grad:
        result = measure(options, "recompute_grad", None, str(segments))
        budget_bytes = result.get("peak_bytes", 0)
        measured.append((budget_bytes, f"tf.recompute_grad:{segments}", {}, result))
        if "error" not in result:
            budgets.append(budget_bytes)
    for budget_bytes in budgets:
        fitting = measure(options, "unswapped_under_budget", budget_bytes)
        for policy in options.policies:
            result = measure(options, "swapped", budget_bytes, policy)
            measured.append((budget_bytes, policy, fitting, result))
    baselines = [before]
    while len(baselines) == 1 or (
        len(baselines) < MAX_BASELINES
        and any(
            "report" in result and losses_equal(baselines, result) is False
            for _, _, _, result in measured
        )
    ):
        baseline = measure(options, "unswapped", None)
        if "error" in baseline:
            print(baseline["error"], file=sys.stderr)
            return 1
        baselines.append(baseline)
    for budget_bytes, policy, fitting, result in measured:
        print(json.dumps(line(options, budget_bytes, policy, baselines, fitting, result)))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep, or the one case for which a sweep starts a new process."""
    options = parse(arguments)
    if options.case:
        run_case(options)
        return 0
    return sweep(options)


if __name__ == "__main__":
    sys.exit(main())
