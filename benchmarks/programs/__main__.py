r"""Run third-party programs unchanged under TFSWAP_BUDGET.

    python -m benchmarks.programs --scripts FOLDER [--only mnist,vae] [--budget-part 0.6]

FOLDER is a checkout of Keras, or any folder with scripts. Each script runs in separate processes:

    measured    with tfswap imported and no budget: the peaks of its trainings
    plain       without tfswap: does TensorFlow repeat itself?
    budget      under TFSWAP_BUDGET: --budget-part of what its steps need beyond resident memory
                (weights, optimizer state, data); if it runs out of memory, more

The scripts are not changed. Seeds, deterministic ops, data in place of Keras's downloads
(`datasets.py`), and limits on batches and epochs (`limits.py`) are set from outside, the same in
each run. The time of the first run decides the limits.

A script that does not run without tfswap either, because a package or data are missing, is only
reported. One JSON line a script: program; runs ("ok", or the problem); trainings: name and steps of
each `fit` and each other training function; unswapped_peak_bytes; resident_bytes: the part of that
which stays; largest_bytes: of a tensor (those below 1 MiB are not swapped); op_by_op_steps: updates
of weights outside of any `tf.function`; others_peak_bytes: the peak of those, and of functions
without training, a lower bound of all budgets; budget_bytes; budget_part: the one that it trained
in; too_small: budgets that it did not train in, with reasons; measured_peak_bytes; within_budget;
swapped_bytes, in total; repeats: whether unswapped runs have the same bits; losses_equal (all
results of functions), weights_equal (None if unswapped runs differ); seconds: in trainings,
unswapped_s and under the budget; ratio of the two (with tracing and planning, a large part of so
few steps); said: tfswap's last message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.one_case import SERVE, TREE, answer, in_process
from benchmarks.programs.record import NO_TRAINING, OP_BY_OP

MODULE = "benchmarks.programs"
FOLDERS = ("examples", "guides", "integration_tests")
# Batches per epoch and epochs: the first ones that keep a program within its time.
LIMITS = ((20, 2), (4, 1), (2, 1))
TIME_LIMIT_S = 90
SWAPPED_TIME_LIMIT_S = 450
# Unswapped runs that must agree before one under a budget counts as different.
MAX_PLAIN_RUNS = 4
# Memory that cannot be swapped, with a margin: its tensors have no planned addresses.
OTHERS_SPARE = 1.1
# Of the device; budgets are rounded up to it.
GRANULE_BYTES = 64 << 10

Answer = dict[str, Any]


def scripts_in(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """Return scripts in a folder's examples, guides and tests, or in all of it, or by name."""
    inside = [folder / name for name in FOLDERS if (folder / name).is_dir()] or [folder]
    found = sorted(path for each in inside for path in each.rglob("*.py"))
    return [
        path
        for path in found
        if not path.name.startswith("__")
        and (not only or any(fnmatch(path.stem, pattern) for pattern in only))
    ]


