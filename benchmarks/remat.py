"""Wrap segments of models in `tf.recompute_grad`, as users do by hand.

A functional model is cut where all later layers need only one tensor, into segments of about
equal numbers of layers. The input of each is kept; the backward part computes all else
again::

    x ──▶ [ segment 1 ] ──▶ a ──▶ [ segment 2 ] ──▶ b ──▶ ... ──▶ y       x, a, b stay

Side effects of a layer (batch norm's moving averages) happen twice, as always with
`tf.recompute_grad`: losses are the same, but statistics for `evaluate` are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def with_recompute_grad(model: Any, segments: int) -> Any:
    """Return the same model, with the same weights, whose segments are recomputed.

    Args:
        model: A functional model of one input and one output, compiled.
        segments: Number of segments, if there are enough places to cut.
    """
    import keras
    import tensorflow as tf

    places = _places(model)
    count = len(model.layers)
    wanted = [count * i // segments for i in range(1, segments)]
    cuts = sorted({min(places, key=lambda place: abs(place - at)) for at in wanted} - {count - 1})
    tensors = [model.inputs[0], *(model.layers[cut].output for cut in cuts), model.outputs[0]]
    parts = [keras.Model(a, b) for a, b in zip(tensors, tensors[1:], strict=False)]

    class Segmented(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def call(self, x: Any, training: bool | None = None) -> Any:
            for part in self.parts[:-1]:
                x = tf.recompute_grad(lambda x, part=part: part(x, training=training))(x)
            return self.parts[-1](x, training=training)

    segmented = Segmented()
    segmented.compile(optimizer=model.optimizer, loss=model.loss, jit_compile=False)
    return segmented


def _places(model: Any) -> Sequence[int]:
    """Return layers after which only their own output is needed, by their place."""
    order = {layer: place for place, layer in enumerate(model.layers)}
    last_use = [0] * len(order)
    for layer, place in order.items():
        for node in layer._inbound_nodes:
            for parent in node.parent_nodes:
                if parent.operation in order:
                    maker = order[parent.operation]
                    last_use[maker] = max(last_use[maker], place)
    open_until, found = 0, []
    for place in range(1, len(order) - 1):
        open_until = max(open_until, last_use[place - 1])
        if open_until <= place:
            found.append(place)
    return found
