"""Rewrite the conversation of a job that rests: take it back to an earlier place, compact its old turns, or undo that.

The log has the new version first, as one segment with the record that names the old one: whichever version the log
holds last is the conversation, and the one before is the trace. Then the agent's own file on this machine follows,
where it is the version before; a crash in between is completed by the next start of the job here.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import Agent, Rewriting, Unit
from wal_agent.agents.conversation import LeftOut, carry
from wal_agent.agents.session_files import find_main
from wal_agent.capture.inside import MAX_INSIDE
from wal_agent.clock import SystemClock
from wal_agent.conversation.rewrite import (
    CompactionPolicy,
    aged,
    compact_form,
    compacted_units,
    kept_units,
    number_calls,
    parse_policy,
    resting_place,
    rewound_note,
    tokens_of,
    turns_of,
)
from wal_agent.errors import ConfigError, Damaged, PersonNeeded, Unavailable, UsageError
from wal_agent.failpoints import failpoint
from wal_agent.paths import state_dir
from wal_agent.records import Edit, FileDelta, Intent, Mark, Rewrite, RewriteKind, Workspace
from wal_agent.recovery.report import MissingEffects, describe_folders, one_line, row, tree_lines, tree_summary
from wal_agent.recovery.restore_session import MAX_MAIN, SessionTarget, find_longer, stage_file
from wal_agent.recovery.restore_target import KeptFiles, PutBack, RestoreTarget, list_kept
from wal_agent.recovery.restore_workspace import TreeResult, restore_files, restore_kept, target_inside
from wal_agent.safefs import Pieces, read_plain, sync_folder
from wal_agent.supervise.provenance import SessionOwner
from wal_agent.supervise.recovery_input import logged_calls, read_situation
from wal_agent.supervise.worktree import too_wide
from wal_agent.text import command
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.state import STEP_NAME, CompactionAt, FileState, RewriteAt, State

PIECE = 4 << 20  # bytes of one edit


class Home(msgspec.Struct, frozen=True):
    """Where the agent's own files are. `job` and `agent`: whose session it is; `options`: what names the job in a
    command that is printed; `private`: what is never captured, so never replaced."""

    job: str
    options: str
    agent: Agent
    workspace: Path
    env: Mapping[str, str]
    private: tuple[Path, ...] = ()


class RewindPlace(msgspec.Struct, frozen=True):
    """Where a conversation goes back to. `key`: its newest message there, None to count from the end; `last`: so many
    turns are left out; `tree`: the working tree that goes back too; `inside`: the repositories in it, by folder."""

    session: str = ""
    key: str | None = None
    last: int = 0
    tree: Workspace | None = None
    inside: dict[str, Workspace] = {}


class Rewritten(msgspec.Struct, frozen=True):
    """What was done. `n`: the number of the rewrite and of its trace, 0 where nothing was; `turns`: that the model does
    not get any more; `tokens` and `left`: estimates, before and after; `placed`: the agent's file here that has it;
    `files`: lines on the working tree that was put back."""

    n: int = 0
    turns: int = 0
    tokens: int = 0
    left: int = 0
    placed: Path | None = None
    files: tuple[str, ...] = ()


def rewriting_of(agent: Agent) -> Rewriting:
    """UsageError: the agent's sessions cannot be rewritten."""
    found = agent.capabilities.rewriting
    if isinstance(found, str):
        raise UsageError(
            f"A conversation of {agent.name} cannot be rewritten: {found}.", "What was said: wal-agent recall WORDS"
        )
    return found


def check_at_rest(state: State, home: Home) -> None:
    """UsageError, PersonNeeded, ConfigError: the conversation cannot be rewritten now."""
    rewriting_of(home.agent)
    file, see = state.files.get(home.agent.main_file), f"See: {command('status', home.options)}"
    if not state.session or file is None:
        raise UsageError("The job has no conversation yet.", see)
    if file.size > MAX_MAIN:
        raise UsageError(f"The conversation has {file.size} bytes, too many to rewrite.", see)
    if state.open:
        call = state.open[0].intent
        raise PersonNeeded(
            f"Call #{call.call} {call.tool} is open, so the conversation is not rewritten.",
            f"Start the job, or resolve the call: {command(f'ack {call.call}', home.options)} --done (or --not-done)",
        )
    here = local_file(state, home)
    data = (read_plain(here) or b"") if here is not None else b""
    known = {file.sha256, *_versions_before(state)}
    if here is not None and hashlib.sha256(data).hexdigest() not in known and not _extends(data, file):
        raise ConfigError(
            f"{here} is not the conversation that the log has, so it is not rewritten.",
            "Start the job here once, so that the log has it, or move the file away.",
        )


