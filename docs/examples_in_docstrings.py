"""Make griffe read "Example:" in docstrings, as Keras writes it, as its "Examples:" section."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

# Up to the next empty line, not indented: an indented `>>>` would become a nested quotation.
_EXAMPLE = re.compile(r"^Example:\n((?:.+\n?)+)", re.MULTILINE)


class ExamplesInDocstrings(griffe.Extension):
    """Rewrites docstrings as griffe reads them."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_as_section, obj.docstring.value)


def _as_section(example: re.Match[str]) -> str:
    return "Examples:\n" + textwrap.indent(example[1], "    ")
