"""Zero bubble H1: 1F1B whose backwards are split, to fill bubbles with weights (Qi et al., 2023).

    0 │ F0 F1 F2 ·  ·  I0 W0 F3 I1 W1 I2 W2 I3 W3
    1 │ ·  F0 F1 ·  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    2 │ ·  ·  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

Only the input part I of a backward is waited for by others. The weight part W fits wherever an
actor would idle. Actor a is a weight parts behind, which makes the memory of all actors that of
1F1B's first one, and the bubble a third of 1F1B's.
"""

from __future__ import annotations

from collections.abc import Iterator

from .action import Action, Kind
from .one_f_one_b import alternate
from .placement import check_counts, loop
from .schedule import Schedule


def zb_h1(actors: int, micro_batches: int) -> Schedule:
    check_counts(micro_batches=micro_batches)

    def order(stage: int) -> Iterator[Action]:
        forwards = [Action(Kind.FORWARD, stage, i) for i in range(micro_batches)]
        inputs = [Action(Kind.INPUT, stage, i) for i in range(micro_batches)]
        weights = (Action(Kind.WEIGHT, stage, i) for i in range(micro_batches))
        for action in alternate(forwards, inputs, warm_up=actors - 1 - stage):
            yield action
            if action.kind is Kind.INPUT and action.micro_batch in range(stage, micro_batches):
                yield next(weights)
        yield from weights

    lists = tuple(tuple(order(stage)) for stage in range(actors))
    return Schedule("zb-h1", loop(actors), (0,) * micro_batches, lists)
