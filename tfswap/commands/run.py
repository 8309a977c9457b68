"""Run a training script, unchanged, inside a hard budget of device memory."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tfswap.commands import script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--budget", default="auto", help="cap on the device's memory (auto)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="another option of AutoSwap, such as policy=greedy; again for more",
    )
    script.add_arguments(parser, "trains with model.fit, tf.functions, or sessions; unchanged")


def run(options: argparse.Namespace) -> int:
    """Runs the script; 0, or 1 with a word on what is wrong."""
    import tfswap  # before TensorFlow's first operation
    from tfswap.options import from_text

    named: dict[str, Any] = {"budget": options.budget}
    try:
        for assignment in options.set:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set {assignment}: write it as OPTION=VALUE")
            named[name] = from_text(f"--set {name}", name, text)
        script.check(options.script)
        tfswap.options.set(**named)
    except (ValueError, OSError, tfswap.LibraryError) as error:
        print(f"tfswap run: {error}", file=sys.stderr)
        return 1
    script.run_script(options.script, options.arguments)
    return 0
