"""Renaming of plans for functions loaded from a SavedModel."""

from __future__ import annotations

from tfswap.plan.renaming import renamed
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.plan.slots import Slot

PLAN = FunctionPlan(
    "0" * 16,
    swaps=(TensorSwap("a/Relu_1:0", 8, ("b",), (Return("b", ("c", "d")), Return("", ("d",)))),),
    order=(("b", "tfswap/in/a/Relu_1_0/1"), ("tfswap/out/a/Relu_1_0", "c")),
    layouts=((Slot("tfswap/in/a/Relu_1_0/0", 0, 0, 64, 8), Slot("b", 0, 0, 0, 8)),),
    portable="1" * 16,
)
CALL = "StatefulPartitionedCall/"


def test_names_of_calls_are_added() -> None:
    nodes = ["a/Relu_1", "b", "c", "d", "e"]
    found = renamed(PLAN, "2" * 16, [f"{CALL}PartitionedCall_3/{name}" for name in nodes])
    assert found is not None
    inside = f"{CALL}PartitionedCall_3/"
    assert found.fingerprint == "2" * 16 and found.portable == PLAN.portable
    (swap,) = found.swaps
    assert swap.tensor == f"{inside}a/Relu_1:0" and swap.gates == (f"{inside}b",)
    assert swap.returns[0] == Return(f"{inside}b", (f"{inside}c", f"{inside}d"))
    assert swap.returns[1].trigger == ""
    assert found.order == (
        (f"{inside}b", f"tfswap/in/{inside}a/Relu_1_0/1"),
        (f"tfswap/out/{inside}a/Relu_1_0", f"{inside}c"),
    )
    assert [slot.op for slot in found.layouts[0]] == [
        f"tfswap/in/{inside}a/Relu_1_0/0",
        f"{inside}b",
    ]


def test_names_of_calls_are_removed() -> None:
    nodes = [f"{CALL}{name}" for name in ("a/Relu_1", "b", "c", "d")]
    loaded = renamed(PLAN, "2" * 16, nodes)
    assert loaded is not None
    assert renamed(loaded, PLAN.fingerprint, ["a/Relu_1", "b", "c", "d"]) == PLAN


def test_missing_and_ambiguous_nodes_make_no_plan() -> None:
    assert renamed(PLAN, "2" * 16, ["a/Relu_1", "b", "c"]) is None
    assert renamed(PLAN, "2" * 16, ["a/Relu_1", "b", "c", "d", f"{CALL}d"]) is None
    assert renamed(PLAN, "2" * 16, ["b", "c", "d"]) is None


def test_the_portable_fingerprint_is_saved() -> None:
    plan = SwapPlan((PLAN,))
    assert SwapPlan.from_json(plan.to_json()).functions[0].portable == PLAN.portable
