"""Predict peak memory and step time under budgets, for a recorded step or a model never run."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfswap.io.amounts import readable_bytes
from tfswap.machine import budget as budgets
from tfswap.machine.machine import Machine
from tfswap.machine.presets import find_machine, load_machines
from tfswap.planning import whatif
from tfswap.planning.least_budget import LeastBudgets, least_budgets
from tfswap.planning.planners import portfolio
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Timeline, peak_load
from tfswap.traces.read import read_floor, read_section_floors, read_trace

if TYPE_CHECKING:
    from tfswap.cost_model.model_timeline import ModelStep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "trace", type=Path, nargs="?", help="a tfswap profile or timeline, or a SINGA event list"
    )
    parser.add_argument(
        "--model",
        help="instead of a trace: keras.applications.NAME, or file.py:function, which returns a "
        "model, or a model and the TensorSpecs of a batch",
    )
    parser.add_argument("--batch", type=int, help="the model's batch size (32)")
    parser.add_argument(
        "--image", type=int, help="image height and width of a keras.applications model"
    )
    parser.add_argument(
        "--fit-batch", action="store_true", help="find the largest batch sizes that fit the machine"
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="the machine to simulate (see --list-machines)"
    )
    parser.add_argument("--machines", metavar="FILE", help="a file that defines further machines")
    parser.add_argument("--list-machines", action="store_true", help="print the machines' names")
    parser.add_argument(
        "--budget",
        action="append",
        help='such as 6GiB or "60%%" of the peak; may be repeated (six down to the least)',
    )
    parser.add_argument("--policy", default=portfolio.AUTO, help="the planner (auto)")
    parser.add_argument(
        "--link-bandwidth", help="such as \"12GB/s\" (the machine's link, or this machine's memory)"
    )
    parser.add_argument(
        "--planning-time", type=float, default=1.0, help="time limit of each plan's search in s (1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass(frozen=True)
class Predictions:
    """The predictions for one step.

    Attributes:
        timeline: The step.
        machine: The simulated machine.
        unswapped_peak_bytes: Peak without swaps.
        least: The least budgets.
        at_budgets: The prediction for each budget.
        faster: The predictions for the smallest budget with faster links.
        batch: The model's batch size; None for a trace.
        largest_batches: Largest batch sizes without and with swapping; None without --fit-batch.
    """

    timeline: Timeline
    machine: Machine
    unswapped_peak_bytes: int
    least: LeastBudgets
    at_budgets: list[whatif.Answer]
    faster: list[whatif.Answer]
    batch: int | None = None
    largest_batches: tuple[int, int] | None = None

    @property
    def fits(self) -> bool | None:
        """Return whether the step fits the machine without swaps; None if its memory is unknown."""
        device = self.machine.device
        return None if device is None else self.unswapped_peak_bytes <= device.memory_bytes


def run(options: argparse.Namespace) -> int:
    """Print the predictions and return 0, or print an error and return 1."""
    try:
        if options.list_machines:
            print("\n".join(machine_lines(load_machines(options.machines))))
            return 0
        predictions = _predict(options)
    except (OSError, ValueError) as error:
        print(f"tfswap simulate: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(values(predictions), indent=2))
    else:
        print("\n".join(lines(predictions)))
    return 0


def _predict(options: argparse.Namespace) -> Predictions:
    _check(options)
    machine = _machine(options)
    batch, largest = None, None
    floors: tuple[SectionFloor, ...] = ()
    if options.model is None:
        timeline, floor = read_trace(options.trace), read_floor(options.trace)
        floors = read_section_floors(options.trace)
        peak_bytes = peak_load(timeline)
    else:
        batch = 32 if options.batch is None else options.batch
        step, largest = _model(options, machine, batch)
        timeline, floor, peak_bytes = step.timeline, step.floor, step.unswapped_peak_bytes
    budgets_bytes = [_bytes(text, peak_bytes) for text in options.budget or ()]
    budgets_bytes = budgets_bytes or _budgets(timeline, machine, peak_bytes)
    at_budgets = [
        whatif.at_budget(timeline, machine, b, options.policy, options.planning_time)
        for b in budgets_bytes
    ]
    faster = (
        whatif.with_faster_links(
            timeline, machine, min(budgets_bytes), (2.0, 4.0), options.policy, options.planning_time
        )
        if budgets_bytes
        else []
    )
    least = least_budgets(timeline, machine, floors, floor)
    return Predictions(timeline, machine, peak_bytes, least, at_budgets, faster, batch, largest)


def _check(options: argparse.Namespace) -> None:
    if (options.trace is None) == (options.model is None):
        raise ValueError(
            "give either a trace or --model, such as --model keras.applications.ResNet50 "
            "--batch 64 --machine v100"
        )
    if options.model is None:
        for name in ("batch", "image", "fit_batch"):
            if getattr(options, name):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} needs --model: a trace has a fixed batch")
    elif options.machine is None:
        names = ", ".join(load_machines(options.machines))
        raise ValueError(f"--model needs --machine, one of: {names}")
    for name in ("batch", "image"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, not {getattr(options, name)}")


def _machine(options: argparse.Namespace) -> Machine:
    machine = None if options.machine is None else find_machine(options.machine, options.machines)
    speed = budgets.parse_bandwidth(options.link_bandwidth)
    if speed is None:
        return machine or Machine.measure()
    if machine is None:
        return Machine(f"{options.link_bandwidth} link", speed, speed)
    return replace(
        machine,
        name=f"{machine.name}, {options.link_bandwidth} link",
        out_bytes_per_s=speed,
        in_bytes_per_s=speed,
    )


def _model(
    options: argparse.Namespace, machine: Machine, batch: int
) -> tuple[ModelStep, tuple[int, int] | None]:
    # Imported here: TensorFlow takes seconds to load, and traces do not need it.
    from tfswap.cost_model.model_source import load_model
    from tfswap.cost_model.model_timeline import model_step
    from tfswap.cost_model.traced_step import trace_step
    from tfswap.ops import library
    from tfswap.ops.loaded_library import LibraryError

    try:
        library.load()
    except LibraryError as error:
        raise ValueError(str(error)) from error
    device = machine.device
    assert device is not None
    traced = trace_step(load_model(options.model, options.image))
    steps: dict[int, ModelStep] = {}

    def at(examples: int) -> ModelStep:
        if examples not in steps:
            steps[examples] = model_step(traced, examples, device)
        return steps[examples]

    largest = None
    if options.fit_batch:
        without = whatif.largest_batch(
            lambda examples: at(examples).unswapped_peak_bytes, device.memory_bytes, batch
        )
        swapped = whatif.largest_batch(
            lambda examples: whatif.least_budget_bytes(at(examples).timeline, machine),
            device.memory_bytes,
            max(without, batch),
        )
        largest = (without, swapped)
    return at(batch), largest


def _budgets(timeline: Timeline, machine: Machine, peak_bytes: int) -> list[int]:
    """Return the machine's memory if the step exceeds it, else six budgets down to the least."""
    if machine.device is not None and machine.device.memory_bytes < peak_bytes:
        return [machine.device.memory_bytes]
    return whatif.budgets_between(timeline, machine)


