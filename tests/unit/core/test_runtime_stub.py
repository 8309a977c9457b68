"""The stub of tfswap._runtime declares what the module defines."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import tfswap
from tfswap import _runtime

STUB = Path(tfswap.__file__).with_name("_runtime.pyi")


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [each.arg for each in (*given.args, *given.kwonlyargs) if each.arg != "self"]


def test_the_stub_has_the_names_and_parameters_of_the_module() -> None:
    classes = [each for each in ast.parse(STUB.read_text()).body if isinstance(each, ast.ClassDef)]
    assert {each.name for each in classes} == {
        name for name, value in vars(_runtime).items() if inspect.isclass(value)
    }
    for declared in classes:
        native = getattr(_runtime, declared.name)
        functions = {each.name: each for each in declared.body if isinstance(each, ast.FunctionDef)}
        assert set(functions) == {name for name in vars(native) if not name.startswith("_")}
        for name, function in functions.items():
            member = getattr(native, name)
            if isinstance(member, property):
                continue
            signature = (member.__doc__ or "").splitlines()[0].partition(" -> ")[0]
            for parameter in parameters(function):
                assert f"{parameter}: " in signature, (declared.name, name, parameter)
