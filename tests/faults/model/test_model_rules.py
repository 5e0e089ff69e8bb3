"""Each rule of the protocol is needed: without it the simulation, or the shortest schedule, breaks an invariant."""

from __future__ import annotations

import pytest

from tests.faults.model.ablations import ABLATIONS, HALVES, Ablation
from tests.faults.model.ghost import Violation
from tests.faults.model.simulate import Failure, simulate
from tests.faults.model.world import Shape

SEEDS = 60


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda a: a.name)
def test_each_rule_is_needed(ablation: Ablation) -> None:
    if isinstance(ablation.world, Shape):
        seed, kind = first_violation(ablation, ablation.world)
        simulate(seed, ablation.world)  # with the rule in, the same weather does no harm
    else:
        ablation.world()
        with ablation.out(), pytest.raises(Violation) as found:
            ablation.world()
        kind = str(found.value).partition(":")[0]
    assert kind in ablation.expect


def first_violation(ablation: Ablation, shape: Shape) -> tuple[int, str]:
    with ablation.out():
        for seed in range(SEEDS):
            try:
                simulate(seed, shape)
            except Failure as failure:
                return seed, str(failure).splitlines()[-1].partition(":")[0]
    pytest.fail(f"{SEEDS} seeds do without {ablation.name}")


@pytest.mark.parametrize("half", HALVES, ids=lambda a: a.name)
def test_what_is_doubled_holds_without_one_half(half: Ablation) -> None:
    assert isinstance(half.world, Shape)
    with half.out():
        for seed in range(20):
            simulate(seed, half.world)
