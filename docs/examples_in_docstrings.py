"""Has griffe take "Example:" in docstrings, as Keras writes it, for its "Examples:": doctests."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

# Up to the next empty line, and not indented: `>>>` would be quotations of quotations.
_EXAMPLE = re.compile(r"^Example:\n((?:.+\n?)+)", re.MULTILINE)


class ExamplesInDocstrings(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Is called for whatever has been read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_as_section, obj.docstring.value)


def _as_section(example: re.Match[str]) -> str:
    return "Examples:\n" + textwrap.indent(example[1], "    ")
