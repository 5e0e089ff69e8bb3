"""Foresee the next start: lease, plan and prompt as they would be now. Writes only into a scratch folder of ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import asdict, replace

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Env
from wal_agent.answers import JsonAnswer
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.calls.quote import cut, safe, show_input
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.errors import Damaged
from wal_agent.records import CallState, Opening, Pending, Verdict
from wal_agent.recovery.inflight import InFlight
from wal_agent.recovery.lease_policy import Acquire, Decline, Wait, admit, pause_left, pause_text, replays_spool
from wal_agent.recovery.plan import Plan, Policy, Refuse, Resume, StartAgain
from wal_agent.recovery.prompt import PromptInput, load_templates, render_prompt
from wal_agent.recovery.report import in_flight_lines, lost_lines, one_line, row, unannounced_lines
from wal_agent.recovery.restore_session import SessionTarget, check_files
from wal_agent.redact import redact
from wal_agent.supervise.identity import read_owner
from wal_agent.supervise.leftovers import Leftovers, find_leftovers
from wal_agent.supervise.machine import lock_state, probe_holder, spools_dir, this_host
from wal_agent.supervise.prepare import RecoveryCase
from wal_agent.supervise.provenance import is_vouched, previous_person
from wal_agent.supervise.recovery_input import logged_calls, lost_timers, observe_log, write_prompt
from wal_agent.supervise.worktree import WorktreeFacts
from wal_agent.text import quote_word
from wal_agent.wal import damage
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.damage import lost_blobs_error, missing_lease_error, with_hint
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import KnownEnd, check_end, replay
from wal_agent.wal.spool import count_segments
from wal_agent.wal.store import JobStore
from wal_agent.wording import messages

MAX_INPUT = 2000  # characters of a call's input in JSON
MAX_NAMES = 20  # files in JSON


class ForeseenStart(msgspec.Struct, frozen=True):
    """`plan` is one line; `rows` are further lines; `prompt` is what the agent would get, empty for no recovery.

    The rest is the same as data: `refused` says that no agent would be started; `decided` is the plan, None where the
    lease does not let it come to one; `tree` and `facts` are None where there is no recovery."""

    plan: str
    rows: list[str]
    prompt: str = ""
    refused: bool = False
    decided: Plan | None = None
    verdicts: tuple[Verdict, ...] = ()
    tree: WorktreeFacts | None = None
    facts: PromptInput | None = None


def foresee_start(
    bucket: Bucket,
    keys: Keys,
    workspace: Path,
    agent_name: str,
    settings: Settings,
    env: Mapping[str, str],
    key_id: str = "",
    options: str = "",
) -> ForeseenStart:
    """What `wal-agent run` would do now. Raises BucketError and Damaged, as the start would: each blob that it would
    read is read. `options`: see damage.restore_hint."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        if missing := missing_lease_error(bucket, keys):
            raise missing
        return ForeseenStart(f"job {keys.job} does not exist yet; a start would be its first", [])
    if problem := wrong_key_error(keys.job, seen.doc.key, key_id):
        raise problem
    clock = SystemClock()
    here = this_host(env, Path(os.devnull))
    local = probe_holder(seen, here, spools_dir(env), bucket.url)
    match admit(seen, local, pauses="ignore", url=bucket.url):
        case Decline(sentence, hint):
            return ForeseenStart(f"a start would be refused: {sentence} {hint}", [], refused=True)
        case Wait(seconds, why):
            return ForeseenStart(f"a start would wait {seconds:.0f} s: {why}", [])
        case Acquire(cause):
            pass
    blobs = Blobs(JobStore(bucket, keys, clock))
    opening = Opening(
        time=clock.now(),
        run="",
        epoch=seen.doc.epoch + 1,
        cause=cause,
        host=here,
        agent=agent_name,
        agent_version="",
        version="",
        workspace=str(workspace),
        owner=read_owner(workspace, env),
    )
    at = observe_log(log := check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen)), opening, blobs)
    left = find_leftovers(at.home.run, at.before, at.calls) if at.home and at.same_host(here) else Leftovers()
    running = left.named(left.lines)
    gone = at.home is not None and lock_state(at.home.host, here, at.home.run) == "dead" and not left.lines
    case = RecoveryCase(at, here, AGENTS[agent_name], workspace, settings, env, clock)
    tree = case.tree
    verdicts = case.verdicts(left, gone, tree.now)
    decided = case.decide(verdicts, Policy(settings.on_ambiguity), blobs)
    if isinstance(decided, Refuse) and issubclass(decided.kind, Damaged):
        raise decided.error()
    rows = []
    if pause_left(seen) > 0:
        rows.append(row("paused", one_line(f"until {pause_text(seen)}: a start would wait for that", 300)))
    if (other := previous_person(at.before, opening)) is not None:
        names = (safe(other.owner.user, 64), safe(other.host.name, 100), safe(other.workspace, 200))
        rows.append(row("take-over", messages.would_take_over(*names)))
    openings = [o.opening for o in at.before.openings]
    args = () if isinstance(decided, Refuse) else decided.args
    if args and not is_vouched(env, settings.bucket, keys.job, openings, args):
        words = " ".join(map(quote_word, args))
        typed = f"not typed on this machine; a start without any would ask: {words}"
        rows.append(row("arguments", one_line(typed, 1000)))
    rows += [row("would end", one_line(text, 100)) for text in sorted(set(running), key=len)[:5]]
    if replays_spool(seen, local):
        rows.append(row("spool", one_line(carried(seen.doc.spool), 300)))
    if not isinstance(decided, Resume | StartAgain):
        return ForeseenStart(_plan_line(keys.job, decided), rows, "", isinstance(decided, Refuse), decided, verdicts)
    put_back = tree.plan.action == "put_back"
    wanted = damage.needed_blobs(log.state, session=isinstance(decided, Resume), tree=put_back)
    known = damage.CheckedBlobs()
    lacks = damage.find_missing_blobs(bucket, keys, wanted, known) or damage.find_damaged_blobs(blobs, wanted, known)
    if lacks:
        raise lost_blobs_error(lacks, damage.newest_restorable(bucket, keys, log.seq, known, blobs), keys, options)
    facts = case.prompt_input(decided, verdicts, running, tree.then)
    rows += [row("note", one_line(text, 300)) for text in decided.warnings]
    tree_facts = tree.foresee(blobs, clock.now())
    rows += tree_facts.rows()
    rows += [
        *lost_lines(facts.lost),
        *in_flight_lines(facts.calls, foreseen=True),
        *unannounced_lines(facts.unannounced),
    ]
    if isinstance(decided, Resume):
        prompt = _try_to_resume(case, decided, blobs, env, facts, verdicts)
    else:
        prompt = render_prompt(facts, load_templates(workspace, env))
    hookless = case.agent.capabilities.hookless is not None
    plan = _plan_line(keys.job, decided, hookless)
    return ForeseenStart(plan, rows, prompt, False, decided, verdicts, tree_facts, facts)


