"""What PyTorch expects of a backend. Run by mpirun, with the backend's name: ours, or Gloo.

    mpirun -np 4 python tests/ranks/backend.py mpi4py

Every function below is one expectation. What a backend is known not to have is in backend_lacks.py.
"""

import sys
import tempfile
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from backend_lacks import LACKS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mpi4dl.comm.mpi import rendezvous

warnings.simplefilter("error")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# PyTorch has renamed these, and warns of the old names.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
gather_functional = getattr(functional, "all_gather_single", functional.all_gather_tensor)
scatter_functional = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)
HELPERS = ("values", "everybody", "same", "around")
WHOLE = (torch.uint8, torch.int8, torch.int32, torch.int64)
NUMBERS = {
    "SUM": lambda parts: parts.sum(0),
    "PRODUCT": lambda parts: parts.prod(0),
    "MIN": lambda parts: parts.amin(0),
    "MAX": lambda parts: parts.amax(0),
}


def values(rank, *shape, dtype=torch.float32, low=-3, high=4):
    generator = torch.Generator().manual_seed(rank + 1)
    low = 0 if dtype == torch.uint8 else low
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def everybody(size, *shape, **how):
    return torch.stack([values(rank, *shape, **how) for rank in range(size)])


def same(got, expected):
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert torch.equal(got, expected), f"{got} instead of {expected}"


def around(rank, size):
    return (rank + 1) % size, (rank - 1) % size


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def send_and_receive(rank, size):
    for dtype in (*FLOATS, *WHOLE, torch.bool, torch.complex64):
        if rank == 0:
            for peer in range(1, size):
                dist.send(values(peer, 3, 5).to(dtype), peer)
        else:
            arrived = torch.empty(3, 5, dtype=dtype)
            assert dist.recv(arrived, 0) == 0
            same(arrived, values(rank, 3, 5).to(dtype))


def receive_from_anybody(rank, size):
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=5)
    seen = set()
    for _ in range(0 if rank else size - 1):
        arrived = torch.empty(1, dtype=torch.int64)
        source = dist.recv(arrived, tag=5)
        assert source == arrived.item()
        seen.add(source)
    assert rank or seen == set(range(1, size))


def tags_out_of_order(rank, size):
    following, before = around(rank, size)
    works = [dist.isend(values(rank + tag, 7), following, tag=tag) for tag in range(5)]
    for tag in (3, 0, 4, 1, 2):
        arrived = torch.empty(7)
        dist.irecv(arrived, before, tag=tag).wait()
        same(arrived, values(before + tag, 7))
    for work in works:
        work.wait()
        assert work.is_completed()


def batches(rank, size):
    following, before = around(rank, size)
    for length in (0, 1, 1000, 300_000):
        arrived = torch.empty(length)
        operations = [
            dist.P2POp(dist.isend, values(rank, length), following),
            dist.P2POp(dist.irecv, arrived, before),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(arrived, values(before, length))


def messages_need_not_be_contiguous(rank, size):
    following, before = around(rank, size)
    arrived = torch.zeros(8, 6)
    work = dist.isend(values(rank, 4, 6).t(), following)
    dist.irecv(arrived[::2].t(), before).wait()
    work.wait()
    same(arrived[::2], values(before, 4, 6).t().t())
    assert not arrived[1::2].any()


def large_messages_move_while_nobody_waits(rank, size):
    following, before = around(rank, size)
    arrived = torch.zeros(4_000_000)
    incoming = dist.irecv(arrived, before)
    outgoing = dist.isend(values(rank, 4_000_000), following)
    deadline = time.monotonic() + 20
    while not arrived[-1000:].any() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert arrived[-1000:].any(), "nothing had arrived before anybody waited"
    incoming.wait()
    outgoing.wait()
    same(arrived, values(before, 4_000_000))


# ── collectives ──────────────────────────────────────────────────────────────────────────────────


def broadcasts(rank, size):
    for root in range(size):
        tensor = values(rank, 4, 3).t()
        dist.broadcast(tensor, root)
        same(tensor, values(root, 4, 3).t())


def reductions(rank, size):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, *WHOLE):
        for shape in ((), (0,), (5, 3), (70_001,)):
            parts = everybody(size, *shape, dtype=dtype)
            for name, combined in NUMBERS.items():
                mine = values(rank, *shape, dtype=dtype)
                dist.all_reduce(mine, getattr(dist.ReduceOp, name))
                same(mine, combined(parts.double()).to(dtype))
                mine = values(rank, *shape, dtype=dtype)
                dist.reduce(mine, size - 1, getattr(dist.ReduceOp, name))
                if rank == size - 1:
                    same(mine, combined(parts.double()).to(dtype))


