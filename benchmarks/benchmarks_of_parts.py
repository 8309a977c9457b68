"""Benchmarks of parts: allocators, codecs, planners, packing."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark, Plot, table
from benchmarks.one_case import TREE

_TRACES = "benchmarks/traces"
_ALL_TRACES = " ".join(f"{_TRACES}/{each.name}" for each in sorted((TREE / _TRACES).glob("*.p*")))

_POLICIES = "auto,greedy,autoswap:best,vdnn_all,vdnn_conv,vdnn_dyn,tensile,capuchin"

OF_PARTS: tuple[Benchmark, ...] = (
    Benchmark(
        "allocator",
        "Planned addresses",
        "Beside TensorFlow's BFC allocator inside the same device: memory behind what was asked "
        "for, over the peak of what was asked for, and what an allocation and its free take.",
        full=("",),
        quick=("--quick --parts train,replay",),
        tables=(
            table(
                "model: model | allocator: allocator | budget: budget_bytes MiB | "
                "footprint: footprint_bytes MiB | load: peak_load_bytes MiB | ratio: ratio x | "
                "at planned places: planned_share % | step: step_s s | "
                "losses, bit for bit: losses_equal"
            ),
            table(
                "model: model | allocator: allocator | least budget: least_budget_bytes MiB | "
                "load bound: load_bound_bytes MiB | ratio: ratio x"
            ),
            table(
                "threads: threads | allocator: allocator | ns an allocation and its free: "
                "ns_per_pair | of BFC's: ratio_to_bfc x"
            ),
        ),
        plots=(
            Plot(
                "bars",
                ("model", "budget_share"),
                "allocator",
                "ratio",
                "x",
                "footprint over load",
                1.0,
            ),
        ),
    ),
    Benchmark(
        "compression",
        "Encoded far memory",
        "Over a slow link inside half of the peak: what a mode saves of the time that the step is "
        "longer than the unswapped one if nothing is encoded. `all` and CSWAP's inequality are the "
        "rivals. To a few cores, 0.25 GB/s is what PCI Express is to a GPU.",
        full=("--links 0.25",),
        quick=("--quick --modes none,all,cswap,auto --steps 3",),
        quick_limit_s=170,
        tables=(
            table(
                "model: model | activation: activation | link, GB/s: link_gb_s | mode: mode | "
                "exposed: exposed_s s | of that predicted, for copies: predicted_wait_s s | "
                "saved: exposed_reduction % | encoded tensors: "
                "compressed_tensors | of swapped ones: swapped_tensors | kept, of their bytes: "
                "ratio % | losses, bit for bit: losses_equal",
                having="model link_gb_s mode exposed_s",
            ),
        ),
        plots=(
            Plot(
                "bars", ("model", "activation", "link_gb_s"), "mode", "exposed_s", "s", "exposed, s"
            ),
        ),
    ),
    Benchmark(
        "codecs",
        "Codecs",
        "Beside memcpy in the same run, with one thread: encoded size, and bytes of the source a "
        "second.",
        full=("",),
        quick=("--quick --codec zvc lz4 bfp --data zeros50 --dtype float32",),
        tables=(
            table(
                "codec: codec | data: data | type: dtype | size: ratio % | out, GB/s: out_gb_s | "
                "in, GB/s: in_gb_s | memcpy, GB/s: memcpy_gb_s",
                threads=1,
            ),
        ),
        plots=(
            Plot(
                "bars",
                ("data",),
                "codec",
                "out_gb_s",
                "",
                "encoding float32 with one thread, GB/s",
                only=(("dtype", "float32"), ("threads", 1)),
            ),
        ),
    ),
    Benchmark(
        "planners",
        "Planners",
        "Each paper's policy beside `auto` on recorded steps of a CPU, in the simulator, over a "
        "link of 0.2 GB/s, which is to a CPU what PCI Express is to a GPU. The bound is what no "
        "plan of swaps waits less than.",
        full=tuple(
            f"--trace {_TRACES}/{name}.profile --limits 45%,55%,65%,80% --link-bandwidth 0.2GB/s "
            f"--policies {_POLICIES}"
            for name in ("ResNet50_16x96", "VGG16_16x128", "DenseNet121_8x96", "Transformer_8x96")
        ),
        quick=(
            f"--trace {_TRACES}/ResNet50_16x96.profile --limits 55%,65%,80% "
            f"--link-bandwidth 0.2GB/s --policies {_POLICIES}",
        ),
        tables=(
            table(
                "step: trace | limit: limit_mib | policy: policy | waits, ms: overhead_ms | "
                "bound, ms: bound_ms | peak, MiB: peak_mib | planning: seconds s | why not: error",
                having="policy overhead_ms bound_ms",
            ),
        ),
        plots=(
            Plot(
                "bars",
                ("limit_mib",),
                "policy",
                "overhead_ms",
                "",
                "waits of ResNet50 within so many MiB, ms",
                only=(("trace", "ResNet50_16x96"),),
            ),
        ),
    ),
    Benchmark(
        "packing",
        "Packing",
        "Recorded steps into one slab: beside first fit and best fit. The load is what nothing can "
        "be below.",
        full=(
            " ".join(f"{_TRACES}/{path.name}" for path in sorted((TREE / _TRACES).glob("*.p*"))),
        ),
        quick=(
            " ".join(f"{_TRACES}/{path.name}" for path in sorted((TREE / _TRACES).glob("*.p*")))
            + " --seconds 3",
        ),
        tables=(
            table(
                "step: instance | buffers: buffers | load: max_live MiB | height: height MiB | "
                "first fit: first_fit MiB | best fit: best_fit MiB | at the load: solved"
            ),
        ),
    ),
    Benchmark(
        "papers",
        "Published figures",
        "Figures of the papers beside those predicted for the same nets on their machines, without "
        "a run.",
        full=("",),
        quick=("--figures vdnn --models AlexNet,VGG16",),
        tables=(
            table(
                "paper: paper | figure: figure | model: model | batch: batch | policy: policy | "
                "quantity: quantity | published: published | predicted: simulated | "
                "ratio: ratio x | `auto`: auto",
            ),
        ),
    ),
)
