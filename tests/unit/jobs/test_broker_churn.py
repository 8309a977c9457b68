"""Jobs that join, leave and are killed at random: no overcommitment, no hang, no lost share."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from light import ROOT, BrokerProcess, start

from tfswap.jobs.job import Job
from tfswap.jobs.share import Share

MIB = 1 << 20
BUDGET = 1000 * MIB

CHURN = f"""
import runpy
sys.argv[0] = {str(ROOT / "tests" / "unit" / "churn.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def is_of_killed_job(line: str, killed: list[int]) -> bool:
    """Return whether a refusal is of a killed job, whose stream ends late on a busy machine."""
    return any(f"(process {pid})" in line for pid in killed) or line.endswith(
        "but no process holds it"
    )


@pytest.mark.parametrize(
    ("jobs", "at_once", "brokers_killed"),
    [(40, 8, 0), pytest.param(200, 10, 3, marks=pytest.mark.slow)],
)
def test_jobs_come_and_go_at_random(tmp_path: Path, jobs: int, at_once: int, brokers_killed: int):
    path = tmp_path / "run" / "broker.sock"
    broker = BrokerProcess(path, BUDGET)
    churn = start(
        CHURN,
        *(str(path), str(jobs), str(at_once), str(BUDGET), "7"),
        stdout=subprocess.PIPE,
    )
    for _ in range(brokers_killed):
        time.sleep(1.5)
        broker.kill()
        broker = BrokerProcess(path, BUDGET)
    output, _ = churn.communicate(timeout=200)
    outcome = json.loads(output.splitlines()[-1])
    assert outcome["problems"] == [], outcome
    assert outcome["jobs"] == jobs and len(outcome["killed"]) >= jobs // 8
    assert BUDGET // 2 < outcome["most_bytes"] <= BUDGET
    # The broker ends when its ledger is inconsistent.
    assert broker.process.poll() is None
    assert "Traceback" not in broker.said
    refused = [line for line in broker.said.splitlines() if "refused" in line]
    assert [line for line in refused if not is_of_killed_job(line, outcome["killed"])] == []
    last = Job(path, "last", Share(wait_s=20))
    assert last.join().budget_bytes == BUDGET
    last.leave()
    broker.end()