def bitwise_reductions(rank, size):
    parts = everybody(size, 9, dtype=torch.int64, low=0, high=1000)
    for name, combine in (
        ("BAND", torch.bitwise_and),
        ("BOR", torch.bitwise_or),
        ("BXOR", torch.bitwise_xor),
    ):
        expected = parts[0]
        for part in parts[1:]:
            expected = combine(expected, part)
        mine = parts[rank].clone()
        dist.all_reduce(mine, getattr(dist.ReduceOp, name))
        same(mine, expected)


def more_types_and_operations(rank, size):
    for dtype in FLOATS:
        mine = values(rank, 33, dtype=dtype)
        dist.all_reduce(mine, dist.ReduceOp.AVG)
        same(mine, (everybody(size, 33).double().sum(0) / size).to(dtype))
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        mine = values(rank, 33, dtype=dtype, low=0)
        dist.all_reduce(mine)
        same(mine, everybody(size, 33, low=0).sum(0).to(dtype))
    strided = values(rank, 6, 4)[:, ::2]
    dist.all_reduce(strided)
    same(strided, everybody(size, 6, 4).sum(0)[:, ::2])
    mixed = torch.complex(values(rank, 5), values(rank + 9, 5))
    dist.all_reduce(mixed)
    same(mixed.real, everybody(size, 5).sum(0))
    output = torch.empty(3, dtype=torch.bfloat16)
    inputs = list(values(rank, size, 3, dtype=torch.bfloat16))
    dist.reduce_scatter(output, inputs, dist.ReduceOp.AVG)
    mean = everybody(size, size, 3).double().sum(0) / size
    same(output, mean[rank].to(torch.bfloat16))


def truth_values(rank, size):
    for name, combine in (("SUM", torch.any), ("PRODUCT", torch.all), ("MAX", torch.any)):
        mine = values(rank, 40, low=0, high=2).bool()
        dist.all_reduce(mine, getattr(dist.ReduceOp, name))
        same(mine, combine(everybody(size, 40, low=0, high=2).bool(), 0))


def sums_have_the_same_bits_everywhere(rank, size):
    for length in (3, 5000, 400_000):
        mine = torch.rand(length, generator=torch.Generator().manual_seed(rank))
        dist.all_reduce(mine)
        copies = [torch.empty(length) for _ in range(size)]
        dist.all_gather(copies, mine)
        assert all(torch.equal(copy, mine) for copy in copies)


def several_reductions_at_once(rank, size):
    mine = [values(rank + k, 11 + k) for k in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in mine]
    for work in reversed(works):
        work.wait()
    for k, tensor in enumerate(mine):
        same(tensor, torch.stack([values(r + k, 11 + k) for r in range(size)]).sum(0))


def futures_complete_by_themselves(rank, size):
    mine = values(rank, 200_000)
    future = dist.all_reduce(mine, async_op=True).get_future().then(lambda f: f.value()[0].sum())
    deadline = time.monotonic() + 20
    while not future.done() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert future.done()
    same(future.value(), everybody(size, 200_000).sum(0).sum())


def coalesced(rank, size):
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as several:
        one, two = values(rank, 5), values(rank + 3, 2, 2)
        dist.all_reduce(one)
        dist.all_reduce(two)
    several.wait()
    same(one, everybody(size, 5).sum(0))
    same(two, torch.stack([values(r + 3, 2, 2) for r in range(size)]).sum(0))


