"""Traps around everything that a file must not reach: code, connections, pickles, other programs, other files."""

import builtins
import importlib
import io
import os
import pickle
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch


class Sprung(BaseException):
    """Raised by a trap: no handler of an ordinary error may hide it."""


def loaded_or_refused(load):
    """What a call loads, or None if it refuses in one line; any other error goes through."""
    try:
        return load()
    except ValueError as error:
        if str(error).isprintable():
            return None
        raise


@pytest.fixture
def traps(monkeypatch, tmp_path):
    """Fail the test where a connection, a pickle, a program or a foreign file is opened."""

    def trap(name):
        def spring(*arguments, **options):
            raise Sprung(f"{name} was reached with {str(arguments)[:200]}")

        return spring

    for place, name in (
        (socket, "create_connection"),
        (socket, "getaddrinfo"),
        (socket.socket, "connect"),
        (urllib.request, "urlopen"),
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
        (torch.hub, "load_state_dict_from_url"),
        (os, "system"),
        (subprocess, "Popen"),
        (builtins, "input"),
    ):
        monkeypatch.setattr(place, name, trap(name))
    plain = builtins.open
    libraries = tuple({os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path})
    own = (os.path.realpath(tmp_path), *libraries, os.path.realpath(Path(__file__).parents[1]), "/proc", "/sys", "/dev")

    def guarded(file, *arguments, **options):
        if isinstance(file, str | os.PathLike) and not os.path.realpath(file).startswith(own):
            raise Sprung(f"{file} was opened")
        return plain(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", guarded)
    monkeypatch.setattr(io, "open", guarded)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "evil.py").write_text("raise SystemExit('code of the file ran')\n")
    (hostile / "config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}')
    importlib.invalidate_caches()
    yield hostile
    assert not [name for name in sys.modules if "evil" in name.split(".")]
