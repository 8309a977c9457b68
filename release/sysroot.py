"""The libraries of Ubuntu 18.04 to compile and link against, without a container.

It has glibc 2.27 and libstdc++ 8, so what is linked with them satisfies manylinux_2_28.
TensorFlow's own wheels are built against the same ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

# debootstrap cannot check Ubuntu's signatures without Ubuntu's keys, so the files are pinned.
_SHA256 = {
    "libc6_2.27-3ubuntu1": "1e1eb86fd646aa68f7144ec692b837b6b352d215880c6a2d0c92c19d36938427",
    "libc6-dev_2.27-3ubuntu1": "e426c70a940a7d0c5c95823a5fd01f26bd8bcb08d109df2f8c96c439da8dc440",
    "libgcc1_1%3a8-20180414-1ubuntu2": (
        "c5a6df527fdfe0da45ff0538414535a04a6753e93a9f5902689cf1a73265423b"
    ),
    "libgcc-8-dev_8-20180414-1ubuntu2": (
        "51554fa9d64208a6dc322cc7d6e42be33faac545546576f2fe8f46e8dc353cf2"
    ),
    "libstdc++6_8-20180414-1ubuntu2": (
        "8668c100a679d68520256f9145ef6f9cf3912aa574605884fe866a4962415422"
    ),
    "libstdc++-8-dev_8-20180414-1ubuntu2": (
        "a558eed8117e0a2b0c3707da1de19936c34f9089d9f017614064991ed8907d81"
    ),
    "linux-libc-dev_4.15.0-20.21": (
        "4a73fc5ea2d0284e9c9c84cba68cbe5880505afbae0a3201c65c336daf8f8239"
    ),
}
_TARGET = "x86_64-linux-gnu"


def sysroot(folder: Path) -> dict[str, str]:
    """Make the sysroot in `folder` unless it exists; return CXXFLAGS and LDFLAGS to use it.

    Raises:
        SystemExit: debootstrap or dpkg is missing, or a downloaded file is not the pinned one.
    """
    if not (folder / "complete").exists():
        _make(folder)
    headers = folder / "usr" / "include"
    gcc = folder / "usr" / "lib" / "gcc" / _TARGET / "8"
    includes = (headers / "c++" / "8", headers / _TARGET / "c++" / "8", headers / "c++/8/backward")
    cxx = [f"--sysroot={folder}", "-nostdinc++", *(f"-isystem {path}" for path in includes)]
    return {
        "CXXFLAGS": " ".join(cxx),
        "LDFLAGS": f"--sysroot={folder} -B{folder}/usr/lib/{_TARGET} -L{gcc}",
    }


def _make(folder: Path) -> None:
    for program in ("debootstrap", "dpkg-deb"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing. Debian, Ubuntu: apt-get install debootstrap")
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder.with_name("sysroot-packages")
    wanted = "--include=libstdc++-8-dev,libc6-dev"
    subprocess.run(
        ["debootstrap", "--no-check-gpg", "--download-only", "--variant=minbase", wanted]
        + ["--components=main,universe", "bionic", str(packages)],
        check=True,
    )
    for name, expected in _SHA256.items():
        package = packages / "var" / "cache" / "apt" / "archives" / f"{name}_amd64.deb"
        if hashlib.sha256(package.read_bytes()).hexdigest() != expected:
            raise SystemExit(f"{package} is not the file that was published")
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    for link in folder.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()  # it would lead to this system's libraries
            link.symlink_to(folder / target[1:])
    shutil.rmtree(packages)
    (folder / "complete").touch()