def gathering(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        for shape in ((0,), (3, 2)):
            mine, together = values(rank, *shape).to(dtype), everybody(size, *shape).to(dtype)
            listed = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(listed, mine)
            same(torch.stack(listed), together)
            whole = torch.empty(size * shape[0], *shape[1:], dtype=dtype)
            all_gather_single(whole, mine)
            same(whole, together.flatten(0, 1))
            listed = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.gather(mine, listed if rank == 1 else None, dst=1)
            if rank == 1:
                same(torch.stack(listed), together)


def scattering(rank, size):
    parts = list(values(7, size, 4, 2))
    mine = torch.empty(4, 2)
    dist.scatter(mine, parts if rank == 1 else None, src=1)
    same(mine, parts[rank])


def reducing_and_scattering(rank, size):
    total = everybody(size, size * 3, 2).sum(0)
    whole = values(rank, size * 3, 2)
    mine = torch.empty(3, 2)
    reduce_scatter_single(mine, whole)
    same(mine, total.view(size, 3, 2)[rank])
    mine = torch.empty(3, 2)
    dist.reduce_scatter(mine, list(whole.chunk(size)))
    same(mine, total.view(size, 3, 2)[rank])


def everybody_to_everybody(rank, size):
    mine, arrived = values(rank, size * 2, 3), torch.empty(size * 2, 3)
    dist.all_to_all_single(arrived, mine)
    same(arrived, torch.cat([values(r, size * 2, 3).chunk(size)[rank] for r in range(size)]))
    sent = [(rank + peer) % 3 for peer in range(size)]  # none at all to some
    mine, arrived = values(rank, sum(sent), 2), torch.empty(sum(sent), 2)
    dist.all_to_all_single(arrived, mine, sent, sent)
    expected = []
    for peer in range(size):
        sizes = [(peer + r) % 3 for r in range(size)]
        expected.append(values(peer, sum(sizes), 2).split(sizes)[rank])
    same(arrived, torch.cat(expected))


def sends_of_other_sizes_to_everybody(rank, size):
    inputs = [values(rank * size + peer, rank + peer, 2) for peer in range(size)]
    outputs = [torch.empty(rank + peer, 2) for peer in range(size)]
    dist.all_to_all(outputs, inputs)
    for peer, output in enumerate(outputs):
        same(output, values(peer * size + rank, rank + peer, 2))


def objects(rank, size):
    listed = [None] * size
    dist.all_gather_object(listed, {"rank": rank, "text": "x" * rank})
    assert listed == [{"rank": r, "text": "x" * r} for r in range(size)]
    told = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(told, 0)
    assert told == [{"from": 0}]


def barriers(rank, size):
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait(timedelta(seconds=20))


def monitored_barriers(rank, size):
    for all_of_them in (False, True):
        dist.group.WORLD.monitored_barrier(timedelta(seconds=20), all_of_them)


# ── groups ───────────────────────────────────────────────────────────────────────────────────────


def groups_their_members_make(rank, size):
    # Before other groups: PyTorch names these by how many each rank is in.
    half = [r for r in range(size) if r % 2 == rank % 2]
    group = dist.new_group(half, use_local_synchronization=True)
    mine = values(rank, 4)
    dist.all_reduce(mine, group=group)
    same(mine, torch.stack([values(r, 4) for r in half]).sum(0))


def groups_of_some(rank, size):
    backwards = dist.new_group([1, 0])
    alone = dist.new_group([size - 1])
    mine = values(rank, 5)
    if rank < 2:
        dist.all_reduce(mine, group=backwards)
        same(mine, everybody(2, 5).sum(0))
        arrived = torch.empty(3)
        work = dist.isend(values(rank, 3), 1 - rank, group=backwards)
        dist.irecv(arrived, 1 - rank, group=backwards).wait()
        work.wait()
        same(arrived, values(1 - rank, 3))
    if rank == size - 1:
        dist.all_reduce(mine, group=alone)
        dist.barrier(alone)
    dist.barrier()


def groups_of_another_backend(rank, size):
    other = dist.new_group(list(range(size)), backend="gloo")
    mine = values(rank, 4)
    dist.all_reduce(mine, group=other)
    same(mine, everybody(size, 4).sum(0))
    dist.barrier(other)


# ── what is built upon a backend ─────────────────────────────────────────────────────────────────


def data_parallel(rank, size):
    torch.manual_seed(rank)  # broadcast by DistributedDataParallel
    layers = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 40), nn.Linear(40, 2))
    model = DistributedDataParallel(layers.double(), bucket_cap_mb=0.005)
    reference = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 40), nn.Linear(40, 2))
    reference.double().load_state_dict(layers.state_dict())
    batches = values(1, size, 4, 6, dtype=torch.float64) / 7
    for _ in range(3):
        model(batches[rank]).square().mean().backward()
        reference(batches.flatten(0, 1)).square().mean().backward()
        for mine, expected in zip(layers.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-12, atol=1e-14)
            with torch.no_grad():
                mine -= 0.1 * mine.grad
                expected -= 0.1 * expected.grad
            mine.grad = expected.grad = None


