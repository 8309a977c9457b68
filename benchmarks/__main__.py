r"""Run every benchmark that this machine can run, with its baseline, and write one document.

    python -m benchmarks [--quick] [--only allocator,jobs] [--scripts FOLDER] [--document-only]

JSON lines go to build/bench/<benchmark>.jsonl, progress to <benchmark>.log, and docs/benchmarks.md
with its pictures is made from the existing files: with ``--document-only`` it is made again without
measuring; a benchmark without lines keeps its section. The document names benchmarks that fail or
exceed their time limit; their lines so far stay. ``--quick``: small models, under ten minutes in
all. ``--scripts``: a checkout of Keras, to run its programs.

The exit status is 1 if a figure in `expected.json` (peaks, predictions, bits: of quick runs) does
not hold, or if a benchmark failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import expectations
from benchmarks.benchmark import Benchmark
from benchmarks.catalog import named
from benchmarks.document import document
from benchmarks.measurements import Measured, load, measure
from benchmarks.one_case import TREE

FOLDER = TREE / "build" / "bench"
PAGE = TREE / "docs" / "benchmarks.md"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small models, under ten minutes")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        help="which, with commas (all)",
    )
    parser.add_argument("--scripts", type=Path, help="a checkout of Keras, for `programs`")
    parser.add_argument(
        "--document-only", action="store_true", help="measures nothing; of what was measured"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of JSON lines (build/bench)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the document (docs/benchmarks.md)")
    options = parser.parse_args(arguments)
    try:
        options.benchmarks = named(options.only)
    except ValueError as error:
        parser.error(str(error))
    return options


def why_not(benchmark: Benchmark, options: argparse.Namespace) -> str:
    """Return why a benchmark is not run here; "" if it is."""
    if not benchmark.exists:
        return "there is no such benchmark yet"
    if options.quick and not benchmark.quick:
        return "it is not among the quick ones"
    if benchmark.needs_scripts and options.scripts is None:
        return "it needs --scripts, a checkout of Keras"
    if benchmark.needs_root and os.geteuid() != 0:
        return "it needs root, for a cgroup and a swap file"
    return ""


def run(benchmark: Benchmark, options: argparse.Namespace) -> Measured:
    """Run a benchmark as the options say."""
    more = ["--scripts", str(options.scripts.resolve())] if benchmark.needs_scripts else []
    print(f"{benchmark.name} ...", end=" ", file=sys.stderr, flush=True)
    found = measure(benchmark, options.quick, options.folder, more)
    problems = [each.problem for each in found.runs if each.problem]
    seconds = sum(each.seconds for each in found.runs)
    ended = "; ".join(problems) or f"{len(found.lines)} lines"
    print(f"{ended}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the document."""
    options = parse(arguments)
    measured: list[tuple[Benchmark, Measured]] = []
    left_out: dict[str, str] = {}
    for benchmark in options.benchmarks:
        why = why_not(benchmark, options) if not options.document_only else "it was not run"
        found = None if why else run(benchmark, options)
        found = found or load(benchmark.name, options.folder)
        if found is not None:
            measured.append((benchmark, found))
        else:
            left_out[benchmark.name] = why
    lines = {benchmark.name: each.lines for benchmark, each in measured if each.is_quick}
    verdicts = expectations.judge(expectations.read(), lines)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(document(measured, left_out, verdicts, options.page))
    for verdict in verdicts:
        if not verdict.holds:
            print(f"regression: {verdict.text}", file=sys.stderr)
    failed = any(each.problem for _, found in measured for each in found.runs)
    return int(failed or any(not verdict.holds for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
