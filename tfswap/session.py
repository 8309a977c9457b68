"""Plans into and out of TensorFlow's session config; the only user of its private interface.

The plan travels as bytes in the parameter map of a custom Grappler optimizer. Setting the
thread's function-call options has TensorFlow optimise the traced functions again at their
next call, without tracing them. Public calls such as
``tf.config.optimizer.set_experimental_options`` drop the options silently; `PlanSession.ensure`
notices and pushes again, on top of what the user has set.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tfswap.plan import SwapPlan

OPTIMIZER = "tfswap"


class PlanSession:
    """The config of one thread, with a plan in it. Other threads are left alone."""

    def __init__(self) -> None:
        from tensorflow.python.eager import context

        self._context_module = context
        self._pushed: Any = None
        self._plan: SwapPlan | None = None
        self._describe = False
        self._label = ""

    def push(self, plan: SwapPlan, describe: bool = False, label: str = "") -> str:
        """Has every function that this thread calls from now on optimised under `plan`.

        A function that was optimised under the same text before runs as it was then.

        Args:
            plan: The plan.
            describe: Whether the pass keeps descriptions of the graphs that it sees.
            label: Told apart by TensorFlow, of no meaning to the pass.

        Returns:
            The text that the pass is given.
        """
        self._plan = plan
        self._describe = describe
        self._label = label
        options = self._context_module.context().config
        if self._context_module.context().soft_device_placement is not False:
            options.allow_soft_placement = True
        optimizers = options.graph_options.rewrite_options.custom_optimizers
        for index in reversed(range(len(optimizers))):
            if optimizers[index].name == OPTIMIZER:
                del optimizers[index]
        optimizer = optimizers.add()
        optimizer.name = OPTIMIZER
        # Addresses are the allocator's business.
        functions = tuple(dataclasses.replace(f, layouts=()) for f in plan.functions)
        data = json.loads(dataclasses.replace(plan, functions=functions).to_json())
        data["describe"] = describe
        data["label"] = label
        text = json.dumps(data)
        optimizer.parameter_map["plan"].s = text.encode()
        self._pushed = self._context_module.FunctionCallOptions(config_proto=options)
        self._context_module.context().function_call_options = self._pushed
        return text

    def withdraw(self) -> None:
        """Takes the plan out of the config; functions run as without tfswap from now on."""
        if self._pushed is None:
            return
        context = self._context_module.context()
        if context.function_call_options is self._pushed:
            # None has TensorFlow make the options anew from what the user has set meanwhile.
            context.function_call_options = None
        self._pushed = None
        self._plan = None

    def in_force(self) -> bool:
        """Whether this thread's config still holds the plan."""
        context = self._context_module.context()
        return self._pushed is not None and context.function_call_options is self._pushed

    def ensure(self) -> bool:
        """Pushes the plan again if something has dropped it; says whether it had to."""
        if self._plan is None or self.in_force():
            return False
        self.push(self._plan, self._describe, self._label)
        return True
