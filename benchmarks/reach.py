"""What of a training can move, and whether it trains in half of its memory.

    python -m benchmarks.reach [--models NASNetMobile,LSTM] [--batch 8] [--image 96] \
        [--part 0.5] [--steps 6]

One JSON line a model goes to stdout, progress to stderr. Each model trains unswapped, once more for
its profile, and within `part` of what it needed.

immovable: bytes at the peak of buffers that no plan can move, by the type of the op that made them.
"(resident)" is what stays through the whole step: small variables, batches that were fetched ahead.
At the peak without what loops keep, except while ops use it: elements of lists leave on demand.

stock_repeats: only where losses differ. Whether further unswapped trainings repeat the first one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models import EXAMPLES, HUB_MODELS, RECURRENT
from benchmarks.one_case import SERVE
from benchmarks.trainings import PLENTY_BYTES, Trainer, agree, forget, repeatable, serve, timed

if TYPE_CHECKING:
    from tfswap.step.timeline import Timeline

_APPLICATIONS = (
    "ConvNeXtTiny,DenseNet121,DenseNet169,DenseNet201,EfficientNetB0,EfficientNetB1,"
    "EfficientNetB2,EfficientNetB3,EfficientNetV2B0,EfficientNetV2B1,EfficientNetV2B2,"
    "EfficientNetV2B3,EfficientNetV2S,InceptionResNetV2,InceptionV3,MobileNet,MobileNetV2,"
    "MobileNetV3Large,MobileNetV3Small,NASNetMobile,ResNet50,ResNet101,ResNet50V2,ResNet101V2,"
    "VGG16,VGG19,Xception"
)
MODELS = (*_APPLICATIONS.split(","), "Transformer", "U-Net", *RECURRENT, *EXAMPLES, *HUB_MODELS)
_IMAGE, _STEPS_OF_RECURRENT = 96, 200
RESIDENT = "(resident)"
_MOST_S = 900.0
_REPEATS = 4
# Budget of the training that is profiled, of the peak: what is large enough to move depends on it.
_PROFILED = 1.25


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model, batch, image: What is trained; see `benchmarks.models.workload`.
        steps: Number of timed steps.
        budget_bytes: None for no limit.
        is_profiled: Whether to look at its profile.
    """

    model: str
    batch: int
    image: int
    steps: int
    budget_bytes: int | None = None
    is_profiled: bool = False


def immovable(timeline: Timeline) -> dict[str, int]:
    """Return the bytes at the peak that have no absence, by the type of the op that made them."""
    import numpy as np

    from tfswap.step.timeline import load_curve

    times_ns, load_bytes = load_curve(timeline)
    peak_ns = times_ns[int(load_bytes.argmax())]
    moves = {absence.buffer for absence in timeline.absences}
    alive = (timeline.buffer_alloc_ns <= peak_ns) & (timeline.buffer_free_ns > peak_ns)
    found = Counter({RESIDENT: timeline.resident_bytes})
    for buffer in np.flatnonzero(alive).tolist():
        if buffer not in moves:
            alloc_ns = timeline.buffer_alloc_ns[buffer]
            maker = int(np.searchsorted(timeline.op_start_ns, alloc_ns, "right"))
            found[timeline.op_types[max(maker - 1, 0)]] += int(timeline.buffer_bytes[buffer])
    return dict(found.most_common())


def train(case: Case) -> dict[str, Any]:
    """Train in this process until enough steps have been timed."""
    import tfswap
    from benchmarks.models import workload
    from tfswap.traces.timeline_file import load_profile

    repeatable(2)
    trained = workload(case.model, case.batch, case.image)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.profile"
        swap = tfswap.AutoSwap(
            budget=case.budget_bytes or PLENTY_BYTES,
            save_profile=path if case.is_profiled else None,
            # With as much room as a profile needs, they would stay.
            stream_weights=True if case.is_profiled else "auto",
            verbose=0,
        )
        tfswap.reset_memory_stats()
        found = timed(trained.model, (trained.x, trained.y), swap, case.steps)
        timeline = load_profile(path).timeline if case.is_profiled else None
    least = swap.report["least_budgets"]
    forget(trained.model)
    return {
        "losses": found.losses,
        "step_s": statistics.median(found.seconds[0]),
        "peak_bytes": found.after["peak_bytes"],
        "floor_bytes": least.floor.streamed.bytes if least and least.floor else None,
        "immovable": immovable(timeline) if timeline is not None else {},
    }


def reach(trainer: Trainer, case: Case, part: float) -> dict[str, Any]:
    """Return the line of a model."""
    line = {"model": case.model, "batch": case.batch, "image": case.image, "part": part}
    unswapped = trainer.train(case)
    if "failed" in unswapped:
        return {**line, "error": unswapped["failed"]}
    enough_bytes = int(_PROFILED * unswapped["peak_bytes"])
    profiled = trainer.train(replace(case, budget_bytes=enough_bytes, is_profiled=True))
    if "failed" in profiled:
        return {**line, "error": profiled["failed"]}
    budget_bytes = int(part * unswapped["peak_bytes"])
    swapped = trainer.train(replace(case, budget_bytes=budget_bytes))
    trains = "failed" not in swapped
    line |= {
        "unswapped_peak_bytes": unswapped["peak_bytes"],
        "floor_bytes": profiled["floor_bytes"],
        "immovable": profiled["immovable"],
        "immovable_share": sum(profiled["immovable"].values()) / profiled["peak_bytes"],
        "budget_bytes": budget_bytes,
        "trains_at_half" if part == 0.5 else "trains_at_part": trains,
        "step_ratio": swapped["step_s"] / unswapped["step_s"] if trains else None,
        "loss_bit_equal": agree(unswapped["losses"], swapped["losses"]) if trains else None,
    }
    if not trains:
        return {**line, "error": swapped["failed"]}
    if not line["loss_bit_equal"]:
        line["stock_repeats"] = all(
            agree(unswapped["losses"], trainer.train(case)["losses"]) for _ in range(_REPEATS)
        )
    return line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=MODELS,
        help="names of `benchmarks.models.workload` (all of this benchmark; hub:... need KerasHub)",
    )
    parser.add_argument("--batch", type=int, default=8, help="examples in a batch (8)")
    parser.add_argument(
        "--image",
        type=int,
        help="pixels of a side; steps of a sequence (96; of recurrent models 200)",
    )
    parser.add_argument("--part", type=float, default=0.5, help="budget, of the peak (0.5)")
    parser.add_argument("--steps", type=int, default=6, help="timed steps (6)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model."""
    if arguments is None and sys.argv[1:2] == [SERVE]:
        return serve(train, Case)
    options = parse(arguments)
    with Trainer("benchmarks.reach", most_s=_MOST_S) as trainer:
        for model in options.models:
            print(f"{model} ...", file=sys.stderr, flush=True)
            image = options.image or (_STEPS_OF_RECURRENT if model in RECURRENT else _IMAGE)
            case = Case(model, options.batch, image, options.steps)
            print(json.dumps(reach(trainer, case, options.part)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
