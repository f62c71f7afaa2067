"""Run by every launcher: the ranks find each other, and train what one process would.

The first argument is what happens then: `end`, `exit` (rank 1 with code 7), `die` (rank 1 is
killed while the others wait for it) or `wait`.
"""

import copy
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import mpi4dl

torch.set_num_threads(1)
comm = mpi4dl.init(ranks=3 if "spawn" in sys.argv else None)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5, padding=2), torch.nn.BatchNorm2d(4)).double()
reference = copy.deepcopy(model)
image = torch.randn(2, 3, 12, 17, dtype=torch.float64)
model(mpi4dl.shard(image, grid=(comm.size, 1))).square().mean().backward()
mpi4dl.sync_gradients(model)
reference(image).square().mean().backward()
for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-13)
print(f"rank {comm.rank} of {comm.size}: exact over {dist.get_backend()}", flush=True)

what = sys.argv[1]
if what == "exit" and comm.rank == 1:
    sys.exit(7)
if what == "die" and comm.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("exit", "die"):
    comm.all_reduce(torch.ones(1))
if what == "wait":
    time.sleep(60)
