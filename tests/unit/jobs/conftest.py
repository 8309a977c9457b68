"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_clients import BUDGET, Memory, RawClient
from light import BrokerProcess

from tfswap.jobs.job import Job
from tfswap.jobs.share import Share


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the broker's socket."""
    return tmp_path / "run" / "broker.sock"


@pytest.fixture
def broker(path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(path, BUDGET)
    yield process
    process.end()


@pytest.fixture
def join(path: Path) -> Iterator[Any]:
    """A function that joins a job: its name, `Memory` and `Share` options."""
    jobs: list[Job] = []

    def joined(name: str, memory: Memory | None = None, **share: Any) -> Job:
        job = Job(path, name, Share(**{"wait_s": 20, **share}))
        jobs.append(job)
        job.join()
        if memory is not None:
            memory.held_bytes = job.granted.budget_bytes
        job.hold(memory or Memory())
        return job

    yield joined
    for job in jobs:
        job.leave()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    made = RawClient(broker.socket)
    yield made
    made.close()
