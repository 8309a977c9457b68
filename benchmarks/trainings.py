"""Trainings that benchmarks time: in processes of their own, until some steady steps are done.

    benchmark ── a case, as a line of JSON ──▶ process: train, forget, wait for the next
              ◀─ its answer, as another one ──

A process trains one case after the other, so that starting is paid for once. One that has ended,
failed or not forgotten everything gives way to a new one: no training meets what another one left.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

TREE = Path(__file__).resolve().parent.parent
SERVE = "--serve"
"""The argument by which a benchmark's own module becomes the other side."""

# More than any of the models needs; address space, not memory.
PLENTY_BYTES = 64 << 30

_UNTIMED_STEPS = 2
_MOST_STEPS = 60
# Of several epochs; at the beginning of one, tensors may get other places.
_STEPS_AN_EPOCH = 11
_UNTIMED_STEPS_AN_EPOCH = 4
# On the device, of a training that is over.
_MOST_LEFT_BYTES = 1 << 20
_TAIL_CHARACTERS = 1500


class Trainer:
    """The benchmark's side.

    Args:
        module: Of the benchmark; run with `SERVE` it calls `serve`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+", errors="replace")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._said.close()

    def train(self, case: Any) -> dict[str, Any]:
        """The answer to a case, a dataclass; {"failed": why} if it does not train."""
        process = self._process or self._begin()
        assert process.stdin is not None and process.stdout is not None
        text = ""
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
            process.stdin.flush()
            text = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not text:
            status = process.wait()
            self._end()
            return {"failed": f"the process ended with status {status}: {self._tail()}"}
        answer: dict[str, Any] = json.loads(text)
        if answer.pop("left_bytes") > _MOST_LEFT_BYTES or "failed" in answer:
            self._end()
        return answer

    def _begin(self) -> subprocess.Popen[str]:
        self._said.truncate(0)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )
        return self._process

    def _end(self) -> None:
        """What it still holds is nobody's."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None

    def _tail(self) -> str:
        self._said.seek(0)
        return self._said.read()[-_TAIL_CHARACTERS:].strip()


def serve(train: Callable[[Any], dict[str, Any]], case: type[Any]) -> int:
    """The other side: trains what comes, until nothing more does.

    Args:
        train: Called with each case.
        case: What a line is read as.
    """
    import keras

    import tfswap

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    for line in sys.stdin:
        try:
            answer = train(case(**json.loads(line)))
        except Exception as error:  # whatever it is, it is the case's answer
            answer = {"failed": f"{type(error).__name__}: {error}"}
        keras.backend.clear_session()
        gc.collect()
        answer["left_bytes"] = tfswap.memory_stats()["load_bytes"]
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def repeatable(threads: int) -> None:
    """So many threads between and inside of ops, which repeat themselves bit for bit."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()


@dataclass(frozen=True)
class Timed:
    """A training.

    Attributes:
        losses: After each step, every bit of them, as text.
        seconds: Of the timed steps, by epoch; without epochs that had none.
        before: `tfswap.memory_stats()` before the first of those.
        after: After the last one.
    """

    losses: list[str]
    seconds: list[list[float]]
    before: dict[str, Any]
    after: dict[str, Any]


def timed(
    model: Any, batch: tuple[Any, Any], swap: Any, timed_steps: int, epochs: int = 1
) -> Timed:
    """Trains on the same batch until so many steps have been timed in the steady state.

    Args:
        model: Compiled.
        batch: Inputs and targets.
        swap: The `AutoSwap` to train under.
        timed_steps: How many, if there is one epoch.
        epochs: Of more than one, all steps in the steady state are timed but the first ones.

    Raises:
        RuntimeError: There was no steady state.
    """
    import keras
    import tensorflow as tf

    import tfswap

    found = Timed([], [], {}, {})

    class Timer(keras.callbacks.Callback):
        """Goes behind AutoSwap: what it sees is the state after the step."""

        steady_steps = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            found.seconds.append([])
            if epoch:
                self.steady_steps = min(self.steady_steps, _UNTIMED_STEPS - _UNTIMED_STEPS_AN_EPOCH)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.start_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds = time.perf_counter() - self.start_s
            found.losses.append(float(logs["loss"]).hex())
            found.after.update(tfswap.memory_stats())
            if tfswap.status()["trainings"][0]["phase"] != "steady":
                return
            # The first step after a change touches memory for the first time.
            self.steady_steps += 1
            if self.steady_steps > _UNTIMED_STEPS:
                found.seconds[-1].append(seconds)
            elif not found.before and self.steady_steps == _UNTIMED_STEPS:
                found.before.update(found.after)
            if epochs == 1:
                self.model.stop_training = len(found.seconds[-1]) == timed_steps

    data = tf.data.Dataset.from_tensors(batch).repeat()
    steps = _MOST_STEPS if epochs == 1 else _STEPS_AN_EPOCH
    callbacks = [swap, Timer()]
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    found.seconds[:] = [each for each in found.seconds if each]
    if not found.seconds or (epochs == 1 and len(found.seconds[0]) < timed_steps):
        raise RuntimeError(f"no steady state in {steps * epochs} steps: {swap.report['notes']}")
    return found


def forget(model: Any) -> None:
    """Empties its variables: graphs of trained models, and with them all variables, stay."""
    import tensorflow as tf

    kept = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    for variable in kept:
        handle, dtype = variable.value.handle, variable.value.dtype
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))


def agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two trainings had the same losses, as far as both went."""
    return all(a == b for a, b in zip(one, other, strict=False))