def carried(spool: str) -> str:
    """What a start on this machine adds to the log before it plans."""
    n = count_segments(Path(spool))
    what = "1 segment" if n == 1 else f"{n} segments"
    return f"a start would first carry in {what} of {spool}; that is not foreseen here"


def _plan_line(job: str, decided: Plan, hookless: bool = False) -> str:
    """`hookless`: what the command makes of its session is its own."""
    match decided:
        case Refuse():
            return f"a start would be refused: {decided.error()}"
        case Resume() if hookless:
            return f"job {job} {decided.why}; a start would start the command again"
        case Resume():
            return f"job {job} {decided.why}; a start would resume session {decided.session[:8]}"
        case _:
            return f"job {job}: {decided.why}; a start would begin a session"


def _try_to_resume(
    case: RecoveryCase,
    decided: Resume,
    blobs: Blobs,
    env: Env,
    facts: PromptInput,
    verdicts: tuple[Verdict, ...],
) -> str:
    """The prompt after a trial of the reconciliation, in a scratch folder."""
    at, agent, workspace = case.at, case.agent, case.workspace
    session, effects = at.before.session, case.tree.effects(case.tree.then)
    with tempfile.TemporaryDirectory(prefix="wal-agent-dry-run-") as folder:
        check_files(SessionTarget(agent, session, workspace, env, Path(folder)), at.before.files)
        main = Path(folder) / "main"
        try:
            write_file(blobs, at.before.files[agent.main_file], main)
        except Damaged as error:
            raise with_hint(error) from error
        calls = logged_calls(at, decided.finished, blobs, {v.call: v for v in verdicts}, effects)
        reconciled = agent.reconcile(main.read_bytes(), session, workspace, calls)
    facts = replace(facts, timers=lost_timers(at, agent, reconciled))
    return write_prompt(facts, reconciled, at, agent, (), load_templates(workspace, env))


