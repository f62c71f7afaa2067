"""A connection of every rank to the first one, that breaks when a process ends.

    rank 1 ──┐
    rank 2 ──┼── rank 0        rank 2 is killed: its end of the connection closes; rank 0 notices,
    rank 3 ──┘                 and tells 1 and 3. Rank 0 is killed: all notice.

The system closes the connections of a process that ends, however it ends, and of no other: a rank
that is slow, stopped, or busy in one long operation is not mistaken for one that has ended. A whole
machine that vanishes is noticed by TCP's own probes, after about 25 seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import selectors
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist

from .communicator import Communicator
from .objects import shared
from .process_group import is_available
from .rendezvous import LOOPBACK

_CONNECTING = 30.0
_PROBES = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_BYE, _LOST = "bye", "lost"


@dataclass(frozen=True)
class Lost:
    """A rank that has ended before its work was done."""

    rank: int
    why: str = ""
    """What it could still say."""


class Listener(Protocol):
    def lost(self, lost: Lost) -> None:
        """Called by the thread that has noticed."""
        ...


class Lifeline:
    """This rank's. `lost` is set once, by a thread that waits for it; then `listeners` hear."""

    def __init__(self, rank: int, connections: dict[int, socket.socket]) -> None:
        self.rank = rank
        self.lost: Lost | None = None
        self.known = threading.Event()
        self.listeners: WeakSet[Listener] = WeakSet()
        self._connections = connections
        self._selector = selectors.DefaultSelector()
        for peer, connection in connections.items():
            self._selector.register(connection, selectors.EVENT_READ, (peer, bytearray()))
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._let_go)  # a worker must not keep them open
        threading.Thread(target=self._watch, name="mpi4dl lifeline", daemon=True).start()

    def close(self) -> None:
        """This rank ends; well, unless an exception has ended the program."""
        error = getattr(sys, "last_value", None)
        said = f"{_LOST} {self.rank} {_brief(error)}" if error is not None else _BYE
        self._tell(said)
        self._let_go()

    def _let_go(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _tell(self, what: str) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{what}\n".encode())

    def _watch(self) -> None:
        while self._selector.get_map():
            try:
                ready = self._selector.select()
            except (OSError, ValueError):
                return  # closed, at the end
            for key, _ in ready:
                peer, heard = key.data
                if not self._hear(key.fileobj, peer, heard):  # type: ignore[arg-type]
                    self._selector.unregister(key.fileobj)

    def _hear(self, connection: socket.socket, peer: int, heard: bytearray) -> bool:
        """Whether there may be more."""
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if connection.fileno() < 0:
            return False  # closed by this rank
        heard += data
        *lines, rest = heard.decode(errors="replace").split("\n")
        heard[:] = rest.encode()
        for line in lines:
            what, _, of = line.partition(" ")
            if what == _BYE:
                return False
            rank, _, why = of.partition(" ")
            self._notice(Lost(int(rank), why))
        if not data:
            self._notice(Lost(peer))
        return bool(data)

    def _notice(self, lost: Lost) -> None:
        if self.lost is not None:
            return
        self.lost = lost
        if self.rank == 0:
            self._tell(f"{_LOST} {lost.rank} {lost.why}")
        self.known.set()
        for listener in list(self.listeners):
            listener.lost(lost)


_lines: dict[dist.ProcessGroup, Lifeline | None] = {}


def lifeline(comm: Communicator, device: torch.device | None = None) -> Lifeline | None:
    """This process's, made by the first call, which is collective; None where ranks are no
    processes, or cannot all reach the first one. MPI4DL_LIFELINE=0: none."""
    if not is_available() or comm.size == 1 or comm.size != dist.get_world_size():
        return None
    world = dist.group.WORLD
    assert world is not None
    if world not in _lines:
        _lines[world] = _connected(comm, device)
    return _lines[world]


def close() -> None:
    """This rank leaves its process group."""
    for line in _lines.values():
        if line is not None:
            line.close()
    _lines.clear()


def _connected(comm: Communicator, device: torch.device | None) -> Lifeline | None:
    wanted = os.environ.get("MPI4DL_LIFELINE", "1") != "0"
    notes = shared((socket.gethostname(), wanted), comm, device)
    if not all(note[1] for note in notes):
        return None
    near = all(host == notes[0][0] for host, _ in notes)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(near)) if comm.rank == 0 else None
        mine = None if server is None else (server.getsockname()[1], secrets.token_hex(16))
        port, token = shared(mine, comm, device)[0]
        connections: dict[int, socket.socket] = {}
        with contextlib.suppress(OSError):
            if server is None:
                host = LOOPBACK if near else notes[0][0]
                connections[0] = _reached(host, port, token, comm.rank)
            else:
                connections = _accepted(server, comm.size - 1, token)
    expected = 1 if comm.rank else comm.size - 1
    if not all(shared(len(connections) == expected, comm, device)):
        for connection in connections.values():
            connection.close()
        return None
    for connection in connections.values():
        _probed(connection)
    return Lifeline(comm.rank, connections)


def _probed(connection: socket.socket) -> None:
    """For ever open, if somebody answers at the other end."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listening(near: bool) -> socket.socket:
    server = socket.create_server((LOOPBACK if near else "", 0), backlog=4096)
    server.settimeout(_CONNECTING)
    return server


def _reached(host: str, port: int, token: str, rank: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_CONNECTING)
    connection.sendall(f"{token} {rank}\n".encode())
    return connection


def _accepted(server: socket.socket, count: int, token: str) -> dict[int, socket.socket]:
    """Only who knows the token is a rank."""
    connections: dict[int, socket.socket] = {}
    while len(connections) < count:
        connection, _ = server.accept()
        connection.settimeout(_CONNECTING)
        greeting = b""
        while not greeting.endswith(b"\n") and (more := connection.recv(1)):
            greeting += more
        said, _, rank = greeting.decode(errors="replace").strip().partition(" ")
        if secrets.compare_digest(said, token) and rank.isdecimal():
            connections[int(rank)] = connection
        else:
            connection.close()
    return connections


def _brief(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) < 200 else text[:200] + "…"
