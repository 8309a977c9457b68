"""How benchmarks run their trainings in separate processes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.trainings import Trainer, agree


@dataclass(frozen=True)
class Case:
    kind: str


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    """Return a trainer whose processes return their numbers, or do as the case says."""
    (tmp_path / "served.py").write_text(
        textwrap.dedent(
            """
            import json, os, sys
            assert sys.argv[1:] == ["--serve"]
            print("ready", flush=True)
            for line in sys.stdin:
                kind = json.loads(line)["kind"]
                if kind == "crash":
                    print("the last words", file=sys.stderr, flush=True)
                    os._exit(9)
                answer = {"failed": "no memory"} if kind == "fail" else {"process": os.getpid()}
                answer["left_bytes"] = 5 << 20 if kind == "keep" else 1000
                print(json.dumps(answer), flush=True)
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Trainer("served") as made:
        yield made


def test_one_process_trains_one_case_after_the_other(trainer: Trainer) -> None:
    first, second = trainer.train(Case("")), trainer.train(Case(""))
    assert first == second and first.keys() == {"process"}


@pytest.mark.parametrize("kind", ["crash", "fail", "keep"])
def test_a_process_that_failed_or_left_something_behind_is_replaced(
    trainer: Trainer, kind: str
) -> None:
    first = trainer.train(Case(""))
    answer = trainer.train(Case(kind))
    if kind == "crash":
        assert answer == {"failed": "the process ended with status 9: the last words"}
    elif kind == "fail":
        assert answer == {"failed": "no memory"}
    third = trainer.train(Case(""))
    assert third["process"] != first["process"]
    assert not os.path.exists(f"/proc/{first['process']}")


@pytest.mark.slow
def test_the_process_reports_errors_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from benchmarks.trainings import forget, serve
            @dataclass
            class Case:
                kind: str
            def train(case):
                import keras, numpy as np, os
                print("not an answer")
                if case.kind == "fail":
                    raise ValueError("of this case")
                layers = [keras.layers.Dense(1 << 20), keras.layers.Dense(1)]
                model = keras.Sequential(layers)
                model.compile(keras.optimizers.SGD(momentum=0.9), "mse", jit_compile=False)
                model.train_on_batch(np.zeros((1, 4), np.float32), np.zeros((1, 1), np.float32))
                forget(model)
                return {"process": os.getpid()}
            serve(train, Case)
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Trainer("real") as trainer:
        first = trainer.train(Case(""))
        assert trainer.train(Case("")) == first  # nothing was left behind
        assert trainer.train(Case("fail")) == {"failed": "ValueError: of this case"}


def test_losses_are_compared_for_the_common_steps() -> None:
    assert agree(["0x1p0", "0x1p1"], ["0x1p0"])
    assert not agree(["0x1p0", "0x1p1"], ["0x1p0", "0x1.8p1"])
