"""What an earlier recovery found out of a call in flight stands, where nothing can be told of it any more. Pure.

Evidence fades: on another machine, or behind later calls, a push that was seen to have landed could not be told from
one that had not. What was proven then of a call whose run is gone has not changed since. A call that was half done
then is asked about again: what is left of it may have been done since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal_agent.records import Recovery, Verdict

EARLIER = "Found at the start before: "
_PROVEN = ("completed", "not_started")


def carry_over(now: Sequence[Verdict], earlier: Recovery | None, here: Callable[[int], bool]) -> tuple[Verdict, ...]:
    """The verdicts, with the earlier finding in the place of unknown. `here(call)`: what a call has done to files is in
    this workspace, if it was done before that recovery; where it may not be, the earlier finding says too much."""
    known = {v.call: v for v in earlier.verdicts if v.finding in _PROVEN} if earlier is not None else {}
    return tuple(_carry_over_one(v, known[v.call]) if v.call in known and here(v.call) else v for v in now)


def _carry_over_one(now: Verdict, then: Verdict) -> Verdict:
    if now.finding != "unknown":
        return now
    why = then.why if then.why.startswith(EARLIER) else f"{EARLIER}{then.why}"
    return Verdict(call=now.call, finding=then.finding, why=why, verify=now.verify)
