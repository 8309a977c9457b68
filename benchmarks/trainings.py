"""Timed trainings: in separate processes, until enough steady steps are done."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import case_process
from benchmarks.case_process import CaseProcess, NoAnswer

# More than any of the models needs; this reserves address space, not memory.
PLENTY_BYTES = 64 << 30

_UNTIMED_STEPS = 2
_MAX_STEPS = 60
# With several epochs: at the beginning of one, tensors may be reassigned to tiers.
_STEPS_AN_EPOCH = 11
_UNTIMED_STEPS_AN_EPOCH = 4
# On the device, of a training that has ended.
_MAX_LEFT_BYTES = 1 << 20


class Trainer(CaseProcess):
    """The benchmark's side: a process that has failed, or still holds memory, is replaced by
    a new one, so that no training is affected by an earlier one.
    """

    def train(self, case: Any) -> dict[str, Any]:
        """Return the answer to a case, a dataclass; {"failed": reason} if it does not train."""
        answer = self.ask(case)
        if isinstance(answer, NoAnswer):
            return {"failed": f"the process ended with status {answer.status}: {answer.said}"}
        if answer.pop("left_bytes") > _MAX_LEFT_BYTES or "failed" in answer:
            self.end()
        return answer


def serve(train: Callable[[Any], dict[str, Any]], case: type[Any]) -> int:
    """Train cases until the input ends.

    Args:
        train: Called with each case.
        case: The class of the cases in the input.
    """
    import keras

    import tfswap

    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        try:
            found = train(case(**fields))
        except Exception as error:  # any error is the case's answer
            found = {"failed": f"{type(error).__name__}: {error}"}
        keras.backend.clear_session()
        gc.collect()
        return {**found, "left_bytes": tfswap.memory_stats()["load_bytes"]}

    return case_process.serve(answer)


def repeatable(threads: int) -> None:
    """Use that many threads between and inside of ops, which repeat themselves bit for bit."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()


@dataclass(frozen=True)
class Timed:
    """The results of a training.

    Attributes:
        losses: After each step, as text with all bits.
        seconds: Times of the timed steps, by epoch; epochs without any are left out.
        before: `tfswap.memory_stats()` before the first of those.
        after: The same after the last one.
    """

    losses: list[str]
    seconds: list[list[float]]
    before: dict[str, Any]
    after: dict[str, Any]


def timed(
    model: Any, batch: tuple[Any, Any], swap: Any, timed_steps: int, epochs: int = 1
) -> Timed:
    """Train on the same batch until enough steps have been timed in the steady state.

    Args:
        model: Compiled.
        batch: Inputs and targets.
        swap: The `AutoSwap` to train under.
        timed_steps: Number of timed steps, if there is one epoch.
        epochs: With more than one, all steps in the steady state are timed except the first ones.

    Raises:
        RuntimeError: There was no steady state.
    """
    import keras
    import tensorflow as tf

    import tfswap

    found = Timed([], [], {}, {})

    class Timer(keras.callbacks.Callback):
        """Runs after AutoSwap, and so sees the state after the step."""

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
    steps = _MAX_STEPS if epochs == 1 else _STEPS_AN_EPOCH
    callbacks = [swap, Timer()]
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    found.seconds[:] = [each for each in found.seconds if each]
    if not found.seconds or (epochs == 1 and len(found.seconds[0]) < timed_steps):
        raise RuntimeError(f"no steady state in {steps * epochs} steps: {swap.report['notes']}")
    return found


def forget(model: Any) -> None:
    """Empty its variables: graphs of trained models, and so all their variables, stay alive."""
    import tensorflow as tf

    kept = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    for variable in kept:
        handle, dtype = variable.value.handle, variable.value.dtype
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))


def agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two trainings had equal losses for their common steps."""
    return all(a == b for a, b in zip(one, other, strict=False))
