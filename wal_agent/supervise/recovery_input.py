"""Read what a recovery is planned from, and derive what it reports to the agent. Reads only (`recover --dry-run` shows
it).

`Situation` is what the log says of a job that was just opened, and what of it matters to the plan.

`InnerRuns` looks up the job of a run that a call started (`wal-agent run`), for the evidence: it reads that job's lease
and log alone. Which bucket is the person's word: their settings as the inner run had them. One that only the command
names is not asked, since an agent wrote the command.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from wal_agent import __version__
from wal_agent.agents import AGENTS, tools_of
from wal_agent.agents.base import Agent, LoggedCall, Reconciled
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import RetryBucket
from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
from wal_agent.clock import Clock, SystemClock
from wal_agent.concurrency import call_with_timeout
from wal_agent.config import Settings
from wal_agent.conversation.checkpoint import work_so_far
from wal_agent.errors import Damaged, WalAgentError
from wal_agent.records import (
    CHANGING,
    MAX_PROMPT,
    Cause,
    End,
    Finding,
    Handoff,
    Host,
    Intent,
    Opening,
    Payload,
    Recovery,
    Verdict,
)
from wal_agent.recovery.plan import LocalFacts, Plan, Policy, Resume, StartAgain, decide
from wal_agent.recovery.prompt import (
    FinishedCall,
    HandedOver,
    LostCall,
    LostCalls,
    Pause,
    PromptInput,
    Templates,
    render_prompt,
)
from wal_agent.recovery.restore_session import MAX_MAIN
from wal_agent.safefs import map_file, real_path
from wal_agent.supervise.machine import lock_state
from wal_agent.supervise.settings import load
from wal_agent.text import yield_reason
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc, StoredLease
from wal_agent.wal.names import resolve_name
from wal_agent.wal.reader import Damage, Replay, replay
from wal_agent.wal.state import EndedCall, State
from wal_agent.wording import messages

if TYPE_CHECKING:
    from wal_agent.calls.call import ReadCall
    from wal_agent.evidence.model import NestedRun, Step
    from wal_agent.recovery.report import MissingEffects

INNER_RUN_TIMEOUT = 1.5  # for one look; a recovery has 2 s for all evidence


class Situation(msgspec.Struct, frozen=True, dict=True):
    """The job before our opening. `inputs`: what each open or finished call was given, by its number; what could not be
    read is missing. `asked`: what the newest turn of a person's began with, as far as the log keeps it
    (records.MAX_PROMPT); empty where it is not known."""

    opening: Opening
    before: State
    damage: Damage | None
    inputs: dict[int, bytes]
    asked: bytes = b""

    @cached_property
    def calls(self) -> dict[int, ReadCall]:
        """The open and finished calls by their numbers, each read once; what could not be read is missing."""
        from wal_agent.calls.reading import read_calls

        return read_calls(self.before, self.inputs)

    @property
    def home(self) -> Opening | None:
        """The newest opening under which the agent was started; a refused run leaves an opening too."""
        return self.before.home_opening

    @property
    def lost(self) -> Opening:
        """The opening of the run that is recovered: `home`, or where the log records no start of the agent (it was cut,
        or is forged), the newest opening in it, else our own."""
        openings = self.before.openings
        return self.home or (openings[-1].opening if openings else self.opening)

    def same_host(self, here: Host) -> bool:
        """Whether the old run lived under this very kernel and process table, so that looking at processes means
        something."""
        return self.home is not None and self.home.host.same_kernel(here.boot, here.pidns)


def read_situation(opened: OpenedJob) -> Situation:
    """From the replay that ends at our own opening (R2)."""
    replay = opened.replay
    if replay.damage is not None:  # then it is not read up to our opening; the lease says the same
        return observe_log(replay, opening_by(opened.lease.doc, "dead"), opened.blobs)
    state = replay.state
    before = msgspec.structs.replace(state, openings=state.openings[:-1], opened=state.opened - 1)
    return observe_log(msgspec.structs.replace(replay, state=before), state.openings[-1].opening, opened.blobs)


def observe_log(replay: Replay, opening: Opening, blobs: Blobs) -> Situation:
    """What `opening` would find, or found, behind the log of `replay`."""
    state = replay.state
    if replay.damage:
        return Situation(opening, state, replay.damage, {})
    asked = fetch_payload(blobs, state.prompt.prompt) if state.prompt else None
    return Situation(opening, state, None, inputs_of(state, blobs), asked or b"")


def hand_over_to_opening(at: Situation) -> tuple[Situation, Handoff | None]:
    """The situation as the job of our opening's agent, and the record that makes it that; None where it is already."""
    from wal_agent.conversation.handoff import hand_over, handed_over

    record = hand_over(at.before, at.opening) if at.damage is None and at.home is not None else None
    if record is None:
        return at, None
    return replace(at, before=handed_over(at.before, record)), record


