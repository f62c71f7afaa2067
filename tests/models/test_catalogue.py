import pytest
import torch

from mpi4dl import models


def test_builds_by_name():
    with torch.device("meta"):
        assert len(models.build("resnet_v2", depth=20)) == 8


def test_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="'resnet_50'; did you mean 'resnet50'"):
        models.build("resnet_50")
    with pytest.raises(ValueError, match="known: amoebanet_d, resnet18"):
        models.build("?")


def test_the_catalogue_is_exported():
    assert {*models.MODELS, "MODELS", "build"} == set(models.__all__)
    for name in models.MODELS:
        assert models.MODELS[name] is getattr(models, name)