def _bytes(text: str, peak_bytes: int) -> int:
    if text.strip().endswith("%"):
        return budgets.resolve(text, device_limit_bytes=peak_bytes)
    return budgets.parse_bytes(text)


def values(predictions: Predictions) -> dict[str, Any]:
    """Return the predictions as JSON values."""
    device = predictions.machine.device
    largest = predictions.largest_batches
    return {
        "ops": len(predictions.timeline.op_names),
        "batch": predictions.batch,
        "machine": predictions.machine.name,
        "memory_bytes": None if device is None else device.memory_bytes,
        "fits": predictions.fits,
        "peak_bytes": peak_load(predictions.timeline),
        "unswapped_peak_bytes": predictions.unswapped_peak_bytes,
        "step_ns": predictions.timeline.step_ns,
        "least_budget_bytes": predictions.least.swapped.bytes,
        "least_budgets": _least_values(predictions.least),
        "largest_batch": None
        if largest is None
        else {"unswapped": largest[0], "swapped": largest[1]},
        "budgets": [asdict(answer) for answer in predictions.at_budgets],
        "faster_links": [asdict(answer) for answer in predictions.faster],
    }


def _least_values(least: LeastBudgets) -> dict[str, Any]:
    modes = () if least.floor is None else least.floor.modes
    floor = {mode: {"bytes": own.bytes, **asdict(own)} for mode, own in modes}
    return {**asdict(least), "floor": floor or None}