def opening_by(doc: LeaseDoc, cause: Cause) -> Opening:
    """The opening record of the lease's holder."""
    return Opening(
        time=doc.time,
        run=doc.run,
        epoch=doc.epoch,
        cause=cause,
        host=doc.host,
        agent=doc.agent,
        agent_version="",
        version="",
        workspace=doc.workspace,
    )


def inputs_of(state: State, blobs: Blobs) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    ended = [*(e.intent for e in state.unsettled), *(c.intent for c in state.unlogged)]
    for intent in [*(o.intent for o in state.open), *ended]:
        data = fetch_payload(blobs, intent.input) if intent.call not in found else None
        if data is not None:
            found[intent.call] = data
    for call in state.unheld:  # of a long one the beginning
        data = fetch_payload(blobs, call.intent.input)
        if data is not None:
            found.setdefault(call.intent.call, data)
    return found


def fetch_payload(blobs: Blobs, payload: Payload | None) -> bytes | None:
    """The payload's bytes; None where there are none, or they are damaged: the call is then reported without them."""
    try:
        return None if payload is None else blobs.fetch(payload)
    except Damaged:
        return None


def logged_calls(
    at: Situation, ended: Sequence[EndedCall], blobs: Blobs, verdicts: dict[int, Verdict], effects: MissingEffects
) -> list[LoggedCall]:
    """All calls that the newest session may lack, in the log's order, with what is known of each. `ended`: those of
    them that ended. `effects`: which of them left their file changes elsewhere."""
    calls = [_ended(e, at.inputs.get(e.intent.call), fetch_payload(blobs, e.end.result), effects) for e in ended]
    for o in (o for o in at.before.open if o.intent.session == at.before.session):
        verdict = verdicts.get(o.intent.call)
        finding: Finding = verdict.finding if verdict else "unknown"
        note = messages.cut_off_note(finding, verdict.why if verdict else "")
        calls.append(_call(o.intent, at.inputs.get(o.intent.call), None, True, note))
    return sorted(calls, key=lambda c: c.call)


def _ended(e: EndedCall, input: bytes | None, result: bytes | None, effects: MissingEffects) -> LoggedCall:
    end = e.end
    if end.how in ("done", "failed"):
        note = effects.note(end.call) if end.how == "done" and e.intent.cls != "read_only" else ""
        return _call(e.intent, input, result or _said(messages.RESULT_NOT_SAVED), end.how == "failed", note)
    return _call(e.intent, input, _said(_why(end)), True, "")


def _why(end: End) -> str:
    return f"{messages.ENDED_UNRUN[end.how]}: {end.why}" if end.why else messages.ENDED_UNRUN[end.how]


def _said(text: str) -> bytes:
    return msgspec.json.encode(text)


def _call(intent: Intent, input: bytes | None, result: bytes | None, failed: bool, note: str) -> LoggedCall:
    return LoggedCall(intent.call, intent.tool, input or b"{}", result, failed, note, intent.time, intent.agent_call)


