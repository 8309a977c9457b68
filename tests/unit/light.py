"""Processes without TensorFlow: they import tfswap's modules, but not the package's `__init__`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from tests.python_path import python_path

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = f"""
import sys, types
package = types.ModuleType("tfswap")
package.__path__ = [{str(ROOT / "tfswap")!r}]
sys.modules["tfswap"] = package
sys.path.insert(0, {str(ROOT / "tests" / "unit")!r})
"""

BROKER = """
import argparse
from tfswap.commands import broker
parser = argparse.ArgumentParser()
broker.add_arguments(parser)
sys.exit(broker.run(parser.parse_args()))
"""


def start(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start a Python process that runs the code."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        **options,  # type: ignore[call-overload]
    )


class BrokerProcess:
    """``tfswap broker``, without TensorFlow.

    Args:
        socket: The path of its socket.
        budget: The device's budget.
        arguments: Further command-line arguments.
    """

    def __init__(self, socket: Path, budget: str | int, *arguments: str) -> None:
        self.socket = socket
        self.log = socket.parent.with_name(f"{socket.parent.name}.log")
        self._output: IO[str] = self.log.open("a")
        before = self.said.count("ready at")
        self.process = start(
            BROKER,
            *("--socket", str(socket), "--budget", str(budget), *arguments),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + 30
        while self.said.count("ready at") == before:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.02)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until the process has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Terminate the process, and check that it exits with status 0."""
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(20) == 0, self.said
        self._output.close()
