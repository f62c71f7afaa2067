"""Configurations: what is wrong has one readable answer, before any rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from mpi4dl import Plan, cli
from mpi4dl.train.runs import command, read
from mpi4dl.train.runs.reading import configuration, parsed, written
from support.ranks import UNDER_TORCHRUN

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="these processes have a launcher already")

GOOD = """
model: {name: unet, arguments: {base: 4, depth: 2}}
data: {kind: synthetic-segmentation, view: {size: [32, 32]}}
training: {batch_size: 2}
"""


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Exit code and what is printed, of a command that must not get as far as to start anything."""
    for name in ("RANK", "WORLD_SIZE", "MPI4DL_RANKS", "MPI4DL_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def started(*_: object) -> int:
        pytest.fail("it was started")

    monkeypatch.setattr(command, "start_ranks", started)
    monkeypatch.setattr(command, "_run", started)

    def ask(*words: str, text: str = GOOD) -> tuple[int, str]:
        Path("config.yaml").write_text(text, encoding="utf-8")
        code = cli.main(["train", "config.yaml", *words])
        printed = capsys.readouterr()
        assert printed.out == ""
        return code, printed.err

    return ask


MISTAKES = [
    # names that there are not
    ("optimiser.lr=1", "there is no optimiser; did you mean optimizer?"),
    ("optimizer.momentum=1", "there is no optimizer.momentum"),
    ("training.batchsize=1", "there is no training.batchsize; did you mean batch_size?"),
    ("plan.num_spatial_part=4", "there is no plan.num_spatial_part; did you mean num_spatial"),
    ("data.view.sise=[8,8]", "there is no data.view.sise; did you mean size?"),
    ("model.name=unett", "there is no model 'unett'; did you mean unet?, or name your own as"),
    ("model.arguments={bass: 4}", "there is no model.arguments.bass; did you mean base?"),
    ("model.name=torchvision:nothing", "model.name is torchvision:nothing"),
    ("model.name=no.such:thing", "model.name is no.such:thing: No module named 'no'"),
    ("model.name=mpi4dl.models:unett", "mpi4dl.models has no unett; did you mean unet?"),
    ("model.name=mpi4dl.models:MODELS", "which cannot be called"),
    ("optimizer.name=Adm", "there is no optimizer 'Adm'; did you mean Adam?"),
    ("optimizer={name: Adam, arguments: {ep: 2}}", "there is no optimizer.arguments.ep; did you"),
    ("optimizer.arguments={lr: 1}", "the learning rate is optimizer.lr"),
    ("optimizer.arguments={momentum: -1}", "optimizer: Invalid momentum value: -1"),
    ("scheduler.name=StepLr", "there is no scheduler 'StepLr'; did you mean StepLR?"),
    ("scheduler.name=StepLR", "scheduler.arguments: missing a required argument: 'step_size'"),
    ("loss.name=crossentropy", "there is no loss 'crossentropy'; did you mean cross_entropy?"),
    ("loss.arguments={label_smooth: 0.1}", "did you mean label_smoothing?"),
    ("loss={name: cross_entropy+dice, arguments: {smooth: 1}}", "a sum has arguments for each of"),
    ("evaluation.metrics=[acuracy]", "there is no metric 'acuracy'; did you mean accuracy?"),
    ("evaluation.metrics=[3]", "evaluation.metrics has 3; it must be a name"),
    ("training.stop_metric=iou", "training.stop_metric is iou, and an evaluation gives loss: add"),
    ("checkpoints.best=iou", "checkpoints.best is iou, and an evaluation gives loss"),
    ("data.augment=[RandomFlop]", "data.augment: there is no 'RandomFlop'; did you mean Random"),
    ("data.augment=[{name: RandomFlip, up: 1}]", "data.augment: RandomFlip.up"),
    ("data.kind=foldr", "there is no data 'foldr'; did you mean folder?"),
    # values that cannot be
    ("optimizer.lr=fast", "optimizer.lr is 'fast'; it must be a number"),
    ("optimizer.lr=-1", "optimizer.lr is -1.0; it must be at least 0"),
    ("optimizer.lr=.nan", "optimizer.lr is nan; it must be a number"),
    ("training.epochs=1.5", "training.epochs is 1.5; it must be an integer"),
    ("training.batch_size=0", "training.batch_size is 0; it must be at least 1"),
    ("training.dtype=float16", "training.dtype is 'float16'; it must be one of float32, float64"),
    ("checkpoints.asynchronous=1", "checkpoints.asynchronous is 1; it must be true or false"),
    ("model.arguments=[1]", "model.arguments is [1]; it must be names with their values"),
    ("model=unet", "model is 'unet'; it must be a section"),
    ("model=", "model.name is missing: a model of the catalogue"),
    ("data.view.fit=squeeze", "data.view: fit is 'squeeze'; it must be one of"),
    ("plan.split_size=two", "plan: split_size is 'two'; it must be an integer"),
    ("plan.split_size=9", "the model has 6 layers, and split_size is 9"),
    ("plan.parts=4", "training.batch_size: a step has 2 samples, and the plan makes 4"),
    ("plan.schedule=gpip", "plan:"),
    ("plan={replicas: 2, parts: 1}", "leaves 1 of 4 samples for the last batch"),
    ("training.device=quantum", "training.device is 'quantum': use cpu, cuda or cuda:1"),
    ("training.backend=pigeon", "there is no backend 'pigeon' here"),
    ("folder=config.yaml", "folder is config.yaml, which is a file"),
    # data that is not there
    ("data.kind=folder", "data.images is missing, which data.kind folder needs"),
    ("data={kind: folder, images: no/such}", "no/such does not exist"),
    ("data={kind: masks, images: a, masks: b}", "data.classes is missing"),
    ("training.batch_size=99", "use a smaller batch"),
    # words that are none
    ("optimizer.lr", "'optimizer.lr' sets nothing: write section.field=value"),
    ("training.seed.x=1", "training.seed is {'x': 1}; it must be an integer"),
    ("--sett=a.b=1", "did you mean --set?"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), MISTAKES, ids=[word for word, _ in MISTAKES])
def test_a_mistake_has_one_readable_answer(answer, word, expected):
    more = ["evaluation.batch_size=3"] if "replicas" in word else []
    code, message = answer(word, *more)
    assert expected in message
    assert code == 2
    assert message.startswith("mpi4dl: ")
    assert len(message.splitlines()) == 1, "one message, and no traceback"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {name: unet", "config.yaml, line 1: expected"),
        ("model: {name: unet}\nmodel: {}\n", "config.yaml, line 2: model is said twice"),
        ("- 1\n", "config.yaml is no configuration"),
        ("", "model.name is missing"),
        ("model: {name: !!python/object:os.system x}", "config.yaml, line 1: could not determine"),
    ],
)
def test_a_file_that_is_none(answer, text, expected):
    code, message = answer(text=text)
    assert expected in message
    assert (code, len(message.splitlines())) == (2, 1)


