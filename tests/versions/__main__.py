"""Run the tests against the oldest and the newest TensorFlow that tfswap supports.

    python tests/versions [--only 2.20 | --only nightly] [pytest's arguments]

Each gets a folder in ``build/versions``: the newest patch of that release, a copy of the sources
and its build. A release is supported once this passes: then it joins `supported_tensorflow` in
cmake/checks.cmake. The exit status is that of the first that fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests"))

from other_tensorflow import OtherTensorFlow  # noqa: E402

FOLDER = TREE / "build" / "versions"
TESTS = ("tests/unit", "tests/integration")


def supported() -> tuple[str, ...]:
    """Return releases, as ``major.minor``, from the oldest to the newest."""
    text = (TREE / "cmake" / "checks.cmake").read_text()
    found = re.search(r"^set\(supported_tensorflow (.*)\)$", text, re.MULTILINE)
    assert found is not None
    return tuple(found[1].split())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/versions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help="a release, supported or not yet, or nightly")
    options, for_pytest = parser.parse_known_args()
    all_of_them = supported()
    chosen = (
        [options.only] if options.only else list(dict.fromkeys((all_of_them[0], all_of_them[-1])))
    )
    for release in chosen:
        print(f"TensorFlow {release}:", flush=True)
        requirement = "tf-nightly" if release == "nightly" else f"tensorflow-cpu=={release}.*"
        other = OtherTensorFlow(FOLDER / release, requirement)
        failed = other.build() or other.run(
            *(sys.executable, "-m", "pytest", "-q", *(for_pytest or (*TESTS, "-m", "not slow")))
        )
        if failed:
            return failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
