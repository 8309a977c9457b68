"""TensorBoard logs of a training under a budget."""

from __future__ import annotations

import os
from typing import Any

from tfswap.report.picture import to_png
from tfswap.report.step_story import StepStory

_WIDTH, _HEIGHT = 1200, 700


class TensorBoardLog:
    """Writes the scalars of each step under ``tfswap/``, and a picture of each plan.

    Args:
        folder: The folder of the event files.
        name: Name of the training, a prefix of all tags; "" for none.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "") -> None:
        import tensorflow as tf

        self._summary = tf.compat.v1.Summary
        self._experimental = tf.summary.experimental
        self._prefix = f"tfswap/{name}/" if name else "tfswap/"
        self._writer: Any = tf.summary.create_file_writer(os.fspath(folder))
        self._step = 0

    def step(self, scalars: dict[str, float]) -> None:
        """Write the scalars of one step."""
        values = [
            self._summary.Value(tag=self._prefix + name, simple_value=value)
            for name, value in scalars.items()
        ]
        self._write(values)
        self._step += 1

    def plan(self, story: StepStory) -> None:
        """Write a picture of a plan, if matplotlib is installed."""
        try:
            picture = to_png(story, _WIDTH, _HEIGHT)
        except ImportError:
            return
        image = self._summary.Image(height=_HEIGHT, width=_WIDTH, encoded_image_string=picture)
        self._write([self._summary.Value(tag=self._prefix + "plan", image=image)])

    def _write(self, values: list[Any]) -> None:
        # A serialised summary: writing it allocates no device memory.
        text = self._summary(value=values).SerializeToString()
        with self._writer.as_default(self._step):
            self._experimental.write_raw_pb(text)

    def close(self) -> None:
        """Flush and close the log. Further calls have no effect."""
        self._writer.close()
