"""The benchmarks of `python -m benchmarks`, and the presentation of their lines."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark, Plot, table
from benchmarks.benchmarks_of_parts import OF_PARTS
from benchmarks.tally import Tally

_SWEPT = "auto,greedy,autoswap:best,vdnn_dyn,tensile,capuchin"
_OTHERS = ("VGG16", "InceptionV3", "DenseNet121", "U-Net")
_SMALL = "--batch 16 --image 96 --steps 5"
# Scripts of Keras's examples and guides (keras, keras-core) that need no downloads except data for
# which `benchmarks.programs` has substitutes.
_PROGRAMS = (
    "token_learner,cct,image_classification_with_vision_transformer,eanet,swim_transformers,"
    "mlp_image_classification,mnist_convnet,involution,antirectifier,siamese_contrastive,vae,"
    "autoencoder,trainer_pattern,custom_train_step_in_tensorflow,demo_mnist_convnet,"
    "writing_a_custom_training_loop_in_tensorflow,training_with_built_in_methods"
)

BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "budget_sweep",
        "Steps under a budget",
        "Beside the unswapped training of the same run, before and after. Budgets are parts of the "
        "unswapped peak, which without tfswap fail. What is measured is what the budget counts: "
        "idle pages, which stay until the budget needs them, and the first steps, too.",
        full=(
            f"--model ResNet50 --budgets 0.8,0.65,0.5,0.4 --policies {_SWEPT} {_SMALL}",
            *(f"--model {model} --budgets 0.8,0.65,0.5 {_SMALL}" for model in _OTHERS),
            # Its steps are so short that all five can be disturbed.
            "--model MobileNetV2 --budgets 0.8,0.65,0.5 --batch 16 --image 96 --steps 25",
            "--model Transformer --batch 8 --image 96 --budgets 0.8,0.65,0.5 --steps 5",
            *(
                f"--model ResNet50 --budgets 0.65 --policies joint,greedy,recompute "
                f"--link-bandwidth {link} --recompute-grad 4 {_SMALL}"
                for link in ("2GB/s", "6GB/s", "12GB/s")
            ),
        ),
        quick=("--model U-Net --batch 8 --image 64 --budgets 0.6 --steps 4",),
        tables=(
            table(
                "model: model | px: image | link: link_bandwidth | policy: policy | "
                "unswapped peak: unswapped_peak_bytes MiB | budget: budget_bytes MiB | "
                "peak predicted: predicted_peak_bytes MiB | "
                "measured: measured_peak_bytes MiB | out in a step: bytes_out MiB | "
                "step, of unswapped: step_ratio x | losses, bit for bit: loss_bit_equal | "
                "fits unswapped: unswapped_fits fact | said: error",
                having="budget_bytes step_ratio policy",
            ),
        ),
        plots=(
            Plot(
                "bars",
                ("model",),
                "budget_share",
                "step_ratio",
                "x",
                "step, of the unswapped one",
                1.0,
                only=(("policy", "auto"), ("link_bandwidth", None)),
            ),
            Plot(
                "bars",
                ("budget_share",),
                "policy",
                "step_ratio",
                "x",
                "step of ResNet50",
                1.0,
                only=(("model", "ResNet50"), ("link_bandwidth", None)),
            ),
            Plot(
                "bars",
                ("link_bandwidth", "budget_bytes"),
                "policy",
                "step_ratio",
                "x",
                "step of ResNet50, over a link",
                1.0,
                only=(("model", "ResNet50"),),
                having=("link_bandwidth",),
            ),
        ),
    ),
    *OF_PARTS,
    Benchmark(
        "whole_fit",
        "Whole trainings",
        "30 steps of `fit`, from call to return, each right after a stock training: a model "
        "that fits, one that is swapped, and the same with a remembered plan. AdamW.",
        full=tuple(
            f"--cases fits,swapped,cached --budget 0.7 --model {model}"
            for model in ("ResNet50", "EfficientNetV2B0 --batch 8", "Transformer --image 256")
        ),
        quick=("--model U-Net --batch 8 --image 64 --cases fits,cached --repeats 1",),
        tables=(
            table(
                "model: model | case: case | budget: budget_bytes MiB | fit: fit_s s | stock: "
                "stock_fit_s s | ratio: ratio x | settled step, of stock's: step_ratio x | "
                "graph optimized: graph_optimisations | losses, bit for bit: loss_bit_equal",
                having="model case",
            ),
        ),
        plots=(Plot("bars", ("model",), "case", "ratio", "x", "of stock's fit", 1.0),),
    ),
    Benchmark(
        "across_iterations",
        "Weights across iterations",
        "Adam's state and the weights swapped too, beside swaps of activations alone. A checkpoint "
        "written between two steps is read without tfswap.",
        full=("",),
        quick=("--model VGG16 --batch 2 --image 32 --budgets 0.85 --steps 3",),
        tables=(
            table(
                "model: model | mode: mode | budget: budget_bytes MiB | peak: measured_peak_bytes "
                "MiB | variables: variable_bytes MiB | out in a step: bytes_out_per_step MiB | "
                "step, of unswapped: step_ratio x | losses, bit for bit: losses_equal | "
                "checkpoint, bit for bit: checkpoint_equal | outcome: outcome",
                having="mode model",
            ),
        ),
    ),
    Benchmark(
        "sections",
        "Sections of the batch",
        "The least budgets in which nets train: with swaps alone, and with ops that work on parts "
        "of the batch.",
        full=("--least --image 128 --sections 8", ""),
        quick=("--least --quick",),
        tables=(
            table(
                "model: model | batch: batch | mode: mode | sections: sections | "
                "least budget: budget_bytes MiB | possible: possible_bytes MiB | "
                "peak: measured_peak_bytes MiB | step: step_s s | unswapped: unswapped_step_s s | "
                "losses off: loss_relative_error",
                having="model mode budget_bytes",
            ),
            table(
                "model: model | batch: batch | sections: sections | budget: budget_bytes MiB | "
                "peak: measured_peak_bytes MiB | step: step_s s | images/s: images_per_s | "
                "losses off: loss_relative_error",
                having="losses steps_s",
            ),
        ),
    ),
    Benchmark(
        "reach",
        "What can move",
        "In half of the unswapped peak, beside the unswapped training of the same run: batches of "
        "8 images of 96 pixels, or of sequences of 96 steps (recurrent models: 200). Immovable: "
        "the part of the bytes at the peak that no plan can move, and what recordings do not list: "
        "buffers below 1 KiB, which may be elements of loops that move.",
        full=("",),
        quick=("--models MobileNetV3Small --steps 3",),
        limit_s=14400,
        tables=(
            table(
                "model: model | peak: unswapped_peak_bytes MiB | floor: floor_bytes MiB | "
                "immovable: immovable_share % | budget: budget_bytes MiB | trains in half: "
                "trains_at_half | step, of unswapped: step_ratio x | "
                "losses, bit for bit: loss_bit_equal | unswapped repeats: stock_repeats | "
                "said: error",
                having="model",
            ),
        ),
    ),
    Benchmark(
        "least",
        "Least budgets",
        "Trainings in the least budgets that messages of a training in half of the peak name: the "
        "least that a plan can keep, and the floor, below which no swaps help.",
        full=(
            "--runs 100",
            "--least floor --runs 4 --steps 6 --parts 1.02 --image 96 --models "
            "ResNet50,VGG16,InceptionV3,DenseNet121,U-Net,MobileNetV2,Transformer,ViT,EfficientNetV2B0",
        ),
        quick=("--models MobileNetV3Small --parts 1.02 --runs 2 --steps 4",),
        limit_s=14400,
        tables=(
            table(
                "model: model | least: least | bytes: least_bytes MiB | of it: part x | "
                "steps: steps | runs: runs | failed late: failed_late fact | "
                "over budget: over_budget fact | losses, bit for bit: loss_bit_equal | said: said",
                having="model least",
            ),
        ),
    ),
    Benchmark(
        "jobs",
        "Several trainings on one device",
        "Memory saved (MSR) and time lost (EOR) as TENSILE defines them, beside what its authors "
        "logged, and throughput beside one job after the other without swaps.",
        full=("--image 96 --steps 4",),
        quick=("--quick",),
        tables=(
            table(
                "jobs: models | mode: mode | budget: budget_bytes MiB | peak: measured_peak_bytes "
                "MiB | MSR: msr | EOR: eor | logged MSR: logged_msr | logged EOR: logged_eor | "
                "throughput: throughput_ratio x",
                having="mode msr eor",
            ),
        ),
    ),
    Benchmark(
        "programs",
        "Programs of others, unchanged",
        "Scripts of a checkout of Keras under `TFSWAP_BUDGET`, beside the same without it.",
        full=(f"--only {_PROGRAMS}",),
        quick=("--only demo_mnist_convnet,functional_api",),
        limit_s=14400,
        needs_scripts=True,
        tables=(
            table(
                "program: program | unswapped peak: unswapped_peak_bytes MiB | stays: "
                "resident_bytes MiB | budget: budget_bytes MiB | peak: measured_peak_bytes MiB | "
                "swapped in all: swapped_bytes MiB | TensorFlow repeats itself: repeats | "
                "losses, bit for bit: losses_equal | weights: weights_equal | runs: runs",
                having="program runs budget_bytes",
            ),
            table("program: program | why it was not run under a budget: runs", only=()),
        ),
    ),
    Benchmark(
        "os_swap",
        "Where RAM ends",
        "Under the kernel's swapping (the rival) and tfswap's file tier on the same disk, within a "
        "memory cgroup.",
        full=("--model ResNet50 --batch 16 --image 224 --rss 2000,1600,1300",),
        quick=(),
        needs_root=True,
        tables=(
            table(
                "limit, MiB: rss_mib | unlimited: unlimited_step_s s | kernel's swapping, of that: "
                "os_swap_ratio x | tfswap, of that: tfswap_ratio x",
                having="rss_mib",
            ),
        ),
    ),
    Benchmark(
        "soak",
        "Half an hour of trainings in one process",
        "Models, batches, budgets and options change from training to training; the same by "
        "TensorFlow alone is the rival. Growth: of resident memory, after a quarter of the time.",
        full=("", "--mode unswapped --minutes 8 --steps 500"),
        quick=("--quick",),
        tables=(
            table(
                "mode: mode | trainings: trainings | steps: steps | minutes: minutes | "
                "with other losses: wrong | budgets too small: too_small | growth: growth % | "
                "threads gained: threads_gained | "
                "handles gained: handles_gained | device memory gained, bytes: load_gained_bytes",
                having="growth",
            ),
        ),
        plots=(Plot("lines", ("step",), "mode", "resident_bytes", "MiB", "resident memory, MiB"),),
    ),
    Benchmark(
        "faults",
        "Faults",
        "What becomes of a training into which a fault is put, and of the process that it was in: "
        "docs/reliability.md says what each is.",
        full=("",),
        quick=("--quick",),
        tables=(),
        tally=Tally("kind", "outcome"),
    ),
)


def named(names: list[str]) -> list[Benchmark]:
    """Return benchmarks by name; all without names.

    Raises:
        ValueError: There is no such benchmark.
    """
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown {unknown[0]!r}: allowed are {', '.join(known)}")
    return [known[name] for name in names] if names else list(BENCHMARKS)
