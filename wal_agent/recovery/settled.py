"""Why a lease was settled, read from the words that stand in it: what `status` says of it, and whether the fleet gives
the job a host. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from wal_agent.recovery.format import yield_reason

StopKind = Literal["", "handed_over", "halted", "stopped", "failed"]
"""`handed_over`: its machine went away, or had no bucket; `halted`: nothing more is run, and a person is needed;
`stopped`: wal-agent ended the agent for a reason of its own; `failed`: the agent did, or died; "": any other end was
the agent's or a person's."""

# What a run leaves that was told to go before its agent ran, or could not reach the bucket.
_NOT_BEGUN: Final = re.compile(r"stopped: (interrupted by SIGTERM |this machine is going away \()|stopped \(69\): ")
_BY_A_PERSON: Final = re.compile(r"stopped: interrupted by ")
_HALTED: Final = re.compile(r"stopped( \(\d{1,3}\))?: ")
_FAILED: Final = re.compile(
    r"the agent ended with \d{1,3}(, but not its turn)?|killed by SIG[A-Z0-9]{2,9}|killed: out of memory"
    r"|JavaScript heap out of memory|the model did not answer|the agent did not (begin|end behind its turn)"
)
_KIND_BY_CLASS: Final[dict[str, StopKind]] = {
    "context": "halted",
    "stopped": "stopped",
    **dict.fromkeys(("failed", "incomplete", "killed", "out_of_memory", "heap", "hung", "quota"), "failed"),
}


def classify_stop(reason: str, cls: str = "") -> StopKind:
    """`cls`: of how the agent ended under this lease (records.ExitClass), where the log was read: such a reason may be
    the agent's own words."""
    if yield_reason(reason) or _NOT_BEGUN.match(reason):
        return "handed_over"
    if _HALTED.match(reason):
        return "" if _BY_A_PERSON.match(reason) else "halted"
    return "failed" if _FAILED.fullmatch(reason) else _KIND_BY_CLASS.get(cls, "")


def failure_text(reason: str) -> str:
    """ "the agent failed with 41", "the agent failed: killed by SIGKILL"."""
    code = re.fullmatch(r"the agent ended with (\d{1,3})", reason)
    return f"the agent failed with {code[1]}" if code else f"the agent failed: {reason.removeprefix('the agent ')}"
