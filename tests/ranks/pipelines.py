"""Run by torchrun with four processes: trainers on any device against one process there.

torchrun --nproc-per-node 4 tests/ranks/pipelines.py cpu
MPI4DL_BACKEND=gloo torchrun --nproc-per-node 4 tests/ranks/pipelines.py cuda     # on one GPU
"""

import copy
import sys
from functools import partial

import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.models import amoebanet_d, resnet_v2, unet

torch.set_num_threads(1)
DEVICE = torch.device(sys.argv[1])
SOME = slice(int(sys.argv[2]) if len(sys.argv) > 2 else None)

CLASSIFY = (
    mpi4dl.Plan(split_size=4, parts=3, schedule="1f1b"),
    mpi4dl.Plan(split_size=2, num_spatial_parts=3, parts=2, schedule="zb-h1"),
    mpi4dl.Plan(split_size=2, num_spatial_parts=2, local_dp=2, parts=2, schedule="gpipe"),
    mpi4dl.Plan(split_size=2, num_spatial_parts=3, parts=2, times=2, schedule="chimera"),
    mpi4dl.Plan(split_size=4, parts=1, times=2, schedule="gems", master_comm_opt=True),
    mpi4dl.Plan(split_size=2, replicas=2, parts=2, schedule="1f1b", checkpoint_activations=True),
    mpi4dl.Plan(split_size=8, parts=2, schedule="zb-v"),
    mpi4dl.Plan(num_spatial_parts=4, halo_d2=True),
)
SEGMENT = (
    mpi4dl.Plan(split_size=2, num_spatial_parts=2, spatial_size=2, parts=2, schedule="1f1b"),
    mpi4dl.Plan(num_spatial_parts=4, slice_method="vertical", parts=2),
)


class Keeping(torch.optim.SGD):
    """Keeps the gradients with which it stepped first."""

    kept: dict[int, torch.Tensor]

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.kept = {id(p): p.grad.clone() for p in parameters}
        return super().step(closure)


def check(model, plan, images, labels) -> float:
    reference = copy.deepcopy(model)
    first, loss = 0, torch.zeros((), dtype=torch.float64)
    for size in (n for share in plan.split_batch(len(images)) for n in share):
        part = slice(first, first + size)
        value = F.cross_entropy(reference(images[part]), labels[part]) * size / len(images)
        value.backward()
        first, loss = first + size, loss + value.detach().cpu()
    trainer = mpi4dl.Trainer(model, plan, loss=F.cross_entropy, optimizer=partial(Keeping, lr=1e-3))
    got = trainer.step(images, labels)
    assert abs(got - loss) <= 1e-12 * abs(loss), (plan, got, loss)
    expected = {n: p.grad for n, p in reference.named_parameters()}
    largest = max(gradient.norm() for gradient in expected.values())
    names = {id(p): n for n, p in model.named_parameters()}
    worst = 0.0
    for parameter in trainer.parameters:
        wanted = expected[names[id(parameter)]]
        found = trainer.optimizer.kept[id(parameter)]
        error = ((found - wanted).norm() / (wanted.norm() + 1e-3 * largest)).item()
        assert error <= 1e-11, (plan, names[id(parameter)], error)
        worst = max(worst, error)
    assert parameter.device.type == DEVICE.type
    return worst


def main() -> None:
    comm = mpi4dl.init()
    worst, count = 0.0, 0
    for make in (partial(resnet_v2, 29, num_classes=4), partial(amoebanet_d, 6, 16, 4)):
        for plan in CLASSIFY[SOME]:
            torch.manual_seed(0)
            model = make().double().to(DEVICE)
            images = torch.randn(8, 3, 71, 65, dtype=torch.float64, device=DEVICE)
            labels = torch.randint(0, 4, (8,), device=DEVICE)
            worst = max(worst, check(model, plan, images, labels))
            count += 1
    for plan in SEGMENT[SOME]:
        torch.manual_seed(0)
        model = unet(3, 4, 8, 2).double().to(DEVICE)
        images = torch.randn(4, 3, 61, 57, dtype=torch.float64, device=DEVICE)
        labels = torch.randint(0, 4, (4, 61, 57), device=DEVICE)
        worst = max(worst, check(model, plan, images, labels))
        count += 1
    if comm.rank == 0:
        print(f"{count} plans on {DEVICE}: all equal to one process, worst gradient {worst:.1e}")


main()
