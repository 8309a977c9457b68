"""Run ``tfswap profile SCRIPT``, plan from that profile, then train with the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.python_path import python_path
from tfswap.traces.timeline_file import load_profile

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf

if "--plan" in sys.argv:
    import tfswap
# With several threads, work spaces of two convolutions meet in some steps only.
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
layers = [keras.layers.Input((32, 32, 3))]
for _ in range(12):
    layers += [keras.layers.Conv2D(32, 3, padding="same"), keras.layers.ReLU()]
model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.default_rng(0).random((256, 32, 32, 3), dtype=np.float32)
callbacks = []
if "--plan" in sys.argv:
    callbacks = [tfswap.AutoSwap(budget=int(sys.argv[3]), plan=sys.argv[2], verbose=0)]
try:
    model.fit(x, np.arange(256) % 4, batch_size=32, verbose=0, callbacks=callbacks)
except Exception as error:
    print("caught", type(error))
if callbacks:
    print(callbacks[0].report["outcome"], *callbacks[0].report["notes"])
print("the script's end")
"""


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )


def test_profile_plan_train(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    profiled = command("-m", "tfswap", "profile", "train.py", folder=tmp_path)
    assert profiled.returncode == 0, profiled.stderr[-2000:]
    assert "tfswap plan step.profile" in profiled.stdout
    assert "the script's end" not in profiled.stdout and "caught" not in profiled.stdout

    peak_bytes = load_profile(tmp_path / "step.profile").unswapped_peak_bytes
    budget = str(int(0.85 * peak_bytes))
    planned = command("-m", "tfswap", "plan", "step.profile", "--budget", budget, folder=tmp_path)
    assert planned.returncode == 0, planned.stderr[-2000:]

    reported = command(
        *("-m", "tfswap", "report", "plan.json", "step.profile"),
        *("--out", "page.html", "--png", "picture.png", "--perfetto", "trace.json"),
        folder=tmp_path,
    )
    assert reported.returncode == 0, reported.stderr[-2000:]
    assert reported.stdout.strip() == "page.html, picture.png, trace.json"
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and len(page) < 5_000_000
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    trained = command("train.py", "--plan", "plan.json", budget, folder=tmp_path)
    assert trained.stdout.startswith("swapped"), trained.stdout + trained.stderr[-2000:]
    assert "fits none of this training's graphs" not in trained.stderr


def test_a_script_without_training(tmp_path):
    (tmp_path / "train.py").write_text("print('nothing')\n")
    profiled = command("-m", "tfswap", "profile", "train.py", folder=tmp_path)
    assert profiled.returncode == 1
    assert "ended before a step was profiled" in profiled.stderr
