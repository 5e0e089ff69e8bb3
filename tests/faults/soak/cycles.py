"""What happens in a soak, rolled from a seed before it begins: when each run dies, and of what."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

Death = tuple[str, int | float]
"""("failpoint NAME", n-th visit), ("after", seconds), what the agent does itself at its n-th changing call (agent.py),
or ("", 0): it comes to its end."""

PLACES = (
    *("run.before_lease", "run.after_lease", "opening.before_put", "opening.after_put"),
    *("run.before_agent", "run.after_agent_start", "append.before_put", "append.after_put", "append.after_ack"),
    *("restore.before_stage", "restore.staged", "restore.between_moves", "restore.after_moves"),
    *("recovery.before_record", "recovery.after_record", "run.before_seal", "run.after_seal"),
    *("snapshot.before_put", "snapshot.after_put", "blob.after_put"),
)
MACHINES = 3
CALLS = ("append", "tool", "read")  # agent.py
WAITING = 2.0
OUTAGE = 1.5


@dataclass(frozen=True)
class Cycle:
    """One start of `wal-agent run` and its end. `machine` is its number; `all_of_it`: the whole machine dies, not just
    the supervisor and what the kernel ends with it; `cut`: the store is out of reach for OUTAGE seconds, from so many
    on after the agent began; `settle`: a person then settles what is open."""

    number: int
    machine: int
    death: Death
    all_of_it: bool
    batches: tuple[tuple[str, ...], ...]
    again: bool
    cut: float | None
    settle: bool


def roll(seed: int, count: int) -> list[Cycle]:
    rng = Random(f"soak {seed}")
    machine, rolled = 0, []
    for number in range(1, count + 1):
        moves = rng.random() < 0.5
        if moves:
            machine = (machine + rng.randrange(1, MACHINES)) % MACHINES
        batches = [tuple(rng.choices(CALLS, [6, 1, 2], k=rng.choice([1, 1, 2]))) for _ in range(4)]
        rolled.append(
            Cycle(
                number,
                machine,
                roll_death(rng, WAITING if moves else 0.0),
                all_of_it=rng.random() < 0.5,
                batches=tuple(batches),
                again=rng.random() < 0.5,
                cut=rng.uniform(0.0, 0.2) if rng.random() < 0.1 else None,
                settle=number % 10 == 0,
            )
        )
    return rolled


def roll_death(rng: Random, waiting: float) -> Death:
    """`waiting`: seconds in which it most likely still waits for the lease of a machine that is gone."""
    kind = rng.choices(["failpoint", "after", "call", ""], [4, 2, 5, 1])[0]
    match kind:
        case "failpoint":
            place = rng.choice(PLACES)
            return f"failpoint {place}", rng.randint(1, 12) if place.startswith("append.") else 1
        case "after":
            return "after", waiting + rng.uniform(0.05, 1.0)
        case "call":
            return rng.choice(["allowed", "effect", "effect", "ended", "agent"]), rng.randint(1, 4)
        case _:
            return "", 0
