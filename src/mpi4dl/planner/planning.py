"""`mpi4dl.plan`: from a model, images and devices to the best plan."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..errors import PlanError
from ..pipeline.plan import Plan
from .cluster import Cluster
from .cluster import load as load_cluster
from .device import DEVICES, Device, bytes_of
from .device import device as find_device
from .profile import Profile
from .recorder import no_workspace
from .search import Found, Wish, search
from .workspace import cpu_workspace


def plan(
    model: nn.Module,
    image: Sequence[int],
    batch_size: int,
    devices: int,
    memory: str | int | None = None,
    *,
    device: str | Device | None = None,
    cluster: str | Cluster | None = None,
    optimizer_states: float = 1.0,
    split_points: Sequence[str] | None = None,
) -> Plan:
    """The fastest plan for a model that fits into so many devices, by prediction.

        plan = mpi4dl.plan(model, image=(3, 16384, 16384), batch_size=4, devices=8, memory="80GB")

    Nothing is trained, and no memory is needed, however large the model and the images are.

    * `image` is the shape of one image, `batch_size` counts those of a step, over all devices.
    * `device` is a name such as "h100-80gb" or a file of `mpi4dl calibrate`; if it is not said,
      the GPU that has so much `memory`. `cluster` is a file that describes machines and links.
    * `optimizer_states`: what the optimizer keeps, in copies of the parameters: 2 for Adam.
    """
    found = considered(
        model, image, batch_size, devices, memory, device, cluster, optimizer_states, split_points
    )
    return found.best.plan


def considered(
    model: nn.Module,
    image: Sequence[int],
    batch_size: int,
    devices: int,
    memory: str | int | None = None,
    device: str | Device | None = None,
    cluster: str | Cluster | None = None,
    optimizer_states: float = 1.0,
    split_points: Sequence[str] | None = None,
) -> Found:
    """All that `plan` looks at: what fits, what was refused and why."""
    _check(image=min(image), batch_size=batch_size, devices=devices)
    size = bytes_of(memory) if isinstance(memory, str) else memory
    target = find_device(device) if isinstance(device, str) else device or device_with(size)
    machines = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if machines is None:
        per_node = min(devices, 4 if target.kind == "cuda" else devices)
        machines = Cluster(nodes=-(-devices // per_node), ranks_per_node=per_node)
    workspace = cpu_workspace if target.kind == "cpu" else no_workspace
    profile = Profile(model, image, split_points, workspace)
    wish = Wish(batch_size, devices, size or target.memory, target, machines, optimizer_states)
    return search(profile, wish)


def device_with(memory: int | None) -> Device:
    """The smallest of the known GPUs that has so much memory."""
    known = sorted(DEVICES.values(), key=lambda d: d.memory)
    if memory is None:
        return DEVICES["a100-80gb"]
    return next((d for d in known if d.memory >= memory), known[-1])


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise PlanError(f"{name} is {count}; it must be at least 1")
