"""SavedModels that carry their budget and plan.

::

    tfswap.saved_model.save(model, path, plan=swap.report.plan)
    loaded = tfswap.saved_model.load(path)       or tf.saved_model.load(path)

Budget and plan are in a readable asset, ``assets.extra/tfswap.json``, and in the ``config_proto``
of the calls in the model's graph, for runtimes without Python. Where tfswap has been imported,
functions of such a model run under the budget, as in a `tfswap.Session`; one that trains has its
plan at once if its graph is the one that the plan was made for, and is profiled otherwise. Without
tfswap the model is as any other: TensorFlow passes over an optimizer that it does not know.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from tfswap.hooks import saved_functions
from tfswap.hooks.plan_session import with_plan
from tfswap.io import private_files
from tfswap.io.untrusted_json import MOST_BYTES, Fields, parse_json
from tfswap.plan.schema import SwapPlan
from tfswap.training.function_runs import FunctionRuns
from tfswap.training.swap_options import SwapOptions, parse_options
from tfswap.training.swap_session import SwapSession

FORMAT = "tfswap saved model 1"
ASSET = Path("assets.extra") / "tfswap.json"
"""Below the model's folder."""

# What a model may ask of the process that loads it. No paths: what is in a file opens no other.
_KEPT = ("budget", "policy", "host_limit", "planning_time_s", "slab", "workspace_limit", "codec")
# A model may not have who loads it plan for ever.
_LONGEST_PLANNING_S = 600

# Options of the calls of `load` that are under way, the innermost last.
_given: list[dict[str, Any]] = []


def save(
    model: Any,
    path: str | os.PathLike[str],
    plan: SwapPlan | str | os.PathLike[str] | None = None,
    signatures: Any = None,
    **options: Any,
) -> None:
    """Saves a model as `tf.saved_model.save` does, with its budget and plan.

    Args:
        model: A Keras model (its `export` is called, if there are no signatures), or a `tf.Module`.
        path: Of the model's folder.
        plan: A `SwapPlan`, such as a report's, or the path of a saved one. Defaults to None: only
            the budget is kept.
        signatures: As for `tf.saved_model.save`.
        **options: Of `AutoSwap`, for whoever loads the model: budget (the plan's if left out),
            policy, host_limit, planning_time_s, slab, workspace_limit, codec.

    Raises:
        ValueError: An option is none of those, or none of what is allowed; nothing is saved then.
        OSError: The folder cannot be written.
    """
    import tensorflow as tf

    strange = sorted(set(options) - set(_KEPT))
    if strange:
        raise ValueError(
            f"a saved model keeps no option {strange[0]!r}: there are {', '.join(_KEPT)}"
        )
    parsed = parse_options(plan=plan, **options)
    if "budget" not in options and parsed.plan is not None and parsed.plan.budget_bytes:
        options["budget"] = parsed.plan.budget_bytes
    swap_plan = parsed.plan or SwapPlan()
    if signatures is None and hasattr(model, "export") and hasattr(model, "layers"):
        model.export(os.fspath(path), verbose=False)
    else:
        tf.saved_model.save(model, os.fspath(path), signatures=signatures)
    data = {"format": FORMAT, "options": options, "plan": json.loads(swap_plan.to_json())}
    asset = Path(path) / ASSET
    asset.parent.mkdir(exist_ok=True)
    private_files.write_bytes(asset, (json.dumps(data, indent=1) + "\n").encode())
    _put_into_calls(Path(path) / "saved_model.pb", swap_plan)


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """Loads a model as `tf.saved_model.load` does; its functions run under a budget.

    Args:
        path: Of the model's folder.
        **options: As of `AutoSwap`, instead of those that were saved with the model. Weights that
            the budget has no room for leave for far memory and are fetched ahead of their use
            (`stream_weights`, which is True by default for a model that has no plan).

    Raises:
        ValueError: An option is none of what is allowed; what was saved is not tfswap's.
        OSError: There is no such model.
    """
    import tensorflow as tf

    _given.append(options)
    try:
        return tf.saved_model.load(os.fspath(path))
    finally:
        _given.pop()


def options_of(
    path: str | os.PathLike[str], others: dict[str, Any] | None = None
) -> SwapOptions | None:
    """What was saved with a model; None if nothing was and there are no others.

    Args:
        path: Of its folder.
        others: Instead of those that were saved.

    Raises:
        ValueError: The asset is not what `save` writes.
    """
    asset = Path(path) / ASSET
    if not asset.is_file():
        return parse_options(**{"stream_weights": True, **others}) if others else None
    try:
        data = parse_json(private_files.read_bytes(asset, MOST_BYTES), "it")
    except ValueError as error:
        raise ValueError(f"{asset} is no plan of tfswap: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{asset} has another format than {FORMAT!r}: save the model again")
    saved = data.get("options")
    if not isinstance(saved, dict) or set(saved) - set(_KEPT):
        raise ValueError(f"{asset}: its options are not those that a model may have")
    try:
        if "planning_time_s" in saved:
            Fields(saved, "its options").number("planning_time_s", 0, _LONGEST_PLANNING_S)
        plan = SwapPlan.from_data(data.get("plan"))
        # A model without a plan is not trained: what it is short of is room for weights.
        stream = {"stream_weights": not plan.functions}
        return parse_options(**{**stream, **saved, "plan": plan, **(others or {})})
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{asset}: {error}") from error


def _put_into_calls(model: Path, plan: SwapPlan) -> None:
    """Has the calls in a model's graphs be optimised under the plan where the library is loaded."""
    from tensorflow.core.protobuf import config_pb2, saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(model.read_bytes())
    for graph in (meta_graph.graph_def for meta_graph in saved.meta_graphs):
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        for node in (node for body in bodies for node in body):
            if node.op not in ("PartitionedCall", "StatefulPartitionedCall"):
                continue
            config = config_pb2.ConfigProto()
            config.ParseFromString(node.attr["config_proto"].s)
            with_plan(config, SwapPlan(plan.functions, unmatched="bootstrap"))
            node.attr["config_proto"].s = config.SerializeToString(deterministic=True)
    private_files.write_bytes(model, saved.SerializeToString(deterministic=True))


def install() -> None:
    """Make `tf.saved_model.load` look for what was saved; done when tfswap is imported."""
    saved_functions.install(_runs_of)


def _runs_of(folder: str) -> FunctionRuns | None:
    """Return what the functions of the model in `folder` run under; None: without a budget."""
    try:
        options = options_of(folder, _given[-1] if _given else None)
    except ValueError as error:
        if _given:
            raise
        warnings.warn(f"tfswap: the model runs without its plan: {error}", stacklevel=2)
        options = None
    # All weights are read at once, for which an idle budget may have no room.
    SwapSession.let_go_if_idle()
    return None if options is None else FunctionRuns(options)
