"""Format the reason of a training's end."""

from __future__ import annotations

_MAX_CHARACTERS = 800


def reason(said: str) -> str:
    """Return tfswap's message in a training's output, without the stack that TensorFlow adds.

    Without one: the last line after a traceback, or all output if there is none.
    """
    traced = said.rfind("Traceback")
    begin = said.rfind("tfswap: ", max(traced, 0))  # earlier lines are warnings
    if begin < 0 and traced < 0:
        return said
    lines = said[begin:].splitlines()[:1] if begin >= 0 else said.strip().splitlines()[-1:]
    return "".join(lines)[:_MAX_CHARACTERS]
