"""What is typed wrong is answered before anything starts: once, with the remedy, by exit code 2."""

from __future__ import annotations

import socket

import pytest
import torch

from mpi4dl.comm.launchers import started_by
from mpi4dl.errors import DataError, LaunchError, UsageError
from mpi4dl.train import answer as answering
from support.ranks import UNDER_TORCHRUN

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="these processes have a launcher already")

MISTAKES = [
    # numbers that are none, or too small
    ("layer resnet --parts two", "--parts is 'two'; it must be an integer"),
    ("layer resnet --parts 0", "--parts is 0; it must be at least 1"),
    ("layer resnet --batch-size 1.5", "--batch-size is '1.5'; it must be an integer"),
    ("layer resnet --batch-size 0", "--batch-size is 0; it must be at least 1"),
    ("layer resnet --split-size -2", "--split-size is -2; it must be at least 1"),
    ("layer resnet --image-size 0", "--image-size is 0; it must be at least 1"),
    ("layer resnet --num-epochs 0", "--num-epochs is 0"),
    ("layer resnet --num-classes 0", "--num-classes is 0"),
    ("layer resnet --num-workers -1", "--num-workers is -1; it must be at least 0"),
    ("layer resnet --steps 0", "--steps is 0; it must be at least 1"),
    ("layer resnet --warmup -1", "--warmup is -1; it must be at least 0"),
    ("layer resnet --seed -1", "--seed is -1"),
    ("layer resnet --lr fast", "--lr is 'fast'; it must be a number, 0 or more"),
    ("layer resnet --lr nan", "--lr is 'nan'"),
    ("layer resnet --checkpoint-activations -1", "--checkpoint-activations is -1"),
    ("gems resnet --times 0", "--times is 0; it must be at least 1"),
    ("layer resnet --local-DP 0", "--local-DP is 0"),
    # words that there are not
    ("layer resnet --partz 2", "did you mean --parts?"),
    ("layer resnet surplus", "unrecognized arguments: surplus"),
    ("layer resnet --image-size", "--image-size: expected one argument"),
    ("layer resnet --app 4", "--app: invalid choice: 4"),
    ("layer resnet --precision fp8", "--precision: invalid choice: 'fp8'"),
    ("layer resnet --schedule gpip", "did you mean gpipe?"),
    ("layer resnet --backend pigeon", "there is no backend 'pigeon' here: use one of"),
    ("layer resnet --backend mpi", "mpi4py is for ranks that mpirun starts: use mpirun -np 2"),
    ("layer resnet --backend mpi4py", "mpi4py is for ranks that mpirun starts: use mpirun -np 2"),
    ("layer resnet --device quantum", "--device is 'quantum': use cpu, cuda or cuda:1"),
    ("spatial resnet --slice-method diagonal", "unknown slice method 'diagonal': use square"),
    # stages and layers
    ("layer resnet --balance 3,4", "is for 7 layers, and the model has 38: use for instance 16,22"),
    ("layer resnet --balance 1,1,36", "there are 2 stages (--split-size): list 2 numbers, or use"),
    ("layer resnet --balance 38,0", "every stage needs at least 1 layer"),
    ("layer resnet --balance 3,x", "--balance is 'x'; it must be an integer"),
    ("layer resnet --split-size 39", "the model has 38 layers, and --split-size is 39"),
    ("layer amoebanet --num-layers 4", "a positive multiple of 3, not 4; use 3 or 6"),
    ("layer amoebanet --num-filters 100", "a positive multiple of 8, not 100; use 96 or 104"),
    # tiles
    ("spatial resnet --spatial-size 3", "--spatial-size is 3, and there are 2 stages"),
    ("spatial resnet --num-spatial-parts 4,2", "or list 1, or --spatial-size 2"),
    ("spatial resnet --num-spatial-parts four", "--num-spatial-parts is 'four'; it must be an"),
    ("spatial resnet --num-spatial-parts 0", "--num-spatial-parts is 0; a stage has at least 1"),
    ("spatial resnet --slice-method 2x3", "has 6 parts, and 4 were asked for; use --num-spatial"),
    ("spatial resnet --image-size 2 --num-spatial-parts 9", "of which 5 would have no pixels"),
    ("spatial resnet --fused-layers 2", "--halo-D2 is off: use --halo-D2, or --fused-layers 1"),
    ("spatial resnet --spatial-size 2 --local-DP 2", "no stage is left to share the batch in"),
    # batches and schedules
    ("layer resnet --batch-size 2 --parts 4", "use --batch-size 4, or --parts 2"),
    ("layer amoebanet --batch-size 1", "a single value of each channel"),
    ("layer amoebanet --batch-size 3 --parts 3", "with micro-batches of 1"),
    ("layer resnet --times 2", "gpipe trains 1 batch a step: use --parts 2, or one of gems"),
    ("layer resnet --enable-master-comm-opt", "is for two directions, and gpipe has 1"),
    ("gems resnet --enable-master-comm-opt", "gems with --times 1 uses 1: use --times 2"),
    ("layer resnet --schedule zb-v --split-size 3", "use 2 or 4 stages"),
    ("spatial resnet --split-size 4 --schedule interleaved", "on the same ranks, and they need"),
    # what this machine lacks
    ("layer resnet --json /no/such/folder/x", "there is no folder /no/such/folder"),
    ("layer resnet --json .", "--json . is a folder: name a file"),
    ("layer resnet --app 1 --datapath /no/such", "--datapath /no/such does not exist"),
    ("layer resnet --app 2 --datapath /no/such", "CIFAR-10's binary version"),
    ("layer resnet --app 2 --image-size 64", "CIFAR-10 has images of 32×32"),
    ("layer resnet --app 2 --num-classes 2", "CIFAR-10 has 10 classes"),
]


