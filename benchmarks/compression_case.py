"""One training of the compression benchmark: a net on enlarged digits, in one mode."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.trainings import PLENTY_BYTES, forget, repeatable, timed

# The names of AutoSwap's `codec` values here.
CODECS: dict[str, str | None] = {
    "none": None,
    "all": "zvc",
    "cswap": "cswap",
    "auto": "auto",
    "lossy": "auto",
}
LOSSY_MODE, LOSSY_EPOCHS = "lossy", 8
_CLASSES = 10


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model, activation, batch, image: What is trained.
        threads: Between and inside of ops.
        timed_steps: How many steps are timed, if there is one epoch.
        epochs: How many there are.
        mode: One of CODECS; None for no swapping.
        budget_bytes: None for no limit.
        link_gb_s: Of the emulated link; None for none.
        weights: File of those to begin with; None for new ones.
        save_weights: File that they are written to in the end.
        save_profile: File that the profile is written to.
    """

    model: str
    activation: str
    batch: int
    image: int
    threads: int
    timed_steps: int
    epochs: int = 1
    mode: str | None = None
    budget_bytes: int | None = None
    link_gb_s: float | None = None
    weights: str | None = None
    save_weights: str | None = None
    save_profile: str | None = None


def net(model: str, activation: str, image: int) -> Any:
    """Build one of the models, with new weights, for images of that many pixels."""
    import keras

    from benchmarks import models
    from examples.alexnet import alexnet
    from examples.plain20 import plain20

    if model == "AlexNet":
        return alexnet(image, _CLASSES, activation, hidden=512)
    if model == "Plain20":
        return plain20(_CLASSES, activation)
    if model == "SqueezeNet":
        return models.squeezenet(image, _CLASSES, activation)
    # As for CIFAR, VGG16 has no hidden layers, which would hold most of its weights.
    factory = getattr(keras.applications, model)
    features = factory(
        weights=None, input_shape=(image, image, 3), include_top=False, pooling="avg"
    )
    outputs = keras.layers.Dense(_CLASSES, activation="softmax")(features.output)
    built = keras.Model(features.input, outputs, name=model.lower())
    return built if activation == "relu" else models.with_activation(built, activation)


def train(case: Case) -> dict[str, Any]:
    """Train in this process until enough steps have been timed."""
    import keras
    import numpy as np

    import tfswap
    from examples.digits import digits, for_digits

    repeatable(case.threads)
    keras.utils.set_random_seed(1)
    model = for_digits(net(case.model, case.activation, case.image))
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.01),
        loss="sparse_categorical_crossentropy",
        jit_compile=False,
    )
    if case.weights is not None:
        with np.load(case.weights) as saved:
            model.set_weights([saved[f"arr_{i}"] for i in range(len(saved.files))])
    swap = tfswap.AutoSwap(
        budget=case.budget_bytes or PLENTY_BYTES,
        codec=None if case.mode is None else CODECS[case.mode],
        lossy=case.mode == LOSSY_MODE,
        link_bandwidth=None if case.link_gb_s is None else case.link_gb_s * 1e9,
        save_profile=case.save_profile,
        verbose=0,
    )
    tfswap.reset_memory_stats()
    found = timed(model, digits(case.batch), swap, case.timed_steps, case.epochs)
    if case.save_weights is not None:
        np.savez(case.save_weights, *model.get_weights())
    forget(model)
    encoded_bytes, kept_bytes = (
        found.after[key] - found.before[key]
        for key in ("far_compressed_bytes_out", "far_compressed_kept_bytes_out")
    )
    plan = swap.report["plan"]
    swaps = [each for function in plan.functions for each in function.swaps] if plan else []
    seconds = found.seconds[0]
    by_epoch: dict[str, Any] = {}
    if case.epochs > 1:
        step_s = [statistics.median(each) for each in found.seconds]
        seconds = [statistics.mean(step_s)]
        use = swap.report.lossy
        by_epoch = {
            "step_s_by_epoch": [round(s, 4) for s in step_s],
            "rates": None if use is None else [use.top, use.rate],
        }
    return {
        "losses": found.losses,
        "seconds": seconds,
        "by_epoch": by_epoch,
        "peak_bytes": found.after["peak_bytes"],
        "unswapped_peak_bytes": swap.report["unswapped_peak_bytes"],
        "predicted_step_s": swap.report["predicted_step_s"],
        "predicted_wait_s": swap.report["predicted_wait_s"],
        "outcome": swap.report["outcome"],
        "notes": swap.report["notes"],
        "swapped_tensors": len(swaps),
        "compressed_tensors": sum(each.tier == "compressed" for each in swaps),
        "encoded_bytes": encoded_bytes,
        "kept_bytes": kept_bytes,
    }
