"""`mpi4dl plan` and `mpi4dl calibrate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from ..errors import PlanError, UsageError
from ..models import build
from ..models.catalogue import MODELS
from ..planner.answer import data, picture, text
from ..planner.calibrate import calibrate
from ..planner.device import DEVICES
from ..planner.planning import considered
from ..schedule.picture import picture as timeline_picture
from .arguments import Parser
from .kinds import RESNET_DEPTH

_NAMES = {"amoebanet": "amoebanet_d", "resnet": "resnet_v2"}


def add_planning(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "the fastest plan that fits, for a model, images and devices"
    plan = commands.add_parser("plan", help=about, description=f"Search {about}. Nothing is run.")
    add = plan.add_argument
    names = sorted({*MODELS, *_NAMES})
    add("--model", required=True, choices=names, metavar="MODEL", help=f"one of {', '.join(names)}")
    add("--image-size", type=int, required=True, help="height and width of the images")
    add("--batch-size", type=int, required=True, help="images of a step, over all devices")
    add("--devices", type=int, required=True, help="how many there are")
    add("--device-memory", help="of each, such as 80GB (default: the device's)")
    known = ", ".join(DEVICES)
    add("--device", help=f"a file of mpi4dl calibrate, or one of {known} (default: by its memory)")
    add("--cluster", help="a file that describes nodes and links")
    add("--optimizer-states", type=float, default=1.0, help="copies of the parameters (default: 1)")
    add("--num-layers", type=int, default=18, help="normal cells of AmoebaNet (default: 18)")
    add("--num-filters", type=int, default=416, help="filters of AmoebaNet (default: 416)")
    add("--num-classes", type=int, default=10, help="classes (default: 10)")
    add("--json", help="write everything that was tried to a file")
    add("--front", help="write a picture of time against memory")
    add("--timeline", help="write a picture of the chosen plan's step")
    plan.set_defaults(do=_plan)
    about = "measure this machine for mpi4dl plan: two minutes, all cores"
    measure = commands.add_parser("calibrate", help=about, description=about)
    measure.add_argument("--output", default="machine.json", help="file (default: machine.json)")
    measure.set_defaults(do=_calibrate)


def _plan(options: argparse.Namespace) -> int:
    for file in (options.json, options.front, options.timeline):
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).absolute().parent}")
    try:
        found = considered(
            _model(options),
            (3, options.image_size, options.image_size),
            options.batch_size,
            options.devices,
            options.device_memory,
            options.device,
            options.cluster,
            options.optimizer_states,
        )
        print(text(found))
    except (PlanError, ValueError) as error:
        raise UsageError(str(error)) from error
    if options.json:
        Path(options.json).write_text(json.dumps(data(found), indent=1) + "\n", encoding="utf-8")
    if options.front:
        picture(found, options.front)
    if options.timeline:
        title = f"predicted: {found.best.seconds:.3g} s"
        timeline_picture({title: found.best.timeline}, options.timeline, "seconds")
    return 0


def _model(options: argparse.Namespace) -> nn.Module:
    name = _NAMES.get(options.model, options.model)
    more: dict[str, int] = {"num_classes": options.num_classes}
    if name == "amoebanet_d":
        more |= {"num_layers": options.num_layers, "num_filters": options.num_filters}
    if name in ("resnet_v1", "resnet_v2"):
        more["depth"] = RESNET_DEPTH
    with torch.device("meta"):
        return build(name, **more)


def _calibrate(options: argparse.Namespace) -> int:
    if not Path(options.output).absolute().parent.is_dir():
        raise UsageError(f"--output {options.output}: there is no such folder")
    device, _ = calibrate(options.output)
    print(
        f"written: {options.output}: {device.flops / 1e9:.0f} GFLOP/s in a convolution, "
        f"{device.bandwidth / 1e9:.1f} GB/s, {device.runtime / 2**20:.0f} MiB of libraries a rank"
    )
    return 0
