"""Fine-tune a large language model with LoRA where its weights do not fit in memory, and use it.

    python examples/fine_tune.py --preset gemma_2b_en --budget 2600MiB --folder /data
    python examples/fine_tune.py [--layers 18] [--width 2048] ...      (random weights, no download)

Needs KerasHub (pip install keras-hub). The weights live in an unnamed file in the folder; the model
reads them from there layer by layer, ahead of time. Without a preset it has the architecture of
Gemma with random weights; the default is the size of Gemma 2B, 9.3 GiB of float32. The script takes
20 steps, then generates 16 tokens.

How much memory the process has is up to the system. In 4 GiB:

    systemd-run --user --scope -p MemoryMax=4G -p MemorySwapMax=0 python examples/fine_tune.py ...
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from typing import Any

if __name__ == "__main__":
    import cpu_only  # noqa: F401

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

import tfswap  # before TensorFlow's first operation: it provides the device that keeps the budget

MIB = 1 << 20
GENERATED_TOKENS = 16
TEXT = "The quick brown fox jumps over the lazy dog. "


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Fine-tune a language model whose weights do not fit in memory."
    )
    parser.add_argument("--preset", help="a causal language model of KerasHub (random weights)")
    parser.add_argument("--budget", default="2600MiB", help="of the device (2600MiB)")
    parser.add_argument("--host-limit", default="64MiB", help="of weights in memory (64MiB)")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="of weights on disk")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64, help="of an example (64)")
    parser.add_argument("--layers", type=int, default=18, help="without a preset (18)")
    parser.add_argument("--width", type=int, default=2048, help="without a preset (2048)")
    parser.add_argument("--vocabulary", type=int, default=256000, help="without a preset (256000)")
    return parser.parse_args()


def random_gemma(options: argparse.Namespace) -> Any:
    """Return a Gemma with random weights, which reads token numbers instead of text."""
    from keras_hub.models import GemmaBackbone, GemmaCausalLM

    backbone = GemmaBackbone(
        vocabulary_size=options.vocabulary,
        num_layers=options.layers,
        num_query_heads=8,
        num_key_value_heads=1,
        hidden_dim=options.width,
        intermediate_dim=16 * options.width,
        head_dim=options.width // 8,
    )
    return GemmaCausalLM(backbone=backbone, preprocessor=None)


def examples_of(model: Any, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return what `fit` takes, inputs and labels, and what `generate` takes."""
    count, tokens = options.steps * options.batch, options.tokens
    if options.preset is not None:
        model.preprocessor.sequence_length = tokens
        return [TEXT * 8] * count, None, TEXT
    numbers = np.random.default_rng(0).integers(1, options.vocabulary, (count, tokens + 1))
    x = {"token_ids": numbers[:, :-1], "padding_mask": np.ones((count, tokens), bool)}
    is_prompt = np.arange(tokens) < tokens - GENERATED_TOKENS
    prompt = {
        "token_ids": np.where(is_prompt, numbers[:1, :-1], 0),
        "padding_mask": is_prompt[None],
    }
    return x, numbers[:, 1:], prompt


class Clock(keras.callbacks.Callback):
    """Print the time and the loss of each step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remember when the step began."""
        self.begin_s = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Print what it took."""
        took_s = time.monotonic() - self.begin_s
        print(f"step {batch + 1}: {took_s:.1f} s, loss {logs['loss']:.4f}", flush=True)


def main() -> None:
    """Load, fine-tune, generate."""
    options = arguments()
    tfswap.options.set(
        budget=options.budget, host_limit=options.host_limit, spill_dir=options.folder
    )
    keras.utils.set_random_seed(1)
    begin_s = time.monotonic()
    if options.preset is None:
        model = random_gemma(options)
    else:
        from keras_hub.models import CausalLM

        model = CausalLM.from_preset(options.preset)
    model.backbone.enable_lora(rank=4)
    weights_bytes = sum(weight.value.dtype.size * np.prod(weight.shape) for weight in model.weights)
    print(
        f"{weights_bytes / MIB:.0f} MiB of weights: {time.monotonic() - begin_s:.0f} s", flush=True
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    x, y, prompt = examples_of(model, options)
    model.fit(x, y, batch_size=options.batch, shuffle=False, verbose=0, callbacks=[Clock()])
    begin_s = time.monotonic()
    made = model.generate(prompt, max_length=options.tokens, stop_token_ids=None)
    took_s = time.monotonic() - begin_s
    print(f"{GENERATED_TOKENS} tokens: {took_s:.0f} s")
    if options.preset is not None:
        print(made)
    stats = tfswap.memory_stats()
    read_bytes, read_s = stats["far_file_bytes_in"], stats["far_file_busy_in_ns"] / 1e9
    if read_s:
        speed = read_bytes / read_s / MIB
        print(f"read {read_bytes / MIB:.0f} MiB from the disk at {speed:.0f} MiB/s")
    process_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"device peak {stats['peak_bytes'] / MIB:.0f} MiB, process {process_bytes / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
