"""Run a training script, unchanged, within a hard device memory budget."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tfswap.activation import activate
from tfswap.commands import script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--budget", default="auto", help="device memory budget (auto)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="another option of AutoSwap, such as policy=greedy; may be repeated",
    )
    script.add_arguments(
        parser, "a training script that uses model.fit, tf.function or sessions; runs unchanged"
    )


def run(options: argparse.Namespace) -> int:
    """Run the script and return 0, or print an error and return 1."""
    import tfswap
    from tfswap.options import from_text

    named: dict[str, Any] = {"budget": options.budget}
    try:
        activate()
        for assignment in options.set:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set must be OPTION=VALUE; got {assignment!r}")
            named[name] = from_text(f"--set {name}", name, text)
        script.check(options.script)
        tfswap.options.set(**named)
    except (ValueError, OSError, tfswap.LibraryError) as error:
        print(f"tfswap run: {error}", file=sys.stderr)
        return 1
    script.run_script(options.script, options.arguments)
    return 0