def _extends(data: bytes, file: FileState) -> bool:
    return len(data) > file.size and hashlib.sha256(memoryview(data)[: file.size]).hexdigest() == file.sha256


def _versions_before(state: State) -> set[str]:
    """The hashes of the versions that rewrites made the log's version of, with nothing said in between."""
    newest = state.rewrites[-1].record if state.rewrites else None
    file = state.files.get(newest.path) if newest else None
    found, version = set[str](), file.sha256 if file else ""
    for rewrite in reversed(state.rewrites):
        if rewrite.record.result == version:
            version = rewrite.record.sha256
            found.add(version)
    return found - {file.sha256 if file else ""}


def local_file(state: State, home: Home) -> Path | None:
    """The session's main file on this machine, with all that it has of the session; None where it is another job's."""
    if SessionOwner(state_dir(home.env), state.session, home.workspace).foreign(home.job):
        return None
    if journal := home.agent.capabilities.journal:
        journal.update(state.session, home.workspace, home.env)
    main = find_main(home.agent, state.session, home.workspace, home.env)
    return main.path if main else None


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_plain(path) or b"").hexdigest()


# ---- the three rewrites, of an opened job


def rewind(job: OpenedJob, home: Home, place: RewindPlace, compact: str | Literal["auto"] | None) -> Rewritten:
    """Take the conversation back to `place`. `compact`: words that stay in place of what is left out; "auto": its
    compact form; None: only a note. UsageError: there is no such place."""
    talk = open_conversation(job, home)
    state, units = job.writer.state, talk.units
    turns = turns_of(units)
    keep = resting_place(units, kept_at(place, units, state.session, home.options))
    gone = units[keep:]
    if not gone:
        raise UsageError("The conversation is at that place.", "Nothing was said behind it.")
    n = state.rewritten + 1
    behind = [t for t in turns if t.first >= keep]
    form = compact or ""
    if compact == "auto":
        moved = [replace(t, first=t.first - keep, last=t.last - keep) for t in behind]
        form = compact_form(gone, moved, n, numbers=_numbers(job, units))
    calls = sum(len(unit.asks) for unit in gone)
    files = put_files_back(job, home, place, n)
    note = rewound_note(len(behind), calls, n, form, files=files is not None)
    new = talk.main + talk.how.rewind(talk.main, state.session, home.workspace, keep, note)
    return _save(job, home, talk, _Change("rewind", new, talk.how.units(new), gone, len(behind), note), files)


def kept_at(place: RewindPlace, units: Sequence[Unit], session: str, options: str) -> int:
    """How many messages there are at the place. UsageError: there is no such place."""
    if place.key is not None:
        if place.session != session:
            raise UsageError("That place is in another session of the job.", f"Its marks: {command('mark', options)}")
        return kept_units(place.key, units)
    turns = turns_of(units)
    if not 0 < place.last <= len(turns):
        raise UsageError(f"The conversation has {len(turns)} turns.", f"Say --last 1 to --last {len(turns)}.")
    return turns[-place.last].first


class _FilesBack(msgspec.Struct, frozen=True):
    """The working tree was put back. `records`: what say so in the log; `before`: the newest segment without them."""

    records: tuple[Workspace, ...]
    before: int
    lines: tuple[str, ...]


