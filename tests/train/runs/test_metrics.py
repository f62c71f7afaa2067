"""Metrics over tiles and ranks are those of one process that has seen everything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.comm.communicator import SERIAL, use
from mpi4dl.errors import UsageError
from mpi4dl.geometry import Layout
from mpi4dl.train.runs.losses import dice
from mpi4dl.train.runs.metrics import NAMES, Curve, Metrics
from support.exactness import assert_exact, rand
from support.ranks import UNDER_TORCHRUN, run_ranks
from support.torchvision_operators import declare_missing_operators

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="other numbers of ranks")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def torchmetrics():
    """It imports torchvision where that is installed."""
    declare_missing_operators()
    return pytest.importorskip("torchmetrics.functional.classification")


def seen(classes: int, *size: int) -> tuple[torch.Tensor, torch.Tensor]:
    scores = rand(5, classes, *size, seed=1)
    labels = torch.randint(0, classes, (5, *size), generator=torch.Generator().manual_seed(2))
    return scores + 0.8 * F.one_hot(labels, classes).movedim(-1, 1), labels


def of_torchmetrics(torchmetrics, scores, labels, ignore=None) -> dict[str, float]:
    classes, given = scores.shape[1], {"ignore_index": ignore}
    if classes == 2:
        found, sure = scores.argmax(1), scores.softmax(1)[:, 1]
        values = {
            "accuracy": torchmetrics.binary_accuracy(found, labels, **given),
            "auc": torchmetrics.binary_auroc(sure, labels, **given),
            "f1": torchmetrics.binary_f1_score(found, labels, **given),
            "iou": torchmetrics.binary_jaccard_index(found, labels, **given),
        }
    else:
        given["num_classes"] = classes
        values = {
            "accuracy": torchmetrics.multiclass_accuracy(scores, labels, average="micro", **given),
            "auc": torchmetrics.multiclass_auroc(scores, labels, **given),
            "f1": torchmetrics.multiclass_f1_score(scores, labels, average="macro", **given),
            "iou": torchmetrics.multiclass_jaccard_index(scores, labels, **given),
        }
    return {name: float(value) for name, value in values.items()}


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("size", [(), (9, 7)])
def test_metrics_are_those_of_torchmetrics(torchmetrics, classes, size):
    scores, labels = seen(classes, *size)
    metrics = Metrics(NAMES)
    metrics.watch(scores[:2], labels[:2], range(2), SERIAL)
    metrics.watch(scores[2:], labels[2:], range(2, 5), SERIAL)
    values = metrics.values(SERIAL, CPU)
    assert values.pop("dice") == values["f1"]
    assert values == pytest.approx(of_torchmetrics(torchmetrics, scores, labels), abs=1e-6)


@pytest.mark.parametrize("cut", [(0, 2, 3), (0, 4, 2), (6, 1, 1)])
def test_tiles_count_every_pixel_once(torchmetrics, cut):
    scores, labels = seen(3, 9, 7)
    batch, rows, columns = cut
    ranks = batch or rows * columns
    labels[0, :4] = 255  # of no class: not counted
    labels[1, :, 2] = 1  # of one that is not asked for

    def program(comm):
        if batch:
            layout = Layout.grid((5,), (batch,))  # more ranks than samples
            x = mpi4dl.shard(scores, layout=layout, dims=(0,))
            y = mpi4dl.shard(labels, layout=layout, dims=(0,))
        else:
            x = mpi4dl.shard(scores, (rows, columns))
            # The labels lie otherwise than the scores.
            y = mpi4dl.shard(labels, (columns, rows))
        metrics = Metrics(["accuracy", "f1", "iou", "auc"], ignore=1)
        metrics.watch(x, y, range(5), comm)
        return metrics.values(comm, CPU)

    kept = (labels != 255) & (labels != 1)
    expected = Metrics(["accuracy", "f1", "iou", "auc"])
    expected.watch(scores.movedim(1, -1)[kept], labels[kept], range(5), SERIAL)
    wanted = expected.values(SERIAL, CPU)
    for values in run_ranks(ranks, program):
        assert values == pytest.approx(wanted, abs=1e-12)
    theirs = torchmetrics.multiclass_accuracy(
        scores.movedim(1, -1)[kept], labels[kept], num_classes=3, average="micro"
    )
    assert wanted["accuracy"] == pytest.approx(float(theirs), abs=1e-6)


def test_what_all_ranks_have_alike_counts_once():
    scores, labels = seen(2)

    def program(comm):
        metrics = Metrics(["accuracy", "auc"])
        if comm.rank < 2:  # the last stage
            last = comm.subgroup((0, 1))
            metrics.watch(scores, labels, range(5), last)
        else:
            comm.subgroup((0, 1))
        return metrics.values(comm, CPU), metrics.metrics[0].counts.sum().item()

    ranks = run_ranks(3, program)
    assert [count for _, count in ranks] == [5, 0, 0]
    assert len({tuple(values.items()) for values, _ in ranks}) == 1


def test_the_curve_of_many_pixels_is_sorted_into_bins(torchmetrics):
    scores, labels = seen(2, 40, 41)
    exact = of_torchmetrics(torchmetrics, scores, labels)["auc"]

    def program(comm):
        curve = Curve(kept=1000)
        x, y = (mpi4dl.shard(t, (1, 2)).to_local() for t in (scores, labels))
        for one in range(5):
            curve.update(x[one].movedim(0, -1).flatten(0, -2).double(), y[one].flatten())
        return curve.values(comm, CPU)["auc"]

    assert run_ranks(2, program) == pytest.approx([exact] * 2, abs=1e-3)


def test_a_single_score_is_that_of_class_1():
    scores, labels = seen(2, 6, 5)
    one, two = Metrics(NAMES), Metrics(NAMES)
    one.watch(scores[:, 1:] - scores[:, :1], labels.double(), range(5), SERIAL)
    two.watch(scores, labels, range(5), SERIAL)
    assert one.values(SERIAL, CPU) == pytest.approx(two.values(SERIAL, CPU), abs=1e-9)


def test_a_metric_of_torchmetrics_is_reduced_over_ranks(torchmetrics):
    scores, labels = seen(3, 8, 6)
    what = {
        "name": "torchmetrics.classification:MulticlassCohenKappa",
        "arguments": {"num_classes": 3},
    }

    def program(comm):
        metrics = Metrics([what])
        last = comm.subgroup((0, 1))
        if last is not None:
            with use(last):
                x, y = mpi4dl.shard(scores, (1, 2)), mpi4dl.shard(labels, (1, 2))
            metrics.watch(x, y, range(5), last)
        return metrics.values(comm, CPU)["MulticlassCohenKappa"]

    expected = float(torchmetrics.multiclass_cohen_kappa(scores, labels, num_classes=3))
    assert run_ranks(3, program) == pytest.approx([expected] * 3, abs=1e-6)


def test_what_torchmetrics_would_keep_whole_is_refused(torchmetrics):
    with pytest.raises(UsageError, match="keeps everything that it sees; give it thresholds"):
        Metrics(["torchmetrics.classification:BinaryAUROC"])


@pytest.mark.parametrize("background", [True, False])
def test_dice_on_tiles(background):
    labels = torch.randint(0, 3, (2, 9, 11), generator=torch.Generator().manual_seed(0))

    def loss(scores):
        y = mpi4dl.shard(labels, (2, 2)) if isinstance(scores, mpi4dl.Tile) else labels
        return dice(scores, y, background=background)

    assert_exact(loss, rand(2, 3, 9, 11), grid=(2, 2))


def test_dice_is_zero_where_all_is_right():
    labels = torch.tensor([[[0, 1], [1, 1]]])
    right = 1e3 * F.one_hot(labels, 2).movedim(-1, 1).double()
    assert dice(right, labels).item() == pytest.approx(0, abs=1e-12)
    assert dice(-right, labels, smooth=0.0).item() == pytest.approx(1, abs=1e-12)
