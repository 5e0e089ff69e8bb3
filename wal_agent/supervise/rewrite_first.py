"""Bring a conversation into the form in which a start resumes it, before the recovery is planned.

A rewrite that was cut off is completed; old turns are compacted, where the person wants that; a summary that says
nothing gets a compact form in its place.
"""

from __future__ import annotations

from wal_agent.clock import Clock
from wal_agent.recovery.plan import Policy, Resume, Start
from wal_agent.recovery.report import row
from wal_agent.supervise import recovery_input
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.recovery_input import Situation, read_situation
from wal_agent.text import plural
from wal_agent.wal.job import OpenedJob


def will_resume(options: RunOptions, at: Situation) -> bool:
    """Whether this start goes on in the job's newest conversation: by the plan, or since the arguments choose it."""
    policy = Policy(resume_closed=options.go_on, fresh=options.fresh, crash_limit=0)
    decided = recovery_input.decide_recovery(at, options.agent, (), policy)
    if isinstance(decided, Start):
        return options.agent.session_from_args(decided.args) in ("", at.before.session)
    return isinstance(decided, Resume)


def rewrite_first(options: RunOptions, opened: OpenedJob, clock: Clock, screen: Screen) -> OpenedJob:
    """Bring the job's conversation into that form, and return the job as it is then."""
    state, policy = opened.replay.state, options.settings.compact
    whole = opened.replay.damage is None and bool(state.session)
    wanted = policy != "off" and whole and will_resume(options, read_situation(opened))
    goes_on = state.turn == "started" or (state.ended is not None and state.ended.cls == "paused")
    mends = options.settings.restart == "on" and whole and goes_on and any(c.lost for c in state.compactions[-1:])
    if not (state.rewrites or wanted or mends) or state.owner_agent not in ("", options.agent.name):
        return opened
    from wal_agent.supervise.rewrite import Home, compact_before_resume, complete_rewrite, lost_summary, mend_summary

    home = Home(opened.keys.job, options.settings.job_options, options.agent, options.workspace, options.env)
    complete_rewrite(state, home, opened.blobs)
    lost = lost_summary(state, options.agent) if mends else None
    if lost is not None and (done := mend_summary(opened, home, lost)).n:
        what = (
            f"the empty summary of compaction {lost.n}: a compact form of {plural(done.turns, 'turn')} is in its place"
        )
        screen.rows([row("mended", what)])
        return opened.refreshed()
    if wanted and (done := compact_before_resume(opened, home, policy, clock.now())).n:
        what = f"{plural(done.turns, 'old turn')}: about {done.tokens:,} tokens before, {done.left:,} after"
        screen.rows([row("compacted", what)])
        return opened.refreshed()
    return opened
