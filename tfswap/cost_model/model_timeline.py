"""Predict the timeline of a step that has never run.

One stream runs the ops one after the other. A buffer is allocated at the start of its producer and
freed at the end of its last reader. Aliasing ops such as Reshape share their input's buffer;
elementwise ops reuse an input buffer of the same size that has no later reader. Variables are
resident, except in the floor with streamed weights. Workspaces of convolutions are unknown and not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tfswap.cost_model.op_costs import StepCosts, estimate_step
from tfswap.cost_model.schedule import single_stream_order
from tfswap.cost_model.traced_step import TracedStep
from tfswap.machine.machine import Device
from tfswap.step.op_floor import OpTimes, StepFloor, UsedBuffer, UsedVariable, step_floor
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, peak_load

# Ops without a kernel, or without one on the device.
_NO_KERNEL = frozenset(
    {"Const", "NoOp", "Placeholder", "ReadVariableOp", "VarHandleOp", "_Arg", "_Retval"}
)

# Inputs whose buffer a kernel may reuse for its output 0 if there is no later reader.
_FIRST = (0,)
_FIRST_TWO = (0, 1)
_IN_PLACE = {
    **dict.fromkeys(
        (
            "Abs BiasAdd Ceil Cos Elu Erf Exp Expm1 Floor FusedBatchNorm FusedBatchNormV2 "
            "FusedBatchNormV3 Inv LeakyRelu Log Log1p LogSoftmax Neg Reciprocal Relu Relu6 Round "
            "Rsqrt Selu Sigmoid Sign Sin Softmax Softplus Softsign Sqrt Square Tan Tanh"
        ).split(),
        _FIRST,
    ),
    **dict.fromkeys(
        (
            "Add AddV2 Div DivNoNan EluGrad FloorDiv FloorMod LeakyReluGrad Maximum Minimum Mul "
            "Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad "
            "SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference Sub TanhGrad Xdivy Xlogy"
        ).split(),
        _FIRST_TWO,
    ),
}


@dataclass(frozen=True)
class ModelStep:
    """A step for one batch size on one device.

    Args:
        timeline: The step under the pass's order edges.
        unswapped_peak_bytes: The peak in stock TensorFlow, where work on variables alone runs at
            the start of the step.
        batch: Examples in the batch; None: as many as the step was traced for.
        floor: What its largest op needs at once.
    """

    timeline: Timeline
    unswapped_peak_bytes: int
    batch: int | None
    floor: StepFloor


def model_step(
    step: TracedStep, batch: int | None, device: Device, min_bytes: int = 1 << 20
) -> ModelStep:
    """Return the step for a batch size.

    Args:
        step: The traced training step.
        batch: Examples in a batch; None: as many as it was traced for.
        device: The device that it would run on.
        min_bytes: Smaller tensors are not swapped.

    Raises:
        ValueError: The batch is not positive, or the step cannot be predicted without a run.
    """
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1; got {batch}")
    costs = estimate_step(step, batch, device)
    return _Layout(costs, step, device).step(batch, min_bytes)


class _Layout:
    """Assign times to ops and buffers to tensors."""

    def __init__(self, costs: StepCosts, step: TracedStep, device: Device) -> None:
        self.graph = costs.graph
        self._costs = costs
        nodes = self.graph.nodes
        order = single_stream_order(costs, step.creation)
        self.names = [n for n in order if nodes[n].op not in _NO_KERNEL and not nodes[n].alias]
        self.place = {name: i for i, name in enumerate(self.names)}
        durations = [max(costs.costs[n].duration_ns, device.launch_ns, 1) for n in self.names]
        self.end_ns = np.cumsum(durations, dtype=np.int64)
        self.start_ns = self.end_ns - np.array(durations, dtype=np.int64)
        self.resident_bytes = step.variable_bytes + sum(
            sum(costs.costs[name].output_bytes)
            for name, node in nodes.items()
            if node.op == "Const"
        )
        self._variables = step.variables
        self._returned = {self._root((name, 0)) for name in step.kept if name in nodes}
        self._readers: dict[tuple[str, int], list[int]] = {}
        for name in self.names:
            for tensor in nodes[name].inputs:
                self._readers.setdefault(self._root(tensor), []).append(self.place[name])
        self.bytes: list[int] = []
        self.alloc_ns: list[int] = []
        self.free_ns: list[int] = []
        self.users: list[list[int]] = []
        self.makers: list[int] = []
        self.buffer_of: dict[tuple[str, int], int] = {}
        for name in step.data:
            if name in nodes:
                self._make((name, 0), costs.costs[name].output_bytes[0], 0, -1)
        for place, name in enumerate(self.names):
            self._place_outputs(place, name)

    def _root(self, tensor: tuple[str, int]) -> tuple[str, int]:
        """Return the tensor that owns the buffer, following aliases."""
        while tensor[1] == 0 and self.graph.nodes[tensor[0]].alias:
            inputs = self.graph.nodes[tensor[0]].inputs
            if not inputs:
                break
            tensor = inputs[0]
        return tensor

    def _make(self, tensor: tuple[str, int], size_bytes: int, alloc_ns: int, maker: int) -> None:
        self.buffer_of[tensor] = len(self.bytes)
        self.makers.append(maker)
        self.bytes.append(size_bytes)
        self.alloc_ns.append(alloc_ns)
        self.users.append([])
        self.free_ns.append(0)
        self._use(tensor)

    def _use(self, tensor: tuple[str, int]) -> None:
        buffer = self.buffer_of[tensor]
        readers = self._readers.get(tensor, [])
        self.users[buffer] += readers
        if tensor in self._returned:
            self.free_ns[buffer] = OUTLIVES_STEP_NS
        elif readers:
            last = int(self.end_ns[max(readers)])
            self.free_ns[buffer] = max(self.free_ns[buffer], last)

    def _place_outputs(self, place: int, name: str) -> None:
        for port, size_bytes in enumerate(self._costs.costs[name].output_bytes):
            if size_bytes <= 0:
                continue
            tensor = (name, port)
            reused = self._reused_buffer(place, name, size_bytes) if port == 0 else None
            if reused is None:
                self._make(tensor, size_bytes, int(self.start_ns[place]), place)
            else:
                self.buffer_of[tensor] = reused
                self._use(tensor)
            buffer = self.buffer_of[tensor]
            self.users[buffer].append(place)
            self.free_ns[buffer] = max(self.free_ns[buffer], int(self.end_ns[place]))

    def _reused_buffer(self, place: int, name: str, size_bytes: int) -> int | None:
        """Return the input buffer that the op's output 0 reuses; None if there is none."""
        node = self.graph.nodes[name]
        allowed = range(len(node.inputs)) if node.op == "AddN" else _IN_PLACE.get(node.op, ())
        for i in allowed:
            if i >= len(node.inputs):
                continue
            buffer = self.buffer_of.get(self._root(node.inputs[i]))
            if (
                buffer is not None
                and self.bytes[buffer] == size_bytes
                and self.free_ns[buffer] == self.end_ns[place]
            ):
                return buffer
        return None

    def step(self, batch: int | None, min_bytes: int) -> ModelStep:
        nodes = self.graph.nodes
        timeline = Timeline(
            op_names=tuple(self.names),
            op_start_ns=self.start_ns,
            op_end_ns=self.end_ns,
            op_gateable=np.array([nodes[n].gateable for n in self.names], dtype=bool),
            op_context=np.array([nodes[n].context for n in self.names], dtype=np.int32),
            resident_bytes=self.resident_bytes,
            buffer_bytes=np.array(self.bytes, dtype=np.int64),
            buffer_alloc_ns=np.array(self.alloc_ns, dtype=np.int64),
            buffer_free_ns=np.array(self.free_ns, dtype=np.int64),
            absences=tuple(self._absences(min_bytes)),
            step_ns=int(self.end_ns[-1]) if self.names else 0,
            op_types=tuple(nodes[n].op for n in self.names),
        )
        floor = self._floor(timeline, min_bytes)
        return ModelStep(timeline, self._peak_without_delays(timeline), batch, floor)

    def _floor(self, timeline: Timeline, min_bytes: int) -> StepFloor:
        leaves: list[list[tuple[int, int]]] = [[] for _ in self.bytes]
        for absence in timeline.absences:
            gone_ns, back_ns = self.end_ns[absence.after_op], self.start_ns[absence.before_op]
            leaves[absence.buffer].append((int(gone_ns), int(back_ns)))
        rows = (self.bytes, self.users, self.makers, self.alloc_ns, self.free_ns, leaves)
        variables = [
            UsedVariable(size_bytes, self._users_of_variable(name))
            for name, size_bytes in self._variables.items()
            if name in self.graph.nodes and size_bytes >= min_bytes
        ]
        return step_floor(
            OpTimes(timeline.op_names, timeline.op_types, self.start_ns, self.end_ns),
            [UsedBuffer(*row) for row in zip(*rows, strict=True)],
            variables,
            {},
            self.resident_bytes - sum(variable.bytes for variable in variables),
        )

    def _users_of_variable(self, name: str) -> set[int]:
        """Return the ops that need a variable's value."""
        users: set[int] = set()
        for direct in self.graph.readers_through_aliases(name, 0):
            reads = self.graph.nodes[direct].op == "ReadVariableOp"
            names = self.graph.readers_through_aliases(direct, 0) if reads else (direct,)
            users |= {self.place[user] for user in names if user in self.place}
        return users

    def _absences(self, min_bytes: int) -> list[Absence]:
        absences: list[Absence] = []
        for tensor, buffer in self.buffer_of.items():
            node = self.graph.nodes[tensor[0]]
            # In a real run the data come from an iterator and can be swapped.
            swappable = node.producer or node.op == "Placeholder"
            if swappable and node.plain[tensor[1]] and self.bytes[buffer] >= min_bytes:
                absences += self._absences_of(tensor, buffer)
        return absences

    def _absences_of(self, tensor: tuple[str, int], buffer: int) -> list[Absence]:
        graph = self.graph
        context = graph.nodes[tensor[0]].context
        readers: list[int] = []
        for name in graph.readers_through_aliases(*tensor):
            node = graph.nodes[name]
            if name not in self.place or not node.rewirable or node.context != context:
                return []
            readers.append(self.place[name])
        readers.sort()
        producer = self.place.get(tensor[0], -1)
        uses = [producer, *readers] if producer >= 0 else readers
        used = set(uses)
        absences = []
        for i in range(1, len(uses)):
            after, before = uses[i - 1], uses[i]
            # No op runs in between that could use the memory.
            if before == after + 1:
                continue
            if any(after < u < before and u not in used for u in self.users[buffer]):
                continue
            absences.append(
                Absence(
                    buffer=buffer,
                    tensor=f"{tensor[0]}:{tensor[1]}",
                    producer_op=producer,
                    after_op=after,
                    before_op=before,
                    consumers=tuple(self.names[r] for r in uses[i:]),
                    context=context,
                )
            )
        return absences

    def _peak_without_delays(self, timeline: Timeline) -> int:
        alloc_ns = timeline.buffer_alloc_ns.copy()
        for _, delayed in self.graph.delays:
            buffer = self.buffer_of.get((delayed, 0))
            if buffer is not None:
                alloc_ns[buffer] = 0
        return peak_load(replace(timeline, buffer_alloc_ns=alloc_ns, absences=()))
