"""KerasHub models with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
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


def _gemma(size: Size) -> tuple[Any, Any]:
    from keras_hub.models import GemmaBackbone, GemmaCausalLM

    backbone = GemmaBackbone(
        vocabulary_size=size.vocabulary,
        num_layers=size.layers,
        num_query_heads=HEADS,
        num_key_value_heads=1,
        hidden_dim=size.width,
        intermediate_dim=size.intermediate,
        head_dim=size.width // HEADS,
    )
    return backbone, GemmaCausalLM


def _llama3(size: Size) -> tuple[Any, Any]:
    from keras_hub.models import Llama3Backbone, Llama3CausalLM

    backbone = Llama3Backbone(
        vocabulary_size=size.vocabulary,
        num_layers=size.layers,
        num_query_heads=HEADS,
        num_key_value_heads=2,
        hidden_dim=size.width,
        intermediate_dim=4 * size.width,
    )
    return backbone, Llama3CausalLM


def _of_gpt2_and_bert(size: Size) -> dict[str, Any]:
    return {
        "vocabulary_size": size.vocabulary,
        "num_layers": size.layers,
        "num_heads": HEADS,
        "hidden_dim": size.width,
        "intermediate_dim": 4 * size.width,
        "dropout": 0,
        "max_sequence_length": 2 * size.tokens,
    }


def _gpt2(size: Size) -> tuple[Any, Any]:
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    return GPT2Backbone(**_of_gpt2_and_bert(size)), GPT2CausalLM


def _bert(size: Size) -> tuple[Any, Any]:
    from keras_hub.models import BertBackbone, BertTextClassifier

    return BertBackbone(**_of_gpt2_and_bert(size)), BertTextClassifier


MODELS: dict[str, Callable[[Size], tuple[Any, Any]]] = {
    "gemma": _gemma,
    "llama3": _llama3,
    "gpt2": _gpt2,
    "bert": _bert,
}


def build(model: str, mode: str, size: Size) -> Any:
    """Return a compiled model; with "lora", of rank 4."""
    backbone, task = MODELS[model](size)
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
