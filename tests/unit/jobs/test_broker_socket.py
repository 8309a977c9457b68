"""The broker's socket: who can access it, and one broker per socket."""

from __future__ import annotations

import os
import socket
import stat
import subprocess

import pytest
from broker_clients import BUDGET
from light import BrokerProcess, start

from tfswap.jobs.socket_path import (
    SocketRefused,
    check_socket,
    default_path,
    leases_of,
    make_private_folder,
    parse_path,
)


def test_only_its_user_can_access_the_socket(broker, path):
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(leases_of(path)).st_mode) == 0o700
    check_socket(path)
    os.chmod(path, 0o666)
    with pytest.raises(SocketRefused, match=r"the socket .* is open to other users \(mode 0666\)"):
        check_socket(path)
    os.chmod(path, 0o600)


def test_a_folder_that_is_open_to_other_users_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.chmod(shared, 0o755)
    with pytest.raises(
        SocketRefused, match=r"is open to other users \(mode 0755\).*tfswap/broker.sock"
    ):
        make_private_folder(shared)
    (tmp_path / "file").touch()
    with pytest.raises(SocketRefused, match="is not a folder"):
        make_private_folder(tmp_path / "file")


def test_a_socket_of_another_user_is_refused(path, monkeypatch):
    make_private_folder(path.parent)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    os.chmod(path, 0o600)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SocketRefused, match="belongs to user .* and this process to 12345"):
        check_socket(path)
    server.close()


def test_paths_of_sockets(path, monkeypatch, tmp_path):
    assert parse_path(f"unix:{path}") == parse_path(path) == path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert parse_path(True) == default_path() == tmp_path / "tfswap" / "broker.sock"
    for wrong in ("", False, 3, "a\0b"):
        with pytest.raises(ValueError, match="broker is .* it must be the path"):
            parse_path(wrong)
    with pytest.raises(ValueError, match="at most 107 bytes"):
        parse_path("/tmp/" + "x" * 200)


def test_a_second_broker_on_a_socket_is_refused(broker, path):
    second = start(
        "import asyncio; from pathlib import Path; from tfswap.jobs.broker import Broker\n"
        "asyncio.run(Broker('CPU:0', 1, Path(sys.argv[1])).start())",
        str(path),
        stderr=subprocess.PIPE,
    )
    assert "there is a broker at" in second.communicate(timeout=20)[1]
    check_socket(path)


def test_the_socket_of_a_dead_broker_is_reused(path, join):
    first = BrokerProcess(path, BUDGET)
    first.kill()
    assert path.exists()
    second = BrokerProcess(path, BUDGET)
    assert join("a").granted.budget_bytes == BUDGET
    second.end()
    assert not path.exists()
