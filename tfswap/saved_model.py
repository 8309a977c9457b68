"""SavedModels that carry their budget and plan.

::

    tfswap.saved_model.save(model, path, plan=swap.report.plan)
    loaded = tfswap.saved_model.load(path)       or tf.saved_model.load(path)

Budget and plan are stored in a JSON asset, ``assets.extra/tfswap.json``, and, for runtimes without
Python, in the ``config_proto`` of the function calls in the model's graph. Where tfswap is
imported, functions of the model run under the budget, as in a `tfswap.Session`; a training
function uses the plan from its first call if the plan matches its graph, and is profiled
otherwise. Without tfswap the model loads as usual: TensorFlow ignores unknown graph optimizers.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from tfswap.devices.swap_options import SwapOptions, parse_options
from tfswap.devices.swap_session import SwapSession
from tfswap.hooks import saved_functions
from tfswap.hooks.plan_session import with_plan
from tfswap.io import private_files
from tfswap.io.untrusted_json import MAX_BYTES, Fields, parse_json
from tfswap.plan.schema import SwapPlan
from tfswap.training.function_runs import FunctionRuns

FORMAT = "tfswap saved model 1"
ASSET = Path("assets.extra") / "tfswap.json"
"""The asset's path in the model's folder."""

# The options that a model may store. No paths: a model file must not make its loader open others.
_SAVED_OPTIONS = (
    "budget",
    "policy",
    "host_limit",
    "planning_time_s",
    "slab",
    "workspace_limit",
    "codec",
)
# Limits how long an untrusted model can keep its loader planning.
_MAX_PLANNING_S = 600

# Options of the calls of `load` that are under way, the innermost last.
_given: list[dict[str, Any]] = []


def save(
    model: Any,
    path: str | os.PathLike[str],
    plan: SwapPlan | str | os.PathLike[str] | None = None,
    signatures: Any = None,
    **options: Any,
) -> None:
    """Save a model as `tf.saved_model.save` does, with its budget and plan.

    Args:
        model: A Keras model (without signatures it is saved by its `export`), or a `tf.Module`.
        path: The model's folder.
        plan: A `SwapPlan`, such as a report's, or the path of a saved one. None saves only the
            budget. Defaults to None.
        signatures: As for `tf.saved_model.save`.
        **options: Options of `AutoSwap` to use when the model is loaded: budget (defaults to the
            plan's), policy, host_limit, planning_time_s, slab, workspace_limit, codec.

    Raises:
        ValueError: An option is invalid or not one of these; nothing is saved.
        OSError: The folder cannot be written.
    """
    import tensorflow as tf

    unsupported = sorted(set(options) - set(_SAVED_OPTIONS))
    if unsupported:
        raise ValueError(
            f"a saved model cannot store the option {unsupported[0]!r}; it stores "
            f"{', '.join(_SAVED_OPTIONS)}"
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
    _store_plan_in_calls(Path(path) / "saved_model.pb", swap_plan)


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """Load a model as `tf.saved_model.load` does; its functions run under a budget.

    Args:
        path: The model's folder.
        **options: Options of `AutoSwap` that override the saved ones. `stream_weights` defaults to
            True for a model without a plan: weights that exceed the budget are swapped out and
            prefetched before their use.

    Raises:
        ValueError: An option is invalid, or the asset was not written by tfswap.
        OSError: The model does not exist.
    """
    import tensorflow as tf

    _given.append(options)
    try:
        return tf.saved_model.load(os.fspath(path))
    finally:
        _given.pop()


def options_of(
    path: str | os.PathLike[str], overrides: dict[str, Any] | None = None
) -> SwapOptions | None:
    """Return the options for a model, or None if it has none and there are no overrides.

    Args:
        path: The model's folder.
        overrides: Options that replace the saved ones.

    Raises:
        ValueError: The asset was not written by `save`.
    """
    asset = Path(path) / ASSET
    if not asset.is_file():
        return parse_options(**{"stream_weights": True, **overrides}) if overrides else None
    try:
        data = parse_json(private_files.read_bytes(asset, MAX_BYTES), "it")
    except ValueError as error:
        raise ValueError(f"{asset} is not a tfswap plan: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{asset} does not have the format {FORMAT!r}: save the model again")
    saved = data.get("options")
    if not isinstance(saved, dict) or set(saved) - set(_SAVED_OPTIONS):
        raise ValueError(f"{asset} has options that a saved model cannot store")
    try:
        if "planning_time_s" in saved:
            Fields(saved, "its options").number("planning_time_s", 0, _MAX_PLANNING_S)
        plan = SwapPlan.from_data(data.get("plan"))
        # A model without a plan is for inference, where weights take most of the memory.
        stream = {"stream_weights": not plan.functions}
        return parse_options(**{**stream, **saved, "plan": plan, **(overrides or {})})
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{asset}: {error}") from error


def _store_plan_in_calls(model: Path, plan: SwapPlan) -> None:
    """Make runtimes that have loaded the library optimise a model's function calls by the plan."""
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
    SwapSession.prepare_for_model()
    return None if options is None else FunctionRuns(options)
