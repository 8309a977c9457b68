"""vDNN: feature maps are copied out in their layer's forward pass and prefetched one layer ahead.

Source: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, "vDNN: Virtualized Deep Neural Networks for
Scalable, Memory-Efficient Neural Network Design", MICRO 2016, sections III.B and III.C. X is a
layer's input feature map.

* ``vdnn_all``: X of every convolution and pooling layer is offloaded; ``vdnn_conv``: of
  convolutions.
* ``vdnn_dyn``: none, then conv, then all: the first that fits. (The paper also chooses convolution
  algorithms. On a GPU they are fixed for the whole training, because other algorithms round
  differently: ``AutoSwap(workspace_limit=0)`` is its (m), no limit its (p). A CPU has no choice.)
* Forward: the next op waits until the copy-out has ended (both streams synchronise).
* Backward, before layer m: the next layer down that was offloaded and is not prefetched yet is
  prefetched; the search ends at the next convolution. The layer below waits for it.

A layer's X is identified by its readers in the backward pass: the gradient of a convolution's
filter, or of a pooling. It is released after its last reader in the forward pass. Departures: a
copy-out starts when its tensor is produced, not when its last forward reader starts. Classifier
layers (matrix products) are not offloaded, as in the paper.
"""

from __future__ import annotations

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, plan_over_budget
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, crosses_step_end

_CONVOLUTION_GRADIENTS = frozenset(
    {
        "Conv2DBackpropFilter",
        "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNativeBackpropFilter",
        "_MklNativeConv2DBackpropFilter",
        "_MklNativeConv3DBackpropFilterV2",
        "_MklNativeDepthwiseConv2dNativeBackpropFilter",
    }
)
_POOLING_GRADIENTS = frozenset(
    {
        "AvgPool3DGrad",
        "AvgPoolGrad",
        "MaxPool3DGrad",
        "MaxPoolGrad",
        "_MklNativeAvgPoolGrad",
        "_MklNativeMaxPoolGrad",
    }
)


def plan_all(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Plan with ``vdnn_all``. Arguments and errors as for `plan_dyn`."""
    return _within("vdnn_all", timeline, machine, budget_bytes, min_bytes)


def plan_conv(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Plan with ``vdnn_conv``. Arguments and errors as for `plan_dyn`."""
    return _within("vdnn_conv", timeline, machine, budget_bytes, min_bytes)


def plan_dyn(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Plan with ``vdnn_dyn``: the first of none, conv and all that fits.

    Args:
        timeline: one unswapped step, with the types of its ops.
        machine: speeds of the link.
        budget_bytes: upper limit of the load.
        min_bytes: smaller buffers are not swapped. Default 1 MiB (the paper has no such limit).

    Raises:
        BudgetTooSmall: if even ``vdnn_all`` needs more.
        ValueError: if the timeline has no op types.
    """
    unswapped = Decision("vdnn_dyn", (), simulate(timeline, (), machine))
    if unswapped.result.peak_bytes <= budget_bytes:
        return unswapped
    for policy in ("vdnn_conv", "vdnn_all"):
        decision = _offload(policy, timeline, machine, min_bytes)
        if decision.result.peak_bytes <= budget_bytes:
            return Decision("vdnn_dyn", decision.swaps, decision.result)
    raise plan_over_budget(timeline, budget_bytes, decision.result, "vdnn_dyn")


def _within(
    policy: str, timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int
) -> Decision:
    decision = _offload(policy, timeline, machine, min_bytes)
    if decision.result.peak_bytes > budget_bytes:
        raise plan_over_budget(timeline, budget_bytes, decision.result, policy)
    return decision


def _offload(policy: str, timeline: Timeline, machine: Link, min_bytes: int) -> Decision:
    if not timeline.op_types:
        raise ValueError(
            f"{policy} identifies layers by their op types, and this trace has none: use another "
            "policy, or a trace recorded by tfswap"
        )
    layers_with = _CONVOLUTION_GRADIENTS
    if policy == "vdnn_all":
        layers_with = layers_with | _POOLING_GRADIENTS
    # Layers in the order of the backward pass.
    layers = [
        op
        for op, kind in enumerate(timeline.op_types)
        if kind in _CONVOLUTION_GRADIENTS or kind in _POOLING_GRADIENTS
    ]
    layer_of = {timeline.op_names[op]: op for op in layers if timeline.op_types[op] in layers_with}
    left: dict[tuple[int, str], tuple[int, int]] = {}
    for index, absence in enumerate(timeline.absences):
        readers = [layer_of[name] for name in absence.consumers if name in layer_of]
        if not readers or timeline.buffer_bytes[absence.buffer] < min_bytes:
            continue
        # Once, after its last reader in the forward pass: later gaps are between gradients.
        if absence.after_op < layers[0] and not crosses_step_end(timeline, absence):
            left[absence.buffer, absence.tensor] = min(readers), index
    offloaded: dict[int, list[int]] = {}
    for layer, index in left.values():
        offloaded.setdefault(layer, []).append(index)
    prefetched_at = _prefetches(timeline, layers, set(offloaded))
    requests = [
        PlacementRequest(index, timeline.absences[index].after_op + 1, prefetched_at.get(layer))
        for layer, indices in offloaded.items()
        for index in indices
    ]
    swaps = swaps_for(timeline, requests)
    return Decision(policy, swaps, simulate(timeline, swaps, machine))


def _prefetches(timeline: Timeline, layers: list[int], offloaded: set[int]) -> dict[int, int]:
    """Return for each offloaded layer the layer before whose backward pass its X is prefetched."""
    prefetched_at: dict[int, int] = {}
    for place, layer in enumerate(layers):
        for below in layers[place + 1 :]:
            if below in offloaded and below not in prefetched_at:
                prefetched_at[below] = layer
                break
            if timeline.op_types[below] in _CONVOLUTION_GRADIENTS:
                break
    return prefetched_at
