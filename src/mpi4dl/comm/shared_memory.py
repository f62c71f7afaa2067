"""Memory that the processes of one machine share, and lists of messages in it.

Every rank has a *post office*: a table of slots for each rank that it sends to, and an arena that
holds what is sent. Both are anonymous files in memory, which others open through /proc while their
owner lives; so nothing is left behind, however a process ends, and no mount limits their size.

    rank 0                                        rank 1
    copies the message to its arena
    slot[1][n] = where, how long, published n ──▶ sees n, copies the message out
    reuses the memory             taken n ◀────── slot[1][n]

A number is published after what it speaks of was written, and x86 processors keep that order for
everybody to see. Python has no means to ask it of others; there, Gloo is used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import LaunchError

SLOTS = 512  # messages to one rank that it has not taken yet
_WORDS = 8  # of a slot: one line of the cache
_PUBLISHED, _SEGMENT, _OFFSET, _BYTES, _TAKEN = range(5)
_HEADER = 128  # words: the files of the arena
_PAGE = 4096
_SMALLEST_SEGMENT = 2**22
_TIMEOUT = 1800.0  # seconds, as torch.distributed has it
_DOUBT = 0.25  # seconds of waiting between looks at whether the other one still runs


def supported() -> bool:
    """Whether this kind of machine keeps the order of writes, and has files in memory."""
    return platform.machine() in ("x86_64", "AMD64") and hasattr(os, "memfd_create")


def machine() -> str:
    """What processes that see each other's files and numbers have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"


