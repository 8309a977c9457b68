"""The names of the nodes that the pass inserts: copies, and clones that recompute tensors."""

from __future__ import annotations

SWAP_OUT_PREFIX, SWAP_IN_PREFIX = "tfswap/out/", "tfswap/in/"
"""Prefixes of the names of copies."""

RESTORED_VARIABLE = "tfswap/variable"
"""Name of the memory into which a streamed variable's value came back."""

CLONE_INFIX = "/again/"
"""Follows the original node's name in the name of a clone."""


def swap_out_name(tensor: str, ordinal: int = 0) -> str:
    """Return the name of the node that swaps out a tensor ("node:port").

    `ordinal` tells the swap-outs of one variable apart.
    """
    node, _, port = tensor.rpartition(":")
    name = f"{SWAP_OUT_PREFIX}{node.replace(':', '_')}_{port}"
    return f"{name}/{ordinal}" if ordinal else name


def clone_name(node: str, ordinal: int) -> str:
    """Return the name of a node's clone for the recompute of this index in the plan.

    The pass uses the same names (``recomputes.cc``).
    """
    return f"{node}{CLONE_INFIX}{ordinal}"
