"""ModelBytes: what a model keeps in device memory, and whether its variables should leave."""

from __future__ import annotations

from dataclasses import dataclass

# Variables leave that need more than this part of what the budget leaves to their model ...
_LARGE = 0.5
# ... or this part and, together with the values of ops that run at once, all of it. Two ops run at
# once, each with its largest value as an input, an output and a gradient.
_SMALL, _VALUES_AT_ONCE = 0.1, 6


@dataclass(frozen=True)
class ModelBytes:
    """Sizes of a model.

    Attributes:
        variables: Bytes of its variables and its optimizer's.
        dequantized: The most bytes that a step makes of quantized ones. Unless weights are
            streamed, all of it may be made when the step begins.
        largest_output: Bytes of the largest output of one of its layers; 0: unknown.
    """

    variables: int
    dequantized: int = 0
    largest_output: int = 0

    def leave_too_little(self, free_bytes: int) -> bool:
        """Return whether variables that stay leave too little room for the rest of a step.

        Args:
            free_bytes: What the budget leaves to the model.
        """
        if self.variables + self.dequantized > _LARGE * free_bytes:
            return True
        at_once = _VALUES_AT_ONCE * self.largest_output
        return self.variables >= _SMALL * free_bytes and self.variables + at_once > free_bytes
