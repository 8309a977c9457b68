"""Machines by name, from ``presets.json`` and from a user's file.

::

    {"format": "tfswap machines 1",
     "machines": {"my-GPU": {
        "title": "...", "memory_bytes": 8589934592, "memory_source": "...",
        "device": {"type": "GPU", "architecture": "8.6", "multiprocessors": 38,
                   "cores_per_multiprocessor": 128, "frequency_mhz": 1665,
                   "bandwidth_kb_per_s": 448000000, "efficiency": 0.7, "launch_ns": 5000,
                   "source": "..."},
        "link": {"out_bytes_per_s": 12e9, "in_bytes_per_s": 12e9,
                 "out_latency_ns": 10000, "in_latency_ns": 10000, "source": "..."}}}}

The device's fields are those of Grappler's ``DeviceProperties``. Its peak is one multiply-add (two
operations) per core and clock. Grappler's own estimator assumes 64 cores in every multiprocessor
since Pascal, half of what compute capabilities 6.1, 8.6, 8.9 and 9.0 have; therefore
``cores_per_multiprocessor`` is required. Optional: ``product_ops_per_s``, the peak of separate
matrix units; ``efficiency``, the fraction of that peak that convolutions reach (default 1.0);
``launch_ns`` (default 0).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfswap.io import private_files
from tfswap.io.untrusted_json import MAX_BYTES, parse_json
from tfswap.machine.machine import Device, Machine

FORMAT = "tfswap machines 1"

OWN_FILE = Path(__file__).resolve().parent / "presets.json"

_DEVICE = frozenset(
    {
        "type",
        "architecture",
        "multiprocessors",
        "cores_per_multiprocessor",
        "frequency_mhz",
        "bandwidth_kb_per_s",
        "source",
    }
)
_DEVICE_OPTIONAL = frozenset({"product_ops_per_s", "efficiency", "launch_ns"})
_LINK = frozenset({"out_bytes_per_s", "in_bytes_per_s", "source"})
_LINK_OPTIONAL = frozenset({"out_latency_ns", "in_latency_ns"})
_MACHINE = frozenset({"memory_bytes", "device", "link"})
_MACHINE_OPTIONAL = frozenset({"title", "memory_source"})


def load_machines(path: str | os.PathLike[str] | None = None) -> dict[str, Machine]:
    """Return all machines by name: tfswap's own, overridden and extended by those of a file.

    Args:
        path: A user's file.

    Raises:
        ValueError: The file does not follow the format; the message says where.
        OSError: The file cannot be read.
    """
    machines = _read(OWN_FILE)
    return machines if path is None else {**machines, **_read(Path(path))}


def find_machine(name: str, path: str | os.PathLike[str] | None = None) -> Machine:
    """Return the machine of this name.

    Raises:
        ValueError: The name is unknown; the message lists the known ones.
        OSError: The file cannot be read.
    """
    machines = load_machines(path)
    if name not in machines:
        raise ValueError(
            f"unknown machine {name!r}: known are {', '.join(machines)}. Describe other machines "
            "in a file of your own (--machines FILE)"
        )
    return machines[name]


def _read(path: Path) -> dict[str, Machine]:
    content = parse_json(private_files.read_bytes(path, MAX_BYTES), str(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{path} has no "format": "{FORMAT}"')
    machines = content.get("machines")
    if not isinstance(machines, dict):
        raise ValueError(f'{path} has no "machines", an object with a machine for each name')
    read = {}
    for name, values in machines.items():
        try:
            read[name] = _machine(name, values)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{path}: machine {name!r}: {error}") from error
    return read


def _machine(name: str, values: Any) -> Machine:
    values = _checked("it", values, _MACHINE, _MACHINE_OPTIONAL)
    device = _checked("its device", values["device"], _DEVICE, _DEVICE_OPTIONAL)
    link = _checked("its link", values["link"], _LINK, _LINK_OPTIONAL)
    if device["type"] != "GPU":
        raise ValueError(f'its device\'s type is {device["type"]!r}; only "GPU" is known')
    ops_per_s = (
        2e6
        * device["multiprocessors"]
        * device["cores_per_multiprocessor"]
        * device["frequency_mhz"]
    )
    return Machine(
        name,
        out_bytes_per_s=float(link["out_bytes_per_s"]),
        in_bytes_per_s=float(link["in_bytes_per_s"]),
        out_latency_ns=int(link.get("out_latency_ns", 0)),
        in_latency_ns=int(link.get("in_latency_ns", 0)),
        device=Device(
            memory_bytes=int(values["memory_bytes"]),
            ops_per_s=float(ops_per_s),
            product_ops_per_s=float(device.get("product_ops_per_s", ops_per_s)),
            bytes_per_s=1e3 * device["bandwidth_kb_per_s"],
            efficiency=float(device.get("efficiency", 1.0)),
            launch_ns=int(device.get("launch_ns", 0)),
        ),
    )


def _checked(
    what: str, values: Any, required: frozenset[str], optional: frozenset[str]
) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{what} is not an object")
    missing = sorted(required - values.keys())
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    unknown = sorted(values.keys() - required - optional)
    if unknown:
        raise ValueError(f"{what} has unknown {', '.join(unknown)}")
    return values
