"""Jobs that join, leave and are killed at random, and the memory that they hold at any time.

Runs without TensorFlow (see `light.py`): python churn.py SOCKET JOBS AT_ONCE CAPACITY SEED. Each
job is a fork that always uses its whole share and writes the size into shared memory. Prints one
JSON object at the end.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import grpc  # noqa: F401  imported once, before the forks
from timelines import training_step

from tfswap.jobs.granted_share import GrantedShare
from tfswap.jobs.job import BrokerError, Job
from tfswap.jobs.job_trace import JobTrace, job_trace
from tfswap.jobs.share import Share
from tfswap.machine.machine import Machine

_SLOT = struct.Struct("q")
LONGEST_S = 60.0
_LOOKS = 20
_PF_EXITING = 0x4  # a Linux process flag


class Table:
    """The memory that each job holds, shared by all processes."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * _SLOT.size)

    def __getitem__(self, slot: int) -> int:
        return int(_SLOT.unpack_from(self._memory, slot * _SLOT.size)[0])

    def __setitem__(self, slot: int, held_bytes: int) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, held_bytes)


class Memory:
    """Holdings that always use the whole share; shrinking is sometimes slow or declined."""

    def __init__(self, table: Table, slot: int, chance: random.Random) -> None:
        self._table, self._slot, self._chance = table, slot, chance

    def in_use_bytes(self) -> int:
        return self._table[self._slot]

    def change(self, share: GrantedShare) -> int | None:
        held_bytes = self._table[self._slot]
        if share.budget_bytes < held_bytes:
            time.sleep(self._chance.choice([0, 0, 0.01, 0.05]))
            if self._chance.random() < 0.1:
                return self._chance.randint(share.budget_bytes, held_bytes)
        self._table[self._slot] = share.budget_bytes
        return None


def live(socket: Path, table: Table, slot: int, capacity: int, trace: JobTrace, seed: int) -> int:
    """Run one job, and return its exit status."""
    chance = random.Random(seed)
    minimum = chance.choice([None, None, capacity // 100, capacity // 20])
    weight = chance.choice([0.5, 1.0, 1.0, 4.0])
    job = Job(socket, f"job {slot}", Share(weight, minimum, LONGEST_S))
    try:
        table[slot] = job.join().budget_bytes
    except BrokerError as error:
        print(f"job {slot}: {error}", file=sys.stderr, flush=True)
        return 3
    job.hold(Memory(table, slot, chance))
    end_s = time.monotonic() + chance.uniform(0.05, 1.0)
    traced = chance.random() < 0.5
    while time.monotonic() < end_s:
        job.step_begins()
        time.sleep(chance.uniform(0, 0.03))
        job.step_ended()
        if traced:
            job.profiled(trace)
            traced = False
        time.sleep(chance.uniform(0, 0.005))
    if chance.random() < 0.8:  # others do not leave
        table[slot] = 0
        job.leave()
    return 0


def is_there(pid: int) -> bool:
    """Return whether a process still has its memory; an ending one releases its lease later."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & _PF_EXITING


def held_at_once(table: Table, alive: dict[int, int]) -> int:
    """Return the memory that all jobs held at one time; 0 if it changed at every attempt.

    Reads the table twice: between two reads of a single pass, memory may move from a job that was
    read to one that was not.
    """
    for _ in range(_LOOKS):
        first, second = (
            {slot: table[slot] for slot, pid in alive.items() if is_there(pid)} for _ in range(2)
        )
        if first == second:
            return sum(first.values())
    return 0


def main() -> None:
    socket = Path(sys.argv[1])
    jobs, at_once, capacity, seed = map(int, sys.argv[2:])
    chance = random.Random(seed)
    table = Table(jobs)
    trace = job_trace(training_step(blocks=2, layers=1), Machine("link", 4e9, 4e9))
    alive: dict[int, int] = {}  # process by slot
    begun_s: dict[int, float] = {}
    doomed_s: dict[int, float] = {}
    killed: list[int] = []  # processes
    problems, most_bytes, looks, started = [], 0, 0, 0
    while started < jobs or alive:
        now_s = time.monotonic()
        if started < jobs and len(alive) < at_once:
            pid = os.fork()
            if pid == 0:
                status = 4
                try:
                    status = live(socket, table, started, capacity, trace, seed + started)
                finally:
                    os._exit(status)
            alive[started], begun_s[started] = pid, now_s
            if chance.random() < 0.4:
                doomed_s[started] = now_s + chance.uniform(0.0, 0.8)
            started += 1
        held_bytes = sum(table[slot] for slot in alive)
        if held_bytes > capacity:  # some jobs may have ended meanwhile
            held_bytes = held_at_once(table, alive)
            if held_bytes > capacity:
                problems.append(f"{held_bytes} bytes are held by {sorted(alive)}")
        most_bytes = max(most_bytes, held_bytes)
        looks += 1
        for slot, pid in list(alive.items()):
            if now_s > doomed_s.get(slot, now_s + 1):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                del doomed_s[slot]
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del alive[slot]
                table[slot] = 0
                if status not in (0, signal.SIGKILL):
                    problems.append(f"job {slot} ended with status {status}")
            elif now_s - begun_s[slot] > 2 * LONGEST_S:
                problems.append(f"job {slot} hangs")
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    print(
        json.dumps(
            {
                "jobs": started,
                "killed": killed,
                "looks": looks,
                "most_bytes": most_bytes,
                "problems": problems[:10],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
