"""Load a Keras model by name: from ``keras.applications`` or from a function in a file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_APPLICATIONS = "keras.applications."


@dataclass(frozen=True)
class ModelSource:
    """A model and its input.

    Args:
        model: A Keras model, compiled or not.
        spec: TensorSpecs of one batch (x, or (x, y), as ``train_step`` gets them), with None as
            batch dimension; None: derived from the model's inputs and loss.
    """

    model: Any
    spec: Any = None


def load_model(name: str, image: int | None = None) -> ModelSource:
    """Return the model of that name, with random weights.

    Args:
        name: "keras.applications.VGG16", or "file.py:function". The function takes no arguments and
            returns a model, or a model and the TensorSpecs of a batch.
        image: Height and width of the images in pixels, for keras.applications. Default: the
            model's own.

    Raises:
        ValueError: There is no such model; the message lists what is allowed.
        OSError: The file cannot be read.
    """
    if name.startswith(_APPLICATIONS):
        return ModelSource(_application(name.removeprefix(_APPLICATIONS), image))
    file, colon, function = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"{name!r} is not a model. Allowed: keras.applications.NAME, such as "
            "keras.applications.ResNet50, or file.py:function, a function that returns a model"
        )
    if image is not None:
        raise ValueError("--image only works with keras.applications, not with a model from a file")
    return _from_file(Path(file), function)


def _application(name: str, image: int | None) -> Any:
    import keras

    factory = getattr(keras.applications, name, None)
    if not inspect.isfunction(factory):
        names = [n for n in dir(keras.applications) if n[:1].isupper()]
        raise ValueError(f"keras.applications has no {name!r}: allowed are {', '.join(names)}")
    shape = {} if image is None else {"input_shape": (image, image, 3)}
    return factory(weights=None, **shape)


def _from_file(path: Path, function: str) -> ModelSource:
    import keras

    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        defined = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise ValueError(f"{path} has no function {function!r}; it has {', '.join(defined)}")
    made = make()
    model, batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"{function} of {path} returned a {type(model).__name__}; it must return a Keras "
            "model, or a tuple of a model and the TensorSpecs of a batch"
        )
    return ModelSource(model, batch)
