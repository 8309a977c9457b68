"""`_CopyToHost` and `_CopyFromHost` from Python, for tests and experiments.

The graph pass creates these ops; models never do. A handle is valid within one step.
"""

from __future__ import annotations

from typing import Any

from tfswap.machine.far_tier import COMPRESSED, HOST


def _make(op: str, inputs: list[Any], dtypes: list[Any], attributes: dict[str, Any]) -> Any:
    import tensorflow as tf
    from tensorflow.core.framework import attr_value_pb2

    if tf.executing_eagerly():
        raise RuntimeError(f"{op} works in graphs only: call it inside a tf.function")
    attrs = {}
    for key, value in attributes.items():
        attr = attr_value_pb2.AttrValue()
        if isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, bool):
            attr.b = value
        elif isinstance(value, str):
            attr.s = value.encode()
        else:
            attr.i = value
        attrs[key] = attr
    graph = tf.compat.v1.get_default_graph()
    made = graph._create_op_internal(op, inputs, dtypes=dtypes, attrs=attrs, name=op.strip("_"))
    return made.outputs[0]


def copy_to_host(
    tensor: Any,
    lazy: bool = False,
    returns: int = 1,
    next_use: int = 0,
    min_bytes: int = 0,
    codec: str = "",
    rate_percent: int = 100,
    threads: int = 1,
    tier: str = "",
) -> Any:
    """Swap a tensor out to far memory.

    Args:
        tensor: Any shape, any dtype that is plain bytes.
        lazy: Keep it on the device until its memory is needed.
        returns: How often `copy_from_host` will be called with the handle.
        next_use: Place in the step of the next access (lazy tensors needed last leave first).
        min_bytes: Smaller tensors pass by reference.
        codec: The codec of its far copy; "": unencoded.
        rate_percent: Size after a lossy codec; needs `Library.set_lossy_rate`.
        threads: Number of host threads that encode and decode it.
        tier: Tier of far memory; "": the compressed one with a codec, else host memory.

    Returns:
        A scalar variant, the handle.
    """
    import tensorflow as tf

    tensor = tf.convert_to_tensor(tensor)
    attributes = {
        "T": tensor.dtype,
        "lazy": lazy,
        "returns": returns,
        "next_use": next_use,
        "min_bytes": min_bytes,
        "tier": tier or (COMPRESSED if codec else HOST),
        "codec": codec,
        "rate": rate_percent,
        "threads": threads,
    }
    return _make("_CopyToHost", [tensor], [tf.variant], attributes)


def copy_from_host(handle: Any, dtype: Any, next_use: int = 0) -> Any:
    """Swap a tensor in, with its shape.

    Args:
        handle: The result of `copy_to_host` in the same step.
        dtype: The tensor's dtype.
        next_use: Place in the step of the access after this one.
    """
    import tensorflow as tf

    dtype = tf.as_dtype(dtype)
    return _make("_CopyFromHost", [handle], [dtype], {"T": dtype, "next_use": next_use})