def test_there_are_many():
    assert len({line for line, _ in MISTAKES}) == len(MISTAKES) >= 40


@pytest.mark.parametrize(("line", "expected"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_has_one_readable_answer(answer, line, expected):
    kind, model, rest = [*line.split(" ", 2), ""][:3]
    code, message = answer(kind, model, rest)
    assert code == 2
    assert expected in message
    assert message.startswith("mpi4dl: ")
    assert len(message.splitlines()) == 1, "one message, and no traceback"


LAUNCHED = {"PMI_RANK": "0", "PMI_SIZE": "5", "MASTER_PORT": "29555"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PMI_SIZE": "4"}, "needs 5 ranks, or a multiple for replicas (stage 0: 4 tiles, stage 1: "
         "1; 4 + 1 = 5), and 4 were started: start 5, or use --num-spatial-parts 3"),
        ({"PMI_SIZE": "8"}, "and 8 were started: start 5, or use --local-DP 4 or --num-spatial"),
        ({"PMI_SIZE": "1"}, "and 1 was started: start 5"),
        ({"PMI_SIZE": "many"}, "PMI_SIZE is 'many' in the environment; it must be a number"),
        ({"PMI_RANK": "5"}, "PMI_RANK=5 and PMI_SIZE=5: ranks count from 0"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'; it must be a number from 1 to 65535"),
        ({"MPI4DL_BACKEND": "pigeon"}, "there is no backend 'pigeon' here"),
    ],
)  # fmt: skip
def test_what_the_launcher_did_is_answered_too(answer, monkeypatch, environment, expected):
    for name, value in {**LAUNCHED, **environment}.items():
        monkeypatch.setenv(name, value)
    code, message = answer("spatial", "amoebanet", "--image-size 64")
    assert (code, len(message.splitlines())) == (2, 1)
    assert expected in message


def test_without_a_launcher_the_variable_for_ranks_counts(answer, monkeypatch):
    monkeypatch.setenv("MPI4DL_RANKS", "3")
    assert "needs 2 ranks" in answer("layer", "resnet", "")[1]
    monkeypatch.setenv("MPI4DL_RANKS", "three")
    assert "MPI4DL_RANKS is 'three'" in answer("layer", "resnet", "")[1]


def test_layers_are_not_told_to_use_tiles(answer, monkeypatch):
    monkeypatch.setenv("MPI4DL_RANKS", "3")
    assert "spatial" not in answer("layer", "resnet", "")[1]


def test_a_port_that_is_taken(answer, monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        for name, value in {**LAUNCHED, "MASTER_PORT": str(port)}.items():
            monkeypatch.setenv(name, value)
        code, message = answer("spatial", "amoebanet", "--image-size 64")
    assert code == 2
    assert f"port {port} is in use on this machine" in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "5 ranks are on this machine, which shows 2 GPUs"),
        ("--device cuda:2", "--device is cuda:2, and this machine shows 2 GPUs"),
    ],
)
def test_more_ranks_than_gpus(answer, monkeypatch, line, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    code, message = answer("spatial", "amoebanet", f"--image-size 64 {line}")
    assert code == 2
    assert expected in message


# ── who answers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rank", "local_rank", "error", "speaks"),
    [
        (0, 0, UsageError("x"), True),
        (1, 1, UsageError("x"), False),
        (4, 0, UsageError("x"), False),
        (0, 0, DataError("x"), True),
        (1, 1, DataError("x"), False),
        (4, 0, DataError("x"), True),
        (4, 0, LaunchError("x"), True),
    ],
)
def test_one_rank_answers(monkeypatch, capsys, rank, local_rank, error, speaks):
    waited: list[float] = []
    monkeypatch.setattr(answering.time, "sleep", waited.append)
    environment = {"PMI_RANK": rank, "PMI_SIZE": 8, "MPI_LOCALRANKID": local_rank}
    started = started_by({name: str(value) for name, value in environment.items()})
    assert answering.answered(error, started) == 2
    assert (capsys.readouterr().err == "mpi4dl: x\n") == speaks
    assert bool(waited) != speaks, "others leave time to the one that speaks"


def test_later_a_rank_that_is_alone_with_its_error_says_so(monkeypatch, capsys):
    monkeypatch.setattr(answering.time, "sleep", lambda seconds: None)
    started = started_by({"PMI_RANK": "3", "PMI_SIZE": "8"})
    assert answering.answered_later(DataError("x"), started) == 2
    assert capsys.readouterr().err == "mpi4dl: rank 3: x\n"