def finished_calls(at: Situation, ended: Sequence[EndedCall]) -> tuple[FinishedCall, ...]:
    return tuple(FinishedCall(e.intent.tool, at.inputs.get(e.intent.call), e.end.how) for e in ended)


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
        home_exists=at.home is not None and is_folder(at.home.workspace),
        damage=at.damage,
        findings=tuple((v.call, v.finding) for v in verdicts),
        identity=identity,
        unlogged=agent.capabilities.hookless is not None,
        talked=talked,
    )
    return decide(at.before, at.opening, local, policy)


def has_conversation(at: Situation, agent: Agent, blobs: Blobs, workspace: Path) -> bool:
    """Whether the captured session holds a conversation, where the log knows of no turn in it: a session that a person
    took up again by the agent's own means does, a new one does not. One that cannot be read may hold one."""
    main = at.before.files.get(agent.main_file)
    if at.before.ran or at.damage is not None or main is None or main.size == 0:
        return False
    if main.size > MAX_MAIN:
        return True
    with tempfile.TemporaryDirectory(prefix="wal-agent-session-") as folder:
        path = Path(folder) / "main"
        try:
            write_file(blobs, main, path)
            found = agent.reconcile(map_file(path), at.before.session, workspace, [])
        except Damaged:
            return True
    return found.messages > 0 and found.prompts != ()


