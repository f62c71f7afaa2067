"""What a checkpoint holds: names of the whole model, and where each piece of a tensor is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

FORMAT = "mpi4dl checkpoint 1"


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, in a file. Here all tensors are of one chunk, each written by one rank."""

    file: str
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(item: WriteItem, file: str) -> Chunk:
        assert item.tensor_data is not None
        box = item.tensor_data.chunk
        name = item.index.fqn
        key = name if box.sizes == item.tensor_data.size else f"{name}@{tuple(box.offsets)}"
        return Chunk(file, key, tuple(box.offsets), tuple(box.sizes))


@dataclass(frozen=True)
class Entry:
    """A tensor of the whole model."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass
class Index:
    """`values` are those that are no tensors; all keys are as in the state that was saved."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(metadata: Metadata, results: Sequence[WriteResult]) -> Index:
        index = Index()
        chunks: dict[str, list[Chunk]] = {}
        for result in results:
            name = result.index.fqn
            if isinstance(result.storage_data, Chunk):
                chunks.setdefault(name, []).append(result.storage_data)
            else:
                index.values[name] = result.storage_data
        for name, kind in metadata.state_dict_metadata.items():
            if isinstance(kind, TensorStorageMetadata):
                dtype = str(kind.properties.dtype).removeprefix("torch.")
                index.tensors[name] = Entry(dtype, tuple(kind.size), tuple(chunks[name]))
        return index

    @staticmethod
    def merged(indices: Iterable[Index]) -> Index:
        """Of ranks that have each written something else."""
        merged = Index()
        for index in indices:
            merged.tensors.update(index.tensors)
            merged.values.update(index.values)
        return merged

    def metadata(self) -> Metadata:
        """As torch.distributed.checkpoint wants it."""
        kinds: dict[str, Any] = {name: BytesStorageMetadata() for name in self.values}
        for name, entry in self.tensors.items():
            boxes = [
                ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                for chunk in entry.chunks
            ]
            properties = TensorProperties(dtype=getattr(torch, entry.dtype))
            kinds[name] = TensorStorageMetadata(properties, torch.Size(entry.shape), boxes)
        return Metadata(kinds)

    def chunk(self, index: MetadataIndex) -> Chunk:
        """Which one a planner means."""
        chunks = self.tensors[index.fqn].chunks
        return next(c for c in chunks if index.offset is None or c.offsets == tuple(index.offset))

    def files(self) -> set[str]:
        return {chunk.file for entry in self.tensors.values() for chunk in entry.chunks}

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> Index:
        read = json.loads(text)
        if read["format"] != FORMAT:
            raise ValueError(f"its format is {read['format']!r}; this version reads {FORMAT!r}")
        tensors = {
            name: Entry(
                entry["dtype"],
                tuple(entry["shape"]),
                tuple(
                    Chunk(c["file"], c["key"], tuple(c["offsets"]), tuple(c["sizes"]))
                    for c in entry["chunks"]
                ),
            )
            for name, entry in read["tensors"].items()
        }
        return Index(tensors, read["values"])
