"""Storage for torch.distributed.checkpoint: safetensors files, and an index that is JSON.

PyTorch's own storage keeps its index, and everything that is no tensor, as pickles, which run code
when they are read. Its planners and the protocol between planner and storage are used as they are:
so `torch.distributed.checkpoint.load(state, storage_reader=SafetensorsReader(folder),
planner=JsonLoadPlanner())` brings a checkpoint into any state, DTensors included.

    checkpoint.json            what there is, in which file; and everything that is no tensor
    part-00000.safetensors     what one rank has written
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ...errors import CheckpointError
from .index import Chunk, Entry, Index

INDEX = "checkpoint.json"


class JsonSavePlanner(DefaultSavePlanner):
    """What is no tensor becomes JSON."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        return io.BytesIO(json.dumps(object).encode())


class JsonLoadPlanner(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = json.load(value)


class SafetensorsWriter(StorageWriter):
    """Each rank writes one file; whoever finishes writes the index.

    `first` is the number of the first file: a rank that is alone in its plan gives its own.
    """

    def __init__(self, folder: Path, first: int = 0, index: str = INDEX) -> None:
        self._folder, self._first, self._index = Path(folder), first, index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._folder = Path(checkpoint_id) if checkpoint_id is not None else self._folder

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            SavePlan(plan.items, self._first + number, plan.planner_data, plan.usable)
            for number, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        file = f"part-{plan.storage_data:05}.safetensors"
        tensors: dict[str, Tensor] = {}
        results = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                stored: Any = json.loads(data.getvalue())
            else:
                stored = Chunk.of(item, file)
                tensors[stored.key] = data.detach().cpu().contiguous()
            results.append(WriteResult(item.index, 0, stored))
        save_file(tensors, self._folder / file)
        synchronized(self._folder / file)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        index = Index.of(metadata, [result for rank in results for result in rank])
        write_text(self._folder / self._index, index.to_json())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class SafetensorsReader(StorageReader):
    """Reads slices of what is asked for, and nothing else."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.index: Index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._folder = Path(checkpoint_id) if checkpoint_id is not None else self._folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self.index = read_index(self._folder)
        return self.index.metadata()

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        return None

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files: dict[str, list[tuple[ReadItem, Chunk]]] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                value = self.index.values[item.storage_index.fqn]
                planner.load_bytes(item, io.BytesIO(json.dumps(value).encode()))
            else:
                chunk = self.index.chunk(item.storage_index)
                files.setdefault(chunk.file, []).append((item, chunk))
        for file, items in sorted(files.items()):
            self._read(file, items, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, file: str, items: list[tuple[ReadItem, Chunk]], planner: LoadPlanner) -> None:
        try:
            with safe_open(self._folder / file, framework="pt") as opened:
                for item, chunk in items:
                    starts = zip(item.storage_offsets, item.lengths, strict=True)
                    here = tuple(slice(start, start + length) for start, length in starts)
                    part = opened.get_slice(chunk.key)[here] if here else None
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(opened.get_tensor(chunk.key) if part is None else part)
                    planner.commit_tensor(item, target)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{self._folder / file} cannot be read: {error}. Use another checkpoint"
            ) from error

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return (Path(checkpoint_id) / INDEX).is_file()


# ── a single rank, alone with its plan ───────────────────────────────────────────────────────────


def write_alone(state: dict[str, Any], writer: SafetensorsWriter) -> None:
    """The protocol of `torch.distributed.checkpoint.save`, without its collectives."""
    planner = JsonSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    writer.set_up_storage_writer(True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [results])


def read_alone(state: dict[str, Any], reader: SafetensorsReader) -> None:
    """That of `load`: tensors in `state` are filled, other values replaced."""
    planner = JsonLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def empty(entry: Entry) -> Tensor:
    """Room for it, on the host."""
    return torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="cpu")


# ── files that stay ──────────────────────────────────────────────────────────────────────────────


def read_index(folder: Path) -> Index:
    try:
        return Index.from_json((folder / INDEX).read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is no checkpoint that can be read: {error}") from error


def write_text(file: Path, text: str) -> None:
    """All of it, or nothing: whoever sees the file sees a whole one, on the disk."""
    beside = file.with_name(file.name + ".new")
    beside.write_text(text, "utf-8")
    synchronized(beside)
    beside.replace(file)


def synchronized(path: Path) -> None:
    """A file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
