"""What jobs and their broker say to one another: small JSON objects, checked field by field.

::

    job                                   broker
     | -- hello(version, what it asks) -->  |
     | <-- welcome(its lease) ------------- |    the job locks the lease, and then
     | -- leased -------------------------> |
     | <-- waiting(who holds what) -------- |    as long as there is no room
     | <-- share(serial, budget, link) ---- |    then, and whenever it changes
     | -- ack(serial) | decline(serial) --> |    within it | cannot be, with its least
     | -- TFSWJOB1... --------------------> |    its step, when it is known (`job_trace`)
     | -- leave --------------------------> |
     | <-- refused(why) ------------------- |    instead of any of the broker's, and the end

A message from a job is believed to be no more than a claim: `parse` refuses whatever is unknown,
missing, of another type or out of range.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tfswap.io.untrusted_json import parse_json
from tfswap.jobs.share import MOST_WEIGHT

VERSION = 1
METHOD = "/tfswap.Broker/Join"

MOST_BYTES = 1 << 20
"""Of any message."""

_MOST_TEXT_BYTES = 16 << 10  # of one that is JSON
_MOST_MEMORY = 1 << 50
_NAME = re.compile(r"[\w.,:;@+=()\[\] /-]{1,80}")
_LEASE = re.compile(r"job-[0-9a-f]{16}")


class BadMessage(ValueError):
    """A message that cannot be; the text says why."""


class _Integer(NamedTuple):
    least: int
    most: int

    def problem(self, value: object) -> str:
        if type(value) is int and self.least <= value <= self.most:
            return ""
        return f"must be an integer from {self.least} to {self.most}"


class _Number(NamedTuple):
    above: float
    most: float

    def problem(self, value: object) -> str:
        if type(value) in (int, float) and self.above < value <= self.most:  # type: ignore[operator]
            return ""
        return f"must be a number above {self.above:g}, at most {self.most:g}"


class _Text(NamedTuple):
    pattern: re.Pattern[str]

    def problem(self, value: object) -> str:
        if isinstance(value, str) and self.pattern.fullmatch(value):
            return ""
        return f"must be a text like {self.pattern.pattern}"


_Field = _Integer | _Number | _Text
_BYTES = _Integer(0, _MOST_MEMORY)
_SERIAL = _Integer(1, 1 << 53)
_ANY_TEXT = _Text(re.compile(r"[^\x00]{0,4000}", re.DOTALL))

FROM_JOBS: dict[str, dict[str, _Field]] = {
    "hello": {
        "version": _Integer(1, 1 << 31),
        "name": _Text(_NAME),
        "device": _Text(re.compile(r"[CG]PU")),
        "weight": _Number(0, MOST_WEIGHT),
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
"""By kind, the fields that there must be. Of a hello, `wanted_bytes` 0 is all of the device, and an
empty lease a job that has none."""

FROM_BROKERS: dict[str, dict[str, _Field]] = {
    "welcome": {
        "version": _Integer(1, 1 << 31),
        "device": _Text(re.compile(r"[CG]PU:\d{1,4}")),
        "device_bytes": _Integer(1, _MOST_MEMORY),
        "lease": _Text(_LEASE),
        "token": _Text(re.compile(r"[0-9a-f]{64}")),
    },
    "waiting": {"why": _ANY_TEXT},
    "share": {
        "serial": _SERIAL,
        "budget_bytes": _Integer(1, _MOST_MEMORY),
        "link_share": _Number(0, 1),
        "jobs": _Integer(1, 1 << 20),
    },
    "refused": {"why": _ANY_TEXT},
}

Message = dict[str, Any]


def encode(kind: str, **fields: object) -> bytes:
    """A message as bytes."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def parse(data: bytes, allowed: Mapping[str, Mapping[str, _Field]]) -> Message:
    """Reads a message, "kind" and all fields of that kind.

    Args:
        data: The message.
        allowed: `FROM_JOBS` or `FROM_BROKERS`.

    Raises:
        BadMessage: It is none of those.
    """
    if len(data) > _MOST_TEXT_BYTES:
        raise BadMessage(f"a message of {len(data)} bytes is larger than {_MOST_TEXT_BYTES}")
    try:
        message = parse_json(data.decode("utf-8"), "a message")
    except ValueError:
        raise BadMessage("a message that is no JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BadMessage("a message that is no object with a kind")
    kind = message["kind"]
    fields = allowed.get(kind)
    if fields is None:
        raise BadMessage(f"a message of unknown kind {kind[:40]!r}: {', '.join(allowed)}")
    unknown = sorted(set(message) - set(fields) - {"kind"})
    if unknown:
        raise BadMessage(f"{kind}: unknown field {str(unknown[0])[:40]!r}")
    for name, field in fields.items():
        problem = field.problem(message[name]) if name in message else "is missing"
        if problem:
            raise BadMessage(f"{kind}: {name} {problem}")
    return message


def clean_name(name: str) -> str:
    """A name as a job may have it."""
    kept = re.sub(r"[^\w.,:;@+=()\[\] /-]", "_", name)[:80]
    return kept or "job"
