"""Fixtures of the GPU tests, which keep their measurements out of the user's cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

import tfswap
from tfswap import _core
from tfswap.ops import library


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TFSWAP_PLAN_CACHE", "none")
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def number() -> Iterator[int]:
    """Return the first GPU's number. Reset its statistics, and undo what a test sets."""
    lib = library.load()
    assert tf.config.list_logical_devices("GPU")
    with tf.device("GPU:0"):
        tf.identity(tf.constant(1.0)).numpy()
    device = tfswap.state.device_number("GPU:0")
    tfswap.reset_memory_stats("GPU:0")
    yield device
    lib.set_faults("")
    lib.set_verify(device, False)
    lib.set_host_limit(None)
    lib.set_budget(device, None)
    lib.sample_codecs(())
    lib.release_codecs(device)
    tfswap.reset_memory_stats("GPU:0")


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A folder on a file system that supports direct I/O."""
    for parent in (tempfile.gettempdir(), os.getcwd(), "/var/tmp"):
        with tempfile.TemporaryDirectory(dir=parent) as found:
            try:
                _core.SpillFile(found)
            except OSError:
                continue
            yield Path(found)
            assert os.listdir(found) == []
            return
    pytest.skip("no disk here takes direct reads and writes")
