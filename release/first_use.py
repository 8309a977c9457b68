"""What `installations.py` runs in each installation: trainings under a budget, a saved model."""

from __future__ import annotations

import sys
import tempfile

import tfswap  # isort: skip  (before TensorFlow creates its devices)
import keras
import numpy as np
import tensorflow as tf

BUDGET = 24 << 20


def main() -> None:
    assert "site-packages" in tfswap.__file__, tfswap.__file__
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(128, activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.layers.Input((128,)), *dense, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).random((8192, 128), dtype=np.float32)
    y = x.mean(axis=1, keepdims=True)
    swap = tfswap.AutoSwap(budget=BUDGET, verbose=0)
    model.fit(x, y, batch_size=8192, epochs=14, verbose=0, callbacks=[swap])
    assert swap.report.outcome == "swapped", swap.report.summary()
    peak_bytes = tfswap.memory_stats()["peak_bytes"]
    assert peak_bytes <= BUDGET, peak_bytes
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        to_file = tfswap.AutoSwap(budget=BUDGET, host_limit=4 << 20, spill_dir=folder, verbose=0)
        model.fit(x, y, batch_size=8192, epochs=14, verbose=0, callbacks=[to_file])
        assert tfswap.memory_stats()["far_file_bytes_in"] > 0, to_file.report.summary()
    with tempfile.TemporaryDirectory() as folder:
        tfswap.saved_model.save(model, folder, plan=swap.report.plan)
        loaded = tf.saved_model.load(folder)
        same = np.array_equal(loaded.serve(x[:64]), model(x[:64]))
    assert same, "the loaded model gives other numbers"
    print(
        f"TensorFlow {tf.__version__}, Python {sys.version.split()[0]}: "
        f"peak {peak_bytes / 2**20:.1f} of {BUDGET / 2**20:.0f} MiB; the saved model is equal"
    )


if __name__ == "__main__":
    main()
