"""Sizes that shape inference does not know, from those of other tensors."""

from __future__ import annotations

import pytest

from tfswap.cost_model.op_costs import step_costs

# The gradient of an addition whose shapes are only known at run time: name, op, flags, outputs and
# inputs; then the sizes of the outputs.
GRADIENT = """
left          Shape                  .  1
right         Shape                  .  1
axes          BroadcastGradientArgs  .  11  left:0 right:0
gradient      Mul                    .  1
sum           Sum                    .  1   gradient:0 axes:0
summed        Reshape                a  1   sum:0 left:0
other_sum     Sum                    .  1   gradient:0 axes:1
flat          Reshape                a  1   other_sum:0 right:0
other_summed  Squeeze                a  1   flat:0
"""
SIZES = {
    "left": [12],
    "right": [8],
    "axes": [-1, -1],
    "gradient": [4096],
    "sum": [-1],
    "summed": [4096],
    "other_sum": [-1],
    "flat": [-1],
    "other_summed": [1024],
}


def completed(**changes: list[int]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the gradient's tensors, some of them changed before."""
    lines = [
        "\t".join(map(str, [name, 1, *outputs])) for name, outputs in (SIZES | changes).items()
    ]
    nodes = []
    for line in GRADIENT.strip().splitlines():
        name, op, flags, outputs, *inputs = line.split()
        nodes.append("\t".join([name, op, "0", flags.strip("."), outputs, *inputs]))
    costs = step_costs("\n".join(lines), "\n".join(nodes)).costs
    return {name: cost.output_bytes for name, cost in costs.items()}


def test_axes_are_no_longer_than_the_longer_shape() -> None:
    assert completed()["axes"] == (12, 12)


def test_known_axes_stay() -> None:
    assert completed(axes=[4, 0])["axes"] == (4, 0)


def test_an_alias_of_known_shape_tells_what_was_summed() -> None:
    sizes = completed()
    assert sizes["sum"] == (4096,)
    assert sizes["other_sum"] == sizes["flat"] == sizes["other_summed"] == (1024,)


def test_a_known_input_tells_an_alias() -> None:
    assert completed(sum=[4096], summed=[-1])["summed"] == (4096,)


@pytest.mark.parametrize(
    ("unknown", "refused"), [("summed", "sum"), ("left", "left"), ("gradient", "gradient")]
)
def test_what_nothing_tells_is_refused(unknown: str, refused: str) -> None:
    with pytest.raises(ValueError, match=rf"the output size of {refused} \("):
        completed(**{unknown: [-1]})
