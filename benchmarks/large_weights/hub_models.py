"""KerasHub models with random weights, or with those of a preset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import keras_hub
import numpy as np

HEADS = 8
CLASSES = 2  # of BERT's classifier


@dataclass(frozen=True)
class Size:
    """The size of a model and its batches.

    Attributes:
        layers: Transformer layers.
        width: Size of hidden states.
        vocabulary: Number of tokens.
        batch: Examples in a batch.
        tokens: Tokens in an example.
        intermediate: Gemma's `intermediate_dim`.
    """

    layers: int
    width: int
    vocabulary: int
    batch: int
    tokens: int
    intermediate: int


def _llama_like(size: Size, key_value_heads: int, intermediate: int) -> dict[str, Any]:
    return {
        "vocabulary_size": size.vocabulary,
        "num_layers": size.layers,
        "num_query_heads": HEADS,
        "num_key_value_heads": key_value_heads,
        "hidden_dim": size.width,
        "intermediate_dim": intermediate,
    }


def _bert_like(size: Size) -> dict[str, Any]:
    return {
        "vocabulary_size": size.vocabulary,
        "num_layers": size.layers,
        "num_heads": HEADS,
        "hidden_dim": size.width,
        "intermediate_dim": 4 * size.width,
        "dropout": 0,
        "max_sequence_length": 2 * size.tokens,
    }


# The classes of a model's backbone and task in KerasHub, and the backbone's arguments.
MODELS: dict[str, tuple[str, str, Callable[[Size], dict[str, Any]]]] = {
    "gemma": (
        "GemmaBackbone",
        "GemmaCausalLM",
        lambda size: {
            **_llama_like(size, 1, size.intermediate),
            "head_dim": size.width // HEADS,
        },
    ),
    "llama3": (
        "Llama3Backbone",
        "Llama3CausalLM",
        lambda size: _llama_like(size, 2, 4 * size.width),
    ),
    "gpt2": ("GPT2Backbone", "GPT2CausalLM", _bert_like),
    "bert": ("BertBackbone", "BertTextClassifier", _bert_like),
}


def build_backbone(model: str, size: Size, preset: str = "") -> Any:
    """Return a backbone with random weights, or those of a preset's folder."""
    name, _, arguments = MODELS[model]
    kind = getattr(keras_hub.models, name)
    return kind.from_preset(preset) if preset else kind(**arguments(size))


def build(model: str, mode: str, size: Size, preset: str = "") -> Any:
    """Return a compiled model; with "lora", of rank 4."""
    backbone = build_backbone(model, size, preset)
    task = getattr(keras_hub.models, MODELS[model][1])
    if mode == "lora":
        backbone.enable_lora(rank=4)
    is_classifier = model == "bert"
    more: dict[str, Any] = {"num_classes": CLASSES} if is_classifier else {}
    made = task(backbone=backbone, preprocessor=None, **more)
    made.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(1e-4),
        jit_compile=False,
    )
    return made


def data(model: str, size: Size, batches: int) -> tuple[dict[str, Any], Any]:
    """Return random inputs and labels for some batches."""
    random = np.random.default_rng(0)
    examples = batches * size.batch
    tokens = random.integers(1, size.vocabulary, (examples, size.tokens + 1))
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((examples, size.tokens), bool)}
    if model == "bert":
        x["segment_ids"] = np.zeros((examples, size.tokens), int)
        return x, random.integers(0, CLASSES, examples)
    return x, tokens[:, 1:]
