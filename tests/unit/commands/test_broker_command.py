"""``tfswap broker``: what it is told, and what it says is wrong."""

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
        (["--budget", "1GiB", "--weight", "3"], "--weight 3: write it as JOB=VALUE"),
        (["--budget", "1GiB", "--weight", "a=0"], "'0' is no number above 0, at most 1000"),
        (["--budget", "1GiB", "--weight", "a=x"], "'x' is no number"),
        (["--budget", "1GiB", "--minimum", "a=-1"], "'-1' is not an amount"),
        (
            ["--budget", "1GiB", "--minimum", "a=700MiB", "--minimum", "b=700MiB"],
            "the minima are 1.37 GiB together, and the budget is 1.00 GiB",
        ),
        (["--budget", "1GiB", "--socket", "/" + "x" * 120], "at most 107 bytes"),
        (["--budget", "1GiB", "--socket", "/tmp/broker.sock"], "the folder /tmp is open to others"),
    ],
)
def test_what_is_wrong_is_said(arguments, why, capsys):
    assert run(*arguments) == 1
    assert why in capsys.readouterr().err


def test_a_part_of_a_gpu_is_of_what_its_driver_says(tmp_path, monkeypatch, capsys):
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
def test_an_interrupt_ends_it_cleanly(tmp_path: Path, number: int):
    broker = BrokerProcess(tmp_path / "run" / "broker.sock", "1GiB")
    broker.process.send_signal(number)
    assert broker.process.wait(20) == 0
    assert broker.said.splitlines()[-1] == "tfswap broker: ended; jobs go on with what they have"
    assert list((tmp_path / "run").iterdir()) == []


def test_the_command_is_there():
    said = subprocess.run(
        [sys.executable, "-m", "tfswap", "broker", "--help"], capture_output=True, text=True
    )
    assert "Divide a device's memory among several training processes" in said.stdout


def test_options_of_the_environment(tmp_path):
    socket = str(tmp_path / "broker.sock")
    for text, broker in (("1", True), ("on", True), ("0", None), ("none", None), (socket, socket)):
        assert from_environment({"TFSWAP_BROKER": text})["broker"] == broker
    found = from_environment({"TFSWAP_BROKER": socket, "TFSWAP_SHARE": "weight=2"})
    assert found == {"broker": socket, "share": "weight=2"}
    with pytest.raises(ValueError, match="As a text it is one or more"):
        from_environment({"TFSWAP_BROKER": socket, "TFSWAP_SHARE": "much"})


def test_a_part_of_a_link():
    link = Machine("link", 10e9, 8e9, copy_bytes_per_s=5e9)
    assert link.part(1.0) is link
    half = link.part(0.5)
    assert (half.out_bytes_per_s, half.in_bytes_per_s, half.name) == (5e9, 4e9, "link, 50% of it")
    assert half.copy_bytes_per_s == 5e9
