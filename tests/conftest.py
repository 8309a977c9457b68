"""Load tfswap before any test can make TensorFlow create its devices."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tfswap  # noqa: F401
