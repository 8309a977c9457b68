"""Substitutes for Keras's datasets, which would be downloaded: the same shapes and types.

Images are scikit-learn's digits, enlarged, or random if it is not installed. The numbers
are the same in each run.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

_SEED = 1234
_SIDE = 8  # pixels of scikit-learn's digits

Split = tuple[Any, Any]
Loaded = tuple[Split, Split]


@functools.cache
def _digits() -> tuple[Any, Any]:
    """Return small images of 8 x 8 pixels from 0 to 16, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        random = np.random.default_rng(_SEED)
        patterns = random.integers(0, 17, (10, _SIDE, _SIDE))
        classes = np.arange(1797) % 10
        return np.minimum(patterns[classes] + random.integers(0, 3, (1797, 8, 8)), 16), classes
    found = load_digits()
    return found.images.astype(np.int64), found.target


def _some(count: int, test: bool) -> tuple[Any, Any]:
    """Return that many digits, repeated; test digits differ from training digits."""
    images, classes = _digits()
    held_back = len(images) // 5
    start, length = (0, held_back) if test else (held_back, len(images) - held_back)
    chosen = start + np.arange(count) % length
    return images[chosen], classes[chosen]


def gray_images() -> Loaded:
    """Return data like mnist and fashion_mnist."""

    def split(count: int, test: bool) -> Split:
        small, classes = _some(count, test)
        large = (small * 15).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
        return np.pad(large, ((0, 0), (2, 2), (2, 2))), classes.astype(np.uint8)

    return split(60_000, False), split(10_000, True)


def color_images(classes: int, label_mode: str = "fine") -> Loaded:
    """Return data like cifar10 and cifar100."""

    def split(count: int, test: bool) -> Split:
        small, digits = _some(count, test)
        hues = np.arange(count) % (classes // 10)
        colors = np.arange(count) // 10
        tints = 5 + 2 * np.stack([(colors + 2 * c) % 6 for c in range(3)], axis=1)
        pixels = (small[..., None] * tints[:, None, None, :]).astype(np.uint8)
        labels = (digits + 10 * hues)[:, None]
        return pixels.repeat(4, axis=1).repeat(4, axis=2), labels.astype(np.uint8)

    return split(50_000, False), split(10_000, True)


def texts(classes: int, counts: tuple[int, int]) -> Callable[..., Loaded]:
    """Return data like imdb and reuters: lists of word numbers."""

    def load(
        path: str = "", num_words: int | None = None, maxlen: int | None = None, **others: Any
    ) -> Loaded:
        random = np.random.default_rng(_SEED)

        def split(count: int) -> Split:
            labels = random.integers(0, classes, count)
            lengths = random.integers(20, min(maxlen or 300, 300), count)
            most = min(num_words or 20_000, 20_000)
            words = np.empty(count, dtype=object)
            for index, (label, length) in enumerate(zip(labels, lengths, strict=True)):
                drawn = random.integers(3, most, length)
                words[index] = [1, *np.where(drawn % 7 == 0, 3 + label, drawn).tolist()]
            return words, labels

        return split(counts[0]), split(counts[1])

    return load


def table(columns: int, counts: tuple[int, int]) -> Callable[..., Loaded]:
    """Return data like boston_housing and california_housing."""

    def load(**others: Any) -> Loaded:
        random = np.random.default_rng(_SEED)
        weights = random.normal(size=columns)

        def split(count: int) -> Split:
            values = random.normal(size=(count, columns))
            return values, values @ weights + 20

        return split(counts[0]), split(counts[1])

    return load


LOADERS: dict[str, Callable[..., Loaded]] = {
    "mnist": lambda path="": gray_images(),
    "fashion_mnist": gray_images,
    "cifar10": lambda: color_images(10),
    "cifar100": lambda label_mode="fine": color_images(100, label_mode),
    "imdb": texts(2, (25_000, 25_000)),
    "reuters": texts(46, (8982, 2246)),
    "boston_housing": table(13, (404, 102)),
    "california_housing": table(8, (16_512, 4128)),
}


def _with_random_weights(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def made(*arguments: Any, **named: Any) -> Any:
        called = inspect.signature(factory).bind(*arguments, **named)
        called.arguments["weights"] = None
        return factory(*called.args, **called.kwargs)

    return made


def install() -> None:
    """Make Keras load these, by whichever name it is imported, and download nothing.

    Pretrained weights become random ones. Pictures of models are not drawn, because Keras
    needs another program for them.
    """

    def refuse(*arguments: Any, **named: Any) -> Any:
        wanted = named.get("origin") or named.get("fname") or (arguments or ("a file",))[-1]
        raise OSError(f"nothing is downloaded here: {wanted}")

    for package in ("keras", "keras._tf_keras.keras"):
        for name, loader in LOADERS.items():
            importlib.import_module(f"{package}.datasets.{name}").load_data = loader
        utils = importlib.import_module(f"{package}.utils")
        utils.get_file, utils.plot_model = refuse, lambda *arguments, **named: None
        applications = importlib.import_module(f"{package}.applications")
        for name, factory in inspect.getmembers(applications, inspect.isfunction):
            if "weights" in inspect.signature(factory).parameters:
                setattr(applications, name, _with_random_weights(factory))
