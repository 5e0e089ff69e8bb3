"""How the agent ended: what is known of it, in the words of the log and of people."""

from __future__ import annotations

from dataclasses import dataclass

from wal_agent.agents.base import Agent, Fatal, TurnFailed
from wal_agent.clock import Clock
from wal_agent.errors import ConfigError, WalAgentError
from wal_agent.records import RunEnded
from wal_agent.supervise.child import Exit
from wal_agent.supervise.exits import ExitFacts, ExitReason, classify_exit
from wal_agent.supervise.shutdown import ShutdownPlan


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How it ended. `stopped` is why we ended it, if we had to; `down`: we did so in good order."""

    exit: Exit
    completed: bool  # no turn of the session is unfinished, by the agent's own completion event
    down: ShutdownPlan | None
    stopped: WalAgentError | None
    leftovers: tuple[str, ...]
    problems: tuple[str, ...]  # what of the session could not be saved, in sentences
    trouble: BaseException | None  # a failure of ours beside the agent, told at the end
    silent: bool  # it ended by itself, and none of its hooks was ever heard
    saved: bool = True  # the last captures came about, but for what no more time would have saved
    signals: frozenset[int] = frozenset()  # that came while it ran and were its to take
    oom_kills: int = 0  # of our cgroup meanwhile
    said: bytes = b""  # the end of its stderr
    failed: TurnFailed | None = None  # why its newest turn ended, if for want of the model
    turned: bool = False  # a turn began

    @property
    def done(self) -> bool:
        """A turn came to its end; who dies before the first one has completed nothing."""
        return self.completed and (self.turned or self.exit.code == 0)

    @property
    def clean(self) -> bool:
        """No turn is unfinished, and we did not end it; never rc 0 alone (DESIGN 7)."""
        return self.completed and self.down is None and self.stopped is None

    @property
    def drained(self) -> bool:
        return self.down is not None and self.down.kind == "drain"


def unsaved_line(why: str) -> str:
    return f"the last changes of the session are not saved, only on this machine: {why.rstrip('.')}."


def hooks_silent_error(agent: str) -> ConfigError:
    return ConfigError(
        f"{agent}'s hooks did not answer when its session began, so no tool call could be logged. Nothing was run.",
        f"See what switches them off with: wal-agent doctor {agent}",
    )


def no_hooks_error(agent: str, code: int) -> ConfigError:
    """`code`: the agent's exit code. With an error of its own (no login, a wrong option) it mostly was too early for
    hooks; that it had none cannot be told from that."""
    if 0 < code < 128:
        return ConfigError(
            f"{agent} ended with {code} before its session began, as far as its hooks tell; its own message is above.",
            f"If it worked all the same, that was not logged: wal-agent doctor {agent}",
        )
    return ConfigError(
        f"{agent} ended without a word from its hooks, so what it did was not logged.",
        f"See what keeps them off with: wal-agent doctor {agent}",
    )


def exit_reason(agent: Agent, ended: AgentOutcome, interactive: bool, now: float) -> ExitReason:
    """How it ended, as one word and one sentence."""
    death = agent.fatal(ended.said, now) if isinstance(agent, Fatal) and ended.exit.code != 0 else None
    return classify_exit(
        ExitFacts(
            code=ended.exit.code,
            completed=ended.completed,
            interactive=interactive,
            down=ended.down,
            stopped=str(ended.stopped or ""),
            signals=ended.signals,
            oom_kills=ended.oom_kills,
            said=ended.said,
            death=death,
            failed=ended.failed,
        )
    )


def ended_record(ended: AgentOutcome, word: ExitReason, place: str, rests: float, clock: Clock) -> RunEnded:
    """`rests`: seconds that the job is paused for what `word` says, where nobody asked for a pause."""
    down, now = ended.down, clock.now()
    until, reason = (down.resume_at, down.reason) if down is not None else (0.0, "")
    if rests > 0:
        until, reason = now + rests, word.why
    return RunEnded(
        time=now,
        code=ended.exit.code,
        completed=ended.done,
        why="" if word.cls == "completed" else word.why,
        cls=word.cls,
        place=place,
        until=until,
        reason=reason,
    )