def put_files_back(job: OpenedJob, home: Home, place: RewindPlace, n: int) -> _FilesBack | None:
    """Make the files here those of the place's working tree, for rewrite `n`; None where it has none. What is replaced
    is kept, under names that this machine remembers. Damaged, ConfigError: nothing was changed."""
    if place.tree is None:
        return None
    if why := too_wide(home.workspace, home.env):
        raise ConfigError(f"The files of {home.workspace} are not put back: {why}.", "Leave --files out.")
    now, before, logged = SystemClock().now(), job.writer.acked.seq, job.writer.state.inside
    target, decided = _target(job, home), PutBack(make_repository=False, asked=True)
    inside = {name: each for name, each in place.inside.items() if not target.is_outside(name)}
    done = restore_files(target, place.tree, job.blobs, decided, now, inside=inside)
    back = {each.folder: each.done for each in done.inside if each.done is not None}
    _note_kept(home, n, {"": done, **back}, now)
    stay = sorted({*logged, *place.inside} - inside.keys())
    calls = job.writer.state.next_call - 1  # whose effects on the files are left out on purpose

    def again(captured: Workspace, **changed: tuple[str, ...]) -> Workspace:
        return msgspec.structs.replace(captured, time=now, whole=True, replaces=0, holds=calls, also=(), **changed)

    names = [*back, *(name for name in logged if name not in back)][:MAX_INSIDE]
    records = [again(place.inside[name]) for name in back]
    lines = [row("inside", f"as they are, not saved then or outside: {describe_folders(stay)}")] if stay else []
    top = again(place.tree, inside=tuple(sorted(names)))
    return _FilesBack((*records, top), before, (tree_summary(done), *tree_lines(done), *lines))


def _target(job: OpenedJob, home: Home) -> RestoreTarget:
    return RestoreTarget(home.workspace, state_dir(home.env), home.env, home.private, job.keys.job)


def _kept_name(home: Home, n: int) -> Path:
    """The file here that names what rewrite `n` has replaced: a line for each working tree, with the folder of one
    inside."""
    return state_dir(home.env) / "jobs" / home.job / "rewound" / str(n)


def _note_kept(home: Home, n: int, done: Mapping[str, TreeResult], now: float) -> None:
    kept = [
        f"{KeptFiles(each.kept, each.kept.saves[-1], now).name} {folder}\n"
        for folder, each in done.items()
        if each.kept is not None and each.files_kept
    ]
    if kept:
        name = _kept_name(home, n)
        name.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        name.write_text("".join(kept))


def bring_kept(job: OpenedJob, home: Home, n: int) -> tuple[str, ...]:
    """Bring back the files that rewrite `n` has replaced here, as they were, and say so; nothing where it was
    elsewhere. ConfigError: those of the workspace cannot be taken."""
    target, back, said = _target(job, home), False, list[str]()
    for line in (read_plain(_kept_name(home, n)) or b"").decode("utf-8", "replace").splitlines():
        name, _, folder = line.partition(" ")
        try:
            place = target_inside(target, folder) if folder else target
            kept = next((kept for kept in list_kept(place) if kept.name == name), None)
            if kept is not None:
                back = restore_kept(place, kept, SystemClock().now())[0].any or back
        except ConfigError as error:
            if not folder:
                raise
            why = one_line(str(error), 200)
            said.append(row("inside", f"what was replaced in {one_line(folder, 80)} stays kept: {why}"))
    return (*(["files that no run had saved are back too"] if back else []), *said)


def compact(
    job: OpenedJob, home: Home, policy: CompactionPolicy, now: float, summaries: Mapping[str, str] | None = None
) -> Rewritten:
    """Compact the turns that the policy says; n = 0 where there are none. `now`: since 1970; `summaries`: as of
    `compact_form`."""
    talk = open_conversation(job, home)
    change = plan_compaction(job.writer.state, talk, home, policy, now, summaries, partial(_numbers, job, talk.units))
    return _save(job, home, talk, change) if change else unchanged(talk)


def plan_compaction(
    state: State,
    talk: _Conversation,
    home: Home,
    policy: CompactionPolicy,
    now: float,
    summaries: Mapping[str, str] | None = None,
    numbers: Callable[[], Mapping[str, int]] = dict,
) -> _Change | None:
    turns = aged(talk.units, policy, now)
    if not turns:
        return None
    first, last = turns[0].first, turns[-1].last
    text = compact_form(talk.units, turns, state.rewritten + 1, summaries, numbers())
    new = talk.main + talk.how.compact(talk.main, state.session, home.workspace, first, last, text)
    return _Change("compact", new, talk.how.units(new), talk.units[first:last], len(turns), text)


