"""Variables on a GPU that are swapped to far memory, and what a step reads of them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from swaps import settled

import tfswap
from tfswap.ops import library

MIB = 1 << 20
COUNT, EACH = 10, 4 * MIB
ROOM = 14 * MIB  # for 40 MiB


class Weights:
    """Variables on a GPU whose values the host knows.

    Attributes:
        device: The GPU.
        there: The variables.
        values: Their expected values.
    """

    def __init__(self, device: str = "GPU:0") -> None:
        dice = np.random.default_rng(3)
        self.device = device
        self.values = [dice.random(EACH // 4, dtype=np.float32) for _ in range(COUNT)]
        with tf.device(device):
            self.there = [tf.Variable(tf.zeros([EACH // 4])) for _ in self.values]
        for i, value in enumerate(self.values):
            self.give(i, value)
        self._step = tf.function(self._compared)

    def give(self, i: int, value: np.ndarray) -> None:
        """Assign another value to a variable."""
        with tf.device("CPU:0"):
            made = tf.constant(value)
        with tf.device(self.device):
            self.there[i].assign(made)
        self.values[i] = value

    def _compared(self, expected: list[tf.Tensor]) -> tf.Tensor:
        same: list[tf.Tensor] = []
        for variable, host in zip(self.there, expected, strict=True):
            with tf.device(self.device), tf.control_dependencies(same[-1:]):
                read = tf.identity(variable.read_value())
            with tf.device("CPU:0"):
                same.append(tf.reduce_all(tf.equal(tf.identity(read), host)))
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.stack(same))

    def are_right(self) -> bool:
        """Return whether a step that reads them one by one finds all values."""
        with tf.device("CPU:0"):
            expected = [tf.constant(value) for value in self.values]
        return bool(self._step(expected))


class Streamed:
    """Weights on a GPU with memory for three; each has been swapped out once."""

    def __init__(self, device: str = "GPU:0") -> None:
        self.lib = library.load()
        self.device = device
        self.weights = Weights(device)
        self.number = number = tfswap.state.device_number(device)
        self.others_bytes = settled(device)["bytes_in_use"] - COUNT * EACH
        self.budget_bytes = self.others_bytes + ROOM
        assert self.lib.stream_variables(number, True) == ""
        for variable in self.weights.there:
            tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
        self.lib.set_budget(number, self.budget_bytes)
        self.lib.make_room(number)
        for _ in range(2):
            assert self.weights.are_right()
        tfswap.reset_memory_stats(device)

    def stats(self) -> dict[str, int]:
        """Return the statistics, and check the budget."""
        stats = settled(self.device)
        assert stats["peak_bytes"] <= self.budget_bytes
        return stats
