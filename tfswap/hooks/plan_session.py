"""Plans into and out of TensorFlow's session config.

Uses TensorFlow's private interface, as do `function_calls.py`, `everywhere.py` (Keras's too) and
`saved_functions.py`, and nothing else.

The plan travels as bytes in the parameter map of a custom Grappler optimizer. Setting the
thread's function-call options has TensorFlow optimise the traced functions again at their
next call, without tracing them. Public calls such as
``tf.config.optimizer.set_experimental_options`` drop the options silently; `PlanSession.enter`
notices and pushes again, on top of what the user has set.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tfswap.hooks.defer_sigint import defer_sigint
from tfswap.plan.schema import SwapPlan

OPTIMIZER = "tfswap"


class PlanSession:
    """The config of one thread, with a plan in it. Other threads are left alone.

    In force from `push` on until `leave` or `withdraw`, and again from `enter` on.
    """

    def __init__(self) -> None:
        from tensorflow.python.eager import context

        self._context_module = context
        self._pushed: Any = None
        self._under: Any = None  # the options that it was put on top of
        self._plan: SwapPlan | None = None
        self._describe = False
        self._label = ""
        self._remembered: Mapping[str, str] = {}

    def push(
        self,
        plan: SwapPlan,
        describe: bool = False,
        label: str = "",
        remembered: Mapping[str, str] | None = None,
    ) -> str:
        """Has every function that this thread calls from now on optimised under `plan`.

        A function that was optimised under the same text before runs as it was then.

        Args:
            plan: The plan.
            describe: Whether the pass keeps descriptions of the graphs that it sees.
            label: Told apart by TensorFlow, of no meaning to the pass.
            remembered: Paths of plan files by graph, which the pass executes for graphs without an
                entry in the plan.

        Returns:
            The text that the pass is given.
        """
        self._plan = plan
        self._describe = describe
        self._label = label
        self._remembered = dict(remembered or {})
        context = self._context_module.context()
        if not self.in_force():
            self._under = context.function_call_options
        options = context.config
        if context.soft_device_placement is not False:
            options.allow_soft_placement = True
        text = with_plan(options, plan, describe, label, self._remembered)
        self._pushed = self._context_module.FunctionCallOptions(config_proto=options)
        context.function_call_options = self._pushed
        return text

    def enter(self) -> bool:
        """Puts the plan in force if it is not; says whether the options under it had changed."""
        context = self._context_module.context()
        if self._plan is None or self.in_force():
            return False
        if context.function_call_options is not self._under:
            self.push(self._plan, self._describe, self._label, self._remembered)
            return True
        context.function_call_options = self._pushed
        return False

    def leave(self) -> None:
        """Takes the plan out of the config, for calls that are not meant."""
        if self.in_force():
            self._context_module.context().function_call_options = self._under

    def withdraw(self) -> None:
        """Takes the plan out of the config; functions run as without tfswap from now on."""
        if self.in_force():
            # None has TensorFlow make the options anew from what the user has set meanwhile.
            self._context_module.context().function_call_options = None
        self._pushed = None
        self._under = None
        self._plan = None

    def in_force(self) -> bool:
        """Whether this thread's config still holds the plan."""
        context = self._context_module.context()
        return self._pushed is not None and context.function_call_options is self._pushed


def forget_optimised(function: str) -> None:
    """Has TensorFlow let go of all that it has made of a function by optimising it.

    TensorFlow keeps a graph, with its kernels, their threads and constants, for each config under
    which a function was called, as long as there is the function. Its next call makes another one.

    Args:
        function: By the name that TensorFlow calls it by; one that is no more is passed over.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    with defer_sigint():
        try:
            definition = context.get_function_def(function)
            context.remove_function(function)
        except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError):
            return  # its owner has just let go of it
        context.add_function_def(definition)


def with_plan(
    config: Any,
    plan: SwapPlan,
    describe: bool = False,
    label: str = "",
    remembered: Mapping[str, str] | None = None,
) -> str:
    """Puts a plan into a ``ConfigProto``, instead of one that is in it.

    Args:
        config: Changed.
        plan: The plan.
        describe: Whether the pass keeps descriptions of the graphs that it sees.
        label: Told apart by TensorFlow, of no meaning to the pass.
        remembered: As of `PlanSession.push`.

    Returns:
        The text that the pass is given.
    """
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    for index in reversed(range(len(optimizers))):
        if optimizers[index].name == OPTIMIZER:
            del optimizers[index]
    optimizer = optimizers.add()
    optimizer.name = OPTIMIZER
    # Addresses are the allocator's business.
    functions = tuple(dataclasses.replace(f, layouts=()) for f in plan.functions)
    data = json.loads(dataclasses.replace(plan, functions=functions).to_json())
    data |= {"describe": describe, "label": label}
    if remembered:
        data["remembered"] = dict(sorted(remembered.items()))
    text = json.dumps(data)
    optimizer.parameter_map["plan"].s = text.encode()
    return text
