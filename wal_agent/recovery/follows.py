"""What follows from each row of the plan, with the sentences that people read."""

from __future__ import annotations

from dataclasses import replace

from wal_agent.agents.session_files import SESSION
from wal_agent.errors import ConfigError, CrashLoop, Damaged, PersonNeeded
from wal_agent.recovery import crash_history
from wal_agent.recovery.damage import damaged_log_error
from wal_agent.recovery.decided import Alert, Plan, Refuse, Resume, Start, StartAgain
from wal_agent.recovery.format import plural, yield_reason
from wal_agent.recovery.identity import describe_project
from wal_agent.recovery.plan_model import PlanInputs
from wal_agent.shell.quote import safe

_SETTLE = "Settle each with: wal-agent ack N --done | --not-done"


def refuse_damaged(c: PlanInputs) -> Plan:
    assert c.local.damage is not None
    error = damaged_log_error(c.local.damage)
    return Refuse(Damaged, error.what, error.hint)


def refuse_agent(c: PlanInputs) -> Plan:
    assert c.before.home is not None
    what = f"This job belongs to {c.before.home.agent}, not to {c.opening.agent}. Nothing was run."
    return Refuse(ConfigError, what, "Choose another name with --job.")


def refuse_command(c: PlanInputs) -> Plan:
    assert c.before.home is not None
    then, now = safe(c.before.home.args[0], 80), safe(c.opening.args[0], 80)
    what = f"This job was last run with {then}, not with {now}. Nothing was run."
    return Refuse(ConfigError, what, "Choose another name with --job.")


def refuse_workspace(c: PlanInputs) -> Plan:
    assert c.before.home is not None
    what = f"This job belongs to the folder {c.before.home.workspace}, not to {c.opening.workspace}. Nothing was run."
    return Refuse(ConfigError, what, "Run it there, or choose another name with --job.")


def refuse_foreign(c: PlanInputs) -> Plan:
    theirs, ours = describe_project(c.identity), describe_project(c.local.identity)
    what = f"This job belongs to another repository ({theirs}), not to the one here ({ours}). Nothing was run."
    return Refuse(ConfigError, what, "Run it in that repository, or choose another name with --job.")


def halt_crash_loop(c: PlanInputs) -> Plan:
    found, minutes = c.crashes, c.policy.crash_window / 60
    what = (
        f"{len(found)} crashes in {minutes:.0f} minutes{crash_history.describe_place(c.state, found)} ({crash_history.describe_classes(found)}). "
        "Stopped; a person is needed."
    )
    return Refuse(CrashLoop, what, "See: wal-agent log --crashes")


def halt_stuck(c: PlanInputs) -> Plan:
    assert c.stuck is not None
    call, how = c.stuck.call, crash_history.describe_class(c.stuck.cls)
    if call is None:
        what = f"It died twice in a row at the same place of its session, with no tool call in between ({how})."
        hint = "See: wal-agent log --crashes. Then go on at a terminal, or begin anew with --fresh."
    else:
        what = f"It died twice in a row in {crash_history.describe_call(call.intent)} ({how})."
        hint = f"Look what became of it, then: wal-agent ack {call.intent.call} --done | --not-done; or at a terminal."
    return Refuse(CrashLoop, f"{what} Not tried a third time; a person is needed.", hint)


def halt_unknown(c: PlanInputs) -> Plan:
    calls = ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.state.open[:5])
    what = f"Cannot tell what became of calls in flight ({calls}). Stopped, as the policy says; a person is needed."
    return Refuse(PersonNeeded, what, _SETTLE)


def refuse_to_forget(c: PlanInputs) -> Plan:
    calls = ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.state.open[:5])
    return Refuse(PersonNeeded, f"--fresh would forget calls that are not settled ({calls}).", _SETTLE)


# ---- going on --------------------------------------------------------------------------------------------------------


def start_as_asked(c: PlanInputs) -> Plan:
    return Start(c.opening.args, "a new session, as asked")


