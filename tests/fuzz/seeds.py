"""Write the first inputs of the fuzzer: small valid ones of each kind.

::

    python tests/fuzz/seeds.py
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "unit")]

from timelines import training_step  # noqa: E402

from tfswap import saved_model  # noqa: E402
from tfswap.jobs.job_trace import MAGIC, job_trace  # noqa: E402
from tfswap.jobs.lease import LeaseRecord  # noqa: E402
from tfswap.jobs.messages import encode  # noqa: E402
from tfswap.machine.machine import Machine  # noqa: E402
from tfswap.machine.presets import OWN_FILE  # noqa: E402
from tfswap.plan.cache import FORMAT  # noqa: E402
from tfswap.plan.schema import FunctionPlan, Recompute, Return, SwapPlan, TensorSwap  # noqa: E402
from tfswap.plan.slots import Slot  # noqa: E402
from tfswap.step.graph import StepGraph  # noqa: E402
from tfswap.step.op_floor import OpFloor, StepFloor  # noqa: E402
from tfswap.step.profile import Profile  # noqa: E402
from tfswap.step.section_floor import SectionFloor  # noqa: E402
from tfswap.traces import array_file, timeline_file  # noqa: E402
from tfswap.traces.dataflow_text import dataflow_of_lines  # noqa: E402

GRAPH = "0123456789abcdef"
_LINK = Machine("link", 2e9, 3e9)
_NODES = """a\tMatMul\t0\tgprod\t2\tx:0
x\t_Arg\t0\tr\t1
flat\tReshape\t0\tarpod\t1\ta:0
b\tMatMul\t0\tgprobd\t1\tflat:0\t^x
#delay\tx\tb
#twin\ta\tb"""


def plan() -> SwapPlan:
    """Return a plan that uses every feature."""
    swap = TensorSwap("a:0", 4 << 20, ("c",), (Return("d", ("e", "f"), 7),), codec="zvc")
    weight = TensorSwap("w:0", 1 << 20, (), (Return("", ()),), after=("b",), returns_in_step=True)
    again = Recompute("b:0", ("a", "b"), "d", ("e",))
    function = FunctionPlan(
        GRAPH,
        (swap, weight),
        (("c", "d"), ("tfswap/out/a_0", "e")),
        True,
        9 << 20,
        10**9,
        portable=GRAPH[::-1],
        layouts=((Slot("a", 0, 0, 0, 4096), Slot("tfswap/in/a_0/0", 0, 0, -2, 4096)),),
        recomputes=(again,),
    )
    return SwapPlan((function,), 1 << 30, "greedy", "bootstrap", sections=2, batch=8)


def profile() -> Profile:
    """Return the profile of a small step."""
    timeline = training_step(blocks=1)
    lines = [str(1 << 20), "", "a\t0\t0", "a\t4096", "", *_NODES.split("\n")]
    flow = dataflow_of_lines(lines, len(timeline.buffer_bytes))
    return Profile(
        replace(timeline, dataflow=flow),
        GRAPH,
        (("a", "b"),),
        123,
        456,
        (0,),
        section_floors=(SectionFloor(2, 99, "a"),),
        floor=StepFloor(OpFloor("a", "MatMul", 1, 2, 3, 4, 5), OpFloor("b", "Mul", 6, 7, 8, 9, 0)),
    )


def stored(whole: Profile) -> bytes:
    """Return an uncompressed profile, so that changes of the file change its contents."""
    path = CORPUS / "profile" / "good"
    timeline_file.save_profile(whole, path)
    arrays = array_file.read_arrays(path, timeline_file._ARRAYS, timeline_file._OPTIONAL)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path.read_bytes()


def main() -> None:
    """Write all inputs."""
    text = plan().to_json()
    remembered = {
        "format": FORMAT,
        "out_bytes_per_s": 2e9,
        "in_bytes_per_s": 3e9,
    }
    asset = {"format": saved_model.FORMAT, "options": {"budget": "1GiB", "slab": True}}
    record = LeaseRecord("job", "ab" * 32, 1 << 30, 2.0, 1 << 20, 1 << 31)
    machines = json.loads(OWN_FILE.read_text())
    few = dict(list(machines["machines"].items())[:2])
    (CORPUS / "profile").mkdir(parents=True, exist_ok=True)
    trace = job_trace(training_step(blocks=1), _LINK).to_bytes()
    step = [
        f"{kind} 0x{at:x} 64 {10**18 + 9 * at}" for at in range(8) for kind in ("Malloc", "Read")
    ]
    hello = encode(
        "hello",
        version=1,
        name="job",
        device="CPU",
        weight=1.5,
        minimum_bytes=1,
        wanted_bytes=0,
        lease="",
        token="",
        held_bytes=0,
    )
    share = encode("share", serial=1, budget_bytes=1 << 30, link_share=0.5, jobs=2)
    speed = [{"name": "zvc", "threads": 2, "out": [1, 2.5, 3], "in": [4, 5, 6]}]
    seeds: dict[str, list[bytes]] = {
        "plan": [text.encode(), SwapPlan().to_json().encode()],
        "profile": [stored(profile())],
        "step": [_arrays()],
        "trace_of_job": [trace, _unpacked(trace)],
        "message": [hello, share, encode("ack", serial=1, in_use_bytes=5)],
        "lease": [json.dumps(asdict(record)).encode()],
        "events": ["\n".join(step * 4).encode()],
        "recording": [b"TFSWTRC2" + bytes(56), _recording()],
        "asset": [json.dumps({**asset, "plan": json.loads(text)}).encode()],
        "machines": [json.dumps({**machines, "machines": few}).encode()],
        "codec_times": [json.dumps(speed).encode()],
        "remembered_plan": [
            json.dumps({**remembered, "plan": json.loads(each.to_json())}).encode()
            for each in (SwapPlan((FunctionPlan(GRAPH),)), plan())
        ],
        "environment": [b"BUDGET=1.5GiB\nSECTIONS=auto\nSHARE=weight=2,minimum=1GiB", b"SLAB=off"],
    }
    for name, inputs in seeds.items():
        for number, data in enumerate(inputs):
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / ("good" if number == 0 else f"good-{number}")).write_bytes(data)


def _unpacked(trace: bytes) -> bytes:
    import zlib

    return zlib.decompress(trace[len(MAGIC) :])


def _arrays() -> bytes:
    """Return the profile's arrays as JSON: text as strings, numbers as lists."""
    with np.load(CORPUS / "profile" / "good") as archive:
        arrays = {
            name: array.tobytes().decode() if array.dtype == np.uint8 else array.tolist()
            for name, array in archive.items()
        }
    return json.dumps(arrays).encode()


def _recording() -> bytes:
    head = np.array([0, 9, 0, 0, 1, 0, 2], "<i8").tobytes()
    return b"TFSWTRC2" + head + bytes(32) + b"a\n"


if __name__ == "__main__":
    StepGraph.parse(_NODES)
    main()