# ---- as JSON


class ShownFiles(msgspec.Struct, frozen=True):
    """`names`: the first ones."""

    count: int
    names: tuple[str, ...]


class ShownTree(msgspec.Struct, frozen=True, kw_only=True):
    """What a start would do with the working tree, redacted: see WorktreeFacts."""

    action: Literal["keep", "put_back"]
    why: str
    saved: float
    commit: str
    files: int
    size: int
    holds: int
    left_out: tuple[str, ...]
    pending: Pending | None
    keeps_what_is_here: bool
    makes_repository: bool
    uncommitted: ShownFiles
    inside: tuple[str, ...]


class ShownCall(msgspec.Struct, frozen=True, kw_only=True):
    """Identical calls that the prompt asks about, redacted: see InFlight. `started`: seconds since 1970."""

    calls: tuple[int, ...]
    state: CallState
    issued: int
    tool: str
    input: str
    started: float
    cls: str = msgspec.field(name="class")
    rule: str
    source: str
    why: str
    finding: str
    because: str
    verify: str
    next: str


class ShownRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped` and `saved`: seconds since 1970, the old run's last sign of life and the last capture of its session.
    `finished` and `lost`: numbers of calls that are put into the session, and of those that are in no log."""

    alert: str
    stopped: float
    saved: float
    same_host: bool
    calls: tuple[ShownCall, ...]
    finished: tuple[int, ...]
    lost: tuple[int, ...]
    leftovers: tuple[str, ...]
    warnings: tuple[str, ...]


class Recover(JsonAnswer, frozen=True, kw_only=True):
    """`wal-agent recover --dry-run`: the facts of screen and prompt, redacted. `start`: None where the lease does not
    let it come to a decision. `recovery`: None where there would be none, and so is `tree`."""

    plan: str
    start: Literal["resume", "again", "new", "refuse"] | None
    prompt: str
    tree: ShownTree | None = None
    recovery: ShownRecovery | None = None


def show_foreseen(seen: ForeseenStart) -> Recover:
    """Return what may be shown of it."""
    facts, decided = seen.facts, seen.decided
    tree, recovery = None, None
    if (t := seen.tree) is not None:
        pending = t.pending
        if pending is not None:
            pending = replace(pending, names=tuple(map(redact, pending.names)))
        here = ShownFiles(len(t.uncommitted), tuple(map(redact, t.uncommitted[:MAX_NAMES])))
        left = tuple(map(redact, t.left_out))
        inside = tuple(map(redact, t.inside))
        shown = {"left_out": left, "pending": pending, "uncommitted": here, "inside": inside}
        tree = ShownTree(**{**asdict(t), **shown})
    if facts is not None and isinstance(decided, Resume | StartAgain):
        recovery = ShownRecovery(
            alert=facts.alert,
            stopped=facts.stopped,
            saved=facts.saved,
            same_host=facts.same_host,
            calls=tuple(map(_show_call, facts.calls)),
            finished=tuple(e.intent.call for e in decided.finished),
            lost=tuple(call.call for call in facts.lost.calls),
            leftovers=tuple(map(redact, facts.leftovers)),
            warnings=tuple(map(redact, facts.warnings)),
        )
    start = None if decided is None and not seen.refused else _start_kind(seen)
    return Recover(plan=redact(seen.plan), start=start, prompt=seen.prompt, tree=tree, recovery=recovery)


def _start_kind(seen: ForeseenStart) -> Literal["resume", "again", "new", "refuse"]:
    match seen.decided:
        case Resume():
            return "resume"
        case StartAgain():
            return "again"
        case Refuse() | None:
            return "refuse"
        case _:
            return "new"


def _show_call(call: InFlight) -> ShownCall:
    return ShownCall(
        calls=call.calls,
        state=call.state,
        issued=call.issued,
        tool=call.tool,
        input=cut(show_input(call.tool, call.input), MAX_INPUT),
        started=call.started,
        cls=call.cls,
        rule=call.rule,
        source=call.source,
        why=redact(call.why),
        finding=call.finding,
        because=redact(call.because),
        verify=redact("; ".join(call.verify)),
        next=redact(call.next),
    )
