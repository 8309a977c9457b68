"""A model's training step as a graph for any batch size: traced once, never run.

Tracing creates the model's weights and the optimizer's slots, but no activations or gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfswap.cost_model.model_source import ModelSource

LEARNING_RATE, MOMENTUM = 0.01, 0.9
"""Settings of the SGD optimizer for a model that is not compiled."""


@dataclass(frozen=True)
class TracedStep:
    """A training step with an open batch dimension.

    Args:
        graph: Its GraphDef; variables are VarHandleOps, the data are Placeholders.
        data: Names of the data's Placeholders.
        kept: Names of the outputs and of the ops with side effects.
        creation: Position of each op in the order in which Python created them.
        variable_bytes: Weights, optimizer state and metrics.
        variables: By name of its VarHandleOp, the size of a variable in bytes.
    """

    graph: Any
    data: tuple[str, ...]
    kept: tuple[str, ...]
    creation: dict[str, int]
    variable_bytes: int
    variables: Mapping[str, int]

    def at_batch(self, batch: int | None) -> bytes:
        """Return the serialized graph for a batch size; None: with the sizes that it has.

        Raises:
            ValueError: The model has a different fixed batch size.
        """
        from tensorflow.core.framework import graph_pb2

        graph = graph_pb2.GraphDef()
        graph.CopyFrom(self.graph)
        for node in graph.node:
            if batch is None or node.name not in self.data:
                continue
            examples = node.attr["shape"].shape.dim[0]
            if examples.size not in (-1, batch):
                raise ValueError(
                    f"the model's input {node.name!r} has a fixed batch size of {examples.size}; "
                    f"got batch {batch}: build the model without a batch size"
                )
            examples.size = batch
        return bytes(graph.SerializeToString())


def trace_step(source: ModelSource) -> TracedStep:
    """Trace ``model.train_step``; compile the model first if necessary (SGD with momentum).

    Raises:
        ValueError: The input specification is unknown; the message tells what to do.
    """
    import tensorflow as tf

    model = source.model
    spec = source.spec
    x = _first(spec) if spec is not None else _inputs(model)
    if not model.compiled:
        _compile(model)
    if spec is None or not isinstance(spec, tuple):
        spec = (x, _targets(model))
    _check_batch(spec)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    traced = tf.function(model.train_step).get_concrete_function(spec)
    return traced_function(traced)


def _first(spec: Any) -> Any:
    return spec[0] if isinstance(spec, tuple) else spec


def _inputs(model: Any) -> Any:
    import tensorflow as tf

    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            f"{type(model).__name__} {model.name!r} does not define its inputs. Return TensorSpecs "
            'with the model: return model, (tf.TensorSpec((None, 224, 224, 3), "float32"), '
            'tf.TensorSpec((None,), "int32"))'
        )
    specs = [tf.TensorSpec(i.shape, i.dtype, name=f"data_{n}") for n, i in enumerate(inputs)]
    return specs[0] if len(specs) == 1 else specs


def _compile(model: Any) -> None:
    import keras

    outputs: Any = getattr(model, "outputs", None) or ()
    classes = len(outputs) == 1 and len(outputs[0].shape) > 1 and (outputs[0].shape[-1] or 0) > 1
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
        loss="sparse_categorical_crossentropy" if classes else "mean_squared_error",
        jit_compile=False,
    )


def _targets(model: Any) -> Any:
    """Return the targets' specs: class indices for sparse losses, else the outputs' shapes."""
    import tensorflow as tf

    outputs = getattr(model, "outputs", None)
    if not outputs:
        raise ValueError(
            f"{type(model).__name__} {model.name!r} does not define its outputs. Return the "
            "TensorSpecs of x and y with the model, as a tuple"
        )
    losses = model.loss
    if isinstance(losses, dict):
        losses = [losses.get(name) for name in model.output_names]
    elif not isinstance(losses, Sequence) or isinstance(losses, str):
        losses = [losses] * len(outputs)
    specs = []
    for output, loss in zip(outputs, losses, strict=True):
        if "sparse" in _name(loss).lower():
            specs.append(tf.TensorSpec(output.shape[:-1], "int32"))
        else:
            specs.append(tf.TensorSpec(output.shape, output.dtype))
    return specs[0] if len(specs) == 1 else specs


def _name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))


def _check_batch(spec: Any) -> None:
    import tensorflow as tf

    for tensor in tf.nest.flatten(spec):
        shape = tensor.shape
        if shape.rank is None or shape.rank == 0 or None in shape[1:].as_list():
            raise ValueError(
                f"an input of the model has shape {shape}: only the batch dimension may be None. "
                "Give --image, or return TensorSpecs with the model"
            )


def traced_function(function: Any) -> TracedStep:
    """Return the step that a concrete function computes."""
    graph = function.graph.as_graph_def()
    creation = {node.name: place for place, node in enumerate(graph.node)}
    variables = {id(variable.handle): variable for variable in function.variables}
    captured = {}
    for outside, inside in function.graph.captures:
        captured[inside.op.name] = variables.get(id(outside), outside)
    data = []
    sizes = {}
    for node in graph.node:
        if node.op != "Placeholder":
            continue
        outside = captured.get(node.name)
        if outside is None:
            data.append(node.name)
        elif id(getattr(outside, "handle", None)) in variables:
            node.op = "VarHandleOp"
            node.ClearField("attr")
            node.attr["dtype"].type = outside.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(outside.shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()
            sizes[node.name] = _bytes(outside)
    kept = [tensor.op.name for tensor in function.outputs]
    kept += [op.name for op in function.graph.control_outputs]
    return TracedStep(
        graph=graph,
        data=tuple(data),
        kept=tuple(dict.fromkeys(kept)),
        creation=creation,
        variable_bytes=sum(map(_bytes, function.variables)),
        variables=sizes,
    )


def _bytes(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)
