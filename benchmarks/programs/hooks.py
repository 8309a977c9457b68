"""Has calls of others' methods go through ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Has calls of a method go through `wrapper`, which is given the method first, for good."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return wrapper(original, *arguments, **named)

    setattr(owner, name, wrapped)
