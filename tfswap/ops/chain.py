"""Chains of the device's allocators, made one by one: for tests and benchmarks."""

from __future__ import annotations

import ctypes
import json
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tfswap.ops import library
from tfswap.ops.signatures import take_text


class Chain:
    """Allocators by name, such as "statistics recording slab budget system", outermost first.

    Args:
        names: Each at most once; the last one is "system" or "bfc" (TensorFlow's own).
        budget_bytes: Of "budget", and all that "bfc" has.

    Raises:
        ValueError: It is no chain.
    """

    def __init__(self, names: str, budget_bytes: int) -> None:
        self._dll = library.load().dll
        self.names = tuple(names.split())
        problem = ctypes.c_void_p()
        self._chain = self._dll.tfswap_chain_make(
            names.encode(), budget_bytes, ctypes.byref(problem)
        )
        text = self._take(problem.value)
        if not self._chain:
            raise ValueError(text)

    def __enter__(self) -> Chain:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Blocks that are not freed yet are lost."""
        if self._chain:
            self._dll.tfswap_chain_destroy(self._chain)
            self._chain = None

    def install(self, graph: str, text: str) -> None:
        """A layout (see `tfswap.addresses.layout.Layout.to_text`); "" takes the graph's away.

        Raises:
            ValueError: It is none.
        """
        problem = self._take(
            self._dll.tfswap_chain_install(self._chain, graph.encode(), text.encode())
        )
        if problem:
            raise ValueError(problem)

    def allocate(
        self,
        size_bytes: int,
        alignment: int = 64,
        *,
        op: tuple[str, str, int] | None = None,
        retry: bool = True,
    ) -> int:
        """The address of a new block, 0 if it was refused.

        Args:
            size_bytes: Of the block.
            alignment: Of its address.
            op: (graph, name, ordinal) of a planned output.
            retry: False for a workspace that a kernel can do without.
        """
        graph, name, ordinal = op or ("", "", 0)
        address = self._dll.tfswap_chain_allocate(
            self._chain, graph.encode(), name.encode(), ordinal, alignment, size_bytes, int(retry)
        )
        return int(address or 0)

    def free(self, address: int) -> None:
        """Gives a block back."""
        self._dll.tfswap_chain_free(self._chain, address)

    def requested(self, address: int) -> int:
        """The bytes that were asked for."""
        return int(self._dll.tfswap_chain_requested(self._chain, address))

    def set_budget(self, budget_bytes: int) -> None:
        """Of the chain's "budget", if it has one."""
        self._dll.tfswap_chain_set_budget(self._chain, budget_bytes)

    def set_workspace_limit(self, limit_bytes: int | None) -> None:
        """Of allocations with `retry=False`; None takes the limit away."""
        limit = -1 if limit_bytes is None else limit_bytes
        self._dll.tfswap_chain_set_workspace_limit(self._chain, limit)

    def check(self, check: bool) -> None:
        """As `Library.check_slab`."""
        self._dll.tfswap_chain_check(self._chain, int(check))

    def stats(self) -> dict[str, int]:
        """What the chain's allocators count."""
        stats: dict[str, int] = json.loads(self._take(self._dll.tfswap_chain_stats(self._chain)))
        return stats

    def replay(
        self, events: NDArray[np.int64], height: int, threads: int, repeats: int
    ) -> tuple[int, int]:
        """Replays a step on several threads at once.

        Args:
            events: int64[n, 3]; bytes (-1: a free), block, planned offset (-1: none).
            height: Of the layout: each thread has its slots so much above the one before.
            threads: How many.
            repeats: How often each of them does it.

        Returns:
            Nanoseconds until the last thread was through, and how many allocations were refused.
        """
        failures = ctypes.c_int64()
        rows = np.ascontiguousarray(events, dtype=np.int64)
        ns = self._dll.tfswap_chain_replay(
            self._chain,
            rows.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            len(rows),
            height,
            threads,
            repeats,
            ctypes.byref(failures),
        )
        return int(ns), failures.value

    def _take(self, pointer: int | None) -> str:
        return take_text(pointer, self._dll.tfswap_free)