def lines(predictions: Predictions) -> list[str]:
    """Return the printed predictions."""
    timeline = predictions.timeline
    report = [
        f"{len(timeline.op_names)} ops, {len(timeline.buffer_bytes)} buffers: peak "
        f"{readable_bytes(predictions.unswapped_peak_bytes)}, step {timeline.step_ns / 1e6:.1f} ms",
        *_about_least(predictions.least),
        *_about_machine(predictions),
        "",
        f"{'budget':>10}  {'peak':>10}  {'step':>10}  {'ratio':>6}  {'at least':>8}  "
        f"{'out':>10}  {'in':>10}  swaps  plan",
    ]
    for answer in [*predictions.at_budgets, *predictions.faster]:
        if answer.step_ns is None or answer.least_step_ns is None:
            report.append(f"{readable_bytes(answer.budget_bytes):>10}  {answer.problem}")
            continue
        note = answer.policy or "fits without swaps"
        if answer in predictions.faster:
            note += f", on {answer.link}"
        report.append(
            f"{readable_bytes(answer.budget_bytes):>10}  {readable_bytes(answer.peak_bytes):>10}  "
            f"{answer.step_ns / 1e6:>7.1f} ms  {answer.step_ns / timeline.step_ns:>6.3f}  "
            f"{answer.least_step_ns / timeline.step_ns:>8.3f}  "
            f"{readable_bytes(answer.bytes_out):>10}  {readable_bytes(answer.bytes_in):>10}  "
            f"{answer.swaps:>5}  {note}"
        )
    return report


def _about_least(least: LeastBudgets) -> list[str]:
    """Describe the least budgets, and the op that sets each."""
    rows = [
        ("without swapping", least.unswapped.bytes, least.unswapped.op, ""),
        ("with swapping", least.swapped.bytes, least.swapped.op, ""),
    ]
    best = least.sectioned
    if best is not None:
        # Printed before the op, whose name may be longer than a line.
        note = (
            f" by AutoSwap(sections={best.sections})"
            if least.sections_help
            else ", which does not help"
        )
        note += f" (best of {len(least.sections)} tried)"
        rows.append(("with sections", best.bytes, best.op, note))
    lines = [
        f"least budget {mode:<16}  {readable_bytes(least_bytes):>10}{note}, set by {op}"
        for mode, least_bytes, op, note in rows
    ]
    for mode, floor in () if least.floor is None else least.floor.modes:
        of = f"floor, weights {mode}"
        lines.append(f"{of:<29}  {readable_bytes(floor.bytes):>10}: {floor}")
    return lines


def _about_machine(predictions: Predictions) -> list[str]:
    device = predictions.machine.device
    if device is None:
        return []
    about = f"{predictions.machine.name} has {readable_bytes(device.memory_bytes)}: "
    if predictions.fits:
        about += "the step fits without swapping."
    elif predictions.least.swapped.bytes <= device.memory_bytes:
        about += "the step fits with swapping."
    else:
        about += "the step does not fit, even with swapping."
    report = [about]
    if predictions.batch is not None:
        report.append(
            f"Batch {predictions.batch}, predicted without a run: times come from a cost model, "
            "and memory excludes the workspaces of convolutions."
        )
    if predictions.largest_batches is not None:
        without, swapped = predictions.largest_batches
        report.append(f"Largest batch that fits: {without} without swapping, {swapped} with.")
    return report


def machine_lines(machines: dict[str, Machine]) -> list[str]:
    """Return a table of the machines."""
    report = [f"{'machine':<14}{'memory':>10}  {'products':>12}  {'memory speed':>12}  out / in"]
    for name, machine in machines.items():
        device = machine.device
        assert device is not None
        report.append(
            f"{name:<14}{readable_bytes(device.memory_bytes):>10}  "
            f"{device.product_ops_per_s * device.efficiency / 1e12:>6.1f} Top/s  "
            f"{device.bytes_per_s / 1e9:>7.0f} GB/s  "
            f"{machine.out_bytes_per_s / 1e9:.3g} / {machine.in_bytes_per_s / 1e9:.3g} GB/s"
        )
    return report
