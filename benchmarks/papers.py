r"""Compare figures of papers with predictions of them, without running anything.

    python -m benchmarks.papers [--figures vdnn,autoswap,capuchin] [--models AlexNet,VGG16] \
        [--vdnn-data FILE] [--singa-trace FILE]

A JSON line for each cell of a figure or table: paper figure machine model batch policy quantity
published simulated ratio auto note. Memory is in MiB; "step" is the step's speed relative to the
unswapped one; "batch" the largest that fits. ``auto`` is what tfswap's best plan reaches: at the
policy's own peak for vDNN's speeds, for the other quantities at best. ``note`` says why a figure
differs by more than 10 %, where that is known.

How the nets differ from those of the papers:

* vDNN's memory is that of the layers before the classifier, so what the classifier's variables hold
  is left out here too. It keeps weights and their gradients through the step, Keras weights and
  momenta: as many bytes. Its baseline is a network-wide allocation: every feature map, and two
  buffers of the largest gradient, which all layers share. That is added up here ("base"), and
  TensorFlow's own peak stands as "tensorflow" beside it. Its policies come in two kinds of
  convolution algorithm: without work space (m) and the fastest (p). Simulated memory has no work
  space and stands beside (m), simulated speed beside (p).
* AutoSwap's nets are SINGA's, whose activations and batch norms do not work in place. Keras's batch
  norm is made of elementwise ops, in place where it may be. Of VGG16 there is the authors' own list
  of allocations (model "VGG16 (SINGA's step)", on the link that they measured).
* Capuchin recomputes too; its policy here only swaps. TensorFlow 1 fused batch norm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.planners import AUTOSWAP_LINK, UNTOUCHED_BYTES
from benchmarks.published_autoswap import SCORES, PublishedAccounting
from benchmarks.published_figures import AUTOSWAP, CAPUCHIN, vdnn_figures
from tfswap.cost_model.model_source import ModelSource
from tfswap.cost_model.model_timeline import ModelStep, model_step
from tfswap.cost_model.traced_step import TracedStep, trace_step
from tfswap.machine.machine import Machine
from tfswap.machine.presets import find_machine
from tfswap.planning import whatif
from tfswap.planning.planners import portfolio
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.step.timeline import Timeline, peak_load
from tfswap.traces.events import find_step
from tfswap.traces.read import read_trace
from tfswap.traces.singa import read_singa

MIB = 1 << 20

VDNN_DATA = Path("shared/data/papers/vdnn_fig11_14.csv")
SINGA_TRACE = Path("shared/data/singa/vec_block_fresh_vgg.csv")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--figures", default="vdnn,autoswap,capuchin", help="which papers")
    parser.add_argument("--models", help="only these, by name")
    parser.add_argument("--vdnn-data", type=Path, default=VDNN_DATA, help="the digitised figures")
    parser.add_argument(
        "--singa-trace", type=Path, default=SINGA_TRACE, help="AutoSwap's authors' step of VGG16"
    )
    parser.add_argument("--planning-time", type=float, default=1.0, help="s, of auto (1)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parse(arguments)
    from tfswap.ops import library

    library.load()
    wanted = None if options.models is None else set(options.models.split(","))
    papers: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "vdnn": lambda: vdnn(vdnn_figures(options.vdnn_data), wanted, options.planning_time),
        "autoswap": lambda: chain(
            autoswap_traced(options.singa_trace, wanted, options.planning_time),
            autoswap(wanted, options.planning_time),
        ),
        "capuchin": lambda: capuchin(wanted),
    }
    for name in options.figures.split(","):
        if name not in papers:
            raise SystemExit(f"unknown figure {name!r}: allowed are {', '.join(papers)}")
        for line in papers[name]():
            print(json.dumps(line), flush=True)
    return 0


def traced(name: str, image: int) -> TracedStep:
    """Return the training step of a net by name."""
    import keras

    from benchmarks import models
    from examples.alexnet import alexnet

    keras.utils.clear_session()
    if name == "AlexNet":
        model = alexnet(image)
    elif cifar := re.fullmatch(r"cifar_(vgg|resnet)(\d+)", name):
        family = models.cifar_vgg if cifar[1] == "vgg" else models.cifar_resnet
        model = family(int(cifar[2]))
    else:
        factory = getattr(keras.applications, name)
        model = factory(weights=None, input_shape=(image, image, 3))
    return trace_step(ModelSource(model))


def line(
    paper: str,
    figure: str,
    machine: Machine,
    model: str,
    batch: int | None,
    policy: str,
    quantity: str,
    published: float,
    simulated: float | None,
    auto: float | None,
    note: str,
) -> dict[str, Any]:
    """Return the line of one cell."""
    ratio = None if simulated is None else simulated / published
    near = ratio is not None and abs(ratio - 1) <= 0.1
    return {
        "paper": paper,
        "figure": figure,
        "machine": machine.name,
        "model": model,
        "batch": batch,
        "policy": policy,
        "quantity": quantity,
        "published": published,
        "simulated": None if simulated is None else round(simulated, 3),
        "ratio": None if ratio is None else round(ratio, 3),
        "auto": None if auto is None else round(auto, 3),
        "note": "" if near else note,
    }


_VDNN_MEMORY = {
    "base": "the figure's nets may pad feature maps; its MB are taken as MiB",
    "tensorflow": "TensorFlow frees feature maps and gradients after their last reader",
    "conv": "at AlexNet's peak the classifier's weights have gradients, which the figure leaves "
    "out",
    "all": "X of the next layer is prefetched while a pooling's X, Y and their gradients are "
    "there: three and a half maps of the largest size in VGG16, where the figure has three",
}


def vdnn(
    figures: dict[tuple[str, int], dict[str, tuple[float, float, float]]],
    wanted: set[str] | None,
    planning_time_s: float,
) -> Iterator[dict[str, Any]]:
    """Yield figures 11 (memory) and 14 (speed)."""
    machine = find_machine("titan-x")
    assert machine.device is not None
    steps: dict[str, TracedStep] = {}
    for (name, batch), policies in figures.items():
        if wanted is not None and name not in wanted:
            continue
        if name not in steps:
            steps = {name: traced(name, 224)}
        timeline = model_step(steps[name], batch, machine.device).timeline
        classifier = 2 * classifier_bytes(steps[name])
        least = whatif.least_budget_bytes(timeline, machine) - classifier
        for policy in ("base", "tensorflow", "conv", "all"):
            published_mb, _, published_speed = policies[
                "base" if policy == "tensorflow" else policy
            ]
            if policy in ("base", "tensorflow"):
                whole = peak_load(timeline)
                peak = network_wide_bytes(timeline) if policy == "base" else whole
                speed = 1.0
            else:
                decision = portfolio.POLICIES[f"vdnn_{policy}"](timeline, machine, 1 << 62)
                peak = decision.result.peak_bytes
                speed = timeline.step_ns / decision.result.step_ns
            yield line(
                "vDNN", "11", machine, name, batch, policy, "peak MiB", published_mb,
                (peak - classifier) / MIB, least / MIB, _VDNN_MEMORY[policy],
            )  # fmt: skip
            if policy in ("base", "tensorflow"):
                continue
            answer = whatif.at_budget(timeline, machine, peak, planning_time_s=planning_time_s)
            best = None if answer.step_ns is None else timeline.step_ns / answer.step_ns
            yield line(
                "vDNN", "14", machine, name, batch, policy, "speed", published_speed,
                speed, best, "ops' times are a cost model's with one efficiency for all layers",
            )  # fmt: skip


def classifier_bytes(step: TracedStep) -> int:
    """Return the bytes of the weights of matrix products, after the feature maps."""
    from tensorflow import TensorShape

    readers = {node.input[0]: node.name for node in step.graph.node if node.op == "ReadVariableOp"}
    products = {
        name.split(":")[0]
        for node in step.graph.node
        if node.op == "MatMul" and "gradient" not in node.name
        for name in node.input
    }
    identities = {
        node.name: node.input[0] for node in step.graph.node if node.op in ("Identity", "Cast")
    }
    products |= {identities[name].split(":")[0] for name in products if name in identities}
    return sum(
        4 * int(TensorShape(node.attr["shape"].shape).num_elements())
        for node in step.graph.node
        if node.op == "VarHandleOp" and readers.get(node.name) in products
    )


def network_wide_bytes(timeline: Timeline) -> int:
    """Return the bytes that the forward part makes and keeps, and two of the largest gradient."""
    names = timeline.op_names
    backward_ns = next(
        int(timeline.op_start_ns[op]) for op, name in enumerate(names) if "gradient_tape" in name
    )
    forward = timeline.buffer_alloc_ns < backward_ns
    kept = forward & (timeline.buffer_free_ns > backward_ns)
    gradients = timeline.buffer_bytes[~forward]
    maps_bytes = int(timeline.buffer_bytes[kept].sum())
    return timeline.resident_bytes + maps_bytes + 2 * int(gradients.max(initial=0))


def least_without_waiting(
    timeline: Timeline, machine: Machine, policy: str, planning_time_s: float
) -> int:
    """Return the least budget, to 1 %, under which a policy's step is no longer than unswapped."""
    above = peak_load(timeline)
    below = whatif.least_budget_bytes(timeline, machine)
    while above - below > 0.01 * above:
        middle = (above + below) // 2
        try:
            plan = portfolio.plan(
                policy, timeline, machine, middle, planning_time_s=planning_time_s
            )
            hidden = plan.result.step_ns <= 1.001 * timeline.step_ns
        except BudgetTooSmall:
            hidden = False
        if hidden:
            above = middle
        else:
            below = middle
    return above