def is_folder(path: str) -> bool:
    """Also for what can be no path at all, as a log may say."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


class StartPlace(msgspec.Struct, frozen=True):
    """Where the job goes on, and with which agent."""

    job: str
    here: Host
    workspace: Path
    agent: Agent


def collect_prompt_facts(
    at: Situation,
    place: StartPlace,
    decided: StartAgain | Resume,
    verdicts: Sequence[Verdict],
    ended: Sequence[str],
    tree: str,
    effects: MissingEffects,
    now: float,
) -> PromptInput:
    """What the prompt is made of. `ended`: the old run's processes that were ended. `tree`: on the working tree;
    `effects`: of which calls it has the changes. `now`: seconds since 1970. ConfigError: the project's rules in
    wal-agent.toml are wrong."""
    from wal_agent.recovery.inflight import Unannounced, group_calls
    from wal_agent.recovery.project_rules import load_all

    here, workspace, agent, lost = place.here, place.workspace, place.agent, at.lost
    main = at.before.files.get(agent.main_file)
    end = at.before.ended
    unread = unread_notice(at) if isinstance(decided, Resume) and decided.alert != "handoff" else None
    left = unread.leftovers if unread is not None and at.same_host(here) else ()
    worked_in = workspace_of_the_model(at) if unread is not None else lost.workspace
    return PromptInput(
        alert=decided.alert or "cut_off",
        old_host=lost.host.name,
        new_host=here.name,
        same_host=at.same_host(here),
        stopped=at.before.time,
        saved=main.layers[-1].time if main and main.layers else at.before.time,
        now=now,
        calls=group_calls(
            decided.dangling,
            decided.finished,
            at.calls,
            verdicts,
            load_all(workspace).of(tools_of(at.before.handoff.before if at.before.handoff else agent.name)),
            (lost.workspace, str(workspace)),
            agent.capabilities.passes_cd,
        ),
        finished=finished_calls(at, decided.finished),
        unannounced=tuple(
            Unannounced(c.intent.tool, at.inputs.get(c.intent.call), c.intent.cls, c.how) for c in at.before.unlogged
        ),
        leftovers=tuple(dict.fromkeys((*ended, *left))),
        moved=None if worked_in == str(workspace) else (worked_in, str(workspace)),
        turn_completed=at.before.turn == "completed",
        tree=tree,
        alone=decided.alone,
        warnings=decided.warnings,
        unlogged=agent.capabilities.hookless is not None,
        pause=Pause(end.until, end.reason) if decided.alert == "paused" and end is not None else None,
        lost=lost_calls(at, effects),
        work=work_so_far(at.before, place.job, agent.name),
        handed=_handed_over(at.before, isinstance(decided, StartAgain)) if decided.alert == "handoff" else None,
        given_up=yield_reason(end.why) if decided.alert == "preempted" and end is not None else "",
        replaces=unread is not None,
        refused=refused_calls(at),
        inner=inner_calls(at),
        timers=lost_timers(at, agent),
        served=tuple(FinishedCall(o.intent.tool, at.inputs.get(o.intent.call), "") for o in at.before.open if o.serves),
    )


def inner_calls(at: Situation) -> tuple[FinishedCall, ...]:
    """The changing calls that subagents had completed: their effects are those of the call that runs them, which is in
    flight, and no conversation that is resumed has them. Pure."""
    open = {o.intent.session: o.intent.call for o in reversed(at.before.open)}
    found = []
    for each in at.before.unsettled:
        outer = open.get(each.intent.session.partition("/")[0])
        inner = outer is not None and "/" in each.intent.session and each.intent.call > outer
        if inner and each.end.how in ("done", "failed") and each.intent.cls in CHANGING:
            found.append(FinishedCall(each.intent.tool, at.inputs.get(each.intent.call), each.end.how))
    return tuple(found)


def lost_timers(at: Situation, agent: Agent, read: Reconciled | None = None) -> tuple[FinishedCall, ...]:
    """What the agent of the lost run had scheduled, but for what came since, what it took back, and what it takes up
    again by itself in the session that was `read`. Pure."""
    back = read.timers if read is not None else ()
    begun = at.home.time if at.home is not None else 0.0
    calls = [c for c in at.before.recent if c.time >= begun and c.how == "done"]
    found = []
    for n, call in enumerate(calls):
        due = agent.capabilities.timers.get(call.tool)
        if due is not None and due(call.output) > at.before.time:
            ids = set(re.findall(rb"[A-Za-z0-9_-]{6,}", call.output))
            later = b" ".join(c.input for c in calls[n + 1 :] if c.tool in agent.capabilities.takes_back)
            gone = set(re.findall(rb"[A-Za-z0-9_-]{6,}", later)) | {id.encode() for id in back}
            if not ids & gone:
                found.append(FinishedCall(call.tool, call.input, call.how))
    left_out = read.gone if read is not None else ()
    return (*found, *(FinishedCall(each.tool, each.input, "done") for each in left_out))


def refused_calls(at: Situation) -> tuple[FinishedCall, ...]:
    """The calls that wal-agent refused, behind which the old run made no other. Pure."""
    found = []
    for call in reversed(at.before.recent):
        if call.how != "refused" or not call.output.startswith(messages.REFUSED.encode()):
            break
        found.append(FinishedCall(call.tool, call.input, call.how))
    return tuple(reversed(found))


def unread_notice(at: Situation) -> Recovery | None:
    """The recovery whose notice the lost run gave to the model, where nothing in the log shows that the model answered
    it: no call since, and no turn of that run that was completed. Such a notice is at the session's end. Pure."""
    state, home = at.before, at.home
    notice = state.recovery
    if notice is None or not notice.told or home is None:
        return None  # there is none, or the agent was told nothing
    if notice.time < home.time or notice.from_epoch >= home.epoch:
        return None  # it was an earlier run's, or its run never started the agent
    answered = state.turn == "completed" and state.turned >= home.epoch
    return None if answered or any(call.time >= notice.time for call in state.recent) else notice


def workspace_of_the_model(at: Situation) -> str:
    """Where the model worked last, before the runs whose notices it has not answered. Pure."""
    state, home, notice = at.before, at.home, unread_notice(at)
    before = state.turned if home is not None and 0 < state.turned < home.epoch else notice.from_epoch if notice else 0
    found = (o.opening.workspace for o in state.openings if o.opening.epoch == before)
    return next(found, at.lost.workspace)


def _handed_over(state: State, new: bool) -> HandedOver | None:
    """`new`: the agent gets a session that knows nothing yet."""
    from wal_agent.conversation.handoff import calls_since

    return HandedOver(state.handoff.before, calls_since(state), new=new) if state.handoff is not None else None


