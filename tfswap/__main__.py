"""``tfswap``, or ``python -m tfswap``: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from tfswap.activation import why_not_here

_COMMANDS = {
    "doctor": "Say whether tfswap works here, and how to fix what does not.",
    "run": "Run a training script, unchanged, within a hard device memory budget.",
    "profile": "Run a training script until one of its steps is profiled, and write the profile.",
    "plan": "Make a plan from a profile, for AutoSwap(plan=...) to use without profiling again.",
    "report": "Write a page about a plan: load, swaps, copies, waits and buffers of the step.",
    "simulate": "Predict peak memory and step time under budgets, for a recorded step or a model.",
    "broker": "Divide a device's memory among several training processes: AutoSwap(broker=...).",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    problem = why_not_here()
    if problem:
        print(problem, file=sys.stderr)
        return 1
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="tfswap", description="Train TensorFlow models inside a hard memory budget."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    command = None
    for name, summary in _COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name in arguments[:1]:  # the others are not imported
            command = import_module(f"tfswap.commands.{name}")
            command.add_arguments(subparser)
    options = parser.parse_args(arguments)
    assert command is not None
    return int(command.run(options))


if __name__ == "__main__":
    sys.exit(main())
