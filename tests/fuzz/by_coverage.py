"""Fuzz one of the Python targets, guided by coverage, with atheris (libFuzzer).

::

    python tests/fuzz/by_coverage.py plan FOUND_FOLDER CORPUS_FOLDER -max_total_time=60

New inputs are written to the first folder. The process fails at the first input that a parser
neither accepts nor refuses; libFuzzer names the file with the input.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import atheris
from hostile import changed

with atheris.instrument_imports(include=["tfswap"]):
    import targets


def main() -> None:
    """Run libFuzzer, which ends the process."""
    name, *arguments = sys.argv[1:]

    def test(data: bytes) -> None:
        targets.run(name, data)

    def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if dice.random() < 0.5:
            try:
                text = json.dumps(changed(json.loads(data), dice, dice.choice((1, 1, 2, 4))))
                return text.encode("utf-8", "surrogatepass")[:most_bytes]
            except (ValueError, RecursionError):
                pass
        mutated: bytes = atheris.Mutate(data, most_bytes)
        return mutated

    custom = {"custom_mutator": mutate} if name in targets.JSON else {}
    atheris.Setup([str(Path(__file__)), *arguments], test, **custom)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
