"""Why a training ended, as it is shown."""

from __future__ import annotations

_MAX_CHARACTERS = 800


def reason(said: str) -> str:
    """What tfswap said, of what a training wrote, without the stack that TensorFlow puts around it.

    Without one: the last line behind a traceback, or all of it if there is none.
    """
    traced = said.rfind("Traceback")
    begin = said.rfind("tfswap: ", max(traced, 0))  # what is before it are warnings
    if begin < 0 and traced < 0:
        return said
    lines = said[begin:].splitlines()[:1] if begin >= 0 else said.strip().splitlines()[-1:]
    return "".join(lines)[:_MAX_CHARACTERS]
