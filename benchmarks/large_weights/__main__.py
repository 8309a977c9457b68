r"""Models whose weights exceed the budget, beside stock TensorFlow and the kernel's swapping.

    python -m benchmarks.large_weights [--models gemma] [--modes lora,predict] [--share 0.4]

A Gemma 2B, whose weights take 9.3 GiB, in 4 GiB of memory (stock TensorFlow needs 12 GiB):

    python -m benchmarks.large_weights --models gemma --modes lora,generate --layers 18 \
        --width 2048 --intermediate 32768 --vocabulary 256000 --batch 1 --tokens 64 \
        --budget 2600 --host 64 --limit 4096

Needs KerasHub (pip install keras-hub), and root for memory cgroups. Weights are random; with
--preset they are saved first, and each process loads them. Each case runs in separate processes, in
turns:

    stock      without tfswap and without a limit
    tfswap     under TFSWAP_BUDGET, a share of the weights, in a memory cgroup of the budget, far
               memory (`--host`; the rest goes to a file) and 700 MiB for TensorFlow
    os_swap    without tfswap, in the same cgroup, with a swap file

One JSON line a case: model, mode, weights_mib, budget_mib, limit_mib, measured_peak_mib (of the
device, from the first allocation on), rss_peak_mib (of the process), step_s (median of the last
half; for "generate": of a token), stock_step_s, os_swap_step_s, bound_s (the largest one of
stock_step_s and the seconds that far memory took in that run for as many bytes as must be read, or
written: weights that do not fit are read once, in training twice; AdamW reads and writes its two
moments, too, and writes the weights), ratio_of_bound, os_swap_ratio (to step_s), equal (losses,
predictions or tokens, bit for bit; null: those of stock TensorFlow differ from run to run), built_s
and stock_built_s (seconds until the model is built or loaded). Others are null if it failed or ran
out of memory.

The exit status is 1 if a case under tfswap fails, 2 if something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.os_swap.limits import MemoryLimit, NotAllowed, SwapFile

MIB = 1 << 20
OWN_MIB = 700  # TensorFlow, Keras and KerasHub without a model
NAMES, MODES = ("gemma", "llama3", "gpt2", "bert"), ("lora", "full", "predict", "generate")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_weights", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--models", default=",".join(NAMES), help="with commas (all)")
    parser.add_argument("--modes", default=",".join(MODES), help="with commas (all)")
    parser.add_argument("--share", type=float, help='of the weights (0.25; of "full" 0.5)')
    parser.add_argument("--budget", type=int, help="MiB, instead of a share")
    parser.add_argument("--host", type=int, help="MiB of far memory in host memory (all)")
    parser.add_argument("--limit", type=int, help="MiB of the cgroup (what the parts need)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--intermediate", type=int, help="of Gemma (8 times the width)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--preset", action="store_true", help="load the weights from a preset")
    parser.add_argument("--skip", default="", help="os_swap: not beside the kernel's swapping")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a process (1800)")
    parser.add_argument("--verbose", action="store_true", help="what the cases say, on stderr")
    return parser.parse_args(arguments)


def run(
    options: argparse.Namespace,
    model: str,
    mode: str,
    preset: str,
    environment: dict[str, str],
    cgroup: Any,
) -> dict[str, Any] | None:
    """Run one process; return its result, None if it failed."""
    intermediate = options.intermediate or 8 * options.width
    sizes = (options.layers, options.width, options.vocabulary, options.batch, options.tokens)
    numbers = (*sizes, intermediate, options.steps)
    command = (sys.executable, "-m", "benchmarks.large_weights.case", model, mode)
    with subprocess.Popen(
        [*command, *map(str, numbers), *filter(None, [preset])],
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_BACKEND": "tensorflow",
            **environment,
        },
        text=True,
        preexec_fn=None if cgroup is None else cgroup.enter,
    ) as child:
        try:
            output, _ = child.communicate(timeout=options.timeout)
        except BaseException as error:
            child.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return None
    if child.returncode:
        print(f"{model}, {mode}: a process ended with {child.returncode}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _step_s(result: dict[str, Any]) -> float | None:
    times = result.get("step_s")
    return statistics.median(times[len(times) // 2 :]) if times else None


def _bound_s(
    mode: str, stock_s: float, weights: float, budget: float, result: dict[str, Any]
) -> float:
    """Return what a step takes at least, whatever stays in the budget."""
    read, written = {
        "lora": (2 * (weights - budget), 0.0),
        "full": (4 * weights - 2 * budget, 3 * weights - budget),
    }.get(mode, (weights - budget, 0.0))
    return max(stock_s, read * _far_s(result, "in"), written * _far_s(result, "out"))


def _far_s(result: dict[str, Any], way: str) -> float:
    """Return the seconds that far memory took for a byte, "in" to the device or "out"."""
    tiers = ("host", "compressed", "file")
    moved = sum(result[f"far_{tier}_bytes_{way}"] for tier in tiers)
    busy_ns = sum(result[f"far_{tier}_busy_{way}_ns"] for tier in tiers)
    return busy_ns / 1e9 / moved if moved else 0.0


def case(
    options: argparse.Namespace, model: str, mode: str, preset: str, skipped: set[str]
) -> dict[str, Any]:
    """Run a case; return its line."""
    stock = run(options, model, mode, preset, {}, None)
    if stock is None:
        raise SystemExit(f"{model}, {mode}: stock TensorFlow failed; see --verbose")
    weights_bytes = stock["weights_bytes"]
    share = options.share or (0.5 if mode == "full" else 0.25)
    budget_mib = options.budget or round(share * weights_bytes / MIB)
    host_mib = round(weights_bytes / MIB) * 4 if options.host is None else options.host
    state_mib = round(weights_bytes / MIB) * (3 if mode == "full" else 1)  # AdamW's two moments
    limit_mib = options.limit or budget_mib + min(host_mib, state_mib) + OWN_MIB
    environment = {"TFSWAP_BUDGET": f"{budget_mib}MiB", "TFSWAP_HOST_LIMIT": f"{host_mib}MiB"}
    if options.host is not None:
        environment["TFSWAP_SPILL_DIR"] = str(options.folder)
    swap_bytes = (8 if mode == "full" else 4) * weights_bytes + (1 << 30)
    with MemoryLimit() as cgroup, SwapFile(options.folder, swap_bytes):
        cgroup.set_bytes(limit_mib * MIB)
        ours = run(options, model, mode, preset, environment, cgroup) or {}
        is_skipped = "os_swap" in skipped
        theirs = None if is_skipped else run(options, model, mode, preset, {}, cgroup)
    equal = ours["digest"] == stock["digest"] if ours else None
    if equal is False:
        again = run(options, model, mode, preset, {}, None) or stock
        equal = False if again["digest"] == stock["digest"] else None
    step_s, stock_s, os_s = _step_s(ours), _step_s(stock), _step_s(theirs or {})
    line: dict[str, Any] = {
        "model": model,
        "mode": mode,
        "weights_mib": round(weights_bytes / MIB),
        "budget_mib": budget_mib,
        "limit_mib": limit_mib,
        "measured_peak_mib": round(ours["peak_bytes"] / MIB, 1) if ours else None,
        "rss_peak_mib": round(ours["rss_peak_bytes"] / MIB) if ours else None,
        "step_s": step_s,
        "stock_step_s": stock_s,
        "os_swap_step_s": os_s,
        "bound_s": None,
        "ratio_of_bound": None,
        "os_swap_ratio": round(os_s / step_s, 2) if os_s and step_s else None,
        "equal": equal,
        "built_s": ours.get("built_s"),
        "stock_built_s": stock.get("built_s"),
    }
    if step_s is not None and stock_s is not None:
        bound_s = _bound_s(mode, stock_s, weights_bytes, budget_mib * MIB, ours)
        line["bound_s"] = round(bound_s, 3)
        line["ratio_of_bound"] = round(step_s / line["bound_s"], 3)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return the exit status."""
    options = parse(arguments)
    if importlib.util.find_spec("keras_hub") is None:
        print("benchmarks.large_weights needs KerasHub: pip install keras-hub", file=sys.stderr)
        return 2
    skipped = set(filter(None, options.skip.split(",")))
    failed = False
    try:
        for model in options.models.split(","):
            with tempfile.TemporaryDirectory(prefix="preset-", dir=options.folder) as folder:
                preset = folder if options.preset else ""
                if preset and run(options, model, "save", preset, {}, None) is None:
                    raise SystemExit(f"{model}: its preset could not be saved; see --verbose")
                for mode in options.modes.split(","):
                    if model == "bert" and mode == "generate":
                        continue  # it generates no text
                    line = case(options, model, mode, preset, skipped)
                    failed |= line["step_s"] is None
                    print(json.dumps(line), flush=True)
    except NotAllowed as error:
        print(f"benchmarks.large_weights: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
