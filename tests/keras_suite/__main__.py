r"""Run Keras's own tests of training, stock and with `tfswap.AutoSwap` in every `fit`.

    python tests/keras_suite [--budget 4GiB] [pytest's arguments]

The tests are those of the installed Keras, from its source distribution, which is downloaded into
``build/keras``. Prints a JSON line for each case: case, budget, passed, failed, skipped, fits
(calls of `fit` under AutoSwap), swapped_out (tensors, in all of them), seconds, only_here (tests
that fail here and not in stock Keras). In the case "tight", everything that can move does
(tests/keras_suite/swap_in_every_fit.py). The exit status is 1 if a test fails only here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
FOLDER = TREE / "build" / "keras"
SITE = FOLDER / "site"
TESTS = ("trainers/trainer_test.py", "callbacks", "models")
# Keras's tests import these, whatever the backend.
IMPORTED = ("jax", "jaxlib", "opt_einsum")


def sources() -> Path:
    """Return the folder with the sources of the installed Keras."""
    version = metadata.version("keras")
    tree = FOLDER / f"keras-{version}"
    if not tree.exists():
        pip = (sys.executable, "-m", "pip", "--quiet")
        download = ("download", "--no-deps", "--no-binary", ":all:", "--dest", str(FOLDER))
        subprocess.run([*pip, *download, f"keras=={version}"], check=True)
        with tarfile.open(FOLDER / f"keras-{version}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    if not SITE.exists():
        pip = (sys.executable, "-m", "pip", "--quiet")
        subprocess.run([*pip, "install", "--no-deps", "--target", str(SITE), *IMPORTED], check=True)
    return tree


def run(case: str, budget: str, arguments: list[str]) -> dict[str, Any]:
    """Run the tests; return counts, and the failures by name."""
    tree, results, counts = sources(), FOLDER / f"{case}.xml", FOLDER / f"{case}.counts"
    counts.unlink(missing_ok=True)
    paths = (str(Path(__file__).parent), str(tree), str(SITE), str(TREE))
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_TESTS_BUDGET": budget,
        "KERAS_TESTS_COUNTS": str(counts),
        "TFSWAP_PLAN_CACHE": "none",
    }
    begun_s = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "swap_in_every_fit"),
            *("-p", "no:cacheprovider", "--continue-on-collection-errors"),
            f"--junitxml={results}",
            *(str(tree / "keras" / "src" / test) for test in TESTS),
            *arguments,
        ],
        cwd=tree,
        env=environment,
        stdout=sys.stderr,
        check=False,
    )
    found: dict[str, Any] = {"passed": 0, "skipped": 0, "failures": set()}
    for test in ElementTree.parse(results).iter("testcase"):
        outcomes = {child.tag for child in test}
        if outcomes & {"failure", "error"}:
            found["failures"].add(f"{test.get('classname')}.{test.get('name')}")
        else:
            found["skipped" if "skipped" in outcomes else "passed"] += 1
    if counts.exists():
        workers = [line.split() for line in counts.read_text().splitlines()]
        for place, name in enumerate(("fits", "swapped_out")):
            found[name] = sum(int(each[place]) for each in workers)
    return {**found, "seconds": round(time.monotonic() - begun_s)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/keras_suite", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--budget", default="4GiB", help="of each fit (4GiB)")
    options, arguments = parser.parse_known_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    stock: set[str] | None = None
    only_here: list[str] = []
    for case, budget in (("stock", ""), ("fits", options.budget), ("tight", "tight")):
        found = run(case, budget, arguments)
        failures = found.pop("failures")
        stock = failures if stock is None else stock
        only_here += sorted(failures - stock)
        counts = {"case": case, "budget": budget or None, "failed": len(failures), **found}
        print(json.dumps({**counts, "only_here": sorted(failures - stock)}), flush=True)
    return int(bool(only_here))


if __name__ == "__main__":
    sys.exit(main())