def resume_alone(c: PlanInputs) -> Plan:
    decided = resume_dangling(c)
    assert isinstance(decided, Resume | StartAgain)
    return replace(decided, alone=True)


def resume_dangling(c: PlanInputs) -> Plan:
    alert: Alert
    if c.pause is not None:
        alert = "paused"
    elif c.died:
        alert = "crash"
    elif c.cause == "released":
        alert = "preempted"
    elif c.state.ended is not None or c.cause in ("closed", "first"):
        alert = "unsettled"
    else:
        alert = "crash"
    return _resume_or_start_again(c, alert, f"{_describe_end(c)}{_describe_open_calls(c)}")


def start(c: PlanInputs) -> Plan:
    if c.before.home is None or c.cause in ("first", "closed"):
        return Start(c.opening.args, "nothing to recover")
    why = f"{_describe_end(c)} before anything was recorded: starting it again"
    return StartAgain(c.args, None, None, (), (), why)


def resume_paused(c: PlanInputs) -> Plan:
    return _resume_or_start_again(c, "paused", f"{_describe_end(c)}; {_describe_idle(c)}")


def resume_released(c: PlanInputs) -> Plan:
    return _resume_or_start_again(c, "preempted", f"{_describe_end(c)}; {_describe_idle(c)}")


def resume_cut_off(c: PlanInputs) -> Plan:
    return _resume_or_start_again(c, "cut_off", f"{_describe_end(c)}; {_describe_idle(c)}")


def resume_closed(c: PlanInputs) -> Plan:
    return _resume_or_start_again(c, "cut_off", "its last run had come to its end; continuing it, as asked")


def start_fresh(c: PlanInputs) -> Plan:
    return Start(c.opening.args, "its last run had come to its end")


def _resume_or_start_again(c: PlanInputs, alert: Alert, why: str) -> Plan:
    if c.captured and not SESSION.fullmatch(c.state.session):  # it would become an argument of the agent
        what = "The log names a session by an id that no agent gives. Nothing was run."
        return Refuse(Damaged, what, "Take out what was saved, with: wal-agent restore --to DIR")
    if c.captured:
        return Resume(c.state.session, c.args, alert, c.state.open, c.finished, why)
    prompt = c.state.prompt.prompt if c.state.prompt else None
    told = alert if c.state.open or c.finished or c.state.unlogged else None
    why = f"{why}; its session was not saved yet: starting it again"
    return StartAgain(c.args, told, prompt, c.state.open, c.finished, why)


# ---- words -----------------------------------------------------------------------------------------------------------


def describe_version_change(c: PlanInputs) -> str:
    assert c.before.home is not None
    then, now = safe(c.before.home.agent_version, 40), safe(c.opening.agent_version, 40)
    return f"{c.opening.agent} is {now} here; it was {then} when this session was saved."


def _describe_end(c: PlanInputs) -> str:
    host = c.before.home.host.name if c.before.home else "its host"
    if c.pause is not None:
        return f"was paused on {host}" + (f" ({safe(c.pause.reason, 80)})" if c.pause.reason else "")
    if c.died and c.state.ended is not None:
        return f"died on {host} ({crash_history.describe_class(c.state.ended.cls)})"
    if c.opening.cause == "closed" and c.cause != "closed":
        return f"had ended on {host}"  # a person settled its last call since, and nothing was left to do
    match c.cause:
        case "released":
            why = yield_reason(c.state.ended.why) if c.state.ended else ""
            return f"was given up in good order on {host}" + (f": {why}" if why else "")
        case "closed":
            return f"ended on {host} without completing its turn"
        case _:
            return f"was cut off on {host}"


def _describe_idle(c: PlanInputs) -> str:
    return "what was in flight is not known" if c.local.unlogged else "nothing was in flight"


def _describe_open_calls(c: PlanInputs) -> str:
    return f" with {plural(len(c.state.open), 'call')} in flight" if c.state.open else ""