def runs(process: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _new_file(size: int) -> int:
    file = os.memfd_create("mpi4dl")
    # Reserved now: where memory is short this is an error, and not a signal in the middle of work.
    os.posix_fallocate(file, 0, size)
    return file


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the own arena."""

    segment: int
    offset: int
    size: int


class Segment:
    """A file of an arena, mapped."""

    def __init__(self, file: int, size: int) -> None:
        self.size = size
        self._memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
        self._address = self._memory.data_ptr()

    def view(self, offset: int, like: Tensor) -> Tensor:
        """What lies there as a tensor of the shape and type of `like`."""
        size = like.numel() * like.element_size()
        return self._memory[offset : offset + size].view(like.dtype).view(like.shape)

    def write(self, offset: int, message: Tensor) -> None:
        if message.is_contiguous() and message.is_cpu:  # a fraction of the time of `copy_`
            size = message.numel() * message.element_size()
            ctypes.memmove(self._address + offset, message.data_ptr(), size)
        else:
            self.view(offset, message).copy_(message)

    def read(self, offset: int, buffer: Tensor) -> None:
        if buffer.is_contiguous() and buffer.is_cpu:
            size = buffer.numel() * buffer.element_size()
            ctypes.memmove(buffer.data_ptr(), self._address + offset, size)
        else:
            buffer.copy_(self.view(offset, buffer))


class PostOffice:
    """What this rank sends, and to whom. `peers` is the number of ranks."""

    def __init__(self, peers: int) -> None:
        size = 8 * (_HEADER + peers * SLOTS * _WORDS)
        self.file = _new_file(size)
        self.words = memoryview(mmap.mmap(self.file, size)).cast("Q")
        self._segments: list[Segment] = []
        self._used = 0  # bytes of the last segment
        self._free: dict[int, list[Block]] = {}
        self._lent: list[tuple[Block, list[int]]] = []  # blocks, and the slots that speak of them
        self._sent = [0] * peers

    def post(self, message: Tensor, readers: list[int], wait: Wait) -> None:
        """Copy a message to where the readers find it. The memory is used again once all have."""
        size = message.numel() * message.element_size()
        block = self._block(size)
        self._segments[block.segment].write(block.offset, message)
        words, slots = self.words, []
        for peer in readers:
            number = self._sent[peer] = self._sent[peer] + 1
            slot = slot_of(peer, number)
            wait(words, slot + _TAKEN, words[slot + _PUBLISHED], peer)
            words[slot + _SEGMENT], words[slot + _OFFSET] = block.segment, block.offset
            words[slot + _BYTES] = size
            words[slot + _PUBLISHED] = number
            slots.append(slot)
        self._lent.append((block, slots))

    def _block(self, size: int) -> Block:
        kind = max(_PAGE, 1 << (size - 1).bit_length())
        self._collect()
        free = self._free.get(kind)
        return free.pop() if free else self._cut(kind)

    def _collect(self) -> None:
        words, still = self.words, []
        for block, slots in self._lent:
            if all(words[s + _PUBLISHED] == words[s + _TAKEN] for s in slots):
                self._free.setdefault(block.size, []).append(block)
            else:
                still.append((block, slots))
        self._lent = still

    def _cut(self, size: int) -> Block:
        if not self._segments or self._used + size > self._segments[-1].size:
            self._grow(size)
        self._used += size
        return Block(len(self._segments) - 1, self._used - size, size)

    def _grow(self, size: int) -> None:
        """Another file, twice as large as the last: few files, however much is under way."""
        last = self._segments[-1].size if self._segments else _SMALLEST_SEGMENT // 2
        size = max(2 * last, size)
        file = _new_file(size)
        self._segments.append(Segment(file, size))
        self._used = 0
        where = 2 * (len(self._segments) - 1)
        self.words[where], self.words[where + 1] = file, size


class Neighbour:
    """Another rank's post office, as this rank (`me`) reads it."""

    def __init__(self, process: int, file: int, peers: int, rank: int, me: int) -> None:
        self._process = process
        self._rank, self._me = rank, me
        self._segments: list[Segment] = []
        self._received = 0
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        size = 8 * (_HEADER + peers * SLOTS * _WORDS)
        self._words = memoryview(mmap.mmap(opened, size)).cast("Q")
        os.close(opened)

    def expect(self) -> int:
        """The number of the next message, for `read`."""
        self._received += 1
        return self._received

    def receive(self, number: int, buffer: Tensor, wait: Wait) -> None:
        """Wait for a message, and copy it to where it belongs."""
        segment, offset = self._arrived(number, buffer, wait)
        segment.read(offset, buffer)
        self._words[slot_of(self._me, number) + _TAKEN] = number

    def read(self, number: int, like: Tensor, wait: Wait, use: Callable[[Tensor], object]) -> None:
        """Wait for a message, and `use` it where it lies."""
        segment, offset = self._arrived(number, like, wait)
        use(segment.view(offset, like))
        self._words[slot_of(self._me, number) + _TAKEN] = number

    def _arrived(self, number: int, like: Tensor, wait: Wait) -> tuple[Segment, int]:
        words, slot = self._words, slot_of(self._me, number)
        wait(words, slot + _PUBLISHED, number, self._rank)
        size = like.numel() * like.element_size()
        if words[slot + _BYTES] != size:
            raise RuntimeError(
                f"rank {self._me} expects {size} bytes ({tuple(like.shape)} {like.dtype}) from "
                f"rank {self._rank}, which sent {words[slot + _BYTES]}: the ranks do not run the "
                "same program on tensors of the same shapes"
            )
        return self._segment(words[slot + _SEGMENT]), words[slot + _OFFSET]

    def alive(self) -> bool:
        return runs(self._process)

    def _segment(self, number: int) -> Segment:
        while len(self._segments) <= number:
            where = 2 * len(self._segments)
            file, size = self._words[where], self._words[where + 1]
            opened = os.open(f"/proc/{self._process}/fd/{file}", os.O_RDWR)
            self._segments.append(Segment(opened, size))
            os.close(opened)
        return self._segments[number]


def slot_of(peer: int, number: int) -> int:
    return _HEADER + (peer * SLOTS + number % SLOTS) * _WORDS


class Wait:
    """Waiting for a number that another process will write.

    Busily for a short time, since most waits are short and to be woken takes longer; then asleep.
    With more ranks than cores, whoever waits makes room at once.
    """

    def __init__(self, crowded: bool, alive: Callable[[int], bool]) -> None:
        self._looks, self._yields = (20, 20) if crowded else (200, 4000)
        self._alive = alive

    def __call__(self, words: memoryview, where: int, value: int, peer: int) -> None:
        for _ in range(self._looks):
            if words[where] == value:
                return
        for _ in range(self._yields):
            if words[where] == value:
                return
            os.sched_yield()
        self._asleep(words, where, value, peer)

    def _asleep(self, words: memoryview, where: int, value: int, peer: int) -> None:
        started = checked = now = time.monotonic()
        while words[where] != value:
            # To look is work, which a rank that computes may need the core for. The longer it has
            # been, the less often: what comes is noticed a fiftieth later.
            time.sleep(min(max(5e-5, (now - started) / 50), 1e-3))
            now = time.monotonic()
            if now - checked < _DOUBT:
                continue
            checked = now
            if not self._alive(peer) and words[where] != value:
                raise LaunchError(f"rank {peer} has ended while this rank waited for it")
            if now - started > _TIMEOUT:
                raise LaunchError(
                    f"rank {peer} sent nothing for {_TIMEOUT:.0f} seconds: ranks that do not run "
                    "the same program wait for each other"
                )
