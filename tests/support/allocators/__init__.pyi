"""Types of the native module; ``cc/module.cc`` defines it."""

import numpy as np
from numpy.typing import NDArray

class Chain:
    """The device's allocators, composed by name from the outermost on.

    A context manager, which destroys them; blocks that are still allocated are then lost.

    Args:
        names: Such as "statistics recording slab budget system", each at most once; the last one is
            "system" or "bfc" (TensorFlow's own).
        budget_bytes: Of "budget"; also the size of "bfc".

    Raises:
        ValueError: The names do not make a chain.
    """

    names: str
    def __init__(self, names: str, budget_bytes: int) -> None: ...
    def __enter__(self) -> Chain: ...
    def __exit__(self, *error: object) -> None: ...
    def install(self, graph: str, text: str) -> None:
        """Install a layout (see `tfswap.addresses.layout.Layout.to_text`); "" removes the graph's.

        Raises:
            ValueError: The text is not a layout.
        """

    def allocate(
        self,
        size_bytes: int,
        alignment: int = 64,
        *,
        op: tuple[str, str, int] | None = None,
        retry: bool = True,
    ) -> int:
        """Return the address of a new block, 0 if it was refused.

        `op` is (graph, name, ordinal) of a planned output. `retry` is False for a workspace that a
        kernel can do without.
        """

    def free(self, address: int) -> None: ...
    def requested(self, address: int) -> int:
        """Return the requested size of a block in bytes."""

    def set_budget(self, budget_bytes: int) -> None: ...
    def set_workspace_limit(self, limit_bytes: int | None) -> None:
        """Limit allocations with `retry=False`."""

    def check(self, check: bool) -> None:
        """See `Library.check_slab`."""

    def stats(self) -> dict[str, int]: ...
    def replay(
        self, events: NDArray[np.int64], height: int, threads: int, repeats: int
    ) -> tuple[int, int]:
        """Replay a step on several threads; return the slowest one's ns, and refused allocations.

        `events`: int64[n, 3]; bytes (-1: a free), block, planned offset (-1: none). `height`: of
        the layout; the slots of each thread are this far above the previous one's.
        """

class BfcMemory:
    high_water_bytes: int
    """The end of the highest block so far."""

def serve_cpu_from_bfc(arena_bytes: int) -> BfcMemory:
    """Make CPU:0 allocate from TensorFlow's BFC allocator, under tfswap's budget.

    Raises:
        RuntimeError: TensorFlow has created its devices already.
    """
