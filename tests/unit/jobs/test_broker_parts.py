"""Parts of the broker and its jobs: messages, leases, rate limits and shares."""

from __future__ import annotations

import subprocess

import pytest
from light import start

from tfswap.jobs.lease import HeldLease, LeaseRecord, holder, read_record, write_record
from tfswap.jobs.messages import FROM_BROKERS, FROM_JOBS, BadMessage, encode, parse
from tfswap.jobs.rate_limit import RateLimit
from tfswap.jobs.share import Share

MIB = 1 << 20


def test_messages_round_trip():
    ack = {"kind": "ack", "serial": 3, "in_use_bytes": 5}
    assert parse(encode(**ack), FROM_JOBS) == ack
    with pytest.raises(BadMessage, match="unknown kind 'ack'"):
        parse(encode(**ack), FROM_BROKERS)


def test_leases_report_their_holder(tmp_path):
    path = tmp_path / "job-1"
    record = LeaseRecord("a", "00", 5, 1.0, 2, 3)
    write_record(path, record, create=True)
    assert read_record(path) == record
    assert holder(path) is None
    with pytest.raises(FileExistsError):
        write_record(path, record, create=True)
    code = (
        "from pathlib import Path; from tfswap.jobs.lease import HeldLease\n"
        "lease = HeldLease(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    process = start(code, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    assert holder(path) == process.pid
    with pytest.raises(OSError):
        HeldLease(path)
    process.kill()
    process.wait()
    assert holder(path) is None
    for invalid in ("", "{}", "[1]", '{"name": 1}', "\0", record.name):
        path.write_text(invalid)
        assert read_record(path) is None
    assert holder(tmp_path / "none") is None and read_record(tmp_path / "none") is None


def test_the_rate_limit():
    limit = RateLimit(3, 2.0)
    assert [limit.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [limit.take(1.0) for _ in range(3)] == [True, True, False]
    limit.return_token()
    assert limit.take(1.0) and not limit.take(1.0)


def test_shares_are_validated():
    assert Share.parse("weight=2, minimum=1GiB,wait_s=60") == Share(2.0, "1GiB", 60.0)
    assert Share(minimum="1KiB").minimum_bytes == 1024 and Share().minimum_bytes == 0
    for text, why in (
        ("weight", "A string must have"),
        ("weight=x", "weight is 'x'; it must be a number"),
        ("weight=0", "weight is 0.0; it must be above 0"),
        ("minimum=lots", "share: minimum: 'lots' is not an amount"),
        ("wait_s=-1", "wait_s is -1.0; it must be 0 or more"),
        ("weight=1,weight=2", "A string must have"),
    ):
        with pytest.raises(ValueError, match=why):
            Share.parse(text)
    with pytest.raises(ValueError, match=r"it must be a tfswap.Share"):
        Share.parse(3)
