"""What a recovery may decide to do (`plan`): data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wal_agent.errors import WalAgentError
from wal_agent.records import Payload
from wal_agent.wal.state import EndedCall, OpenCall

# Why the agent must be told: it was cut off with calls in flight; its host gave it up in good order; it was paused; it
# ended by itself with calls in flight; it was cut off without any.
Alert = Literal["crash", "preempted", "paused", "unsettled", "cut_off"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the agent with the user's arguments; nothing of an earlier run matters."""

    args: tuple[str, ...]
    why: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartAgain:
    """No captured session can be resumed: begin the task anew. With `alert`, tell first what is known of the calls;
    `prompt` is then what the lost conversation began with last (None: the arguments hold it). For `alone` and
    `warnings` see Resume."""

    args: tuple[str, ...]
    alert: Alert | None
    prompt: Payload | None
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str
    alone: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """Restore and resume `session`. `finished` calls may be missing in its file and are put back, then `dangling`.
    `alone`: nobody is to be asked about a call whose fate cannot be told; the agent looks and decides by itself.
    `warnings`: sentences for the screen and the prompt."""

    session: str
    args: tuple[str, ...]
    alert: Alert
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str
    alone: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Start nothing: raise `error()`, whose class knows the exit code. The log keeps what it holds."""

    kind: type[WalAgentError]
    what: str
    hint: str

    def error(self) -> WalAgentError:
        return self.kind(self.what, self.hint)


Plan = Start | StartAgain | Resume | Refuse
