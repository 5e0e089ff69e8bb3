"""What an agent must still know behind a compaction of its conversation (docs/CHECKPOINTS.md): its task, its plan, and
the calls that run. Pure: what is at hand, by the log; what of it the new history lacks; and whether a summary is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wal_agent.calls.quote import inline, show_input
from wal_agent.conversation.checkpoint import plan_of
from wal_agent.wal.state import State
from wal_agent.wording.messages import after_compaction, before_compaction

TASK: Final = 300  # characters of the newest prompt that are said
FEW: Final = 20  # letters and digits: a summary with fewer holds no task, no plan and no result
MAX_STEPS: Final = 12  # of the plan that are said
MAX_RUNNING: Final = 10
_PROMPT: Final = 2000  # bytes of a prompt that are looked at
_SAME: Final = 80  # characters of a prompt by which it is found again


class AtHand(msgspec.Struct, frozen=True):
    """`task`: how the newest prompt of a person begins; `plan`: steps that are not done; `running`: number, tool and
    words of each call that runs. Foreign text, with single blanks."""

    task: str = ""
    plan: tuple[str, ...] = ()
    running: tuple[tuple[int, str, str], ...] = ()


def at_hand(state: State, running: Sequence[tuple[int, str, bytes]]) -> AtHand:
    """`running`: number, tool and input of each call."""
    asked = state.prompt.prompt.data if state.prompt is not None and state.prompt.prompt is not None else None
    task = _plain((asked or b"")[:_PROMPT].decode("utf-8", "replace"))
    plan = tuple(_plain(step.text) for step in plan_of(state) if step.state != "done")
    calls = tuple((call, tool, _plain(show_input(tool, input))) for call, tool, input in running[:MAX_RUNNING])
    return AtHand(task, plan, calls)


def missing(known: AtHand, history: str | None) -> AtHand:
    """What of it `history` lacks; None: nobody knows what it has, so all of it."""
    if history is None:
        return known
    text = _plain(history)
    return replace(
        known,
        task="" if known.task[:_SAME] in text else known.task,
        plan=() if all(step in text for step in known.plan) else known.plan,
        running=tuple(call for call in known.running if call[2] not in text),
    )


def names(lacks: AtHand) -> tuple[str, ...]:
    """What is missing, each as one word of a record."""
    parts = (("task", lacks.task), ("plan", lacks.plan), ("calls", lacks.running))
    return tuple(name for name, part in parts if part)


def is_lost(summary: str) -> bool:
    """Whether the conversation is lost for the agent: its summary says nothing."""
    return sum(map(str.isalnum, summary[:2000])) < FEW


def words_before(known: AtHand) -> str:
    """What the model that writes the summary is to keep."""
    return before_compaction(*_quoted(known))


def words_after(n: int, lacks: AtHand, *, lost: bool = False) -> str:
    """What the agent reads behind compaction `n`."""
    return after_compaction(n, *_quoted(lacks), lost=lost)


def _quoted(known: AtHand) -> tuple[str, str, str]:
    task = inline(known.task, TASK) if known.task else ""
    running = ", ".join(f"#{call} {tool} {words}" for call, tool, words in known.running)
    plan = "; ".join(known.plan[:MAX_STEPS])
    return task, inline(running, 600) if running else "", inline(plan, 1200) if plan else ""


def _plain(text: str) -> str:
    return " ".join(text.split())
