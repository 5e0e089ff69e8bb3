"""What a recovery decides and what it tells the agent, from a situation. Reads only (`recover --dry-run` shows it)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wal_agent.agents.base import Agent, Hookless, Reconciled
from wal_agent.errors import Damaged
from wal_agent.records import Host, Verdict
from wal_agent.recovery.case import LocalFacts, Policy
from wal_agent.recovery.decided import Plan, Resume, StartAgain
from wal_agent.recovery.inflight import Unannounced, in_flight
from wal_agent.recovery.plan import plan
from wal_agent.recovery.project_rules import rules_in
from wal_agent.recovery.prompt import Lost, LostCall, Pause, Told, recovery_prompt
from wal_agent.recovery.restore import MOST_MAIN
from wal_agent.recovery.templates import Templates
from wal_agent.recovery.tree_words import Effects
from wal_agent.recovery.words import given_up
from wal_agent.supervise.conversation import MAX_PROMPT
from wal_agent.supervise.situation import Situation, finished_calls
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import write_file

LOST = "Your conversation was cut off before the user's last message was saved in it."


def decide_recovery(
    at: Situation,
    agent: Agent,
    verdicts: Sequence[Verdict],
    policy: Policy,
    identity: tuple[str, ...] = (),
    talked: bool = False,
) -> Plan:
    """The plan for this situation. `identity`: of the repository around the workspace here; `talked`: see below."""
    local = LocalFacts(
        main_file=agent.main_file,
        home_exists=at.home is not None and _is_folder(at.home.workspace),
        damage=at.damage,
        findings=tuple((v.call, v.finding) for v in verdicts),
        identity=identity,
        unlogged=isinstance(agent, Hookless),
        talked=talked,
    )
    return plan(at.plan_input, at.opening, local, policy)


def has_conversation(at: Situation, agent: Agent, blobs: Blobs, workspace: Path) -> bool:
    """Whether the captured session holds a conversation, where the log knows of no turn in it: a session that a person
    took up again by the agent's own means does, a new one does not. One that cannot be read may hold one."""
    main = at.before.files.get(agent.main_file)
    if at.before.ran or at.damage is not None or main is None or main.size == 0:
        return False
    if main.size > MOST_MAIN:
        return True
    with tempfile.TemporaryDirectory(prefix="wal-agent-session-") as folder:
        path = Path(folder) / "main"
        try:
            write_file(blobs, main, path)
            found = agent.reconcile(path.read_bytes(), at.before.session, workspace, [])
        except Damaged:
            return True
    return found.messages > 0 and found.heard != ()


