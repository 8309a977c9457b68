"""``tfswap broker``: options and error messages."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from light import BrokerProcess

from tfswap.commands import broker as command
from tfswap.machine.machine import Machine
from tfswap.options import from_environment


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--device", "TPU:0"], "devices are called CPU:0, GPU:0, GPU:1"),
        (["--device", "GPU"], "devices are called"),
        (["--budget", "lots"], "'lots' is not an amount of memory"),
        (["--budget", "1GiB", "--weight", "3"], "--weight must be JOB=VALUE; got '3'"),
        (
            ["--budget", "1GiB", "--weight", "a=0"],
            "--weight must be above 0 and at most 1000; got '0'",
        ),
        (
            ["--budget", "1GiB", "--weight", "a=x"],
            "--weight must be above 0 and at most 1000; got 'x'",
        ),
        (["--budget", "1GiB", "--minimum", "a=-1"], "'-1' is not an amount"),
        (
            ["--budget", "1GiB", "--minimum", "a=700MiB", "--minimum", "b=700MiB"],
            "the sum of the minima is 1.37 GiB, more than the budget of 1.00 GiB",
        ),
        (["--budget", "1GiB", "--socket", "/" + "x" * 120], "at most 107 bytes"),
        (["--budget", "1GiB", "--socket", "/tmp/broker.sock"], "the folder /tmp is open to others"),
    ],
)
def test_invalid_options_are_errors(arguments, why, capsys):
    assert run(*arguments) == 1
    assert why in capsys.readouterr().err


def test_a_percentage_of_a_gpu_uses_the_memory_that_its_driver_reports(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("--device", "GPU:1", "--budget", "50%") == 1
    assert 'give bytes, such as "8GiB"' in capsys.readouterr().err
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$3" = "--id=1" ] && echo 8192\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    assert command._budget_bytes("50%", "GPU", 1) == 4 << 30
    assert command._budget_bytes("6GiB", "GPU", 0) == 6 << 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_broker_cleanly(tmp_path: Path, number: int):
    broker = BrokerProcess(tmp_path / "run" / "broker.sock", "1GiB")
    broker.process.send_signal(number)
    assert broker.process.wait(20) == 0
    assert broker.said.splitlines()[-1] == "tfswap broker: ended; running jobs keep their shares"
    assert list((tmp_path / "run").iterdir()) == []


def test_the_command_has_help():
    done = subprocess.run(
        [sys.executable, "-m", "tfswap", "broker", "--help"], capture_output=True, text=True
    )
    assert "Divide a device's memory among several training processes" in done.stdout


def test_options_in_environment_variables(tmp_path):
    socket = str(tmp_path / "broker.sock")
    for text, broker in (("1", True), ("on", True), ("0", None), ("none", None), (socket, socket)):
        assert from_environment({"TFSWAP_BROKER": text})["broker"] == broker
    found = from_environment({"TFSWAP_BROKER": socket, "TFSWAP_SHARE": "weight=2"})
    assert found == {"broker": socket, "share": "weight=2"}
    with pytest.raises(ValueError, match="As a text it is one or more"):
        from_environment({"TFSWAP_BROKER": socket, "TFSWAP_SHARE": "much"})


def test_a_share_of_a_link():
    link = Machine("link", 10e9, 8e9, copy_bytes_per_s=5e9)
    assert link.part(1.0) is link
    half = link.part(0.5)
    assert (half.out_bytes_per_s, half.in_bytes_per_s, half.name) == (5e9, 4e9, "link, 50% of it")
    assert half.copy_bytes_per_s == 5e9
