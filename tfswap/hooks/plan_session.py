"""PlanSession: pass plans to the graph pass through TensorFlow's config.

A plan is bytes in the parameter map of a custom Grappler optimizer. When the thread's function-call
options change, TensorFlow optimises traced functions again at their next call, without tracing
them. Public calls such as ``tf.config.optimizer.set_experimental_options`` drop the options
silently; `PlanSession.enter` detects that and installs the plan again, on top of the user's new
options.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tfswap.hooks.defer_sigint import defer_sigint
from tfswap.plan.schema import SwapPlan

OPTIMIZER = "tfswap"
# The entry that holds the options of TensorFlow's own passes; no optimizer has this name.
_PASSES = "tfswap_tensorflow_passes"


class PlanSession:
    """Install a plan in the config of one thread. Other threads are not affected.

    The plan is active from `push` until `leave` or `withdraw`; `enter` activates it again after
    `leave`.
    """

    def __init__(self) -> None:
        from tensorflow.python.eager import context

        self._context_module = context
        self._pushed: Any = None
        self._user_options: Any = None  # before the plan was added
        self._plan: SwapPlan | None = None
        self._fields: Mapping[str, Any] = {}

    def push(self, plan: SwapPlan, **fields: Any) -> str:
        """Install `plan` for every function that this thread calls from now on.

        A function that was optimised under the same text before keeps its graph from then.

        Args:
            plan: The plan.
            fields: More fields of the text; see `with_plan`.

        Returns:
            The text that the pass reads.
        """
        self._plan = plan
        self._fields = fields
        context = self._context_module.context()
        if not self.is_installed():
            self._user_options = context.function_call_options
        options = context.config
        if context.soft_device_placement is not False:
            options.allow_soft_placement = True
        text = with_plan(options, plan, **fields)
        _run_passes_through_the_pass(options)
        self._pushed = self._context_module.FunctionCallOptions(config_proto=options)
        context.function_call_options = self._pushed
        return text

    def enter(self) -> bool:
        """Activate the plan again; return whether the user's options had changed meanwhile."""
        context = self._context_module.context()
        if self._plan is None or self.is_installed():
            return False
        if context.function_call_options is not self._user_options:
            self.push(self._plan, **self._fields)
            return True
        context.function_call_options = self._pushed
        return False

    def leave(self) -> None:
        """Deactivate the plan, for calls that it is not for."""
        if self.is_installed():
            self._context_module.context().function_call_options = self._user_options

    def withdraw(self) -> None:
        """Remove the plan; functions run as without tfswap from now on."""
        if self.is_installed():
            # With None, TensorFlow makes the options again from the user's current settings.
            self._context_module.context().function_call_options = None
        self._pushed = None
        self._user_options = None
        self._plan = None

    def is_installed(self) -> bool:
        """Return whether the plan is active in this thread's config."""
        context = self._context_module.context()
        return self._pushed is not None and context.function_call_options is self._pushed


def forget_optimised(function: str) -> None:
    """Make TensorFlow release all optimised graphs of a function.

    For each config under which a function was called, TensorFlow keeps a graph with its kernels,
    threads and constants for the function's lifetime. The next call optimises the function again.

    Args:
        function: TensorFlow's name of the function; ignored if the function no longer exists.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    with defer_sigint():
        try:
            definition = context.get_function_def(function)
            context.remove_function(function)
        except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError):
            return  # it no longer exists
        context.add_function_def(definition)


def _run_passes_through_the_pass(config: Any) -> None:
    """Make tfswap the only optimizer: it runs TensorFlow's passes itself, once for each graph.

    See `tfswap/cc/grappler/tensorflow_passes.h`.
    """
    rewrites = config.graph_options.rewrite_options
    ours = [each for each in rewrites.custom_optimizers if each.name == OPTIMIZER]
    others = [each for each in rewrites.custom_optimizers if each.name != OPTIMIZER]
    passes = type(rewrites)()
    passes.CopyFrom(rewrites)
    del passes.custom_optimizers[:]
    passes.custom_optimizers.extend(others)
    only = type(rewrites)(
        optimizers=[OPTIMIZER],
        meta_optimizer_iterations=rewrites.ONE,
        disable_meta_optimizer=rewrites.disable_meta_optimizer,
        disable_tfg_optimizer=True,
        use_plugin_optimizers=rewrites.OFF,
        meta_optimizer_timeout_ms=rewrites.meta_optimizer_timeout_ms,
    )
    entry = only.custom_optimizers.add(name=_PASSES)
    entry.parameter_map["rewrite_options"].s = passes.SerializeToString(deterministic=True)
    only.custom_optimizers.extend(ours)
    rewrites.CopyFrom(only)


def with_plan(config: Any, plan: SwapPlan, **fields: Any) -> str:
    """Put a plan into a ``ConfigProto``, replacing a plan that is in it.

    Args:
        config: The ``ConfigProto``, which is changed.
        plan: The plan.
        fields: More fields of the text, as in `PlanSpec` (cc/grappler/swap_spec.h): `describe`,
            `label`, `remembered`, `leaves_fitting`, `examples`. Empty ones are left out.

    Returns:
        The text that the pass reads.
    """
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    for index in reversed(range(len(optimizers))):
        if optimizers[index].name == OPTIMIZER:
            del optimizers[index]
    optimizer = optimizers.add()
    optimizer.name = OPTIMIZER
    # Layouts are for the allocator, not for the pass.
    functions = tuple(dataclasses.replace(f, layouts=()) for f in plan.functions)
    data = dataclasses.replace(plan, functions=functions).to_data()
    data |= {name: value for name, value in sorted(fields.items()) if value}
    text = json.dumps(data)
    optimizer.parameter_map["plan"].s = text.encode()
    return text