def autoswap_traced(
    path: Path, wanted: set[str] | None, planning_time_s: float
) -> Iterator[dict[str, Any]]:
    """Yield table II's VGG16 from the authors' own step, if that is available."""
    if not path.exists() or (wanted is not None and "cifar_vgg16" not in wanted):
        return
    untouched_bytes = UNTOUCHED_BYTES.get(path.name, 0)
    timeline = read_trace(path)
    timeline = replace(timeline, resident_bytes=timeline.resident_bytes + untouched_bytes)
    least = whatif.least_budget_bytes(timeline, AUTOSWAP_LINK)
    name = "VGG16 (SINGA's step)"
    load_mib, reduced_mib = AUTOSWAP["cifar_vgg16"]
    yield line(
        "AutoSwap", "table II", AUTOSWAP_LINK, name, 100, "none", "peak MiB", load_mib,
        peak_load(timeline) / MIB, least / MIB, "",
    )  # fmt: skip
    accounting = PublishedAccounting(find_step(read_singa(path)), untouched_bytes)
    counted = min(
        limit_mib
        for limit_mib in range(int(least / MIB) + 1, load_mib)
        if min(accounting.overhead_ms(score, limit_mib * MIB)[0] for score in SCORES) == 0.0
    )
    auto = least_without_waiting(timeline, AUTOSWAP_LINK, portfolio.AUTO, planning_time_s)
    honest = least_without_waiting(timeline, AUTOSWAP_LINK, "autoswap:best", planning_time_s)
    quantity = "peak MiB, no overhead"
    yield line(
        "AutoSwap", "table II", AUTOSWAP_LINK, name, 100, "autoswap:best, as they counted",
        quantity, reduced_mib, counted, auto / MIB, "",
    )  # fmt: skip
    yield line(
        "AutoSwap", "table II", AUTOSWAP_LINK, name, 100, "autoswap:best", quantity, reduced_mib,
        honest / MIB, auto / MIB,
        "as they count, what is prefetched takes no memory before its use",
    )  # fmt: skip