def _numbers(job: OpenedJob, units: Sequence[Unit]) -> dict[str, int]:
    """The log's numbers of the conversation's calls, as far as its records are there."""
    records = (record for segment in job.segments() for record in segment.records)
    session = job.writer.state.session
    logged = [record for record in records if isinstance(record, Intent) and record.session == session]
    return number_calls([call for unit in units for call in unit.asks], logged)


def unchanged(talk: _Conversation) -> Rewritten:
    return Rewritten(tokens=(size := tokens_of(talk.units)), left=size)


def compact_before_resume(job: OpenedJob, home: Home, policy: str, now: float) -> Rewritten:
    """As `compact`, of a job that is about to be resumed; nothing where its conversation cannot be rewritten."""
    state = job.writer.state
    file = state.files.get(home.agent.main_file)
    if not isinstance(home.agent.capabilities.rewriting, Rewriting) or file is None or file.size > MAX_MAIN:
        return Rewritten()
    return compact(job, home, parse_policy(policy), now)


def lost_summary(state: State, agent: Agent) -> CompactionAt | None:
    """The newest compaction of the agent's own, if its summary says nothing and no rewrite followed it."""
    newest = state.compactions[-1] if state.compactions else None
    rewritten = state.rewrites[-1].seq if state.rewrites else 0
    if newest is None or not newest.lost or newest.session != state.session or newest.seq <= rewritten:
        return None
    return newest if isinstance(agent.capabilities.rewriting, Rewriting) else None


def mend_summary(job: OpenedJob, home: Home, lost: CompactionAt) -> Rewritten:
    """Put a compact form of what was there in the place of a summary that says nothing; n = 0 where it is not found."""
    talk = open_conversation(job, home)
    size = next((size for path, size, _ in lost.files if path == home.agent.main_file), 0)
    read = home.agent.capabilities.compactions
    found = compacted_units(talk.main, size, talk.how.units, read) if read is not None else None
    at = next((n for n, unit in enumerate(talk.units) if found and unit.key == found.summary), None)
    turns = turns_of(found.before) if found else []
    if found is None or at is None or not turns:
        return unchanged(talk)
    text = compact_form(found.before, turns, job.writer.state.rewritten + 1, numbers=_numbers(job, found.before))
    new = talk.main + talk.how.compact(talk.main, job.writer.state.session, home.workspace, at, at + 1, text)
    change = _Change("compact", new, talk.how.units(new), talk.units[at : at + 1], len(turns), text)
    return _save(job, home, talk, change)


def undo(job: OpenedJob, home: Home, place: RewindPlace) -> Rewritten:
    """Put the version before the newest rewrite back; and the files of the place, which that rewrite has replaced.
    UsageError: there is none, or the conversation went on."""
    _catch_up(job, home)
    state = job.writer.state
    file = state.files.get(home.agent.main_file)
    newest = undoable(state, file.sha256 if file else "", home.options)
    n = newest.record.n
    talk, new = read_conversation(state, job.blobs, home), read_trace(newest, job.blobs)
    files = put_files_back(job, home, place, state.rewritten + 1)
    if files is not None:
        files = replace(files, lines=(*files.lines, *bring_kept(job, home, n)))
    return _save(job, home, talk, _Change("undo", new, talk.how.units(new), (), 0, "", n), files)


def newest_rewrite(state: State, options: str) -> RewriteAt:
    """The newest rewrite that is not undone. UsageError: there is none."""
    undone = {r.record.undoes for r in state.rewrites}
    newest = next((r for r in reversed(state.rewrites) if r.record.kind != "undo" and r.record.n not in undone), None)
    if newest is None:
        raise UsageError("No rewrite of this job can be undone.", f"See: {command('trace list', options)}")
    return newest


def undoable(state: State, sha256: str, options: str) -> RewriteAt:
    """The newest rewrite, where the main file of this hash is what it made. UsageError: it is not, or there is none."""
    newest = newest_rewrite(state, options)
    if sha256 != newest.record.result:
        raise UsageError(
            f"The conversation went on behind rewrite {newest.record.n}, so it is not undone.",
            f"What was there before: {command(f'trace show {newest.record.n}', options)}",
        )
    return newest


