"""How a run ended, as one word and one sentence (`exit_class`): what restarts, alerts and the crash loop go by. Pure.

What we did ourselves stands first, then what the kernel says, then the agent's own words; an exit code alone proves
nothing (DESIGN 7).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wal_agent.agents.base import Death, TurnFailed
from wal_agent.records import ExitClass, RunEnded
from wal_agent.supervise.down import Down

PERSONS_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
_DEADLY: Final = frozenset(
    {
        *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGPIPE, signal.SIGTERM, signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ),
    }
)
_OURS: Final[dict[str, ExitClass]] = {"drain": "drained", "pause": "paused", "hang": "hung"}
_HEAP: Final = b"JavaScript heap out of memory"  # V8, of any Node program
MAX_WHY = 300  # characters

QUOTA_PAUSE = 60.0  # seconds until a provider is asked again that did not say when; doubled each time
LONGEST_UNTOLD = 3600.0
LONGEST_TOLD = 7 * 86_400.0  # whatever a provider says


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of an end. `code` >= 0, or -N for signal N. `stopped`: why we ended it at once; `signals`: what
    came while it ran and was its to take; `oom_kills`: of our cgroup meanwhile; `said`: the end of its stderr, `death`:
    what its module reads there; `failed`: why its newest turn ended, if for want of the model."""

    code: int
    completed: bool
    interactive: bool
    down: Down | None = None
    stopped: str = ""
    signals: frozenset[int] = frozenset()
    oom_kills: int = 0
    said: bytes = b""
    death: Death | None = None
    failed: TurnFailed | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """`retry_after`: seconds, where a provider said (0: it did not)."""

    cls: ExitClass
    why: str
    retry_after: float = 0.0


def exit_class(f: Facts) -> Word:
    """The class and why, one sentence without the full stop."""
    if f.stopped:
        return Word("stopped", f.stopped[:MAX_WHY])
    if f.down is not None:
        return Word(_OURS[f.down.kind], f.down.why)
    if f.code == 0 and f.completed:
        return Word("completed", "completed")
    number = _signal(f.code)
    if f.oom_kills > 0 and number == signal.SIGKILL:
        return Word("out_of_memory", "killed: out of memory")
    if f.code != 0 and _HEAP in f.said:
        return Word("heap", "JavaScript heap out of memory")
    if number in PERSONS_SIGNALS or f.signals & PERSONS_SIGNALS:
        return Word("interrupted", "interrupted")
    if number:
        return Word("killed", f"killed by {signal.Signals(number).name}")
    if f.interactive and f.code == 0:
        return Word("interrupted", "left in the middle of a turn")
    said = _said(f)
    if said is not None:
        return said
    if f.code == 0:
        return Word("incomplete", "the agent ended with 0, but not its turn")
    return Word("failed", f"the agent ended with {f.code}")


def _signal(code: int) -> int:
    """The signal that ended it, also where a shell in between tells it as 128+N; 0 for none."""
    if code < 0:
        return -code if -code in signal.valid_signals() else 0
    number = code - 128
    return number if number in _DEADLY or number in (signal.SIGINT, signal.SIGHUP) else 0


def _said(f: Facts) -> Word | None:
    if f.death is not None:
        return Word(f.death.cls, _line(f.death.why), f.death.retry_after)
    if f.failed is not None and f.failed.cls != "other":
        return Word(f.failed.cls, _line(f.failed.why), f.failed.retry_after)
    return None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_WHY else line[: MAX_WHY - 1] + "…"


# ---- a provider that has to be waited for


def asked_again_after(word: Word, ends: Iterable[RunEnded]) -> float:
    """Seconds until a quota is worth another try: what the provider said, else longer each time in a row. `ends`: those
    of the job before, oldest first."""
    if word.retry_after > 0:
        return min(word.retry_after, LONGEST_TOLD)
    row = 0
    for ended in reversed(list(ends)):
        if ended.cls == "quota":
            row += 1
        elif ended.cls not in ("paused", "drained"):
            break
    return min(QUOTA_PAUSE * float(2 ** min(row, 10)), LONGEST_UNTOLD)
