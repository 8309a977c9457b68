"""Inputs for the fuzzed parsers: the corpus, and mutations of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from hostile import changed, damaged

CORPUS = Path(__file__).resolve().parent / "corpus"


def corpus(name: str) -> list[Path]:
    """Return the files of a target's corpus, in order."""
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())


def mutants(name: str, is_json: bool, seed: int) -> Iterator[bytes]:
    """Yield endless mutations of a target's corpus, the same ones from the same seed."""
    dice = random.Random(f"{name} {seed}")
    good = [path.read_bytes() for path in corpus(name)]
    while True:
        data = dice.choice(good)
        times = dice.choice((1, 1, 2, 4, 16))
        if is_json and dice.random() < 0.8:
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                value = None
            if value is not None:
                text = json.dumps(changed(value, dice, times))
                yield text.encode("utf-8", "surrogatepass")
                continue
        yield damaged(data, dice, times)