def read_main(state: State, blobs: Blobs, agent: Agent, options: str) -> bytes:
    """Return the main file of the conversation as the log has it. `options`: what names the job in a command.

    UsageError: there is none. Damaged."""
    if (file := state.files.get(agent.main_file)) is None:
        raise UsageError("The job has no conversation yet.", f"See: {command('status', options)}")
    return _bytes(blobs, file)


def read_trace(trace: RewriteAt, blobs: Blobs) -> bytes:
    """The main file as it was before the rewrite. Damaged."""
    return _bytes(blobs, trace.before)


def _bytes(blobs: Blobs, file: FileState) -> bytes:
    """The whole file. Damaged, also where it has more bytes than an agent can resume."""
    if max(file.size, file.base_size) > MAX_MAIN:
        raise Damaged(f"The log says that the session has {file.size} bytes, more than an agent can resume.")
    with tempfile.TemporaryDirectory(prefix="wal-agent-rewrite-") as folder:
        write_file(blobs, file, Path(folder) / "main")
        return (Path(folder) / "main").read_bytes()


class _Conversation(msgspec.Struct, frozen=True):
    """A main file and its messages. `logged`: as the log has it; `main`: with the results that only the log has."""

    how: Rewriting
    logged: bytes
    main: bytes
    units: tuple[Unit, ...]


def read_conversation(state: State, blobs: Blobs, home: Home) -> _Conversation:
    """UsageError: there is none, or it cannot be rewritten."""
    how, main = rewriting_of(home.agent), read_main(state, blobs, home.agent, home.options)
    return _Conversation(how, main, main, how.units(main))


def open_conversation(job: OpenedJob, home: Home) -> _Conversation:
    """The conversation of an opened job, with all that only this machine or the log has of it."""
    _catch_up(job, home)
    state = job.writer.state
    found = read_conversation(state, job.blobs, home)
    ended = [e for e in state.unsettled if e.intent.session == state.session]
    if not ended and found.main.endswith(b"\n"):
        return found
    calls = logged_calls(read_situation(job), ended, job.blobs, {}, MissingEffects())
    main = home.agent.reconcile(found.main, state.session, home.workspace, calls).data
    return replace(found, main=main, units=found.how.units(main))


def _catch_up(job: OpenedJob, home: Home) -> None:
    """Complete a rewrite that was cut off here; save what this machine has of the session beyond the log's version, as
    a recovery would take it over."""
    complete_rewrite(job.writer.state, home, job.blobs)
    state, path = job.writer.state, home.agent.main_file
    file, kept = state.files[path], state_dir(home.env) / "jobs" / home.job / "pre-restore" / "rewrite"
    foreign = SessionOwner(state_dir(home.env), state.session, home.workspace).foreign(home.job)
    place = SessionTarget(home.agent, state.session, home.workspace, home.env, kept, foreign)
    with tempfile.TemporaryDirectory(prefix="wal-agent-session-") as folder:
        copy = Path(folder) / "longer"
        if not find_longer(place, path, file, copy):
            return
        longer = copy.read_bytes()
    edits = _edits(longer[: file.size], longer, job.blobs)
    sha256, time = hashlib.sha256(longer).hexdigest(), SystemClock().now()
    size, session = len(longer), state.session
    job.writer.append(FileDelta(time=time, path=path, size=size, sha256=sha256, edits=edits, session=session))
    _flush(job, home.options)


def _flush(job: OpenedJob, options: str) -> None:
    if not job.writer.flush(60.0):
        raise Unavailable("The bucket did not take the new version in time.", f"See: {command('trace list', options)}")


class _Change(msgspec.Struct, frozen=True):
    """A new version of the main file. `now`: its messages; `gone`: those of the version before that are left out,
    `turns` in all; `text`: what stands in their place."""

    kind: RewriteKind
    data: bytes
    now: tuple[Unit, ...]
    gone: tuple[Unit, ...]
    turns: int
    text: str
    undoes: int = 0