def autoswap(wanted: set[str] | None, planning_time_s: float) -> Iterator[dict[str, Any]]:
    """Yield table II: the load, and the least load without overhead."""
    machine = find_machine("gtx-1080-ti")
    assert machine.device is not None
    for name, (load_mib, reduced_mib) in AUTOSWAP.items():
        if wanted is not None and name not in wanted:
            continue
        timeline = model_step(traced(name, 32), 100, machine.device).timeline
        least = whatif.least_budget_bytes(timeline, machine)
        yield line(
            "AutoSwap", "table II", machine, name, 100, "none", "peak MiB", load_mib,
            peak_load(timeline) / MIB, least / MIB,
            "SINGA keeps three maps a layer (convolution, batch norm, activation), four of each "
            "weight, and cuDNN's work spaces, as its step's list shows; TensorFlow two and two",
        )  # fmt: skip
        reached = [
            least_without_waiting(timeline, machine, policy, planning_time_s) / MIB
            for policy in ("autoswap:best", portfolio.AUTO)
        ]
        yield line(
            "AutoSwap", "table II", machine, name, 100, "autoswap:best", "peak MiB, no overhead",
            reduced_mib, reached[0], reached[1],
            "starts from another load (the line above); SINGA's ops were slower, which hides more",
        )  # fmt: skip


