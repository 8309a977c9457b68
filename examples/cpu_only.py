"""Hide GPUs from TensorFlow: the budgets of the examples are for the CPU device.

Import it before TensorFlow.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
