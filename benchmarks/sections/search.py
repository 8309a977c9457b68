"""Search the limits of memory: the least budget that trains, and the largest image.

::

    budgets   possible * 1.02 ──▶ * 1.05 ──▶ * 1.05 ──▶ ...            until one trains

    images    256 ──▶ 512 ──▶ 1024 ──▶ 2048 too large
                                 └─▶ 1536 too large
                                 └─▶ 1280 ──▶ 1408 ...                 down to 64 px
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

MIB = 1 << 20

# A profile's least budget is exact to the byte, for one order of ops and unrounded blocks.
_ROOM = 1.02
_RISE = 1.05
_MAX_TRIES = 12

IMAGE_STEP = 64
_FIRST_IMAGE = 256


def rising_budgets(possible_bytes: int) -> Iterator[int]:
    """Yield budgets to try, in whole MiB, from just above the minimum.

    Args:
        possible_bytes: The minimum in the profile.
    """
    budget_mib = -(-possible_bytes * _ROOM // MIB)
    for _ in range(_MAX_TRIES):
        yield int(budget_mib) * MIB
        budget_mib = -(-budget_mib * _RISE // 1)


def largest_image(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest image that fits, a multiple of `IMAGE_STEP`; 0 if none does.

    Double until one does not fit, then bisect. No size is tried twice.

    Args:
        fits: Return whether an image of that many pixels fits; if one does not, larger ones do
            not either.
        limit: No larger image is tried.
    """
    top = limit // IMAGE_STEP
    below, too_large = 0, top + 1  # in steps
    doubles = True
    guess = min(_FIRST_IMAGE // IMAGE_STEP, top)
    while too_large - below > 1:
        if fits(guess * IMAGE_STEP):
            below = guess
        else:
            too_large, doubles = guess, False
        guess = min(2 * below, top) if doubles else (below + too_large) // 2
    return below * IMAGE_STEP