def _is_folder(path: str) -> bool:
    """Also for what can be no path at all, as a log may say."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def collect_prompt_facts(
    at: Situation,
    here: Host,
    workspace: Path,
    agent: Agent,
    decided: StartAgain | Resume,
    verdicts: Sequence[Verdict],
    ended: Sequence[str],
    tree: str,
    effects: Effects,
    now: float,
) -> Told:
    """What the prompt is made of. `ended`: the old run's processes that were ended. `tree`: on the working tree;
    `effects`: of which calls it has the changes. `now`: seconds since 1970. ConfigError: the project's rules in
    wal-agent.toml are wrong."""
    home = at.home
    assert home is not None
    main = at.before.files.get(agent.main_file)
    end = at.before.ended
    return Told(
        alert=decided.alert or "cut_off",
        old_host=home.host.name,
        new_host=here.name,
        same_host=at.same_host(here),
        stopped=at.before.time,
        saved=main.layers[-1].time if main and main.layers else at.before.time,
        now=now,
        calls=in_flight(
            decided.dangling,
            decided.finished,
            at.inputs,
            verdicts,
            rules_in(workspace).of(agent.name),
            (home.workspace, str(workspace)),
        ),
        finished=finished_calls(at, decided.finished),
        unannounced=tuple(
            Unannounced(c.intent.tool, at.inputs.get(c.intent.call), c.intent.cls, c.how) for c in at.before.unlogged
        ),
        leftovers=tuple(ended),
        moved=None if home.workspace == str(workspace) else (home.workspace, str(workspace)),
        turn_completed=at.before.turn == "completed",
        tree=tree,
        alone=decided.alone,
        warnings=decided.warnings,
        unlogged=isinstance(agent, Hookless),
        pause=Pause(end.until, end.reason) if decided.alert == "paused" and end is not None else None,
        lost=lost_calls(at, effects),
        given_up=given_up(end.why) if decided.alert == "preempted" and end is not None else "",
    )


def lost_calls(at: Situation, effects: Effects) -> Lost:
    """The calls that ran and whose changes to files are not here, whoever told their results."""
    state = at.before
    lacking = [ended.intent for ended in state.unheld if effects.lacks(ended.intent.call)]
    calls = tuple(LostCall(intent.call, intent.tool, at.inputs.get(intent.call)) for intent in lacking)
    return Lost(calls, len(calls) + (state.unheld_more if calls else 0), effects.sure)


def write_prompt(
    told: Told, reconciled: Reconciled, at: Situation, agent: Agent, args: Sequence[str], templates: Templates
) -> str:
    """The recovery prompt, and behind it the task, if the session was lost before it had that, and what the user asks
    for with this start, if that is something new."""
    text = recovery_prompt(replace(told, put_back=finished_put_back(reconciled, at)), templates)
    given = agent.prompt_from_args(at.home.args) if at.home is not None else None
    asked = agent.prompt_from_args(args)
    new = asked if asked != given else None
    if given and asked in (None, given) and unasked(at, agent, given):
        new = None if any(given in text for text in reconciled.heard or ()) else given
    if (lost := lost_task(reconciled, at, given or "")) and lost != new:
        text += f"\n{LOST} The task, as it was given:\n\n{lost}\n"
    return f"{text}\nThe user's message with this start, to follow after the above:\n\n{new}\n" if new else text


def unasked(at: Situation, agent: Agent, given: str) -> bool:
    """Whether the lost run began no turn, so that nobody was asked what its arguments say, `given`: in the session that
    it resumed, these may be words that a run before had asked already."""
    state, home = at.before, at.home
    if home is None or not 0 <= state.turned < home.epoch:
        return False
    before = next((o.opening for o in state.openings if o.opening.epoch == state.turned), None)
    since = (o.opening for o in state.openings if state.turned < o.opening.epoch <= home.epoch)
    return any(o.cause == "closed" for o in since) or before is None or agent.prompt_from_args(before.args) != given


def lost_task(reconciled: Reconciled, at: Situation, given: str) -> str:
    """What the turn that was cut off began with, where the session does not hold it: agents write a person's words
    down late. `given`: by the arguments of the lost run."""
    before, prompt = at.before, at.before.prompt
    if reconciled.heard is None or prompt is None or before.turn != "started":
        return ""
    # A new session has the words of an older one only by a recovery; one that was asked for is to forget them.
    recovered = before.recovery is not None and at.home is not None and before.recovery.time >= at.home.time
    if prompt.session != before.session and not recovered:
        return ""
    lost = task_text(at.asked, given)
    held = any(lost.rstrip("\ufffd") in text for text in reconciled.heard)  # the log may cut a character in two
    return "" if held else lost


def task_text(kept: bytes, given: str) -> str:
    """A person's words: those of the log, or where it holds only their beginning (or nothing) those of the
    arguments."""
    cut = not kept or len(kept) >= MAX_PROMPT
    if cut and given.encode("utf-8", "replace").startswith(kept):
        return given
    return kept.decode("utf-8", "replace")


def finished_put_back(reconciled: Reconciled, at: Situation) -> int:
    """How many calls were put back with a result; those in flight are told one by one."""
    return max(0, reconciled.put_back - sum(o.intent.session == at.before.session for o in at.before.open))
