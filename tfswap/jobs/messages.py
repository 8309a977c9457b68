"""Messages between jobs and their broker: small JSON objects, validated field by field.

::

    job                                   broker
     | -- hello(version, request) --------> |
     | <-- welcome(lease) ----------------- |    the job locks the lease, then sends
     | -- leased -------------------------> |
     | <-- waiting(why) ------------------- |    while there is not enough free memory
     | <-- share(serial, budget, link) ---- |    the first share, and every change
     | -- ack(serial) | decline(serial) --> |    installed | too small, with the least budget
     | -- TFSWJOB1... --------------------> |    the job's step, once known (`job_trace`)
     | -- leave --------------------------> |
     | <-- refused(why) ------------------- |    instead of any other answer; ends the stream

Messages are untrusted input: `parse` rejects unknown and missing fields, wrong types and values
out of range.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tfswap.io.untrusted_json import parse_json
from tfswap.jobs.share import MAX_WEIGHT

VERSION = 1
METHOD = "/tfswap.Broker/Join"

MAX_BYTES = 1 << 20
"""Maximum size of a message."""

_MAX_JSON_BYTES = 16 << 10
_MAX_MEMORY = 1 << 50
_NAME = re.compile(r"[\w.,:;@+=()\[\] /-]{1,80}")
_LEASE = re.compile(r"job-[0-9a-f]{16}")


class BadMessage(ValueError):
    """A message is invalid, for the reason in the text."""


class _Integer(NamedTuple):
    minimum: int
    maximum: int

    def problem(self, value: object) -> str:
        if type(value) is int and self.minimum <= value <= self.maximum:
            return ""
        return f"must be an integer from {self.minimum} to {self.maximum}"


class _Number(NamedTuple):
    above: float
    maximum: float

    def problem(self, value: object) -> str:
        if type(value) in (int, float) and self.above < value <= self.maximum:  # type: ignore[operator]
            return ""
        return f"must be a number above {self.above:g}, at most {self.maximum:g}"


class _Text(NamedTuple):
    pattern: re.Pattern[str]

    def problem(self, value: object) -> str:
        if isinstance(value, str) and self.pattern.fullmatch(value):
            return ""
        return f"must be a string that matches {self.pattern.pattern}"


_Field = _Integer | _Number | _Text
_BYTES = _Integer(0, _MAX_MEMORY)
_SERIAL = _Integer(1, 1 << 53)
_ANY_TEXT = _Text(re.compile(r"[^\x00]{0,4000}", re.DOTALL))

FROM_JOBS: dict[str, dict[str, _Field]] = {
    "hello": {
        "version": _Integer(1, 1 << 31),
        "name": _Text(_NAME),
        "device": _Text(re.compile(r"[CG]PU")),
        "weight": _Number(0, MAX_WEIGHT),
        "minimum_bytes": _BYTES,
        "wanted_bytes": _BYTES,
        "lease": _Text(re.compile(rf"({_LEASE.pattern})?")),
        "token": _Text(re.compile(r"[0-9a-f]{0,64}")),
        "held_bytes": _BYTES,
    },
    "leased": {},
    "ack": {"serial": _SERIAL, "in_use_bytes": _BYTES},
    "decline": {"serial": _SERIAL, "least_bytes": _BYTES},
    "leave": {},
}
"""The fields of each kind of message from a job. In a hello, `wanted_bytes` 0 stands for the whole
device, and an empty lease for a job without one."""

FROM_BROKERS: dict[str, dict[str, _Field]] = {
    "welcome": {
        "version": _Integer(1, 1 << 31),
        "device": _Text(re.compile(r"[CG]PU:\d{1,4}")),
        "device_bytes": _Integer(1, _MAX_MEMORY),
        "lease": _Text(_LEASE),
        "token": _Text(re.compile(r"[0-9a-f]{64}")),
    },
    "waiting": {"why": _ANY_TEXT},
    "share": {
        "serial": _SERIAL,
        "budget_bytes": _Integer(1, _MAX_MEMORY),
        "link_share": _Number(0, 1),
        "jobs": _Integer(1, 1 << 20),
    },
    "refused": {"why": _ANY_TEXT},
}
"""The fields of each kind of message from a broker."""

Message = dict[str, Any]


def encode(kind: str, **fields: object) -> bytes:
    """Encode a message."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def parse(data: bytes, allowed: Mapping[str, Mapping[str, _Field]]) -> Message:
    """Decode and validate a message.

    Args:
        data: The encoded message.
        allowed: `FROM_JOBS` or `FROM_BROKERS`.

    Returns:
        "kind" and the fields of that kind.

    Raises:
        BadMessage: The message is invalid.
    """
    if len(data) > _MAX_JSON_BYTES:
        raise BadMessage(f"a message of {len(data)} bytes is larger than {_MAX_JSON_BYTES}")
    try:
        message = parse_json(data.decode("utf-8"), "a message")
    except ValueError:
        raise BadMessage("a message is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BadMessage("a message is not an object with a kind")
    kind = message["kind"]
    fields = allowed.get(kind)
    if fields is None:
        raise BadMessage(f"unknown kind {kind[:40]!r} of message; allowed: {', '.join(allowed)}")
    unknown = sorted(set(message) - set(fields) - {"kind"})
    if unknown:
        raise BadMessage(f"{kind}: unknown field {str(unknown[0])[:40]!r}")
    for name, field in fields.items():
        problem = field.problem(message[name]) if name in message else "is missing"
        if problem:
            raise BadMessage(f"{kind}: {name} {problem}")
    return message


def clean_name(name: str) -> str:
    """Replace characters that a job's name must not contain, and truncate the name."""
    cleaned = re.sub(r"[^\w.,:;@+=()\[\] /-]", "_", name)[:80]
    return cleaned or "job"
