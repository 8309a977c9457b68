"""Trainings in separate processes under one broker: equal losses, within one device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from models import compiled, convolutions, deterministic, images

import tfswap
from tests.python_path import python_path
from tfswap.jobs.job import Job
from tfswap.jobs.share import Share

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "unit"))

from light import BrokerProcess  # noqa: E402

MIB = 1 << 20
DEVICE = 130 * MIB  # two trainings of some 90 MiB each
EPOCHS = 5


class Training:
    """A training process.

    Args:
        folder: The folder for its output.
        name: The name of its output file.
        socket: The broker's socket; None trains without a broker.
        epochs: Its number of epochs, of 8 steps each.
    """

    def __init__(self, folder: Path, name: str, socket: Path | None, epochs: int = EPOCHS) -> None:
        self.out = folder / name
        self.log = folder / f"{name}.log"
        script = ROOT / "tests" / "integration" / "brokered_training.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(self.out), str(socket or ""), str(epochs)],
            env={
                **os.environ,
                "PYTHONPATH": python_path(ROOT, ROOT / "tests" / "integration"),
                "CUDA_VISIBLE_DEVICES": "-1",
            },
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def lines(self) -> list[dict[str, Any]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def losses(self) -> list[str]:
        return [line["loss"] for line in self.lines() if "loss" in line]

    def end(self) -> dict[str, Any]:
        """Wait for the end of the training; return its last line."""
        assert self.process.wait(240) == 0, self.log.read_text()[-3000:]
        return self.lines()[-1]

    def wait_for_steps(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.losses()) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, (
                self.log.read_text()[-3000:]
            )
            time.sleep(0.05)


def most_at_once(*trainings: Training) -> int:
    """Return the largest sum of the budgets that were active at any moment."""
    changes: list[tuple[float, int, int]] = []
    for number, training in enumerate(trainings):
        before = 0
        for line in training.lines():
            if "before_s" not in line:
                continue
            budget = line["budget"] or 0  # no budget: it has ended
            grows = budget > before
            changes.append((line["before_s" if grows else "after_s"], number, budget))
            before = budget
    held = [0] * len(trainings)
    most = 0
    for _, number, budget in sorted(changes):
        held[number] = budget
        most = max(most, sum(held))
    return most


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    training = Training(tmp_path_factory.mktemp("alone"), "alone", None, 3 * EPOCHS)
    training.end()
    return training.losses()


def test_two_trainings_under_one_broker(tmp_path, alone):
    broker = BrokerProcess(tmp_path / "run" / "broker.sock", DEVICE)
    trainings = [Training(tmp_path, name, broker.socket) for name in "ab"]
    for training in trainings:
        end = training.end()
        assert training.losses() == alone[: len(training.losses())]
        assert len(training.losses()) == 8 * EPOCHS
        assert all(line.get("within", True) for line in training.lines())
        assert end["end"] in ("swapped", "fits"), end
        share = end["share"]
        assert share["broker"] == str(broker.socket) and share["device_bytes"] == DEVICE
    assert DEVICE // 2 < most_at_once(*trainings) <= DEVICE
    states = [line["training"][0] for line in trainings[0].lines() if "training" in line]
    assert states[-1]["share"]["device"] == "CPU:0"
    assert states[-1]["share"]["budget_bytes"] == states[-1]["budget_bytes"]
    assert "refused" not in broker.said
    broker.end()


@pytest.mark.slow
def test_other_trainings_continue_when_a_training_or_the_broker_is_killed(tmp_path, alone):
    broker = BrokerProcess(tmp_path / "run" / "broker.sock", DEVICE)
    doomed = Training(tmp_path, "doomed", broker.socket, 1000)
    doomed.wait_for_steps(2)
    other = Training(tmp_path, "other", broker.socket, 3 * EPOCHS)
    other.wait_for_steps(10)
    held = [line["budget"] for line in other.lines() if "budget" in line][-1]
    assert held < DEVICE
    doomed.process.send_signal(signal.SIGKILL)
    doomed.process.wait()
    deadline = time.monotonic() + 60
    while [line["budget"] for line in other.lines() if "budget" in line][-1] != DEVICE:
        assert time.monotonic() < deadline, broker.said
        time.sleep(0.05)
    broker.kill()
    end = other.end()
    assert other.losses() == alone
    assert end["share"]["budget_bytes"] == DEVICE
    assert any("keeps its current share" in note for note in end["notes"])
    assert most_at_once(doomed, other) <= 2 * DEVICE  # the killed training reports no end
    assert all(line.get("within", True) for line in other.lines())


def test_an_idle_training_shrinks_and_grows_and_so_does_its_link(tmp_path):
    deterministic()
    x, y = images()

    def step_of() -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model = compiled(convolutions())
        step = tf.function(lambda inputs, labels: model.train_step((inputs, labels)))
        return lambda: float(step(tf.constant(x[:32]), tf.constant(y[:32]))["loss"])

    train = step_of()
    losses = [train() for _ in range(16)]
    del train
    train = step_of()
    broker = BrokerProcess(tmp_path / "run" / "broker.sock", 2 * DEVICE)
    lent = {"link_bandwidth": "2GB/s", "broker": broker.socket, "share": "weight=1"}
    with tfswap.Session(**lent, verbose=0) as session:
        again = [train() for _ in range(8)]
        assert tfswap.memory_stats()["budget_bytes"] == 2 * DEVICE
        other = Job(broker.socket, "other", Share(minimum="150MiB", wait_s=20))
        other.join()  # and no step is running
        within = tfswap.memory_stats()
        assert within["budget_bytes"] <= 2 * DEVICE - 150 * MIB
        assert within["bytes_in_use"] <= within["budget_bytes"]
        again += [train() for _ in range(4)]
        (state,) = tfswap.status()["trainings"]
        assert state["share"]["jobs"] == 2 and state["share"]["in_touch"]
        assert state["budget_bytes"] == within["budget_bytes"]
        other.leave()
        deadline = time.monotonic() + 20
        while tfswap.memory_stats()["budget_bytes"] != 2 * DEVICE:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        again += [train() for _ in range(4)]
    assert again == losses
    (report,) = session.reports.values()
    assert report["share"].budget_bytes == 2 * DEVICE
    assert tfswap.memory_stats()["budget_bytes"] is None
    broker.wait_for("left and released 260 MiB")
    broker.end()


def test_training_without_a_broker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="with a broker, budget must be one amount"):
        tfswap.AutoSwap(broker=True, budget={"CPU:0": "1GiB"})
    with pytest.raises(ValueError, match="it must be the path of a broker's socket"):
        tfswap.AutoSwap(broker="")
    session = tfswap.Session(broker=tmp_path / "broker.sock", verbose=0)
    with pytest.raises(tfswap.BrokerError, match="tfswap broker --socket|is open to other users"):
        session.__enter__()
    assert tfswap.memory_stats()["budget_bytes"] is None
