"""Fuzz all parsers for some minutes, guided by coverage; fail at the first fault.

::

    python tests/fuzz --minutes 10 [--only plan,pass] [--found FOLDER]

Fuzz the Python parsers with atheris (libFuzzer) if it is installed, else by mutation of the
corpus; fuzz the C++ parsers (the target "pass") in a separate program with sanitizers. Print a
line of JSON for each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path[:0] = [str(TREE), str(HERE)]

import inputs  # noqa: E402
import pass_build  # noqa: E402
import targets  # noqa: E402

_SLOWEST_S = 20
_MEMORY_MIB = 6000


def by_coverage(name: str, found: Path, seconds: int) -> dict[str, object]:
    """Fuzz one target with libFuzzer."""
    command = [
        *(sys.executable, str(HERE / "by_coverage.py"), name),
        *(str(found), str(inputs.CORPUS / name)),
        f"-max_total_time={seconds}",
        f"-timeout={_SLOWEST_S}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-artifact_prefix={found}-",
        "-max_len=32768",
    ]
    paths = os.pathsep.join([str(TREE), str(HERE), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    done = re.search(r"Done (\d+) runs", run.stderr)
    if run.returncode != 0 or done is None:
        raise SystemExit(f"{run.stderr[-8000:]}\nfuzzing {name} found a fault")
    return {"tried": int(done[1]), "new": len(list(found.iterdir()))}


def by_changes(name: str, found: Path, seconds: int) -> dict[str, object]:
    """Fuzz one target by mutation, without coverage."""
    end_s = time.monotonic() + seconds
    tried = 0
    for data in inputs.mutants(name, name in targets.JSON, seed=time.time_ns()):
        begun_s = time.monotonic()
        if begun_s > end_s:
            break
        (found / "current").write_bytes(data)
        targets.run(name, data)
        tried += 1
        if time.monotonic() - begun_s > _SLOWEST_S:
            raise SystemExit(f"{found / 'current'} takes {name} more than {_SLOWEST_S} s")
    return {"tried": tried, "new": 0}


def in_cpp(found: Path, seconds: int) -> dict[str, object]:
    """Fuzz the parsers in C++."""
    program = pass_build.build()
    command = [
        *(str(program), str(inputs.CORPUS / "graph.pb"), str(inputs.CORPUS / "pass")),
        *(str(found), str(seconds), str(time.time_ns())),
    ]
    run = subprocess.run(
        command, env={**os.environ, **pass_build.ENVIRONMENT}, capture_output=True, text=True
    )
    if run.returncode != 0:
        raise SystemExit(f"{run.stderr[-8000:]}\n{found / 'current'} is a fault ({run.returncode})")
    counts: dict[str, object] = json.loads(run.stdout)
    return counts


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Fuzz the parsers of untrusted input.")
    parser.add_argument("--minutes", type=float, default=5, help="of all of them together")
    parser.add_argument("--only", default="", help="targets, by commas")
    parser.add_argument("--found", type=Path, default=TREE / "build" / "fuzz" / "found")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*targets.TARGETS, "pass"]
    # Plans and profiles are the largest part of the input, and the most complex one.
    weights = {name: 4 if name in ("plan", "profile", "pass") else 1 for name in names}
    guided = importlib.util.find_spec("atheris") is not None

    def fuzz(name: str) -> dict[str, object]:
        if name == "pass" and (why_not := pass_build.why_not()):
            return {"target": name, "left_out": why_not}
        seconds = max(1, int(60 * options.minutes * weights[name] / sum(weights.values())))
        found = options.found / name
        found.mkdir(parents=True, exist_ok=True)
        if name == "pass":
            counts = in_cpp(found, seconds)
        else:
            counts = (by_coverage if guided else by_changes)(name, found, seconds)
        line = {"target": name, "seconds": seconds, "by_coverage": guided or name == "pass"}
        return {**line, **counts}

    names.sort(key=lambda name: name != "pass")  # first, because it compiles in the meantime
    # With libFuzzer each target is a separate process, which keeps one core busy.
    at_once = len(os.sched_getaffinity(0)) if guided else 1
    with ThreadPoolExecutor(at_once) as pool:
        lines = [pool.submit(fuzz, name) for name in names]
        try:
            for line in as_completed(lines):
                print(json.dumps(line.result()), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


if __name__ == "__main__":
    main()