def without_found(effects: MissingEffects, at: Situation, workspace: Path, clock: Clock) -> MissingEffects:
    """Without the calls whose files, written as a whole, are here as they wrote them. Once the tree is put back."""
    lacking = [call for ended in at.before.unheld if effects.lacks(call := ended.intent.call) and call in at.calls]
    if not lacking:
        return effects
    from wal_agent.evidence.collector import NOW_BUDGET, leaves_as_written  # late: few starts need it
    from wal_agent.evidence.model import Budget

    was = Path(at.lost.workspace)
    moved = None if was == workspace else (was, workspace)
    budget = Budget(clock, clock.boot() + NOW_BUDGET)
    found = [call for call in lacking if leaves_as_written(at.calls[call], workspace, moved, budget)]
    return replace(effects, also=(*effects.also, *found))


def lost_calls(at: Situation, effects: MissingEffects) -> LostCalls:
    """The calls that ran and whose changes to files may not be here, whoever reported their results."""
    state = at.before
    lacking = [ended.intent for ended in state.unheld if effects.lacks(ended.intent.call)]
    calls = tuple(LostCall(intent.call, intent.tool, at.inputs.get(intent.call)) for intent in lacking)
    return LostCalls(calls, len(calls) + (state.unheld_more if calls else 0))


def is_quiet(facts: PromptInput, reconciled: Reconciled) -> bool:
    """Return whether a start has nothing to tell: of the calls, the notices before, and the session as it was saved."""
    return facts.is_quiet and not facts.replaces and not reconciled.left_out


def write_prompt(
    facts: PromptInput, reconciled: Reconciled, at: Situation, agent: Agent, args: Sequence[str], templates: Templates
) -> str:
    """The recovery prompt, and behind it the task, if the session was lost before it had that, and what the user asks
    for with this start, if that is something new."""
    warnings = (*facts.warnings, *reconciled.left_out)
    text = render_prompt(replace(facts, put_back=finished_put_back(reconciled, at), warnings=warnings), templates)
    if facts.handed is not None:
        asked = agent.prompt_from_args(at.opening.args)
        return add_newest_words(text, handed_words(at), asked, reconciled.prompts or ())
    lost, new = words_to_give(facts, reconciled, at, agent, args)
    if lost and lost != new:
        text += f"\n{messages.LOST_WORDS} {messages.TASK}\n\n{lost}\n"
    return f"{text}\n{messages.WITH_START}\n\n{new}\n" if new else text


class WordsToGive(NamedTuple):
    """What the session lacks of a person's words, "" for nothing. `lost`: said to a run before; `new`: said with this
    start."""

    lost: str
    new: str


def words_to_give(
    facts: PromptInput, reconciled: Reconciled, at: Situation, agent: Agent, args: Sequence[str]
) -> WordsToGive:
    said_before = agent.prompt_from_args(at.home.args) if at.home is not None else None
    said_now = agent.prompt_from_args(args)
    new = said_now if said_now != said_before else None
    # A notice that this one replaces may hold the only copy of words that the agent has not answered.
    unread = unread_notice(at) if facts.replaces else None
    unread_text = unread.told if unread is not None else ""
    if unread is not None:
        prompts = _without_notices(reconciled.prompts, messages.TASK in unread_text)
        reconciled = replace(reconciled, prompts=prompts)
    before_unsaved = None
    if said_before:
        if not any(said_before in text for text in reconciled.prompts or ()):
            before_unsaved = said_before
        was_not_asked = unasked(at, agent, said_before) or messages.WITH_START in unread_text
        if said_now in (None, said_before) and was_not_asked:
            new = before_unsaved
    lost = lost_words(reconciled, at, said_before or "") or (before_unsaved if messages.TASK in unread_text else "")
    return WordsToGive(lost or "", new or "")


