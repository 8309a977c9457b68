"""SwapPlan as data: JSON round trips, and errors for invalid plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
returns = st.builds(Return, names, st.lists(names, max_size=3).map(tuple), st.integers(0, 9))
swaps = st.builds(
    TensorSwap,
    names,
    st.integers(0, 1 << 40),
    st.lists(names, max_size=2).map(tuple),
    st.lists(returns, max_size=3).map(tuple),
    st.booleans(),
)
functions = st.builds(
    FunctionPlan,
    names,
    st.lists(swaps, max_size=4, unique_by=lambda swap: swap.tensor).map(tuple),
    st.lists(st.tuples(names, names), max_size=3).map(tuple),
    st.booleans(),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
)
plans = st.builds(
    SwapPlan,
    st.lists(functions, max_size=3, unique_by=lambda function: function.fingerprint).map(tuple),
    st.none() | st.integers(1, 1 << 40),
    names,
    st.sampled_from(["leave", "bootstrap"]),
)


@given(plans)
def test_json_round_trips(plan):
    assert SwapPlan.from_json(plan.to_json()) == plan
    assert SwapPlan.from_json(plan.to_json(indent=2)) == plan


def test_save_and_load(tmp_path):
    plan = SwapPlan((FunctionPlan("0123456789abcdef"),), budget_bytes=5)
    plan.save(tmp_path / "plan.json")
    assert SwapPlan.load(tmp_path / "plan.json") == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "the plan is not JSON"),
        ("[]", "the plan is not a JSON object"),
        ('{"version": 99}', "version 99, this tfswap reads version 1"),
        ('{"version": 1}', "does not follow the schema"),
        ('{"version": 1, "functions": [], "surprise": 1}', "does not follow the schema"),
        ('{"version": 1, "functions": [], "unmatched": "guess"}', "allowed: leave, bootstrap"),
    ],
)
def test_invalid_plans_are_rejected(text, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        SwapPlan.from_json(text)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json: "):
        SwapPlan.load(tmp_path / "bad.json")


def test_an_unknown_codec_is_rejected():
    swap = TensorSwap("a:0", 1, (), (), tier="compressed", codec="zvc")
    text = SwapPlan((FunctionPlan("0123456789abcdef", (swap,)),)).to_json()
    assert SwapPlan.from_json(text).functions[0].swaps == (swap,)
    with pytest.raises(ValueError, match="'a:0': codec is 'zip'; allowed: zvc, .*, ans"):
        SwapPlan.from_json(text.replace('"zvc"', '"zip"'))


def test_two_swaps_of_one_tensor_are_rejected():
    swap = TensorSwap("a:0", 1, (), ())
    with pytest.raises(ValueError, match="two swaps of 'a:0'"):
        SwapPlan((FunctionPlan("f", (swap, swap)),))


def test_an_entry_replaces_the_graph_s_old_one():
    plan = SwapPlan((FunctionPlan("f"), FunctionPlan("g")))
    plan = plan.with_function(FunctionPlan("f", reserve=True))
    assert [function.fingerprint for function in plan.functions] == ["g", "f"]
    assert plan.function("f").reserve and plan.function("h") is None


def test_the_schema_has_the_keys_of_the_pass():
    """swap_spec.cc reads these keys."""
    plan = SwapPlan(
        (FunctionPlan("f", (TensorSwap("a:0", 1, ("g",), (Return("t", ("c",)),)),), (("x", "y"),)),)
    )
    data = json.loads(plan.to_json())
    assert {"version", "functions", "unmatched", "min_bytes"} <= data.keys()
    function = data["functions"][0]
    assert {"fingerprint", "swaps", "order", "reserve"} <= function.keys()
    assert function["order"] == [["x", "y"]]
    assert {"tensor", "lazy", "gates", "returns"} <= function["swaps"][0].keys()
    assert function["swaps"][0]["returns"] == [{"trigger": "t", "consumers": ["c"], "next_use": 0}]


@pytest.mark.parametrize("field, least", [("sections", 1), ("batch", 0)])
def test_sections_and_batch_must_be_integers(field, least):
    plan = SwapPlan(**{field: least}, chooses=True)
    assert SwapPlan.from_json(plan.to_json()) == plan
    for wrong in (least - 1, 1.5, "4"):
        with pytest.raises(ValueError, match=f"{field} is .*; it must be {least}"):
            SwapPlan(**{field: wrong})


@pytest.mark.parametrize(
    "budget_bytes, sections, min_bytes",
    [
        (None, 1, 1 << 20),
        (64 << 30, 1, 1 << 20),
        (4 << 30, 1, 1 << 18),
        (100 << 20, 1, 1 << 14),
        (1 << 20, 1, 1 << 14),
        (64 << 30, 4, 1 << 18),
        (4 << 30, 64, 1 << 17),
        (100 << 20, 64, 1 << 14),
    ],
)
def test_under_a_small_budget_smaller_tensors_are_swapped(
    budget_bytes: int | None, sections: int, min_bytes: int
) -> None:
    assert SwapPlan(budget_bytes=budget_bytes).in_sections(sections).min_bytes == min_bytes
