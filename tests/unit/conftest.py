"""Fixtures for the tests of the spill file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest
from spill_files import ENGINES, disk_folder, open_file

from tfswap._core import SpillFile


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """Return a folder on a disk, if there is one."""
    with disk_folder() as found:
        yield found


@pytest.fixture(params=ENGINES)
def new_file(request: pytest.FixtureRequest, folder: str) -> Callable[..., SpillFile]:
    """Return a function that creates spill files in the folder with the given options."""
    return lambda **options: open_file(folder, request.param, **options)


@pytest.fixture
def own_folder(folder: str) -> Iterator[str]:
    """Return a folder that must be empty after the test."""
    with tempfile.TemporaryDirectory(dir=folder) as found:
        yield found
        assert os.listdir(found) == []
