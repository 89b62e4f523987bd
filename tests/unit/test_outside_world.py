"""The guard of tests/unit/conftest.py works: without it, the other files could break the rule unseen."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest


def test_no_process() -> None:
    with pytest.raises(AssertionError, match="start no process"):
        subprocess.run((sys.executable, "-c", ""), check=False)


def test_no_socket() -> None:
    with pytest.raises(AssertionError, match="open no socket"):
        socket.create_connection(("127.0.0.1", 9))
