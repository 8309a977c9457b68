r"""Check the GPU path on this machine's GPU, in at most eight minutes and without a network.

    python -m benchmarks.gpu_check [--minutes 8] [--out build/gpu-check.json] [--quick]
        [--stages copies,sweep]
    python -m benchmarks.gpu_check --list     the check as seven commands of at most ten minutes

One JSON line a stage goes to stdout, progress to stderr, everything into one JSON file; a table
comes last. The exit status is 0 if all requirements hold (tests pass, peaks keep their budgets,
losses have the same bits if unswapped ones do), 1 if not, 2 if there is no GPU to check.
Figures that miss their target are no failure: the table shows the target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check import stages
from benchmarks.gpu_check.record import Record
from benchmarks.gpu_check.schedule import run_stages
from benchmarks.gpu_check.stage_process import serve

# Of one of the listed commands.
_PART_MINUTES = 9


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it (8)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/gpu-check.json"),
        help="where the figures go (build/gpu-check.json)",
    )
    parser.add_argument("--quick", action="store_true", help="small shapes, few steps")
    parser.add_argument(
        "--stages",
        type=lambda text: [name for name in text.split(",") if name],
        default=[],
        help="only these, separated by commas (all)",
    )
    parser.add_argument("--list", action="store_true", help="print seven commands, one a part")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--stage-result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, or the one stage for which it starts a new process."""
    options = parse(arguments)
    if options.list:
        for number, (names, what) in enumerate(stages.COMMANDS, 1):
            print(f"# {what}")
            print(
                f"python -m benchmarks.gpu_check --minutes {_PART_MINUTES} "
                f"--out build/gpu-check-{number}.json --stages {names}"
            )
        return 0
    if options.stage:
        (stage,) = (s for s in stages.all_stages() if s.name == options.stage)
        return serve(stage, options.stage_result, options.quick)
    try:
        chosen = stages.chosen(options.stages)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    record = Record(options.out, options.minutes, options.quick)
    logs = options.out.with_name(f"{options.out.stem}-logs")
    run_stages(chosen, 60 * options.minutes, options.quick, record, logs)
    record.finish()
    if record.missing is not None:
        print(f"There is no GPU to check. {record.missing}", file=sys.stderr)
    else:
        print(f"\n{record.table()}\n\nAll figures: {options.out}")
    return record.exit_status


if __name__ == "__main__":
    sys.exit(main())