def environment(epochs: int, budget_bytes: int | None) -> dict[str, str]:
    """Return the environment variables of a program."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TFSWAP_")}
    kept.update(
        KERAS_BACKEND="tensorflow",
        KERAS_MAX_EPOCHS=str(epochs),
        MPLBACKEND="Agg",
        PYTHONHASHSEED="0",
        PYTHONPATH=os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")]),
        TFSWAP_PLAN_CACHE="none",
    )
    if budget_bytes is not None:
        kept["TFSWAP_BUDGET"] = str(budget_bytes)
    return kept


def run(
    script: Path, limits: tuple[int, int], with_tfswap: bool, budget_bytes: int | None = None
) -> Answer:
    """Run one program once; any error is stored under "error"."""
    shown = f"under {budget_bytes / 2**20:.1f} MiB" if budget_bytes else "unswapped"
    print(f"{script.stem}, {shown} ...", end=" ", file=sys.stderr, flush=True)
    case = {"script": str(script), "with_tfswap": with_tfswap, "batches": limits[0]}
    limit_s = SWAPPED_TIME_LIMIT_S if budget_bytes else TIME_LIMIT_S
    found = in_process(MODULE, case, environment(limits[1], budget_bytes), limit_s)
    if "failed" in found:
        found = {"error": found["failed"], "windows": []}
    print(found["error"] or f"{found['seconds']} s", file=sys.stderr, flush=True)
    return found


def budget_for(windows: Sequence[Mapping[str, Any]], part: float) -> int:
    """Return a budget with that part of the steps' need beyond resident memory, for all trainings.

    Args:
        windows: Windows of the unswapped run.
        part: From 0 (resident memory) to 1 (the peak).

    Returns:
        Bytes; enough for work without training, and for single ops, in which nothing can
        be swapped.
    """
    needs = [
        each["peak_bytes"] * OTHERS_SPARE
        if each["name"] in (OP_BY_OP, NO_TRAINING)
        else each["resident_bytes"] + part * (each["peak_bytes"] - each["resident_bytes"])
        for each in windows
    ]
    return -int(-max(needs, default=0) // GRANULE_BYTES) * GRANULE_BYTES


def parts_from(part: float) -> Iterator[float]:
    """Yield the parts to try: each time halfway to the peak, then the peak, and beyond it."""
    for _ in range(3):
        yield round(part, 3)
        part = (1 + part) / 2
    yield from (1.0, 1.2, 1.5)


def same(runs: Sequence[Answer], key: str) -> bool:
    """Return whether all runs have the same numbers, or weights."""
    return all(each.get(key) == runs[0].get(key) for each in runs)


def measure(script: Path, part: float) -> Answer:
    """Run one program in all ways; return its JSON line."""
    about: Answer = {"program": script.stem}
    for limits in LIMITS:
        measured = run(script, limits, True)
        if "takes more than" not in (measured["error"] or ""):
            break
    if measured["error"]:
        return {**about, "runs": f"not without tfswap either: {measured['error']}"}
    windows = measured["windows"]
    planned = [each for each in windows if each["name"] not in (OP_BY_OP, NO_TRAINING)]
    others = [each for each in windows if each["name"] in (OP_BY_OP, NO_TRAINING)]
    plain = [run(script, limits, False)]
    about.update(
        runs="ok",
        trainings=[[each["name"], each["steps"]] for each in planned],
        unswapped_peak_bytes=max((each["peak_bytes"] for each in planned), default=None),
        resident_bytes=max((each["resident_bytes"] for each in planned), default=None),
        op_by_op_steps=sum(each["steps"] for each in windows if each["name"] == OP_BY_OP),
        largest_bytes=measured["largest_bytes"],
        others_peak_bytes=max((each["peak_bytes"] for each in others), default=None),
        repeats=same([measured, *plain], "numbers") and same([measured, *plain], "weights"),
        unswapped_s=measured["train_s"],
    )
    if not planned and not about["op_by_op_steps"]:
        return {**about, "runs": "it trains nothing"}
    errors: list[str] = []
    for tried in parts_from(part):
        budget_bytes = budget_for(windows, tried)
        swapped = run(script, limits, True, budget_bytes)
        about.update(budget_bytes=budget_bytes, budget_part=tried)
        if not swapped["error"]:
            break
        errors.append(f"{budget_bytes}: {swapped['error']}")
    if errors:
        about["too_small"] = errors
    if swapped["error"]:
        return {**about, "runs": f"fails under its budget: {swapped['error']}"}
    unswapped = [measured, *plain]
    while about["repeats"] and len(unswapped) < MAX_PLAIN_RUNS + 1:
        if same([*unswapped, swapped], "numbers") and same([*unswapped, swapped], "weights"):
            break
        unswapped.append(run(script, limits, False))
        about["repeats"] = same(unswapped, "numbers") and same(unswapped, "weights")
    return {**about, **compared(unswapped, swapped, about["repeats"], budget_bytes)}


def compared(
    unswapped: Sequence[Answer], swapped: Answer, repeats: bool, budget_bytes: int
) -> Answer:
    """Compare a run under a budget with unswapped ones."""
    capped = [each for each in swapped["windows"] if each["steps"] and each["capped"]]
    capped = [each for each in capped if each["name"] not in (OP_BY_OP, NO_TRAINING)]
    peak_bytes = max((each["peak_bytes"] for each in capped), default=None)
    beside = [unswapped[0], swapped]
    return {
        "measured_peak_bytes": peak_bytes,
        "within_budget": None if peak_bytes is None else peak_bytes <= budget_bytes,
        "swapped_bytes": swapped["bytes_out"],
        "losses_equal": same(beside, "numbers") if repeats else None,
        "weights_equal": same(beside, "weights") if repeats else None,
        "seconds": swapped["train_s"],
        "ratio": round(swapped["train_s"] / max(unswapped[0]["train_s"], 1e-3), 2),
        "said": swapped["said"][-6:],
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scripts", type=Path, help="the folder that they are in")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        help="names without .py, with commas; * stands for anything (all)",
    )
    parser.add_argument("--budget-part", type=float, default=0.6, help="the first one (0.6)")
    parser.add_argument(SERVE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.serve and (options.scripts is None or not options.scripts.is_dir()):
        parser.error("--scripts must be a folder, of a checkout of Keras say")
    return options


def main() -> int:
    """Run all programs, or the one run of a child process."""
    options = parse()
    if options.serve:
        from benchmarks.programs import process

        return answer(options.serve, process.run)
    failed = False
    for script in scripts_in(options.scripts, options.only):
        line = measure(script, options.budget_part)
        failed = failed or line["runs"].startswith("fails")
        failed = failed or False in (line.get("losses_equal"), line.get("weights_equal"))
        print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
