"""Convert swaps between the pass's form (by tensor) and the simulator's form (by absence)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tfswap.machine import codecs
from tfswap.machine.far_tier import FILE
from tfswap.plan.schema import FunctionPlan, Return, TensorSwap
from tfswap.planning.planners.assignment import Place
from tfswap.planning.planners.lossy_rate import MAX_RATE
from tfswap.planning.simulator import Swap
from tfswap.step.profile import Profile
from tfswap.step.timeline import Absence, crosses_step_end


def tensor_swaps(
    profile: Profile, swaps: tuple[Swap, ...], places: Mapping[str, Place]
) -> tuple[TensorSwap, ...]:
    """Return a planner's swaps in the pass's form: by tensor, with names instead of indices."""
    timeline = profile.timeline
    chosen: dict[str, list[tuple[Absence, Swap]]] = defaultdict(list)
    for swap in sorted(swaps):
        absence = timeline.absences[swap.absence]
        chosen[absence.tensor].append((absence, swap))
    starts_ns = dict(zip(timeline.op_names, timeline.op_start_ns.tolist(), strict=True))
    written: list[TensorSwap] = []
    for tensor, absences in sorted(chosen.items()):
        if absences[0][0].of_variable:
            written += (
                _variable_swap(profile, *each, places[tensor], starts_ns) for each in absences
            )
        else:
            written.append(_tensor_swap(profile, tensor, absences, places[tensor]))
    return tuple(written)


def _variable_swap(
    profile: Profile, absence: Absence, swap: Swap, place: Place, starts_ns: Mapping[str, int]
) -> TensorSwap:
    """Return a variable's swap, which returns in this step, in the next one or at its end.

    Edges cannot cross steps. An op that needs the value, or its memory, waits for the copy anyway;
    edges only avoid waits that block a thread. Reads that began before the trigger ended get no
    edge, which could close a cycle.
    """
    timeline = profile.timeline
    crosses = crosses_step_end(timeline, absence)
    after_ns = timeline.op_end_ns[absence.after_op]
    trigger_ns = timeline.op_end_ns[swap.trigger_op] if swap.trigger_op >= 0 else after_ns
    gated = swap.gate_op >= 0 and bool(timeline.op_start_ns[swap.gate_op] >= after_ns)
    back = Return(
        trigger=timeline.op_names[swap.trigger_op] if swap.trigger_op >= 0 else "",
        consumers=tuple(c for c in absence.consumers if starts_ns.get(c, -1) >= trigger_ns),
    )
    return TensorSwap(
        absence.tensor,
        int(timeline.buffer_bytes[absence.buffer]),
        (timeline.op_names[swap.gate_op],) if gated else (),
        (back,),
        tier=place.tier,
        codec=place.codec,
        threads=place.threads,
        after=absence.users,
        returns_in_step=not crosses or bool(trigger_ns >= after_ns),
    )


def _tensor_swap(
    profile: Profile, tensor: str, chosen: list[tuple[Absence, Swap]], place: Place
) -> TensorSwap:
    timeline = profile.timeline
    returns = []
    for i, (absence, swap) in enumerate(chosen):
        later = set(chosen[i + 1][0].consumers) if i + 1 < len(chosen) else set()
        returns.append(
            Return(
                trigger=timeline.op_names[swap.trigger_op] if swap.trigger_op >= 0 else "",
                consumers=tuple(name for name in absence.consumers if name not in later),
            )
        )
    gates = tuple(timeline.op_names[swap.gate_op] for _, swap in chosen if swap.gate_op >= 0)
    size_bytes = int(timeline.buffer_bytes[chosen[0][0].buffer])
    rate_percent = round(MAX_RATE * place.ratio) if place.codec in codecs.LOSSY else MAX_RATE
    return TensorSwap(
        tensor,
        size_bytes,
        gates,
        tuple(returns),
        tier=place.tier,
        codec=place.codec,
        threads=place.threads,
        rate_percent=rate_percent,
    )


def planned_swaps(
    profile: Profile, function: FunctionPlan
) -> tuple[tuple[Swap, ...], dict[str, Place]]:
    """Return a plan's swaps in the simulator's form: the inverse of `tensor_swaps`.

    Swaps of other devices than the profiled one are left out. A plan does not record how far
    lossless codecs compress a tensor, so such tensors count with their full size; lossy codecs
    count with their rate.

    Raises:
        ValueError: The plan is for another graph, or names a tensor or op that is not in the
            profile.
    """
    timeline = profile.timeline
    if function.fingerprint != profile.fingerprint:
        raise ValueError(
            f"the plan is for the graph {function.fingerprint}, the profile of "
            f"{profile.fingerprint}"
        )
    ops = {name: op for op, name in enumerate(timeline.op_names)}
    by_tensor: dict[str, list[int]] = defaultdict(list)
    for place, absence in enumerate(timeline.absences):
        by_tensor[absence.tensor].append(place)
    swaps, places = [], {}
    for swap in function.swaps:
        if swap.device:
            continue
        ratio = swap.rate_percent / MAX_RATE
        places[swap.tensor] = Place(swap.tier, swap.codec, ratio, swap.threads)
        gates = list(swap.gates)
        for back in swap.returns:
            if swap.after:
                found = next(
                    (p for p in by_tensor[swap.tensor] if timeline.absences[p].users == swap.after),
                    None,
                )
            else:
                found = _absence_of(profile, by_tensor[swap.tensor], set(back.consumers))
            if found is None:
                raise ValueError(f"the profile has no absence of {swap.tensor!r} for the plan")
            gate, trigger = (gates.pop(0) if gates else ""), back.trigger
            unknown = [name for name in (gate, trigger) if name and name not in ops]
            if unknown:
                raise ValueError(f"the profile has no op {unknown[0]!r} that the plan names")
            swaps.append(
                Swap(
                    found,
                    ops[gate] if gate else -1,
                    ops[trigger] if trigger else -1,
                    tier=int(swap.tier == FILE),
                    far_bytes=round(ratio * swap.size_bytes),
                )
            )
    return tuple(sorted(swaps)), places


def _absence_of(profile: Profile, places: list[int], consumers: set[str]) -> int | None:
    """Return the absence of one tensor that ends with these consumers; None if there is none."""
    ended = [
        place for place in places if consumers & set(profile.timeline.absences[place].consumers)
    ]
    # Consumers of a later absence are among those of the ones before it.
    return max(ended, default=None)
