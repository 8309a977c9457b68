"""Load tfswap before any test can make TensorFlow create its devices."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The same kernels on each CPU. Without VNNI, TensorFlow takes Eigen's convolutions, whose
# workspaces depend on the CPU's cache: small models would need budgets of their own there.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tfswap  # noqa: F401
