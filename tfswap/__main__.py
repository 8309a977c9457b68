"""``tfswap``, or ``python -m tfswap``: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tfswap.commands import broker, doctor, plan, profile, report, run, simulate

_COMMANDS = {
    "doctor": doctor,
    "run": run,
    "profile": profile,
    "plan": plan,
    "report": report,
    "simulate": simulate,
    "broker": broker,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="tfswap", description="Train TensorFlow models inside a hard memory budget."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in _COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        command.add_arguments(subparsers.add_parser(name, help=summary, description=summary))
    options = parser.parse_args(arguments)
    return int(_COMMANDS[options.command].run(options))


if __name__ == "__main__":
    sys.exit(main())
