"""An op that writes to its input's memory does not change a copy-out that is still running."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from swaps import host_values

from tests.copy_ops import copy_from_host, copy_to_host

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")


@pytest.fixture(scope="module")
def overwrite(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = tmp_path_factory.mktemp("op") / "overwrite_op.so"
    source = Path(__file__).with_name("overwrite_op.cc")
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-O1", "-w", str(source)]
    command += [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run([*command, "-o", str(built)], check=True)
    return tf.load_op_library(str(built)).tfswap_test_overwrite


def test_a_copy_out_has_the_bytes_from_before_an_op_overwrites_its_input(
    overwrite: Any, number: int
) -> None:
    """As a batch normalization does, which on an H100 changed what ResNet50 had swapped out."""

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("GPU:0"):
            there = tf.identity(x)
            handle = copy_to_host(there)
            with tf.control_dependencies([handle]):  # by now the swap-out has given up the tensor
                zeros = overwrite(there)
            with tf.control_dependencies([zeros]):
                back = copy_from_host(tf.identity(handle), tf.float32)
            back = tf.identity(back)
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.equal(tf.identity(back), x))

    x = host_values(16)
    assert all(step(x) for _ in range(8))