def _without_notices(prompts: tuple[str, ...] | None, lost: bool) -> tuple[str, ...] | None:
    """The words of a session without the recovery prompts. `lost`: such a prompt holds the task, because the session
    lacked it; a session whose words are not known lacks it still."""
    if prompts is None:
        return () if lost else None
    return tuple(text for text in prompts if not text.startswith(messages.NOTICE))


def handed_words(at: Situation) -> str:
    """What a person asked the agent before for last, whole where it is known."""
    home = at.home
    given = AGENTS[home.agent].prompt_from_args(home.args) if home is not None and home.agent in AGENTS else None
    return task_text(at.asked, given or "")


def add_newest_words(text: str, task: str, asked: str | None, prompts: Sequence[str]) -> str:
    """The notice of a handoff, and behind it the task, where the agent's own session lacks it, and what the user asks
    for with this start."""
    if task and not _holds(prompts, task):
        text += f"\n{messages.TASK}\n\n{task}\n"
    if asked and asked != task:
        text += f"\n{messages.WITH_START}\n\n{asked}\n"
    return text


def unasked(at: Situation, agent: Agent, given: str) -> bool:
    """Whether the lost run began no turn, so that nobody was asked what its arguments say, `given`: in the session that
    it resumed, these may be words that a run before had asked already."""
    state, home = at.before, at.home
    if home is None or not 0 <= state.turned < home.epoch:
        return False
    before = next((o.opening for o in state.openings if o.opening.epoch == state.turned), None)
    since = (o.opening for o in state.openings if state.turned < o.opening.epoch <= home.epoch)
    return any(o.cause == "closed" for o in since) or before is None or agent.prompt_from_args(before.args) != given


def lost_task(reconciled: Reconciled, at: Situation, said_before: str) -> str:
    """What the turn that was cut off began with, where the session does not hold it: agents write a person's words
    down late. `said_before`: by the arguments of the lost run."""
    before, prompt = at.before, at.before.prompt
    if reconciled.prompts is None or prompt is None or before.turn != "started":
        return ""
    # A new session has the words of an older one only by a recovery; one that was asked for is to forget them.
    recovered = before.recovery is not None and at.home is not None and before.recovery.time >= at.home.time
    if prompt.session != before.session and not recovered:
        return ""
    task = task_text(at.asked, said_before)
    return "" if _holds(reconciled.prompts, task) else task


def lost_words(reconciled: Reconciled, at: Situation, said_before: str) -> str:
    """All words of a person's behind the last completed turn that the session does not hold, in their order: the task
    that was cut off, and what was typed while a tool ran."""
    task = lost_task(reconciled, at, said_before)
    in_session = reconciled.prompts if at.before.turn == "started" else None
    typed = [((each.prompt and each.prompt.data) or b"").decode("utf-8", "replace") for each in at.before.waiting[:-1]]
    unsaved = [text for text in typed if text and in_session is not None and not _holds(in_session, text)]
    queued = [text for text in reconciled.queued if text not in (said_before, task, *unsaved)]
    return "\n\n".join(filter(None, (*unsaved, task, *queued)))


def _holds(prompts: Iterable[str], words: str) -> bool:
    """Whether a prompt of the session has the words of the log, which may cut a character in two."""
    return any(words.rstrip("\ufffd") in text for text in prompts)


def task_text(kept: bytes, given: str) -> str:
    """A person's words: those of the log, or where it holds only their beginning (or nothing) those of the
    arguments."""
    cut = not kept or len(kept) >= MAX_PROMPT
    if cut and given.encode("utf-8", "replace").startswith(kept):
        return given
    return kept.decode("utf-8", "replace")


def finished_put_back(reconciled: Reconciled, at: Situation) -> int:
    """How many calls were put back with a result; those in flight are listed one by one."""
    return max(0, reconciled.put_back - sum(o.intent.session == at.before.session for o in at.before.open))


class InnerCommand(msgspec.Struct, frozen=True):
    """What the words of a `wal-agent run` name: the agent, and job and bucket where they do."""

    agent: str
    job: str | None = None
    bucket: str | None = None


