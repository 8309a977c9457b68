"""SwapPlan: what is changed about a step, as data.

A plan says which tensors leave, who waits for that (gates), what starts their way back
(triggers) and who reads them then; and which are dropped and made again. The Grappler pass executes
it and decides nothing. It is JSON, one schema for Python and C++
(``tfswap/cc/grappler/swap_spec.h``), and names graphs by their fingerprints: a graph without an
entry is never given another graph's swaps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from dataclasses import dataclass, field

from tfswap.io import private_files
from tfswap.io.untrusted_json import MOST_BYTES, Fields, parse_json
from tfswap.machine import codecs, nvcomp
from tfswap.machine.far_tier import TIERS
from tfswap.plan.slots import OUTSIDE, Slot

VERSION = 1
"""Of the schema; a plan of another version is refused."""

# Of tensors that leave. Parts of what was large are worth it too: there are many.
_LEAST_BYTES, _LEAST_BYTES_OF_PARTS = 1 << 20, 1 << 17

CODECS = tuple(dict.fromkeys((*codecs.NAMES, *nvcomp.NAMES)))

UNMATCHED = ("leave", "bootstrap")
"""What may happen to graphs without an entry."""

MOST_SECTIONS = 4096
"""Of a batch."""

# More than any plan has; the pass has the same bounds (swap_spec.cc). Its numbers are doubles.
_MOST_BYTES, _MOST = 1 << 50, 1 << 53
_MOST_THREADS, _MOST_ORDINAL = 1024, 4095


@dataclass(frozen=True)
class Return:
    """One swap-in.

    Args:
        trigger: Node whose end starts the copy; "" for the swap-out's end.
        consumers: Nodes that read the returned tensor.
        next_use: Place in the step of the access after this one (for lazy swaps).
    """

    trigger: str
    consumers: tuple[str, ...]
    next_use: int = 0


@dataclass(frozen=True)
class TensorSwap:
    """One tensor's swap-out and its swap-ins.

    Args:
        tensor: "node:port" of the graph that TensorFlow's own passes leave.
        size_bytes: Its size when the plan was made.
        gates: Nodes that do not start before the copy-out has ended.
        returns: Its swap-ins in the order of the step.
        lazy: Leaves only when an allocation needs the room.
        tier: Of far memory, one of `TIERS`. What finds no room there goes to another.
        codec: By which it is kept in the compressed tier.
        rate_percent: Size of what a lossy codec makes at most, in percent of the tensor's.
        threads: Of the host that encode and decode it.
        device: Where it is ("CPU:1"), if not on the device whose peak the plan foretells.
        after: If `tensor` is the handle of a variable, whose value leaves: the nodes that need it
            before that. What then brings it back starts with its trigger, which may be in the step
            before; consumers are nodes with that variable among their inputs.
        returns_in_step: Of a variable: whether it comes back after it has left in the same step.
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
    """A tensor that is made again for those that read it late, instead of kept.

    Args:
        tensor: "node:port".
        nodes: That make it, in the order in which they run; the last one made it before. They may
            be clones of earlier recomputes (`again_name`).
        trigger: Node whose end lets them begin.
        consumers: Nodes that read what was made again.
    """

    tensor: str
    nodes: tuple[str, ...]
    trigger: str
    consumers: tuple[str, ...]


