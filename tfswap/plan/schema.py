"""SwapPlan: the changes to a step, as data.

A plan lists tensors to swap out, with the nodes that wait for the copy-out (gates), the nodes whose
end starts the copy-in (triggers) and the nodes that read the returned tensor (consumers), and
tensors to drop and recompute. The Grappler pass executes it and makes no decisions. Plans are JSON,
also read by ``cc/grappler/swap_spec.h``; they identify graphs by their fingerprints.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from dataclasses import dataclass, field
from typing import Any

from tfswap.io import private_files
from tfswap.io.untrusted_json import MAX_BYTES, Fields, parse_json
from tfswap.machine import codecs, nvcomp
from tfswap.machine.far_tier import TIERS
from tfswap.plan.slots import OUTSIDE, Slot

VERSION = 1
"""Version of the schema; plans of other versions are rejected."""

# Smallest tensors that are swapped: of a whole batch, of one in sections, under a small budget.
_MIN_BYTES, _MIN_BYTES_IN_SECTIONS, _LEAST_MIN_BYTES = 1 << 20, 1 << 17, 1 << 14

CODECS = tuple(dict.fromkeys((*codecs.NAMES, *nvcomp.NAMES)))

UNMATCHED = ("leave", "bootstrap")
"""Policies for graphs without an entry."""
MAX_SECTIONS = 4096
"""Maximum number of sections of a batch."""

# The pass has the same bounds (swap_spec.cc); its numbers are doubles.
_MAX_BYTES, _MAX_INTEGER = 1 << 50, 1 << 53
_MAX_THREADS, _MAX_ORDINAL = 1024, 4095


@dataclass(frozen=True)
class Return:
    """One swap-in.

    Args:
        trigger: The node whose end starts the copy; "" for the swap-out's end.
        consumers: The nodes that read the returned tensor.
        next_use: Position in the step of the access after this one (for on-demand swaps).
    """

    trigger: str
    consumers: tuple[str, ...]
    next_use: int = 0


@dataclass(frozen=True)
class TensorSwap:
    """One tensor's swap-out and its swap-ins.

    Args:
        tensor: "node:port" in the graph after TensorFlow's own passes.
        size_bytes: The tensor's size when the plan was made.
        gates: Nodes that do not start before the copy-out has ended.
        returns: The swap-ins in the order of the step.
        lazy: Whether the swap is on demand: the tensor leaves only when an allocation needs memory.
        tier: The tier of far memory, one of `TIERS`. If it is full, another tier is used.
        codec: The codec of the compressed tier.
        rate_percent: Maximum encoded size of a lossy codec, in percent of the tensor's size.
        threads: Number of host threads that encode and decode the tensor.
        device: The tensor's device ("CPU:1"), if it is not the device whose peak is predicted.
        after: If `tensor` is a variable's handle, so that the variable's value is swapped: the
            nodes that use the value before it leaves. The swap-in starts with its trigger, which
            may be in the previous step; consumers are nodes with the variable among their inputs.
        returns_in_step: For a variable: whether it leaves and returns within the same step.
    """

    tensor: str
    size_bytes: int
    gates: tuple[str, ...]
    returns: tuple[Return, ...]
    lazy: bool = False
    tier: str = "host"
    codec: str = ""
    rate_percent: int = 100
    threads: int = 1
    device: str = ""
    after: tuple[str, ...] = ()
    returns_in_step: bool = False

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"{self.tensor!r}: tier is {self.tier!r}; allowed: {', '.join(TIERS)}")
        if self.codec and self.codec not in CODECS:
            allowed = ", ".join(CODECS)
            raise ValueError(f"{self.tensor!r}: codec is {self.codec!r}; allowed: {allowed}")


@dataclass(frozen=True)
class Recompute:
    """A tensor that is recomputed for its late readers instead of kept.

    Args:
        tensor: "node:port".
        nodes: The nodes that are cloned to recompute it, in the order of execution; the last one
            is the tensor's producer. They may be clones of earlier recomputes (`clone_name`).
        trigger: The node whose end lets the clones start.
        consumers: The nodes that read the recomputed tensor.
    """

    tensor: str
    nodes: tuple[str, ...]
    trigger: str
    consumers: tuple[str, ...]


@dataclass(frozen=True)
class FunctionPlan:
    """The plan of one graph.

    Args:
        fingerprint: The graph's fingerprint, 16 hexadecimal digits.
        swaps: At most one for each tensor; for a variable, at most one for each `after`.
        order: Pairs of nodes: the first ends before the second starts.
        reserve: Whether all other tensors get on-demand swaps, in case a step needs more memory
            than predicted.
        predicted_peak_bytes: The simulated peak load of the device.
        predicted_step_ns: The simulated duration of the step.
        unswapped_peak_bytes: The peak load without swaps.
        unswapped_step_ns: The duration of the step without swaps.
        portable: The graph's fingerprint if its function is loaded from a SavedModel; "" if
            unknown.
        layouts: Planned addresses of the ops' allocations: one layout for each shape of the batch
            (the last one may be smaller), in no particular order.
        recomputes: Recomputed tensors. They apply in this order and before all other fields, which
            may name their clones.
    """

    fingerprint: str
    swaps: tuple[TensorSwap, ...] = ()
    order: tuple[tuple[str, str], ...] = ()
    reserve: bool = False
    predicted_peak_bytes: int = 0
    predicted_step_ns: int = 0
    unswapped_peak_bytes: int = 0
    unswapped_step_ns: int = 0
    portable: str = ""
    layouts: tuple[tuple[Slot, ...], ...] = ()
    recomputes: tuple[Recompute, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the plan swaps or recomputes any tensor."""
        return bool(self.swaps or self.recomputes)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that leave the device in each step, without swaps of other devices."""
        return sum(swap.size_bytes for swap in self.swaps if not swap.device)


@dataclass(frozen=True)
class SwapPlan:
    """Plans of the graphs of one training.

    Args:
        functions: One entry for each graph.
        budget_bytes: The budget that the plans were made for; None for no budget.
        policy: The planner that made the plans.
        unmatched: The policy for other graphs: "leave", or "bootstrap" (on-demand swaps).
        min_bytes: Smaller tensors are never copied.
        tensorflow: The TensorFlow release under which the plan was made.
        sections: Number of sections that ops process the batch in, where they can; the functions
            are for graphs in that many sections.
        batch: Number of examples of the batch that is split into `sections`. Other batches are
            split into the fewest sections that are no larger than these. 0: all batches are split
            into `sections`.
        chooses: Whether the pass chooses the number of sections for graphs without an entry.
        stream_weights: Whether values of variables are swapped too, and read only when needed.
    """

    functions: tuple[FunctionPlan, ...] = ()
    budget_bytes: int | None = None
    policy: str = ""
    unmatched: str = "leave"
    min_bytes: int = _MIN_BYTES
    tensorflow: str = ""
    sections: int = 1
    batch: int = 0
    chooses: bool = False
    stream_weights: bool = False
    version: int = field(default=VERSION)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(
                f"the plan has version {self.version!r}, this tfswap reads version {VERSION}: "
                "make the plan again with this tfswap"
            )
        if self.unmatched not in UNMATCHED:
            raise ValueError(f"unmatched is {self.unmatched!r}; allowed: {', '.join(UNMATCHED)}")
        if not isinstance(self.sections, int) or self.sections < 1:
            raise ValueError(f"sections is {self.sections!r}; it must be 1 or more")
        if not isinstance(self.batch, int) or self.batch < 0:
            raise ValueError(f"batch is {self.batch!r}; it must be 0 examples or more")
        seen: set[str] = set()
        for function in self.functions:
            if function.fingerprint in seen:
                raise ValueError(f"two entries for the graph {function.fingerprint}")
            seen.add(function.fingerprint)
            swapped: set[tuple[str, tuple[str, ...]]] = set()
            for swap in function.swaps:
                if (swap.tensor, swap.after) in swapped:
                    raise ValueError(f"two swaps of {swap.tensor!r} in one graph")
                swapped.add((swap.tensor, swap.after))

    def function(self, fingerprint: str) -> FunctionPlan | None:
        """Return the entry of a graph, or None."""
        return next((f for f in self.functions if f.fingerprint == fingerprint), None)

    def with_function(self, function: FunctionPlan) -> SwapPlan:
        """Return the plan with this entry in place of the graph's old one."""
        others = self.without_function(function.fingerprint)
        return dataclasses.replace(others, functions=(*others.functions, function))

    def without_function(self, fingerprint: str) -> SwapPlan:
        """Return the plan without this graph's entry."""
        kept = tuple(f for f in self.functions if f.fingerprint != fingerprint)
        return dataclasses.replace(self, functions=kept)

    def in_sections(self, count: int) -> SwapPlan:
        """Return the plan for `count` sections; `min_bytes` suits them, and the budget."""
        # Of about 1,000 tensors in a step, those that are too small take a few percent at most.
        of_budget = max((self.budget_bytes or _MAX_BYTES) >> 14, _LEAST_MIN_BYTES)
        min_bytes = min(of_budget, max(_MIN_BYTES // count, _MIN_BYTES_IN_SECTIONS))
        return dataclasses.replace(self, sections=count, min_bytes=min_bytes)

    def to_data(self) -> dict[str, Any]:
        """Return the plan as what JSON is made of."""
        data = dataclasses.asdict(self)
        for function, entry in zip(self.functions, data["functions"], strict=True):
            entry["layouts"] = [list(layout) for layout in function.layouts]
        return data

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as JSON."""
        return json.dumps(self.to_data(), indent=indent)

    @staticmethod
    def from_json(text: str) -> SwapPlan:
        """Parse a plan from JSON.

        Args:
            text: Untrusted input of at most `untrusted_json.MAX_BYTES` and `MAX_VALUES`.

        Raises:
            ValueError: The text is not JSON, is too large, has another version, lacks fields, or
                has unknown fields or invalid values.
        """
        return SwapPlan.from_data(parse_json(text, "the plan"))

    @staticmethod
    def from_data(data: object) -> SwapPlan:
        """Parse a plan from the result of `untrusted_json.parse_json`; raise as `from_json`."""
        if not isinstance(data, dict):
            raise ValueError("the plan is not a JSON object")
        version = data.get("version")
        if type(version) is not int or version != VERSION:
            raise ValueError(
                f"the plan has version {reprlib.repr(version)}, this tfswap reads version "
                f"{VERSION}: make the plan again with this tfswap"
            )
        try:
            return _plan(Fields(data, "the plan"))
        except ValueError as error:
            raise ValueError(f"the plan does not follow the schema: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file atomically."""
        private_files.write_bytes(path, (self.to_json(indent=1) + "\n").encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SwapPlan:
        """Read a plan that `save` wrote.

        Raises:
            ValueError: The file is not a plan of this version.
            OSError: The file cannot be read.
        """
        try:
            return SwapPlan.from_json(private_files.read_bytes(path, MAX_BYTES).decode())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


def _plan(fields: Fields) -> SwapPlan:
    budget_bytes = fields.any("budget_bytes", None)
    plan = SwapPlan(
        functions=fields.each("functions", _function),
        budget_bytes=None if budget_bytes is None else _bytes(budget_bytes, "budget_bytes"),
        policy=fields.name("policy", ""),
        unmatched=fields.name("unmatched", "leave"),
        min_bytes=fields.integer("min_bytes", 0, _MAX_BYTES, _MIN_BYTES),
        tensorflow=fields.name("tensorflow", ""),
        sections=fields.integer("sections", 1, MAX_SECTIONS, 1),
        batch=fields.integer("batch", 0, _MAX_INTEGER, 0),
        chooses=fields.flag("chooses", False),
        stream_weights=fields.flag("stream_weights", False),
        version=fields.integer("version", VERSION, VERSION),
    )
    fields.end()
    return plan


def _bytes(value: object, what: str) -> int:
    return Fields({what: value}, "the plan").integer(what, 0, _MAX_BYTES)


def _function(data: object) -> FunctionPlan:
    fields = Fields(data, "a graph's entry")
    function = FunctionPlan(
        fingerprint=fields.name("fingerprint"),
        swaps=fields.each("swaps", _swap),
        order=fields.pairs("order"),
        reserve=fields.flag("reserve", False),
        predicted_peak_bytes=fields.integer("predicted_peak_bytes", 0, _MAX_BYTES, 0),
        predicted_step_ns=fields.integer("predicted_step_ns", 0, _MAX_INTEGER, 0),
        unswapped_peak_bytes=fields.integer("unswapped_peak_bytes", 0, _MAX_BYTES, 0),
        unswapped_step_ns=fields.integer("unswapped_step_ns", 0, _MAX_INTEGER, 0),
        portable=fields.name("portable", ""),
        layouts=fields.each("layouts", _layout, ()),
        recomputes=fields.each("recomputes", _recompute, ()),
    )
    fields.end()
    return function


def _layout(data: object) -> tuple[Slot, ...]:
    return Fields({"layouts": data}, "a graph's entry").each("layouts", _slot)


def _slot(data: object) -> Slot:
    if not isinstance(data, list) or len(data) != len(Slot._fields):
        raise ValueError(f"a slot is not a list of {', '.join(Slot._fields)}")
    fields = Fields(dict(zip(Slot._fields, data, strict=True)), "a slot")
    slot = Slot(
        op=fields.name("op"),
        kind=fields.integer("kind", 0, 2),
        ordinal=fields.integer("ordinal", 0, _MAX_ORDINAL),
        offset_bytes=fields.integer("offset_bytes", OUTSIDE, _MAX_BYTES),
        size_bytes=fields.integer("size_bytes", 1, _MAX_BYTES),
    )
    # The device's allocator reads slots as lines of tab-separated fields.
    if not slot.op or any(c in slot.op for c in "\t\n\0"):
        raise ValueError(f"a slot is for {slot.op[:100]!r}, which is not an op's name")
    return slot


def _recompute(data: object) -> Recompute:
    fields = Fields(data, "a recompute")
    recompute = Recompute(
        tensor=fields.name("tensor"),
        nodes=fields.names("nodes"),
        trigger=fields.name("trigger"),
        consumers=fields.names("consumers"),
    )
    fields.end()
    return recompute


def _return(data: object) -> Return:
    fields = Fields(data, "a return")
    back = Return(
        trigger=fields.name("trigger"),
        consumers=fields.names("consumers"),
        next_use=fields.integer("next_use", -_MAX_INTEGER, _MAX_INTEGER, 0),
    )
    fields.end()
    return back


def _swap(data: object) -> TensorSwap:
    fields = Fields(data, "a swap")
    swap = TensorSwap(
        tensor=fields.name("tensor"),
        size_bytes=fields.integer("size_bytes", 0, _MAX_BYTES),
        gates=fields.names("gates"),
        returns=fields.each("returns", _return),
        lazy=fields.flag("lazy", False),
        tier=fields.name("tier", "host"),
        codec=fields.name("codec", ""),
        rate_percent=fields.integer("rate_percent", 1, 100, 100),
        threads=fields.integer("threads", 0, _MAX_THREADS, 1),
        device=fields.name("device", ""),
        after=fields.names("after", ()),
        returns_in_step=fields.flag("returns_in_step", False),
    )
    fields.end()
    return swap
