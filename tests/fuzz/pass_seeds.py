"""Write the graph for fuzzed plans in C++, and the first plans.

::

    python tests/fuzz/pass_seeds.py
"""

from __future__ import annotations

import json
from pathlib import Path

import tensorflow as tf

CORPUS = Path(__file__).resolve().parent / "corpus"
GRAPH = CORPUS / "graph.pb"
PLANS = CORPUS / "pass"

FINGERPRINT = "0123456789abcdef"
REMEMBERED = "remembered"
"""Prefix of the inputs that are files of remembered plans."""
LAYOUT = "layouta\t0\t0\t0\t4096\na\t0\t1\t-2\t64\n#\na\t0\t0\t1024\t2048\nb\t2\t3\t0\t9\n"

v1 = tf.compat.v1


def graph() -> tf.Graph:
    """Build a step with convolutions, variables, a branch and a loop, as executors see them."""
    v1.disable_control_flow_v2()
    made = tf.Graph()
    with made.as_default():
        x = v1.placeholder(tf.float32, [2, 8, 8, 3], name="x")
        w = v1.get_variable("w", [3, 3, 3, 4], use_resource=True)
        bias = v1.get_variable("bias", [4], use_resource=True)
        y = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], name="pad")
        y = tf.nn.bias_add(tf.nn.conv2d(y, w, 1, "VALID", name="conv"), bias, name="add")
        a = tf.nn.relu(y, name="a")
        b = tf.nn.max_pool2d(a, 2, 2, "VALID", name="b")
        flat = tf.reshape(b, [32, 4], name="flat")
        c = tf.matmul(flat, tf.ones([4, 4]), name="c")
        d = v1.cond(tf.reduce_sum(c) > 0, lambda: c * 2.0, lambda: tf.matmul(c, c[:4]) + 1.0)
        _, e = v1.while_loop(
            lambda i, _: i < 2, lambda i, z: (i + 1, tf.matmul(z, tf.ones([4, 4]))), [0, d]
        )
        loss = tf.reduce_sum(tf.matmul(flat, e, transpose_b=True, name="late"), name="loss")
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return made


def swap(tensor: str, consumers: list[str], trigger: str, **more: object) -> dict[str, object]:
    """Return the JSON of a swap in a plan."""
    returns = [{"trigger": trigger, "consumers": consumers, "next_use": 3}]
    return {"tensor": tensor, "size_bytes": 512, "gates": ["c"], "returns": returns, **more}


def plan(function: dict[str, object], **more: object) -> str:
    """Return a plan with one entry."""
    entry = {"fingerprint": FINGERPRINT, "reserve": False, **function}
    return json.dumps({"version": 1, "functions": [entry], "unmatched": "bootstrap", **more})


def main() -> None:
    """Write the graph and the plans."""
    PLANS.mkdir(parents=True, exist_ok=True)
    definition = graph().as_graph_def()
    keep = [node for node in definition.node if not node.name.startswith("save/")]
    pruned = v1.GraphDef(node=keep, versions=definition.versions)
    GRAPH.write_bytes(pruned.SerializeToString(deterministic=True))
    names = [node.name for node in keep]
    late = next(name for name in names if name.endswith("MatMul_grad/MatMul_1"))
    again = {"tensor": "c:0", "nodes": ["c"], "trigger": "d", "consumers": ["late"]}
    seeds = {
        "swap": plan({"swaps": [swap("flat:0", ["late"], "c")], "order": [["a", "c"]]}),
        "file": plan({"swaps": [swap("b:0", [], "", tier="file", threads=2)], "reserve": True}),
        "lossy": plan({"swaps": [swap("a:0", ["b"], "", codec="bfp", rate_percent=50)]}),
        "variable": plan({"swaps": [swap("w:0", [], "", after=["conv"], returns_in_step=True)]}),
        "again": plan(
            {"recomputes": [{**again, "trigger": late, "tensor": "a:0", "nodes": ["a"]}]}
        ),
        "cycle": plan({"order": [["c", "a"], ["a", "c"], ["a", "a"], ["loss", "x"]]}),
        "control": plan({"swaps": [swap("^a", ["b"], "")]}),
        "port": plan({"swaps": [swap("a:4294967295", ["b"], "")]}),
        "sections": plan({}, sections=4, batch=8, chooses=True, min_bytes=0, stream_weights=True),
        "nothing": '{"version": 1, "functions": []}',
        "layout": LAYOUT,
        "paths": json.dumps(
            {"version": 1, "functions": [], "remembered": {FINGERPRINT: "/nowhere/a.plan"}}
        ),
        "remembered": REMEMBERED
        + json.dumps({"plan": json.loads(plan({"swaps": [swap("flat:0", ["late"], "c")]}))}),
    }
    for name, text in seeds.items():
        (PLANS / name).write_text(text)


if __name__ == "__main__":
    main()