def _save(
    job: OpenedJob, home: Home, before: _Conversation, change: _Change, files: _FilesBack | None = None
) -> Rewritten:
    """Append the new version, and the working tree that goes with it, as one segment; wait until it is durable, then
    put it in place here."""
    state, time = job.writer.state, SystemClock().now()
    path = home.agent.main_file
    file = state.files[path]
    data = b"".join(_conversation_of(change.data, before.logged, home))  # as `complete_rewrite` puts it in place
    record = Rewrite(
        time=time,
        n=state.rewritten + 1,
        kind=change.kind,
        session=state.session,
        path=path,
        size=file.size,
        sha256=file.sha256,
        result=hashlib.sha256(data).hexdigest(),
        turns=change.turns,
        first=change.gone[0].key if change.gone else "",
        last=change.gone[-1].key if change.gone else "",
        compact=job.blobs.put_payload(change.text.encode("utf-8", "replace")) if change.text else None,
        tokens=tokens_of(before.units),
        left=tokens_of(change.now),
        undoes=change.undoes,
        tree=files.before if files else 0,
    )
    delta = FileDelta(
        time=time,
        path=path,
        size=len(data),
        sha256=record.result,
        edits=_edits(before.logged, data, job.blobs),
        session=state.session,
        settled=state.next_call - 1,
    )
    failpoint("rewrite.before_record")
    job.writer.append(record, delta, *(files.records if files else ()))
    _flush(job, home.options)
    failpoint("rewrite.before_place")
    placed = place_rewritten(job.writer.state, home, lambda here: [data])
    lines = files.lines if files else ()
    return Rewritten(record.n, change.turns, record.tokens, record.left, placed, lines)


def _edits(old: bytes, new: bytes, blobs: Blobs) -> tuple[Edit, ...]:
    same = len(old) if new.startswith(old) else len(new) if old.startswith(new) else 0
    return tuple(Edit(offset=at, data=blobs.put_payload(new[at : at + PIECE])) for at in range(same, len(new), PIECE))


def complete_rewrite(state: State, home: Home, blobs: Blobs) -> Path | None:
    """As `place_rewritten`, of the log's version, which is read only where it is needed."""

    def version(here: bytes) -> Pieces:
        return _conversation_of(_bytes(blobs, state.files[home.agent.main_file]), here, home)

    return place_rewritten(state, home, version)


def place_rewritten(state: State, home: Home, version: Callable[[bytes], Pieces]) -> Path | None:
    """Put what rewrites left into the agent's own file here, where that is a version before them; the file, None where
    nothing was to do. `version` makes it from the file here. It is whole beside the file before it takes its name."""
    before = _versions_before(state)
    here = local_file(state, home) if before else None
    if here is None:
        return None
    old = _sha256(here) in before
    if old:
        try:
            move = stage_file(here, version(here.read_bytes()), here.parent)
            failpoint("rewrite.staged")
            move.staged.rename(here)
            sync_folder(here.parent)
        except OSError as error:
            raise ConfigError(
                f"{here} could not be rewritten: {error.strerror}. The log has the new version.",
                "Make room there; the next start of the job here puts it into place.",
            ) from error
    if journal := home.agent.capabilities.journal:  # also where this ended here the last time
        failpoint("rewrite.placed")
        journal.restore(home.agent.locate(home.env), state.session, home.workspace, home.env, False)
    return here if old else None


def _conversation_of(new: bytes, here: bytes, home: Home) -> Pieces:
    """What of a version may take the place of the file here: beyond what the two share, only conversation."""
    own = len(here) if new.startswith(here) else len(new) if here.startswith(new) else 0
    name = home.agent.main_file
    return carry(home.agent.travels(name, home.workspace), name, new, own, LeftOut())


# ---- marks


def check_mark(name: str) -> str:
    """UsageError: this cannot be the name of a mark."""
    if not STEP_NAME.fullmatch(name) or name.isdigit():
        raise UsageError(
            "A mark's name has letters, digits and _.:/@+-, and begins with a letter.",
            "For example: wal-agent mark before-refactoring",
        )
    return name


def mark_of(name: str, session: str, units: Sequence[Unit], time: float) -> Mark:
    """The record of a mark at the end of the conversation. UsageError: this cannot be its name."""
    return Mark(time=time, name=check_mark(name), session=session, key=units[-1].key if units else "")
