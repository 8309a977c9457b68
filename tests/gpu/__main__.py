"""Build tfswap against the TensorFlow with GPU devices, and run these tests on a simulated GPU.

    python tests/gpu [pytest's arguments]

Needs no GPU. Everything is in ``build/cuda``: that TensorFlow, a copy of the sources and its build,
and the simulated GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests"))

from other_tensorflow import OtherTensorFlow  # noqa: E402

CUDA = TREE / "build" / "cuda"
TENSORFLOW = "tensorflow>=2.21,<2.22"


def main() -> int:
    other, gpu = OtherTensorFlow(CUDA, TENSORFLOW), CUDA / "gpu"
    failed = other.build()
    failed = failed or other.run(sys.executable, "tests/gpu/fake_cuda/build.py", gpu)
    return failed or other.run(
        *(sys.executable, "-m", "pytest", "-q", "tests/gpu", *sys.argv[1:]),
        LD_LIBRARY_PATH=str(gpu),
        TF_CPP_MIN_LOG_LEVEL="2",
    )


if __name__ == "__main__":
    sys.exit(main())
