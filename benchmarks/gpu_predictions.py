"""Predict steps on GPUs that are not here, by the cost model, to hold against the first real ones.

    python -m benchmarks.gpu_predictions [--machines h200,a100-40gb,rtx-4090,t4] [--models ...]

Each model is traced, not run; its weights take no memory. The budget is six tenths of the unswapped
peak, or the GPU's memory if that is less. One JSON line for each model and machine: model, batch,
machine, unswapped_peak_bytes, unswapped_step_s, budget_bytes, step_s and step_ratio, least_ratio
(the link allows no less), link_s (bytes out or in, whichever takes longer, over the link's speed: a
ratio near least_ratio is the link's limit, one far above it is ours), bytes_out, bytes_in, problem
("" if there is a plan). Needs 11 GiB of memory for the decoder, whose masks become constants that
TensorFlow copies.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from tfswap.cost_model.model_source import ModelSource, load_model
from tfswap.cost_model.model_timeline import model_step
from tfswap.cost_model.traced_step import trace_step
from tfswap.machine.presets import find_machine
from tfswap.ops import library
from tfswap.planning import whatif

PART = 0.6
MACHINES = ("h200", "a100-40gb", "rtx-4090", "t4")


def _bert() -> ModelSource:
    from benchmarks.gpu_check.models import bert

    return ModelSource(bert(tokens=128))


def _decoder() -> ModelSource:
    """Return a model of the size of GPT-3 XL (Brown et al. 2020, table 2.1), with Adam."""
    import keras

    from benchmarks.models import transformer

    model = transformer(1024, 24, width=2048, heads=16, feed_forward=8192, vocabulary=50257)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return ModelSource(model)


MODELS: dict[str, tuple[int, Callable[[], ModelSource]]] = {
    "ResNet-50": (128, lambda: load_model("keras.applications.ResNet50")),
    "VGG-16": (64, lambda: load_model("keras.applications.VGG16")),
    "BERT-base": (64, _bert),
    "decoder-1.3B": (4, _decoder),
}
"""Batch size and builder of each model."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_predictions")
    parser.add_argument("--machines", default=",".join(MACHINES), help="separated by commas")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    options = parser.parse_args()
    import tensorflow

    library.load()
    for name in options.models.split(","):
        batch, build = MODELS[name]
        with tensorflow.Graph().as_default():  # variables are named here, not allocated
            traced = trace_step(build())
        for machine_name in options.machines.split(","):
            machine = find_machine(machine_name)
            assert machine.device is not None
            try:
                step = model_step(traced, batch, machine.device)
            except ValueError as error:  # the cost model cannot tell
                problem = {"model": name, "batch": batch, "machine": machine_name}
                print(json.dumps(problem | {"problem": str(error)}), flush=True)
                continue
            budget_bytes = min(int(PART * step.unswapped_peak_bytes), machine.device.memory_bytes)
            answer = whatif.at_budget(step.timeline, machine, budget_bytes)
            step_ns = step.timeline.step_ns
            link_s = max(
                answer.bytes_out / machine.out_bytes_per_s, answer.bytes_in / machine.in_bytes_per_s
            )
            found = {
                "model": name,
                "batch": batch,
                "machine": machine_name,
                "unswapped_peak_bytes": step.unswapped_peak_bytes,
                "unswapped_step_s": step_ns / 1e9,
                "budget_bytes": budget_bytes,
                "step_s": answer.step_ns and answer.step_ns / 1e9,
                "step_ratio": answer.step_ns and round(answer.step_ns / step_ns, 3),
                "least_ratio": answer.least_step_ns and round(answer.least_step_ns / step_ns, 3),
                "link_s": round(link_s, 4),
                "bytes_out": answer.bytes_out,
                "bytes_in": answer.bytes_in,
                "problem": answer.problem,
            }
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
