"""Stage: one training in which each tensor that comes back is compared with what left.

`AutoSwap(verify=True)` compares checksums on the host, so this is about bytes, not about time. Here
TensorFlow takes memory from the GPU only as it needs it, so the driver's count of the memory in use
can be compared with tfswap's.
"""

from __future__ import annotations

from benchmarks.gpu_check.comparison import broken, figures_of, shown
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.driver import the_driver
from benchmarks.gpu_check.machine import touch_gpu
from benchmarks.gpu_check.models import build
from benchmarks.gpu_check.subject import Subject

MODEL, BATCH, IMAGE = "ResNet50", 64, 224
PART = 0.5


def run(context: Context) -> None:
    """Train under half of the unswapped peak; the first tensor that changed ends it."""
    import tensorflow as tf

    import tfswap

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    touch_gpu()
    driver = the_driver()
    driver.enter_context()
    before_bytes = driver.used_bytes()
    model = "dense" if context.fake else MODEL
    subject = Subject(build(MODEL, BATCH, IMAGE, context.fake))
    unswapped = subject.train(blocks=1)
    taken_bytes = driver.used_bytes() - before_bytes
    context.figures |= {
        "model": model,
        "batch": BATCH,
        "unswapped_peak_bytes": unswapped.peak_bytes,
        "driver_bytes": taken_bytes,  # cuDNN and cuBLAS allocate there, too
    }
    context.line(
        f"{model}, batch {BATCH}: memory in use by the driver's count over tfswap's peak",
        f"x{taken_bytes / unswapped.peak_bytes:.2f}",
    )
    budget_bytes = int(PART * unswapped.peak_bytes)
    swap = tfswap.AutoSwap(budget=budget_bytes, verify=True, verbose=0)
    try:
        swapped = subject.train(
            swap, budget_bytes=budget_bytes, blocks=1, seconds=context.seconds_left()
        )
    except tf.errors.DataLossError as error:
        context.figures["changed"] = str(error)[:1000]
        context.broken.append(f"a tensor came back changed: {str(error)[:200]}")
        return
    values = figures_of([unswapped], swapped)
    context.figures |= values
    context.broken += broken("verified", values)
    if not values["bytes_out"]:
        context.broken.append("nothing was swapped, so nothing was verified")
    context.line(f"{model}, batch {BATCH}, verified", shown(values), "no tensor changed")
