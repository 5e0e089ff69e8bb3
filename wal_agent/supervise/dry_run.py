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
from wal_agent.clock import SystemClock
from wal_agent.encryption import wrong_key
from wal_agent.errors import Damaged
from wal_agent.records import Opening, Verdict
from wal_agent.recovery import evidence
from wal_agent.recovery.admit import Refuse, Try, Wait, admit, carries_spool
from wal_agent.recovery.damage import lease_missing, offered
from wal_agent.recovery.plan import Ambiguity, Plan, Policy, Resume, StartAgain
from wal_agent.recovery.plan import Refuse as Halt
from wal_agent.recovery.prompt import Told, recovery_prompt
from wal_agent.recovery.report import in_flight_lines, plain, row
from wal_agent.recovery.restore import Place, check
from wal_agent.supervise import notice, processes
from wal_agent.supervise.local import lock_state, spools_dir, this_host
from wal_agent.supervise.situation import Situation, logged_calls, observe
from wal_agent.supervise.standing import local_view
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import write_file
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import reaching, replay
from wal_agent.wal.spool import count


@dataclass(frozen=True, slots=True)
class Foreseen:
    """`plan` is one line; `rows` are further lines; `prompt` is what the agent would be told, empty for no recovery."""

    plan: str
    rows: list[str]
    prompt: str = ""


def foresee(
    bucket: Bucket,
    keys: Keys,
    workspace: Path,
    agent_name: str,
    on_ambiguity: Ambiguity,
    env: Mapping[str, str],
    key_id: str = "",
) -> Foreseen:
    """What `wal-agent run` would do now. Raises BucketError and Damaged, as the start would."""
    seen = leases.read(bucket, keys)
    if seen is None:
        if missing := lease_missing(bucket, keys):
            raise missing
        return Foreseen(f"job {keys.job} does not exist yet; a start would be its first", [])
    if problem := wrong_key(keys.job, seen.doc.key, key_id):
        raise problem
    clock = SystemClock()
    here = this_host(env, Path(os.devnull))
    local = local_view(seen, here, spools_dir(env), bucket.url)
    match admit(keys.job, seen, local):
        case Refuse(sentence, hint):
            return Foreseen(f"a start would be refused: {sentence} {hint}", [])
        case Wait(seconds, why):
            return Foreseen(f"a start would wait {seconds:.0f} s: {why}", [])
        case Try(cause):
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
    at = observe(reaching(replay(bucket, keys), keys.job, seen.doc.seq), opening, blobs)
    found = processes.marked(at.home.run) if at.home and at.same_host(here) else []
    running = [processes.command_line(p) for p in found]
    gone = at.home is not None and lock_state(at.home.host, here) == "dead"
    verdicts = evidence.verdicts(at.before, at.inputs, here, workspace, running, gone, clock)
    agent = AGENTS[agent_name]
    decided = notice.decide(at, agent, verdicts, Policy(on_ambiguity))
    if isinstance(decided, Halt) and issubclass(decided.kind, Damaged):
        raise decided.error()
    rows = [row("would end", plain(text, 100)) for text in sorted(set(running), key=len)[:5]]
    if carries_spool(seen, local):
        rows.append(row("spool", plain(carried(seen.doc.spool), 300)))
    if not isinstance(decided, Resume | StartAgain) or at.home is None:
        return Foreseen(_words(keys.job, decided), rows)
    told = notice.told(at, here, workspace, agent, decided, verdicts, running, clock.now())
    rows += in_flight_lines(told.calls)
    prompt = (
        _resumed(at, decided, blobs, workspace, env, agent_name, told, verdicts)
        if isinstance(decided, Resume)
        else recovery_prompt(told)
    )
    return Foreseen(_words(keys.job, decided), rows, prompt)


def carried(spool: str) -> str:
    """What a start on this machine adds to the log before it plans."""
    n = count(Path(spool))
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
    told: Told,
    verdicts: tuple[Verdict, ...],
) -> str:
    """The prompt after a trial of the reconciliation, in a scratch folder."""
    agent = AGENTS[agent_name]
    with tempfile.TemporaryDirectory(prefix="wal-agent-dry-run-") as folder:
        check(Place(agent, at.before.session, workspace, env, Path(folder)), at.before.files)
        main = Path(folder) / "main"
        try:
            write_file(blobs, at.before.files[agent.main_file], main)
        except Damaged as error:
            raise offered(error) from error
        elsewhere = not at.same_host(at.opening.host)
        calls = logged_calls(at, decided.finished, blobs, {v.call: v for v in verdicts}, elsewhere)
        reconciled = agent.reconcile(main.read_bytes(), at.before.session, workspace, calls)
    return notice.prompt(told, reconciled, at, agent, ())
