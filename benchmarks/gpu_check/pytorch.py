"""Stage: PyTorch's own ways to save memory, for comparison: offloading and recomputation.

ResNet-50 and VGG-16 from torchvision at the batches of the other stages, in float32 (TF32 as
PyTorch sets it for convolutions): unswapped; `torch.autograd.graph.save_on_cpu(pin_memory=True)`;
`torch.utils.checkpoint.checkpoint_sequential`. Also how well copies overlap a matrix product.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu_check.context import Context, Skip

_CASES = (("resnet50", 128), ("vgg16", 64))
_WARM, _TIMED = 2, 5
_SEGMENTS = 4
_MIB = 1 << 20


def run(context: Context) -> None:
    """Measure overlap, then each model in each way.

    Raises:
        Skip: PyTorch or torchvision is not installed, or sees no GPU.
    """
    try:
        import torch
        import torchvision
    except ImportError as error:
        raise Skip(str(error)) from None
    if not torch.cuda.is_available():
        raise Skip("PyTorch sees no GPU")
    context.figures["torch"] = torch.__version__
    _overlap(torch, context)
    for name, batch in ((_CASES[0][0], 8),) if context.quick else _CASES:
        for way in ("unswapped", "save_on_cpu", "checkpoint"):
            if context.seconds_left() < 8.0:
                context.note(f"no time for {name} {way}")
                return
            try:
                figures = _trained(torch, getattr(torchvision.models, name)(), batch, way)
            except RuntimeError as error:
                figures = {"error": str(error)[:300]}
            context.figures[f"{name} {way}"] = {"batch": batch, **figures}
            context.line(f"PyTorch {name}, batch {batch}, {way}", str(figures))
            context.save()


def _trained(torch: Any, model: Any, batch: int, way: str) -> dict[str, float]:
    torch.manual_seed(1)
    model = model.cuda().train()
    step = _step_of(torch, model, batch, way)
    begun = time.perf_counter()
    for _ in range(_WARM):
        step()
    torch.cuda.synchronize()
    warm_s = time.perf_counter() - begun
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(_TIMED):
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated()
    del model, step
    torch.cuda.empty_cache()
    return {
        "step_s": round(statistics.median(seconds), 4),
        "warm_s": round(warm_s, 2),
        "peak_mib": round(peak / _MIB),
    }


def _step_of(torch: Any, model: Any, batch: int, way: str) -> Callable[[], None]:
    """Return a step of training with SGD."""
    from torch.utils.checkpoint import checkpoint_sequential

    sgd = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x = torch.rand(batch, 3, 224, 224, device="cuda")
    y = torch.randint(1000, (batch,), device="cuda")
    layers = torch.nn.Sequential(*_parts(torch, model))
    if way == "checkpoint":
        for module in model.modules():
            if isinstance(module, torch.nn.ReLU):
                module.inplace = False  # its input may begin a segment

    def loss() -> Any:
        if way == "checkpoint":
            found = checkpoint_sequential(layers, _SEGMENTS, x, use_reentrant=False)
        elif way == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                found = model(x)
        else:
            found = model(x)
        return torch.nn.functional.cross_entropy(found, y)

    def step() -> None:
        sgd.zero_grad(set_to_none=True)
        loss().backward()
        sgd.step()

    return step


def _parts(torch: Any, model: Any) -> list[Any]:
    """Return the layers of a model of torchvision, to be run one after the other."""
    if hasattr(model, "features"):
        flat = torch.nn.Flatten()
        return [*model.features, model.avgpool, flat, *model.classifier]
    stem = [model.conv1, model.bn1, model.relu, model.maxpool]
    blocks = [
        b for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for b in layer
    ]
    return [*stem, *blocks, model.avgpool, torch.nn.Flatten(), model.fc]


def _overlap(torch: Any, context: Context) -> None:
    """Time a chain of products, a copy of 1 GiB each way, and all at once."""
    size = 1024 if context.quick else 8192
    a = torch.rand(size, size, device="cuda")
    there = torch.empty(size * 128 if context.quick else 1 << 28, device="cuda")
    here = [torch.empty(there.numel(), pin_memory=True) for _ in range(2)]
    back = torch.empty_like(there)
    streams = [torch.cuda.Stream() for _ in range(2)]

    def products() -> None:
        b = a
        for _ in range(2 if context.quick else 10):
            b = a @ b

    def copies() -> None:
        with torch.cuda.stream(streams[0]):
            here[0].copy_(there, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            back.copy_(here[1], non_blocking=True)

    def timed(*works: Callable[[], None]) -> float:
        seconds = []
        for _ in range(4):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for work in works:
                work()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        return round(statistics.median(seconds[1:]), 4)

    figures = {
        "copied_bytes_each_way": there.numel() * 4,
        "products_s": timed(products),
        "copies_s": timed(copies),
        "both_s": timed(copies, products),
    }
    context.figures["overlap"] = figures
    context.line("PyTorch: products, copies, both at once (s)", str(figures))
    context.save()
