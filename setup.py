"""Build tfswap's native libraries (`native_build`). All other packaging is in pyproject.toml."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pip does not run in this folder

from native_build.libraries import (  # noqa: E402
    CORE_MODULE,
    GPU_KERNELS,
    GPU_LIBRARY,
    LIBRARY,
    RUNTIME_MODULE,
    build_libraries,
    place,
)
from native_build.toolchain import CC, PACKAGE, TREE  # noqa: E402


class BuildNative(build_ext):
    """Compile the libraries, into the wheel and beside the sources, so that both run."""

    def run(self) -> None:
        built = build_libraries()
        folders = [PACKAGE]
        if not (self.inplace or self.editable_mode):
            folders.append(Path(self.build_lib) / "tfswap")
        for folder in folders:
            for name, path in built.items():
                place(path, folder / name)
            for name in (GPU_LIBRARY, *GPU_KERNELS):
                if name not in built:  # from a build with another TensorFlow, or with nvcc
                    (folder / name).unlink(missing_ok=True)

    def get_outputs(self) -> list[str]:
        names = [CORE_MODULE, LIBRARY, RUNTIME_MODULE, "_build_info.py"]
        if self.inplace or self.editable_mode:
            return []
        folder = Path(self.build_lib) / "tfswap"
        names += [name for name in (GPU_LIBRARY, *GPU_KERNELS) if (folder / name).exists()]
        return [str(folder / name) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(TREE)) for path in sorted(CC.rglob("*")) if path.is_file()]


class BuildPython(build_py):
    """Copy the modules, without those of an earlier build that no longer exist."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "tfswap", ignore_errors=True)
        super().run()


if __name__ == "__main__":
    setup(
        # Tells setuptools that the wheel is for one platform; BuildNative does the work.
        ext_modules=[Extension("tfswap._core", sources=[])],
        cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    )