def parse_inner_command(words: Sequence[str], job: str = "", agent: str = "") -> InnerCommand | None:
    """`words`: all of the command. `job`, `agent`: of the run that typed it, whose task it may be. None: no agent is
    named."""
    if list(words[1:2]) == ["task"]:
        from wal_agent.conversation.tasks import parse_task, task_job  # late: few recoveries have one

        asked = parse_task(words[2:])
        if asked is None or asked.job:
            return None
        agent = asked.agent or agent
        return InnerCommand(agent, task_job(job, agent, asked.prompt, fork=asked.fork), asked.bucket)
    own = list(words[2 : words.index("--")] if "--" in words else words[2:])
    found: dict[str, str] = {}
    agent = ""
    while own:
        word = own.pop(0)
        name, eq, value = word.partition("=")
        if name in ("--job", "--bucket"):
            found[name] = value if eq else own.pop(0) if own else ""
        elif word in AGENTS and not agent:
            agent = word
    return InnerCommand(agent, found.get("--job"), found.get("--bucket")) if agent else None


class InnerRuns(msgspec.Struct, frozen=True):
    """Looks up inner runs for one recovery. `settings`, `env`, `agent`: those of the outer run."""

    settings: Settings
    env: Mapping[str, str]
    here: Host
    agent: str = ""

    def __call__(self, step: Step, run: str, since: float) -> NestedRun | None:
        """What became of the run that `step` started inside `run` after `since`. None: it cannot be known."""
        try:
            return call_with_timeout(INNER_RUN_TIMEOUT, lambda: self._look_up(step, run, since), None)
        except (WalAgentError, OSError, ValueError):
            return None

    def _look_up(self, step: Step, run: str, since: float) -> NestedRun | None:
        from wal_agent.evidence.model import NestedRun

        named = parse_inner_command(step.words, self.settings.job, self.agent)
        if named is None or named.agent not in AGENTS:
            return None
        settings = load(named.agent, real_path(step.cwd), self.env, {"job": named.job})
        default = self.settings.bucket if step.words[1:2] == ("task",) else settings.bucket  # a task is its caller's
        url = default if named.bucket is None else named.bucket
        if url not in (settings.bucket, self.settings.bucket):
            return None
        key = load_key(self.settings.encryption_key_file, self.settings.encryption_key_command, self.env)
        with closing(open_bucket(url)) as plain:
            bucket = RetryBucket(plain, SystemClock(), random.Random())
            keys = Keys(resolve_name(bucket, settings.job, self.env) if named.job else settings.job)
            seen = leases.read_lease(bucket, keys)
            if seen is None:
                return NestedRun(keys.job, began=False)
            if seen.doc.key not in ("", key_id(key)):
                return None
            return self._find_run(EncryptedBucket(bucket, key) if seen.doc.key else bucket, keys, seen, run, since)

    def _find_run(self, bucket: Bucket, keys: Keys, seen: StoredLease, run: str, since: float) -> NestedRun | None:
        from wal_agent.evidence.model import NestedRun

        found = replay(bucket, keys)
        if found.damage is not None:
            return None
        openings = [o.opening for o in found.state.openings]
        mine = [opening for opening in openings if run in opening.parents]
        if not mine:
            # Other versions may not say where they were started, and a clock may have stepped back since.
            whole = len(openings) == found.state.opened and all(o.version == __version__ for o in openings)
            return NestedRun(keys.job, began=False) if whole else None
        if mine[-1].time < since or mine[-1].epoch != seen.doc.epoch:
            return None  # an earlier call's; or somebody else had the job behind it
        return NestedRun(keys.job, True, self._state(seen))

    def _state(self, seen: StoredLease) -> Literal["closed", "released", "cut_off", "held"]:
        doc = seen.doc
        if doc.state == "held":
            return "cut_off" if lock_state(doc.host, self.here, doc.run) == "dead" else "held"
        return "cut_off" if doc.state == "unlocked" else doc.state
