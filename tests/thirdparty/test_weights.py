"""Weights of networks that other people wrote go into a trainer, and trained ones come out."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import mpi4dl
from mpi4dl.train.checkpoints import Checkpoints, export_weights, read_weights
from support.ranks import UNDER_TORCHRUN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="is about files")


def test_all_but_the_classes_go_in_and_all_come_out(tmp_path):
    torch.manual_seed(0)
    pretrained = timm.create_model("resnet10t", num_classes=11)
    save_file(pretrained.state_dict(), tmp_path / "pretrained.safetensors")
    model = timm.create_model("resnet10t", num_classes=7)
    points = ["layer2", "layer3", "global_pool"]
    trainer = mpi4dl.Trainer(
        copy.deepcopy(model), mpi4dl.Plan(split_size=1), F.cross_entropy, split_points=points
    )
    left = trainer.load_state_dict(read_weights(tmp_path / "pretrained.safetensors"), strict=False)
    assert [name.split()[0] for name in left.mismatched] == ["fc.weight", "fc.bias"]
    assert not left.missing
    assert not left.unexpected
    Checkpoints(tmp_path / "run", asynchronous=False).save(trainer)
    export_weights(tmp_path / "run", tmp_path / "trained.safetensors")
    model.load_state_dict(load_file(tmp_path / "trained.safetensors"))
    for name, value in pretrained.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(model.state_dict()[name], value), name
