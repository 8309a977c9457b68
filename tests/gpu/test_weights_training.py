"""`AutoSwap(stream_weights=True)` on a card: weights that are away across the step's end.

The model is one of plain products, which the fake card works out: each layer has a weight and a
state of an optimizer's, uses the weight forward and backward, and both are written to in each step.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from trainings import ran

MIB = 1 << 20
# Of variables, of which the optimizer's state is a half.
VARIABLES = 8 * 2 * 2 * MIB
EPOCHS = 14

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

TRAINING = """
import gc, hashlib, json, sys
import keras, numpy as np, tensorflow as tf, tfswap
from tfswap.ops import library

LAYERS, ROWS, WIDTH, EPOCHS = 8, 16384, 32, 14
tf.config.experimental.enable_tensor_float_32_execution(False)  # which would round
options = json.loads(sys.argv[1])
fault = options.pop("fault", "")
dice = np.random.default_rng(0)

class Products(keras.Model):
    def __init__(self):
        super().__init__()
        made = lambda *shape: dice.standard_normal(shape).astype("f4") / shape[0] ** 0.5
        with tf.device("GPU:0"):
            self.kept = [tf.Variable(np.eye(WIDTH, dtype="f4")[dice.permutation(WIDTH)])
                         for _ in range(LAYERS)]
            self.mix = tf.Variable(made(WIDTH, ROWS))
            self.w, self.state = [
                [tf.Variable(tf.zeros([ROWS, WIDTH])) for _ in range(LAYERS)] for _ in range(2)]
            for each in (*self.w, *self.state):
                each.assign(made(ROWS, WIDTH))

    def call(self, x):
        for w in self.w:
            x = tf.matmul(self.mix, tf.matmul(w, x))
        return x

    def test_step(self, data):
        with tf.device("GPU:0"):
            out = self(data[0])
        with tf.device("CPU:0"):
            return {"loss": tf.reduce_sum(out)}

    def train_step(self, data):
        with tf.device("GPU:0"):
            x, made = data[0], []
            for w in self.w:
                made.append(tf.matmul(w, x))
                x = tf.matmul(self.mix, made[-1])
            out = x
            gradients = []
            for i in reversed(range(LAYERS)):
                back = tf.matmul(self.mix, tf.matmul(self.w[i], x))
                x = tf.matmul(tf.matmul(self.mix, made[i]), back)
                gradients.append((i, x))
            updates = []
            for i, gradient in gradients:
                with tf.control_dependencies([gradient, *updates[-1:]]):
                    state = tf.matmul(self.state[i], self.kept[i])
                    self.state[i].assign(state)
                    updates.append(self.w[i].assign(tf.matmul(self.w[i], self.kept[i])))
        with tf.device("CPU:0"):
            return {"loss": tf.reduce_sum(out) + tf.reduce_sum(x)}

losses, between, steps, evaluations, error = [], [], [], [], ""
digest = lambda values: [hashlib.sha1(each.tobytes()).hexdigest() for each in values]

class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]).hex())
        stats = tfswap.memory_stats("GPU:0")
        steps.append([stats[key] for key in ("bytes_in_use", "peak_bytes", "bytes_out", "bytes_in",
                                             "host_bytes_in_use")])
    def on_epoch_end(self, epoch, logs=None):
        if epoch in (1, EPOCHS - 4):
            between.append(digest([each.numpy() for each in (*model.w, *model.state)]))
            evaluations.append(float(model.evaluate(data, verbose=0)).hex())
            tf.train.Checkpoint(w=model.w, state=model.state).write(sys.argv[2] + "/point")
            reader = tf.train.load_checkpoint(sys.argv[2] + "/point")
            between.append(digest([
                reader.get_tensor(f"{name}/{i}/.ATTRIBUTES/VARIABLE_VALUE")
                for name in ("w", "state") for i in range(LAYERS)]))
        if fault and epoch == EPOCHS - 2:
            library.load().inject_fault(tfswap.state.number_of("GPU:0"), fault)

model = Products()
model.compile(loss="mse", jit_compile=False)
x = dice.standard_normal((2 * WIDTH, WIDTH)).astype("f4") / 8
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(WIDTH, drop_remainder=True)
gc.collect()
before = tfswap.memory_stats("GPU:0")["bytes_in_use"]
tfswap.reset_memory_stats("GPU:0")
swap = tfswap.AutoSwap(verbose=0, **options) if options else None
callbacks = [Looks()] if swap is None else [swap, Looks()]
try:
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
except Exception as raised:
    if not fault:
        raise
    error = str(raised)
    library.load().inject_fault(tfswap.state.number_of("GPU:0"), "")
told = {"losses": losses, "between": between, "evaluations": evaluations, "steps": steps,
        "before": before, "error": error, "peak": tfswap.memory_stats("GPU:0")["peak_bytes"]}
told["last"] = digest([each.numpy() for each in (*model.w, *model.state)])
told["stats"] = tfswap.memory_stats("GPU:0")
if swap:
    report = swap.report
    told |= {"outcome": report.outcome, "notes": report.notes, "budget": report.budget_bytes,
             "predicted": report.predicted_peak_bytes, "measured": report.measured_peak_bytes,
             "out_per_step": report.bytes_out_per_step,
             "across": [[each.tensor, each.size_bytes, each.returns_in_step]
                        for f in report.plan.functions for each in f.swaps if each.after]
                       if report.plan else []}
print(json.dumps(told))
"""