def functional_collectives(rank, size):
    world = dist.group.WORLD
    same(functional.all_reduce(values(rank, 4), "sum", world) + 0, everybody(size, 4).sum(0))
    gathered = gather_functional(values(rank, 2, 3), 1, world) + 0
    same(gathered, torch.cat(list(everybody(size, 2, 3)), 1))
    scattered = scatter_functional(values(rank, size, 3), "sum", 0, world) + 0
    same(scattered, everybody(size, size, 3).sum(0)[rank : rank + 1])
    exchanged = functional.all_to_all_single(values(rank, size), None, None, world) + 0
    same(exchanged, everybody(size, size)[:, rank])


def distributed_tensors(rank, size):
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    a, b = values(1, 8, 12), values(2, 12, 4)
    left = distribute_tensor(a, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(b, mesh, [Replicate(), Shard(0)])
    product = left @ right
    same(product.full_tensor(), a @ b)
    same(left.redistribute(mesh, [Shard(1), Replicate()]).full_tensor(), a)
    inner = mesh["b"].get_group()
    mine = values(rank, 3)
    dist.all_reduce(mine, group=inner)
    row = [rank // (size // 2) * (size // 2) + k for k in range(size // 2)]
    same(mine, torch.stack([values(r, 3) for r in row]).sum(0))


def saved_and_loaded(rank, size):
    folder = [tempfile.mkdtemp()] if rank == 0 else [None]
    dist.broadcast_object_list(folder, 0)
    mesh = init_device_mesh("cpu", (size,))
    weight = values(5, 8, 6)
    cut = {"weight": distribute_tensor(weight, mesh, [Shard(0)])}
    checkpoint.save(cut, checkpoint_id=folder[0])
    into = {"weight": DTensor.from_local(torch.zeros(8, 6), mesh, [Replicate()])}
    checkpoint.load(into, checkpoint_id=folder[0])
    same(into["weight"].to_local(), weight)
    dist.barrier()


EXPECTATIONS = {
    name: thing
    for name, thing in list(globals().items())
    if getattr(thing, "__module__", "") == "__main__" and name not in HELPERS
}


def started(backend, seconds=60):
    rank, size, store = rendezvous()
    limit = timedelta(seconds=seconds)
    dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=size)
    assert dist.get_backend() == backend
    return rank, size


def main():
    backend, *wanted = sys.argv[1:]
    torch.set_num_threads(1)
    rank, size = started(backend)
    for name in wanted or [name for name in EXPECTATIONS if name not in LACKS.get(backend, [])]:
        try:
            EXPECTATIONS[name](rank, size)
        except BaseException as error:
            raise AssertionError(f"rank {rank}: {name}") from error
        dist.barrier()
        if rank == 0:
            print(f"ok {name}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("all as expected", flush=True)


if __name__ == "__main__":
    main()
