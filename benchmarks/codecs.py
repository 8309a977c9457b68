"""Measure the sizes and speeds of codecs: a JSON line each.

    python -m benchmarks.codecs [--quick] [--codec CODEC ...] [--data DATA ...]

DATA is a model, whose intermediate outputs are taken after some steps of training, or zeros20 ..
zeros80: normal values with so many percent zeros at random places. Keys: codec data dtype threads
ratio out_gb_s in_gb_s memcpy_gb_s. ``ratio`` is encoded to source bytes; speeds are source bytes
per second of encoding, decoding, and of one std::memcpy a thread, in turn in the same run: medians.
Of zfp and bfp the rate is --rate percent, and they are for float32 only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import TRANSFORMER, workload
from tfswap import _core
from tfswap.machine import codecs

KEYS = ("codec", "data", "dtype", "threads", "ratio", "out_gb_s", "in_gb_s", "memcpy_gb_s")
ZEROS = ("zeros20", "zeros35", "zeros50", "zeros65", "zeros80")
# Batch, pixels or tokens, and the layers whose outputs are taken.
MODELS = {
    "VGG16": (16, 64, ("Conv2D", "MaxPooling2D", "Dense")),
    "MobileNetV2": (16, 96, ("ReLU",)),
    TRANSFORMER: (4, 128, ("Dense", "LayerNormalization", "MultiHeadAttention")),
}
DATA = (*MODELS, *ZEROS)
DTYPES = ("float32", "bfloat16", "float16")
SLOW = ("lz4", "zstd", "zfp")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codecs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer data, in under a minute")
    parser.add_argument("--codec", nargs="+", choices=codecs.NAMES, help="these only")
    parser.add_argument("--data", nargs="+", choices=DATA, help="these only")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="these only")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="(1 2)")
    parser.add_argument("--rate", type=int, default=50, help="of zfp and bfp, in percent (50)")
    parser.add_argument("--mib", type=float, help="the buffer's size as float32 (96; quick: 24)")
    parser.add_argument("--steps", type=int, help="of training before outputs are taken (8; 2)")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.codec = options.codec or list(codecs.NAMES)
    options.data = options.data or [*MODELS, *(["zeros50"] if quick else ZEROS)]
    options.dtype = options.dtype or (["float32", "bfloat16"] if quick else list(DTYPES))
    options.mib = options.mib or (24 if quick else 96)
    options.steps = options.steps or (2 if quick else 8)
    return options


def activations(name: str, steps: int, values: int) -> NDArray[np.float32]:
    """Return values of a model's intermediate outputs, in proportion to their sizes.

    Args:
        name: A key of MODELS.
        steps: Number of steps of training with SGD on one random batch.
        values: The wanted number; there may be fewer.
    """
    import keras

    batch, image, layers = MODELS[name]
    work = workload(name, batch, image)
    model = work.model
    for _ in range(steps):
        model.train_on_batch(work.x, work.y)
    taken = [layer.output for layer in model.layers if type(layer).__name__ in layers]
    outputs = keras.Model(model.inputs[0], taken)(work.x, training=True)
    flat = [np.asarray(output, np.float32).ravel() for output in outputs]
    part = min(1.0, values / sum(output.size for output in flat))
    return np.concatenate([output[: int(output.size * part)] for output in flat])


def synthetic(name: str, values: int) -> NDArray[np.float32]:
    """Return normal values, of which the percentage in the name is zero."""
    random = np.random.default_rng(1)
    data = random.standard_normal(values, np.float32)
    data[random.random(values, np.float32) < int(name.removeprefix("zeros")) / 100] = 0
    return data


def cast(data: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Convert the values, 2-byte types to bare words: NumPy has no bfloat16."""
    if dtype == "float32":
        return data
    if dtype == "float16":
        return data.astype(np.float16).view(np.uint16)
    import ml_dtypes

    return data.astype(ml_dtypes.bfloat16).view(np.uint16)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines."""
    values = int(options.mib * (1 << 20)) // 4
    for name in options.data:
        source = (
            synthetic(name, values)
            if name.startswith("zeros")
            else activations(name, options.steps, values)
        )
        for dtype in options.dtype:
            data = cast(source, dtype)
            for codec in options.codec:
                if codecs.why_not(codec, data.itemsize):
                    continue
                repeats = (1 if codec in SLOW else 5) if options.quick else 9
                for threads in options.threads:
                    encoded_bytes, *seconds = _core.measure_codec(
                        data, codec, data.itemsize, options.rate, threads, repeats
                    )
                    speeds = [round(data.nbytes / s / 1e9, 3) for s in seconds]
                    ratio = round(encoded_bytes / data.nbytes, 4)
                    line = (codec, name, dtype, threads, ratio, *speeds)
                    yield dict(zip(KEYS, line, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines; return 0."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parse(arguments)
    for codec in options.codec:
        if fault := codecs.why_not(codec):
            print(f"{codec} is left out: {fault}", file=sys.stderr)
    for line in measure(options):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
