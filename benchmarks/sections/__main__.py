r"""Train when a single layer does not fit: on sections of the batch or of images in sequence.

    python -m benchmarks.sections [--quick] [--cases 256:4GiB:32:3,512:6GiB:64:1]
    python -m benchmarks.sections --least [--quick] [--models ResNet50,U-Net] [--sections 4,8]
    python -m benchmarks.sections --images [--quick] [--budget 2GiB] [--limit 4096] [--sections 16]
        [--spill-dir FOLDER]

Every training runs in a separate process. One JSON line a case goes to stdout, progress to stderr.
Keys: model batch image budget_bytes measured_peak_bytes step_s images_per_s loss_relative_error,
and others by mode.

Without a mode: VGG-16 at 224 px, as in tvDNN (Park et al., PPoPP 2018): "a large batch size, such
as 256 or 512, using a few GB". A case is batch:budget:sections:steps; the first line is of a batch
of 16 under stock TensorFlow. Further keys: steps_s: each step's time, the first with tracing;
sections; losses. The error is the largest of all steps against a training with gradient
accumulation over the same images, 16 at a time, without tfswap's passes. ``--quick``: batch 256,
one step.

``--least``: the least budget that each model trains in, with swaps only and with sections. 2 %
above the lower bound of the profile is tried, then 5 % more until 14 steps train: the first steps
use on-demand swaps and run ops concurrently. Further keys: mode (unswapped, swapped, sections);
sections; unswapped_peak_bytes, unswapped_step_s; possible_bytes, limiting_op: from the profile;
resident_bytes: the part of that which stays (weights, optimizer state, batch); tries; settled:
whether step_s is of the final plan. The error is the largest of the first three losses against
unswapped ones; ResNet50's losses differ between two unswapped trainings, too.
first_loss_relative_error is rounding alone.

``--images``: the largest image, a multiple of 64 px, with which three steps train at batch 1 within
the budget, under on-demand swaps, with far memory in host memory and, with --spill-dir, in a file.
Further keys: mode; sections; limited_by (memory, or --limit); steps_s; tries. The error is against
losses without sections, at compared_image, the largest that both trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.sections import images, large_batch, least
from tfswap.machine.budget import parse_bytes


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sections", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--least", action="store_true", help="the least budget of each model")
    modes.add_argument("--images", action="store_true", help="the largest image in a budget")
    modes.add_argument("--cases", help=f"batch:budget:sections:steps, ... ({large_batch.CASES})")
    parser.add_argument("--quick", action="store_true", help="small ones, to see that it works")
    parser.add_argument("--models", help="of --least and --images, with commas")
    parser.add_argument("--sections", help="of --least, with commas (4,8); of --images (16)")
    parser.add_argument("--batch", type=int, help="of --least (16)")
    parser.add_argument("--image", type=int, help="pixels or tokens of --least (224; U-Net 256)")
    parser.add_argument("--budget", help=f"of --images ({images.BUDGET})")
    parser.add_argument("--limit", type=int, help=f"pixels of --images, at most ({images.LIMIT})")
    parser.add_argument("--spill-dir", help="of --images: a folder where host memory ends")
    options = parser.parse_args(arguments)
    if not options.least and (options.batch or options.image):
        parser.error("--batch and --image are for --least")
    if not options.images and (options.budget or options.limit or options.spill_dir):
        parser.error("--budget, --limit and --spill-dir are for --images")
    if not (options.least or options.images) and (options.models or options.sections):
        parser.error("--models and --sections are for --least and --images")
    return options


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines."""
    quick = options.quick
    models = options.models.split(",") if options.models else None
    sections = [int(number) for number in options.sections.split(",")] if options.sections else []
    if options.least:
        return least.least(
            models or (least.QUICK_MODELS if quick else least.MODELS),
            sections or (least.QUICK_SECTIONS if quick else least.SECTIONS),
            options.batch or (least.QUICK_BATCH if quick else least.BATCH),
            options.image or (least.QUICK_IMAGE if quick else None),
        )
    if options.images:
        return images.largest_images(
            models or (images.QUICK_MODELS if quick else images.MODELS),
            sections[0] if sections else images.SECTIONS,
            parse_bytes(options.budget or (images.QUICK_BUDGET if quick else images.BUDGET)),
            options.limit or (images.QUICK_LIMIT if quick else images.LIMIT),
            options.spill_dir,
        )
    cases = large_batch.QUICK_CASES if quick else large_batch.CASES
    return large_batch.large_batches(options.cases or cases)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each case."""
    for line in lines(parse(arguments)):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
