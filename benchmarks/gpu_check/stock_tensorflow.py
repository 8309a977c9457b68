"""Stage: TensorFlow as it is, without tfswap, beside NumPy: is this GPU's TensorFlow right?

A failure here is none of tfswap's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.gpu_check.context import Context

# TF32 is off: float32 sums of some hundred products.
_TOLERANCE = 1e-4
_STEPS = 5


def run(context: Context) -> None:
    """Compare a product, a convolution with its gradients, and a small training with XLA."""
    import tensorflow as tf

    begun = time.monotonic()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    figures = context.figures
    figures["devices"] = [device.name for device in tf.config.list_physical_devices("GPU")]
    context.save()
    random = np.random.default_rng(1)
    with tf.device("GPU:0"):
        for name, check in (("product", _product), ("convolution", _convolution)):
            figures[name] = float(check(tf, random))
            if not figures[name] < _TOLERANCE:
                context.broken.append(f"stock TensorFlow's {name} is off by {figures[name]:.2g}")
            context.save()
    figures["first_ops_s"] = round(time.monotonic() - begun, 1)
    for jit in (False, True):
        try:
            figures[f"losses_xla_{'on' if jit else 'off'}"] = _losses(jit)
        except Exception as error:  # XLA needs tools that a machine may lack
            figures[f"losses_xla_{'on' if jit else 'off'}"] = f"{type(error).__name__}: {error}"[
                :600
            ]
            context.note(f"stock TensorFlow fails with XLA {'on' if jit else 'off'}")
            if not jit:
                context.broken.append(f"stock TensorFlow cannot train: {type(error).__name__}")
        context.save()
    context.line(
        "stock TensorFlow: error of a product, of a convolution",
        f"{figures['product']:.1e}, {figures['convolution']:.1e}",
        f"below {_TOLERANCE}",
    )
    context.line("stock TensorFlow: losses, XLA off", str(figures["losses_xla_off"]))
    context.line("stock TensorFlow: losses, XLA on", str(figures["losses_xla_on"])[:100])


def _error(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _product(tf: Any, random: np.random.Generator) -> float:
    a, b = (random.standard_normal((512, 512)) for _ in range(2))
    found = tf.linalg.matmul(tf.constant(a, tf.float32), tf.constant(b, tf.float32)).numpy()
    return _error(found, a @ b)


def _convolution(tf: Any, random: np.random.Generator) -> float:
    """Return the largest error of a 3x3 convolution and its two gradients, beside the CPU's."""
    x = tf.constant(random.standard_normal((4, 32, 32, 16)), tf.float32)
    w = tf.constant(random.standard_normal((3, 3, 16, 32)), tf.float32)

    def results(device: str) -> list[Any]:
        with tf.device(device), tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, 1, "SAME")
            loss = tf.reduce_sum(y * y)
        return [y.numpy(), *(g.numpy() for g in tape.gradient(loss, [x, w]))]

    return max(_error(*pair) for pair in zip(results("GPU:0"), results("CPU:0"), strict=True))


def _losses(jit: bool) -> list[float]:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=jit)
    random = np.random.default_rng(1)
    x = random.random((32, 32, 32, 3), dtype=np.float32)
    y = random.integers(10, size=32)
    return [float(model.train_on_batch(x, y)) for _ in range(_STEPS)]