def test_a_file_that_is_not_there(capsys):
    assert cli.main(["train", "no/such.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == "mpi4dl: no/such.yaml cannot be read: No such file or directory\n"
    )


def test_another_number_of_ranks_is_answered(answer, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    code, message = answer("plan.num_spatial_parts=4")
    assert code == 2
    assert "this plan is for 4 ranks (4), and there are 3: start 4, or plan for 3 with" in message


def test_words_take_the_place_of_what_a_file_says(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(GOOD, encoding="utf-8")
    words = ["optimizer.lr=1e-3", "plan.num_spatial_parts=[2]", "model.arguments.base=8"]
    made = read(file, words)
    assert made.optimizer.lr == 0.001
    assert made.plan == Plan(num_spatial_parts=(2,))
    assert made.model.arguments == {"base": 8, "depth": 2}


def test_a_configuration_is_written_in_full_and_read_again():
    more = {
        "plan": {"num_spatial_parts": [4, 2], "split_size": 3},
        "evaluation": {"metrics": "iou"},
    }
    made = configuration(yaml.safe_load(GOOD) | more)
    text = written(made)
    assert configuration(parsed(text, "again")) == made
    sections = yaml.safe_load(text)
    assert sections["scheduler"] == {
        "name": None,
        "arguments": {},
        "every": "epoch",
        "metric": "loss",
    }
    assert sections["plan"]["schedule"] == "gpipe"


def test_weights_of_a_loss_have_its_type():
    from mpi4dl.train.runs.losses import loss_of
    from mpi4dl.train.runs.sections import Loss

    said = Loss("cross_entropy+dice", {"cross_entropy": {"weight": [1, 3]}})
    scores, labels = torch.zeros(1, 2, 4, 4, dtype=torch.float64), torch.ones(1, 4, 4).long()
    both = loss_of(said, torch.device("cpu"), torch.float64)(scores, labels)
    alone = loss_of(Loss("cross_entropy"))(scores, labels) + loss_of(Loss("dice"))(scores, labels)
    torch.testing.assert_close(both, alone)