@dataclass(frozen=True)
class FunctionPlan:
    """The plan of one graph.

    Args:
        fingerprint: The graph's, 16 hexadecimal digits.
        swaps: At most one a tensor; of a variable, at most one after the same nodes.
        order: Pairs of nodes, the first to end before the second starts.
        reserve: Whether all other tensors get lazy swaps, in case that a step needs more memory
            than foretold.
        predicted_peak_bytes: The device's peak load that the simulator foretells.
        predicted_step_ns: Duration of the step, likewise.
        unswapped_peak_bytes: The peak load without any swap.
        unswapped_step_ns: Duration of the step, likewise.
        portable: The fingerprint that the graph also has where its function comes back from a
            SavedModel; "" if it is not known.
        layouts: Planned addresses of what its ops allocate: one layout for each shape of its
            tensors (the last batch may be smaller), in no order.
        recomputes: Tensors that are made again, in this order, before all else: what else there is
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
    def bytes_per_step(self) -> int:
        """Bytes that leave the device in each step; those of other devices do not count."""
        return sum(swap.size_bytes for swap in self.swaps if not swap.device)


@dataclass(frozen=True)
class SwapPlan:
    """Plans of the graphs of one training, and where they hold.

    Args:
        functions: One entry a graph.
        budget_bytes: What they were made for; None for none.
        policy: The planner that made them.
        unmatched: What happens to other graphs: "leave", or "bootstrap" (lazy swaps).
        min_bytes: Smaller tensors are never copied.
        tensorflow: The release under which the plan was made.
        sections: Of the batch, on which ops work one after the other where they can; the functions
            are for graphs that do.
        batch: How many examples the batch has that is cut into so many; others are cut into the
            fewest that have no more examples each. 0: all are cut into so many.
        chooses: Whether the pass chooses that number for graphs that have no entry.
        stream_weights: Whether values of variables leave too, so that none is read before it is
            needed.
    """

    functions: tuple[FunctionPlan, ...] = ()
    budget_bytes: int | None = None
    policy: str = ""
    unmatched: str = "leave"
    min_bytes: int = _LEAST_BYTES
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
        """The entry of a graph, if there is one."""
        for function in self.functions:
            if function.fingerprint == fingerprint:
                return function
        return None

    def with_function(self, function: FunctionPlan) -> SwapPlan:
        """The same plan with this entry instead of the graph's old one."""
        others = self.without_function(function.fingerprint)
        return dataclasses.replace(others, functions=(*others.functions, function))

    def without_function(self, fingerprint: str) -> SwapPlan:
        """The same plan without this graph's entry."""
        kept = tuple(f for f in self.functions if f.fingerprint != fingerprint)
        return dataclasses.replace(self, functions=kept)

    def in_sections(self, count: int) -> SwapPlan:
        """The same plan for graphs in so many sections, whose tensors are that much smaller."""
        min_bytes = max(_LEAST_BYTES // count, _LEAST_BYTES_OF_PARTS)
        return dataclasses.replace(self, sections=count, min_bytes=min_bytes)

    def to_json(self, indent: int | None = None) -> str:
        """The plan as JSON text."""
        data = dataclasses.asdict(self)
        for function, entry in zip(self.functions, data["functions"], strict=True):
            entry["layouts"] = [list(layout) for layout in function.layouts]
        return json.dumps(data, indent=indent)

    @staticmethod
    def from_json(text: str) -> SwapPlan:
        """A plan from JSON text.

        Args:
            text: From anywhere: of at most `untrusted_json.MOST_BYTES` and `MOST_VALUES`.

        Raises:
            ValueError: Not JSON, too large, another version, missing or unknown fields, or values
                that no plan has.
        """
        return SwapPlan.from_data(parse_json(text, "the plan"))

    @staticmethod
    def from_data(data: object) -> SwapPlan:
        """A plan from what `untrusted_json.parse_json` made of one.

        Raises:
            ValueError: As `from_json` does.
        """
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
        """Writes the plan to a file, all of it or nothing."""
        private_files.write_bytes(path, (self.to_json(indent=1) + "\n").encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SwapPlan:
        """Reads a plan that `save` wrote.

        Raises:
            ValueError: The file is not a plan of this version.
            OSError: The file cannot be read.
        """
        try:
            return SwapPlan.from_json(private_files.read_bytes(path, MOST_BYTES).decode())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


def _plan(fields: Fields) -> SwapPlan:
    budget_bytes = fields.any("budget_bytes", None)
    plan = SwapPlan(
        functions=fields.each("functions", _function),
        budget_bytes=None if budget_bytes is None else _bytes(budget_bytes, "budget_bytes"),
        policy=fields.name("policy", ""),
        unmatched=fields.name("unmatched", "leave"),
        min_bytes=fields.integer("min_bytes", 0, _MOST_BYTES, _LEAST_BYTES),
        tensorflow=fields.name("tensorflow", ""),
        sections=fields.integer("sections", 1, MOST_SECTIONS, 1),
        batch=fields.integer("batch", 0, _MOST, 0),
        chooses=fields.flag("chooses", False),
        stream_weights=fields.flag("stream_weights", False),
        version=fields.integer("version", VERSION, VERSION),
    )
    fields.end()
    return plan


def _bytes(value: object, what: str) -> int:
    return Fields({what: value}, "the plan").integer(what, 0, _MOST_BYTES)


def _function(data: object) -> FunctionPlan:
    fields = Fields(data, "a graph's entry")
    function = FunctionPlan(
        fingerprint=fields.name("fingerprint"),
        swaps=fields.each("swaps", _swap),
        order=fields.pairs("order"),
        reserve=fields.flag("reserve", False),
        predicted_peak_bytes=fields.integer("predicted_peak_bytes", 0, _MOST_BYTES, 0),
        predicted_step_ns=fields.integer("predicted_step_ns", 0, _MOST, 0),
        unswapped_peak_bytes=fields.integer("unswapped_peak_bytes", 0, _MOST_BYTES, 0),
        unswapped_step_ns=fields.integer("unswapped_step_ns", 0, _MOST, 0),
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
        ordinal=fields.integer("ordinal", 0, _MOST_ORDINAL),
        offset_bytes=fields.integer("offset_bytes", OUTSIDE, _MOST_BYTES),
        size_bytes=fields.integer("size_bytes", 1, _MOST_BYTES),
    )
    # The device reads slots as lines of fields with tabs between them.
    if not slot.op or any(c in slot.op for c in "\t\n\0"):
        raise ValueError(f"a slot is for {slot.op[:100]!r}, which is no op's name")
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
        next_use=fields.integer("next_use", -_MOST, _MOST, 0),
    )
    fields.end()
    return back


def _swap(data: object) -> TensorSwap:
    fields = Fields(data, "a swap")
    swap = TensorSwap(
        tensor=fields.name("tensor"),
        size_bytes=fields.integer("size_bytes", 0, _MOST_BYTES),
        gates=fields.names("gates"),
        returns=fields.each("returns", _return),
        lazy=fields.flag("lazy", False),
        tier=fields.name("tier", "host"),
        codec=fields.name("codec", ""),
        rate_percent=fields.integer("rate_percent", 1, 100, 100),
        threads=fields.integer("threads", 0, _MOST_THREADS, 1),
        device=fields.name("device", ""),
        after=fields.names("after", ()),
        returns_in_step=fields.flag("returns_in_step", False),
    )
    fields.end()
    return swap