def capuchin(wanted: set[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the largest batches."""
    machine = find_machine("p100")
    device = machine.device
    assert device is not None
    for name, (image, tensorflow, of_vdnn, of_capuchin) in CAPUCHIN.items():
        if wanted is not None and name not in wanted:
            continue
        step = traced(name, image)
        known: dict[int, ModelStep] = {}

        def at(
            batch: int, step: TracedStep = step, known: dict[int, ModelStep] = known
        ) -> ModelStep:
            if batch not in known:
                known[batch] = model_step(step, batch, device)
            return known[batch]

        def floor(policy: str, at: Callable[[int], ModelStep] = at) -> Callable[[int], int]:
            return lambda batch: _least_peak(policy, at(batch).timeline, machine)

        memory = device.memory_bytes
        auto = whatif.largest_batch(floor("greedy"), memory, of_capuchin)
        largest = {
            "none": whatif.largest_batch(
                lambda batch, at=at: at(batch).unswapped_peak_bytes, memory, tensorflow
            ),
            "vdnn_all": whatif.largest_batch(floor("vdnn_all"), memory, of_vdnn),
            "capuchin": whatif.largest_batch(floor("capuchin"), memory, of_capuchin),
        }
        notes = {
            "none": "cuDNN's work space, the CUDA context and the allocator's fragments take part "
            "of the 16 GiB",
            "vdnn_all": "the paper's vDNN is its own implementation in TensorFlow",
            "capuchin": "Capuchin recomputes too, which is not simulated; one op's own inputs and "
            "outputs bound it here, on its GPU also work space, fragments and time",
        }
        published = {"none": tensorflow, "vdnn_all": of_vdnn, "capuchin": of_capuchin}
        for policy, simulated in largest.items():
            yield line(
                "Capuchin", "table 2", machine, name, None, policy, "batch",
                published[policy], simulated, auto, notes[policy],
            )  # fmt: skip


def _least_peak(policy: str, timeline: Timeline, machine: Machine) -> int:
    """Return the peak that a policy needs; with the machine's memory as its budget, if any."""
    assert machine.device is not None
    memory = machine.device.memory_bytes
    if policy == "greedy":
        return whatif.least_budget_bytes(timeline, machine)
    budget = memory if policy == "capuchin" else 1 << 62
    try:
        return int(portfolio.POLICIES[policy](timeline, machine, budget).result.peak_bytes)
    except BudgetTooSmall as error:
        # The need of its own plan is not known, only that it is too much.
        return max(memory + 1, int(error.floor_bytes))


if __name__ == "__main__":
    raise SystemExit(main())
