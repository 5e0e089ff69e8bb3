"""The next start, foreseen: lease, plan and prompt as they would be now. Writes only into a scratch folder of ours."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents import AGENTS
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.errors import Damaged
from wal_agent.evidence import collector
from wal_agent.records import Opening, Verdict
from wal_agent.recovery.damage import lost_blobs_error, missing_lease_error, with_hint
from wal_agent.recovery.inflight import carry_over
from wal_agent.recovery.lease_policy import Acquire, Decline, Wait, admit, pause_left, pause_text, replays_spool
from wal_agent.recovery.plan_model import Plan, Policy, Resume, StartAgain
from wal_agent.recovery.plan_model import Refuse as Halt
from wal_agent.recovery.prompt import PromptInput, render_prompt
from wal_agent.recovery.report import MissingEffects, in_flight_lines, lost_lines, one_line, row, unannounced_lines
from wal_agent.recovery.restore_session import SessionTarget, check_files
from wal_agent.recovery.templates import load_templates
from wal_agent.supervise import processes, recovery_input, worktree
from wal_agent.supervise.machine import lock_state, probe_holder, spools_dir, this_host
from wal_agent.supervise.provenance import is_vouched, quote_word
from wal_agent.supervise.recovery_input import InnerRuns, Situation, logged_calls, observe_log
from wal_agent.supervise.worktree import WorktreeFacts
from wal_agent.wal import blob_check
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import write_file
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import KnownEnd, check_end, replay
from wal_agent.wal.spool import count_segments


@dataclass(frozen=True, slots=True)
class ForeseenStart:
    """`plan` is one line; `rows` are further lines; `prompt` is what the agent would be told, empty for no recovery.

    The rest is the same as data: `refused` says that no agent would be started; `decided` is the plan's word, None
    where the lease does not let it come to one; `tree` and `told` are None where there is no recovery."""

    plan: str
    rows: list[str]
    prompt: str = ""
    refused: bool = False
    decided: Plan | None = None
    verdicts: tuple[Verdict, ...] = ()
    tree: WorktreeFacts | None = None
    told: PromptInput | None = None


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
    read is read. `options`: see damage.to_restore."""
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
    match admit(keys.job, seen, local, pauses="ignore"):
        case Decline(sentence, hint):
            return ForeseenStart(f"a start would be refused: {sentence} {hint}", [], refused=True)
        case Wait(seconds, why):
            return ForeseenStart(f"a start would wait {seconds:.0f} s: {why}", [])
        case Acquire(cause):
            pass
    blobs = Blobs(bucket, keys, clock, random.Random())
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
    )
    at = observe_log(log := check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen)), opening, blobs)
    found = processes.marked_processes(at.home.run) if at.home and at.same_host(here) else []
    running = [processes.command_line(p) for p in found]
    gone = at.home is not None and lock_state(at.home.host, here) == "dead"
    agent = AGENTS[agent_name]
    tree = worktree.plan_worktree(at, here, workspace, settings, agent, env)
    inner = InnerRuns(settings, env, here)
    found_now = collector.decide_verdicts(
        at.before,
        at.inputs,
        here,
        workspace,
        running,
        gone,
        clock,
        tree.covers(tree.now),
        inner=inner,
    )
    verdicts = carry_over(found_now, at.before.recovery, tree.will_hold)
    talked = recovery_input.has_conversation(at, agent, blobs, workspace)
    decided = recovery_input.decide_recovery(at, agent, verdicts, Policy(settings.on_ambiguity), tree.identity, talked)
    if isinstance(decided, Halt) and issubclass(decided.kind, Damaged):
        raise decided.error()
    rows = [row("would end", one_line(text, 100)) for text in sorted(set(running), key=len)[:5]]
    openings = [o.opening for o in at.before.openings]
    if (
        not isinstance(decided, Halt)
        and decided.args
        and not is_vouched(env, settings.bucket, keys.job, openings, decided.args)
    ):
        words = " ".join(map(quote_word, decided.args))
        rows.insert(
            0, row("arguments", one_line(f"not typed on this machine; a start without any would ask: {words}", 1000))
        )
    if pause_left(seen) > 0:
        rows.insert(0, row("paused", one_line(f"until {pause_text(seen)}: a start would wait for that", 300)))
    if replays_spool(seen, local):
        rows.append(row("spool", one_line(carried(seen.doc.spool), 300)))
    if isinstance(decided, Resume | StartAgain):
        put_back = tree.plan.action == "put_back"
        wanted = blob_check.needed_blobs(log.state, session=isinstance(decided, Resume), tree=put_back)
        known = blob_check.CheckedBlobs()
        if lacks := blob_check.find_missing_blobs(bucket, keys, wanted, known) or blob_check.find_damaged_blobs(
            blobs, wanted, known
        ):
            raise lost_blobs_error(
                lacks, blob_check.newest_restorable(bucket, keys, log.seq, known, blobs), keys, options
            )
    if not isinstance(decided, Resume | StartAgain) or at.home is None:
        return ForeseenStart(_words(keys.job, decided), rows, "", isinstance(decided, Halt), decided, verdicts)
    effects = tree.effects(tree.then)
    told = recovery_input.collect_prompt_facts(
        at, here, workspace, agent, decided, verdicts, running, tree.describe(tree.then), effects, clock.now()
    )
    rows += [row("note", one_line(text, 300)) for text in decided.warnings]
    rows += tree.plan.rows()
    rows += [*lost_lines(told.lost), *in_flight_lines(told.calls), *unannounced_lines(told.unannounced)]
    prompt = (
        _resumed(at, decided, blobs, workspace, env, agent_name, told, verdicts, effects)
        if isinstance(decided, Resume)
        else render_prompt(told, load_templates(workspace, env))
    )
    return ForeseenStart(_words(keys.job, decided), rows, prompt, False, decided, verdicts, tree.plan, told)


def carried(spool: str) -> str:
    """What a start on this machine adds to the log before it plans."""
    n = count_segments(Path(spool))
    what = "1 segment" if n == 1 else f"{n} segments"
    return f"a start would first carry in {what} of {spool}; that is not foreseen here"


def _words(job: str, decided: Plan) -> str:
    match decided:
        case Halt():
            return f"a start would be refused: {decided.error()}"
        case Resume():
            return f"job {job} {decided.why}; a start would resume session {decided.session[:8]}"
        case _:
            return f"job {job}: {decided.why}; a start would begin a session"


def _resumed(
    at: Situation,
    decided: Resume,
    blobs: Blobs,
    workspace: Path,
    env: Mapping[str, str],
    agent_name: str,
    told: PromptInput,
    verdicts: tuple[Verdict, ...],
    effects: MissingEffects,
) -> str:
    """The prompt after a trial of the reconciliation, in a scratch folder."""
    agent = AGENTS[agent_name]
    with tempfile.TemporaryDirectory(prefix="wal-agent-dry-run-") as folder:
        check_files(SessionTarget(agent, at.before.session, workspace, env, Path(folder)), at.before.files)
        main = Path(folder) / "main"
        try:
            write_file(blobs, at.before.files[agent.main_file], main)
        except Damaged as error:
            raise with_hint(error) from error
        calls = logged_calls(at, decided.finished, blobs, {v.call: v for v in verdicts}, effects)
        reconciled = agent.reconcile(main.read_bytes(), at.before.session, workspace, calls)
    return recovery_input.write_prompt(told, reconciled, at, agent, (), load_templates(workspace, env))
