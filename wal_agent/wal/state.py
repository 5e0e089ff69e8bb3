"""What a log says, as data: the pure reducer behind replay, snapshots, `status` and the recovery plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from wal_agent.records import (
    CHANGING,
    AgentStarted,
    Answer,
    AnyRecord,
    CallState,
    Checkpoint,
    Class,
    Compaction,
    CompactionDone,
    Cut,
    End,
    Ending,
    FileDelta,
    FileGone,
    Handoff,
    Intent,
    Mark,
    MessageGiven,
    MessageSeen,
    Opening,
    Payload,
    PhaseChange,
    Progress,
    Recovery,
    Rewrite,
    RunEnded,
    RunsOn,
    StateGone,
    StatePut,
    StepBegun,
    StepEnded,
    StepPaused,
    TaskOf,
    Turn,
    Workspace,
    call_state,
    ending,
)
from wal_agent.wal.plans import plan_behind

MAX_OPENINGS = 64
MAX_ENDS = 16
MAX_OPEN = 20_000  # calls in flight, far above what an agent has; a state with more would cost minutes and gigabytes
MAX_FILES = 20_000
MAX_INSIDE = 100  # repositories in the working tree with captures of their own; a run saves fewer
MAX_PACKS = 1000  # of the captured working tree, which is sent whole again long before
MAX_CALL = 10**18  # number of a call; the next one must still fit what snapshots are written in
MAX_UNLOGGED = 16  # calls that ran without being logged; a run ends at the first one
MAX_UNHELD = 64
MAX_PROMPTS = 16  # prompts behind the last completed turn
MAX_WAITING = 4096  # bytes of each
MAX_PIDS = 64  # processes of a call that runs on
MAX_LOOKED = 16  # calls that an answer names
MAX_BRIEF = 2048  # bytes of such a call's input
MAX_RECENT = 50
MAX_INPUT = 600  # bytes of a recent call's input, and
MAX_OUTPUT = 1200  # of its result: some more than a checkpoint shows, so that secrets are found before it is cut
MAX_CHECKPOINTS = 48
MAX_COMPACTIONS = 64
MAX_COMPACTED = 16  # files, and open calls, that a compaction names
MAX_SHELVED = 8  # agents whose sessions are kept beside that of the agent that has the job, and
MAX_SHELVED_CALLS = 32  # ended calls that the newest capture of each may lack
MAX_OUTCOME = 300  # characters of what became of a control message
MAX_NAME = 100  # characters of a message's sender, and of its id: inbox.NAME allows no more
MAX_MESSAGES = 300  # given messages: who sends one of them again, sends nothing
MAX_REWRITES = 64  # with the file that was before each
MAX_MARKS = 64
MAX_TASKS = 256
MAX_PAST = 32  # transcripts of sessions that the job has left
MAX_CHECKPOINT = 22 << 10  # bytes of one
MAX_STEPS = 2000  # names under which values and results are kept
STEP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/@+-]{0,99}")  # safe in a command that is shown for pasting
MAX_STEP_RECORD = 10 << 10  # bytes of a record about one, in MessagePack; bulk is in blobs
MAX_UNSETTLED = (
    256  # ended calls; with their payloads inline (64 KiB each) they fit a snapshot, whatever the agent does
)


class OpeningAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An epoch's beginning: the opening record and its segment's number."""

    seq: int
    opening: Opening


class OpenCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An intent without an end. `seq` is its segment, `epoch` the run that wrote it.

    `held`: the newest word on why it is open although the agent is done with it; None while it is in flight, or was
    when its run died. Without results, which the session has."""

    seq: int
    epoch: int
    intent: Intent
    held: Cut | RunsOn | None = None

    @property
    def state(self) -> CallState:
        return call_state(self.held)

    @property
    def serves(self) -> bool:
        """Whether it was meant to keep running, so that nobody need find out how it ended."""
        return isinstance(self.held, RunsOn) and self.held.serves


class EndedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call whose end is logged, but not yet known to be in a captured session file."""

    intent: Intent
    end: End


class UnloggedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that ran before it was logged, under `epoch`, and how it ended."""

    epoch: int
    intent: Intent
    how: Ending


class RecentCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call as checkpoints show it: the beginnings of its input and of its result. `how`: "" while it is open."""

    call: int
    tool: str
    cls: Class
    time: float
    input: bytes
    size: int  # of the whole input, in bytes
    how: Ending | Literal[""] = ""
    output: bytes = b""
    duration_ms: int = 0


class PlanCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest call that stated the agent's plan, and the plan: as the agent spelled it, or the list that its calls
    have made so far."""

    call: int
    time: float
    tool: str
    input: bytes


class CompactionAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the log had when a compaction began: of each of the session's files name, size and hash; the newest call,
    and the calls that were open. `seq`: its segment's number. `done`: a new history followed; `lost`: its
    summary says nothing."""

    n: int
    seq: int
    epoch: int
    time: float
    session: str
    trigger: str
    files: tuple[tuple[str, int, str], ...]
    call: int
    open: tuple[int, ...]
    done: bool = False
    lost: bool = False


class CheckpointAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint and its segment's number."""

    seq: int
    epoch: int
    record: Checkpoint


class StepAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the job keeps under one name: a value, and how the step of this name went.

    `first`: how many openings there were when it was first seen. `begun`: the newest try, None where the command has
    never run, or provably did not; `epoch`: that it was begun in; `ended`: that try's end. `failures`: tries that
    failed. `paused`: until it goes on, the newest pause that was asked for inside it."""

    first: int
    value: StatePut | None = None
    begun: StepBegun | None = None
    epoch: int = 0
    ended: StepEnded | None = None
    failures: int = 0
    paused: StepPaused | None = None

    @property
    def undecided(self) -> bool:
        """Whether a try has no end: it runs, or was cut off and may have had its effect."""
        return self.begun is not None and self.ended is None

    @property
    def kept(self) -> int:
        """Bytes of the value and of the result."""
        ended = self.ended
        kept = (self.value and self.value.value, ended and ended.stdout, ended and ended.stderr)
        return sum(payload.size for payload in kept if payload)


class FileState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A captured file: `chunks` (blob names, each CHUNK bytes but the last) hold `base_size` bytes as of the snapshot;
    `layers` are the deltas since. The result has `size` bytes and hash `sha256`."""

    session: str
    size: int
    sha256: str
    base_size: int = 0
    chunks: tuple[str, ...] = ()
    layers: tuple[FileDelta, ...] = ()

    @classmethod
    def first(cls, delta: FileDelta) -> FileState:
        """As of a delta that builds on nothing."""
        return cls(session=delta.session, size=delta.size, sha256=delta.sha256, layers=(delta,))


class MessageAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message that was given to the agent. `time`: when, the last time; `seen`: when that was known, 0 where it may
    not have been seen. `refused`, `answer`: the outcome of a control message. `driver`, `seq`: how it came, and the
    segment that says so."""

    sender: str
    id: str
    sent: float
    time: float
    epoch: int
    verb: str = ""
    seen: float = 0.0
    refused: str = ""
    answer: str = ""
    driver: str = ""
    seq: int = 0


class PastFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The transcript of a session that the job has left at `time`: nothing resumes it, and `recall` reads it."""

    name: str
    file: FileState
    time: float


class MarkAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mark and its segment's number."""

    seq: int
    record: Mark


class TaskAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first checkpoint in front of a task: its segment's number, epoch, and its own number."""

    seq: int
    epoch: int
    checkpoint: int


class RewriteAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rewrite of the session, its segment's number, and the trace: the main file before it."""

    seq: int
    epoch: int
    record: Rewrite
    before: FileState


class ShelvedSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The session of an agent that had the job before: as in State, when it was handed over. `call`: the newest one
    then."""

    session: str
    files: dict[str, FileState]
    unsettled: tuple[EndedCall, ...]
    call: int


NO_SESSION = ShelvedSession("", {}, (), 0)


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that recovery may rest on, as of one place in the log."""

    epoch: int = 0
    openings: tuple[OpeningAt, ...] = ()  # the newest MAX_OPENINGS
    opened: int = 0  # how many openings there were in all
    session: str = ""
    turn: Literal["none", "started", "completed"] = "none"  # of the newest session; "none": it has had none yet
    prompt: Turn | None = None  # its newest turn that a person's words began; a recovery keeps that of the one before
    waiting: tuple[Turn, ...] = ()  # its turns that a person's words began, behind the last completed one
    turned: int = -1  # the newest epoch in which a turn began; 0: none; -1: not known (the snapshot is an older one)
    open: tuple[OpenCall, ...] = ()
    answers: tuple[Answer, ...] = ()  # one of each open call that the agent was asked about in a completed turn
    unsettled: tuple[EndedCall, ...] = ()  # the newest MAX_UNSETTLED
    files: dict[str, FileState] = {}
    workspace: Workspace | None = None  # the newest capture, with all packs that it needs
    inside: dict[str, Workspace] = {}  # the same of each repository in it, by its folder
    unheld: tuple[EndedCall, ...] = ()  # changing calls that ran and whose changes it may lack; the newest MAX_UNHELD
    unheld_more: int = 0  # further ones
    home: int = 0  # the newest epoch under which the agent was started; a refused run opens too
    ended: RunEnded | None = None  # of that epoch
    ends: tuple[RunEnded, ...] = ()  # the newest MAX_ENDS, of all epochs
    recovery: Recovery | None = None  # the newest
    unlogged: tuple[UnloggedCall, ...] = ()  # until a later run, whose recovery reports them, has completed a turn
    recent: tuple[RecentCall, ...] = ()  # the newest MAX_RECENT
    plan: PlanCall | None = None  # of the agent's own plan tool
    progress: Progress | None = None  # what was said of the task, newest words of each field
    checkpoints: tuple[CheckpointAt, ...] = ()  # the newest MAX_CHECKPOINTS
    compactions: tuple[CompactionAt, ...] = ()  # the newest MAX_COMPACTIONS
    compacted: int = 0  # the newest one's number
    checkpointed: int = 0  # the newest one's number
    steps: dict[str, StepAt] = {}  # by name, at most MAX_STEPS
    state_version: int = 0  # the newest one that a kept value got
    agent: str = ""  # that the job was handed to, "" if it never was
    shelf: dict[str, ShelvedSession] = {}  # sessions of agents that had the job before, at most MAX_SHELVED
    past: tuple[PastFile, ...] = ()  # the newest MAX_PAST
    rewrites: tuple[RewriteAt, ...] = ()  # the newest MAX_REWRITES
    rewritten: int = 0  # the newest one's number
    marks: dict[str, MarkAt] = {}  # by name, the newest MAX_MARKS
    tasks: dict[str, TaskAt] = {}  # by the task's job, the newest MAX_TASKS
    messages: tuple[MessageAt, ...] = ()  # in the order in which they were given, the newest MAX_MESSAGES
    handoff: Handoff | None = None  # until the agent that it went to has completed a turn
    next_call: int = 1
    calls: int = 0
    recoveries: int = 0
    last_tool: str = ""
    time: float = 0.0  # of the last record but openings

    @property
    def ran(self) -> bool:
        """Whether anything was recorded that a start from nothing would lose or do twice: a turn of the newest session,
        or of the run that the agent was started in last."""
        if self.turned < 0:
            return self.turn != "none" or self.calls > 0
        return self.turn != "none" or 0 < self.home == self.turned

    def session_files(self, main: str) -> Mapping[str, FileState]:
        """What is captured of the newest session, by logical name; nothing without its main file, `main`."""
        known = self.files.get(main)
        return self.files if self.session and known is not None and known.session == self.session else {}

    @property
    def looked_at(self) -> frozenset[int]:
        """The open calls that the agent has answered for: something has looked at their effect."""
        return frozenset(a.call for a in self.answers if a.looked)

    @property
    def unanswered(self) -> tuple[OpenCall, ...]:
        """The open calls that the next recovery asks about, in their own session."""
        answered = {a.call for a in self.answers}
        return tuple(o for o in self.open if o.intent.call not in answered and not o.serves)

    @property
    def unlooked(self) -> tuple[OpenCall, ...]:
        """The open calls whose effect nothing has looked at: with one the job is not complete (R6)."""
        looked_at = self.looked_at
        return tuple(o for o in self.open if o.intent.call not in looked_at and not o.serves)

    @property
    def unproven(self) -> tuple[OpenCall, ...]:
        """The open calls that may have changed something, and of which a look showed nothing: a job may close with
        them."""
        looked_at = self.looked_at
        return tuple(o for o in self.open if o.intent.call in looked_at and o.intent.cls in CHANGING and not o.serves)

    @property
    def undecided_steps(self) -> dict[str, StepAt]:
        """The steps that have begun and not ended, by name."""
        return {name: at for name, at in self.steps.items() if at.undecided}

    @property
    def owner_agent(self) -> str:
        """The agent whose job it is, "" where none was started as far as is kept."""
        home = self.home_opening
        return self.agent or (home.agent if home else "")

    @property
    def task(self) -> TaskOf | None:
        """Whose task this job is, as of the newest run that worked on it."""
        return next((o.opening.task for o in reversed(self.openings) if o.opening.task is not None), None)

    @property
    def home_opening(self) -> Opening | None:
        """The newest opening under which the agent was started, as long as it is kept."""
        return next((o.opening for o in reversed(self.openings) if o.opening.epoch == self.home), None)


def apply(state: State, seq: int, epoch: int, record: AnyRecord) -> State:
    """The state after `record`, from segment `seq` of `epoch`. Pure; total: any record in any order.

    An end without an open call changes nothing (its intent's end is already known, I8: exactly one)."""
    new = _apply(state, seq, epoch, record)
    if isinstance(record, Opening):
        return new  # `time` says when the job was last alive; an opening may come days later
    return msgspec.structs.replace(new, time=max(state.time, record.time))


def _apply(state: State, seq: int, epoch: int, record: AnyRecord) -> State:
    replace = msgspec.structs.replace
    match record:
        case Opening():
            openings = (*state.openings, OpeningAt(seq, record))[-MAX_OPENINGS:]
            return replace(state, epoch=record.epoch, openings=openings, opened=state.opened + 1)
        case AgentStarted(resumed=True):
            return replace(state, session=record.session, home=epoch, ended=None)
        case AgentStarted():
            turned = state.turned if epoch == state.home else max(state.turned, 0)
            here = replace(state, session=record.session, home=epoch, ended=None)
            return replace(here, turn="none", prompt=None, turned=turned, waiting=())
        case Turn():
            asked = state.prompt if record.session == state.session else None
            if record.state == "started" and record.prompt is not None:
                asked = record
            turned, waiting = max(state.turned, epoch), _waiting(state, record)
            new = replace(
                state, turn=record.state, session=record.session, prompt=asked, turned=turned, waiting=waiting
            )
            if record.state == "started":
                return new
            return replace(new, unlogged=tuple(c for c in state.unlogged if c.epoch >= epoch), handoff=None)
        case Intent():
            return replace(
                state,
                turn="started" if state.turn == "none" else state.turn,  # a call proves a turn, whoever makes it
                turned=max(state.turned, epoch),
                open=(*state.open, OpenCall(seq, epoch, record)),
                recent=(*state.recent, _recent(record))[-MAX_RECENT:],
                next_call=max(state.next_call, record.call + 1),
                calls=state.calls + 1,
                last_tool=record.tool,
            )
        case End(how="interrupted"):  # of an older version
            return _held(state, Cut(time=record.time, call=record.call, by=record.by, why=record.why))
        case Cut() | RunsOn():
            return _held(state, record)
        case End():
            mine = [c for c in state.open if c.intent.call == record.call]
            ran = [UnloggedCall(c.epoch, c.intent, record.how) for c in mine if c.intent.unlogged]
            unheld = (
                *state.unheld,
                *(_brief(c, record) for c in mine if call_changed_files(c.intent, record, state.workspace)),
            )
            return replace(
                state,
                unheld=unheld[-MAX_UNHELD:],
                unheld_more=state.unheld_more + max(0, len(unheld) - MAX_UNHELD),
                open=tuple(c for c in state.open if c.intent.call != record.call),
                recent=tuple(_ended_recent(c, record) for c in state.recent) if mine else state.recent,
                **_planned(state, mine, record),
                answers=tuple(a for a in state.answers if a.call != record.call),
                unsettled=(*state.unsettled, *(EndedCall(c.intent, record) for c in mine))[-MAX_UNSETTLED:],
                unlogged=(*state.unlogged, *(c for c in ran if record.by == "session"))[-MAX_UNLOGGED:],
            )
        case FileDelta():
            old = state.files.get(record.path)
            fresh = FileState.first(record)
            layered = (
                fresh
                if old is None
                else replace(fresh, base_size=old.base_size, chunks=old.chunks, layers=(*old.layers, record))
            )
            unsettled = tuple(c for c in state.unsettled if c.intent.call > record.settled)
            left = old is not None and old.session != record.session
            past = _with_past(state, record.path, record.time) if left else state.past
            return replace(state, files={**state.files, record.path: layered}, unsettled=unsettled, past=past)
        case FileGone():
            files = {k: v for k, v in state.files.items() if k != record.path}
            return replace(state, files=files, past=_with_past(state, record.path, record.time))
        case Workspace() if record.folder:
            grown = _with_packs(state.inside.get(record.folder), record)
            return replace(state, inside={**state.inside, record.folder: grown})
        case Workspace():
            unheld = tuple(e for e in state.unheld if not workspace_holds(record, e.intent.call))
            return replace(
                state,
                workspace=_with_packs(state.workspace, record),
                inside={name: each for name, each in state.inside.items() if name in record.inside},
                unheld=unheld,
                unheld_more=state.unheld_more if len(unheld) == MAX_UNHELD else 0,
            )
        case Recovery():
            return replace(state, recovery=record, recoveries=state.recoveries + 1)
        case Answer():
            return replace(state, answers=_with_answer(state, record))
        case Progress():
            plan = state.plan if record.plan is None else None  # of two plans the newer one counts
            return replace(state, progress=_merged_progress(state.progress, record), plan=plan)
        case Checkpoint():
            if len(record.body) > MAX_CHECKPOINT:
                return state  # none that a run has written
            newest = (*state.checkpoints, CheckpointAt(seq, epoch, record))[-MAX_CHECKPOINTS:]
            tasks = state.tasks
            if record.task and record.task not in tasks:
                tasks = dict([*tasks.items(), (record.task, TaskAt(seq, epoch, record.number))][-MAX_TASKS:])
            return replace(state, checkpoints=newest, tasks=tasks, checkpointed=max(state.checkpointed, record.number))
        case Compaction():
            begun = (*state.compactions, _compaction(state, seq, epoch, record))[-MAX_COMPACTIONS:]
            return replace(state, compactions=begun, compacted=max(state.compacted, record.n))
        case CompactionDone():
            return replace(state, compactions=tuple(_compacted(c, record) for c in state.compactions))
        case Mark():
            others = [(name, each) for name, each in state.marks.items() if name != record.name]
            return replace(state, marks=dict([*others, (record.name, MarkAt(seq, record))][-MAX_MARKS:]))
        case Rewrite():
            return _rewritten(state, seq, epoch, record)
        case Handoff():
            return _handed_over(state, record)
        case MessageGiven():
            return replace(state, messages=_with_message(state, seq, epoch, record))
        case MessageSeen():
            return replace(state, messages=tuple(_seen(m, record) for m in state.messages))
        case StatePut() | StateGone() | StepPaused() | StepBegun() | StepEnded():
            return _stepped(state, epoch, record)
        case PhaseChange():
            return state
        case RunEnded():
            return replace(state, ended=record, ends=(*state.ends, record)[-MAX_ENDS:])


def upgrade_state(state: State) -> State:
    """The state of a snapshot, which an older wal-agent may have made, with today's names of endings."""
    recent = tuple(msgspec.structs.replace(c, how=ending(c.how)) if c.how else c for c in state.recent)
    unlogged = tuple(msgspec.structs.replace(c, how=ending(c.how)) for c in state.unlogged)
    return msgspec.structs.replace(state, recent=recent, unlogged=unlogged)


def _waiting(state: State, turn: Turn) -> tuple[Turn, ...]:
    """The turns that a person's words began and that none has completed since. Of long words the beginning."""
    before = state.waiting if turn.session == state.session and turn.state == "started" else ()
    data = turn.prompt.data if turn.prompt is not None else None
    if turn.state != "started" or not data:
        return before
    cut = Payload(size=min(len(data), MAX_WAITING), data=data[:MAX_WAITING])
    return (*before, msgspec.structs.replace(turn, prompt=cut))[-MAX_PROMPTS:]


def _held(state: State, record: Cut | RunsOn) -> State:
    """The open call with the newest word on it. What may change files may have changed them."""
    held = msgspec.structs.replace(record, why=record.why[:MAX_OUTCOME], result=None)
    if isinstance(held, RunsOn):
        held = msgspec.structs.replace(held, task=held.task[:MAX_NAME], pids=held.pids[:MAX_PIDS])
    of = record.call
    return msgspec.structs.replace(
        state, open=tuple(msgspec.structs.replace(o, held=held) if o.intent.call == of else o for o in state.open)
    )


def _with_answer(state: State, answer: Answer) -> tuple[Answer, ...]:
    """One answer for each open call: the newest words, and all that the agent looked with."""
    if all(o.intent.call != answer.call for o in state.open):
        return state.answers
    before = next((a for a in state.answers if a.call == answer.call), answer)
    looked = tuple(sorted({*before.looked, *answer.looked}))[-MAX_LOOKED:]
    merged = msgspec.structs.replace(answer, looked=looked, because=answer.because or before.because)
    return (*(a for a in state.answers if a.call != answer.call), merged)


def _compaction(state: State, seq: int, epoch: int, record: Compaction) -> CompactionAt:
    mine = [(path, file) for path, file in state.files.items() if file.session == record.session]
    return CompactionAt(
        n=record.n,
        seq=seq,
        epoch=epoch,
        time=record.time,
        session=record.session[:200],
        trigger=record.trigger[:40],
        files=tuple((path, file.size, file.sha256) for path, file in mine[:MAX_COMPACTED]),
        call=state.next_call - 1,
        open=tuple(o.intent.call for o in state.open[-MAX_COMPACTED:]),
    )


def _compacted(begun: CompactionAt, record: CompactionDone) -> CompactionAt:
    if (begun.n, begun.session) != (record.n, record.session[:200]):
        return begun
    return msgspec.structs.replace(begun, done=True, lost=record.lost)


def _with_message(state: State, seq: int, epoch: int, record: MessageGiven) -> tuple[MessageAt, ...]:
    """One entry for each message; of too many those go first that were seen."""
    sender, id = _message_names(record)
    others = [m for m in state.messages if (m.sender, m.id) != (sender, id)]
    if len(others) >= MAX_MESSAGES:
        others.remove(next((m for m in others if m.seen), others[0]))
    given = MessageAt(
        sender=sender,
        id=id,
        sent=record.sent,
        time=record.time,
        epoch=epoch,
        verb=record.verb[:20],
        driver=record.driver[:20],
        seq=seq,
    )
    return (*others, given)


def _message_names(record: MessageGiven | MessageSeen) -> tuple[str, str]:
    """Sender and id as they are kept: a longer one, which no run writes, is cut and still the same message."""
    return record.sender[:MAX_NAME], record.id[:MAX_NAME]


def _seen(message: MessageAt, record: MessageSeen) -> MessageAt:
    if (message.sender, message.id) != _message_names(record) or message.seen:
        return message
    refused, answer = record.refused[:MAX_OUTCOME], record.answer[:MAX_OUTCOME]
    return msgspec.structs.replace(message, seen=record.time, refused=refused, answer=answer)


def _handed_over(state: State, record: Handoff) -> State:
    call = state.next_call - 1
    left = ShelvedSession(state.session, state.files, state.unsettled[-MAX_SHELVED_CALLS:], call)
    others = {name: each for name, each in state.shelf.items() if name not in (record.before, record.agent)}
    shelf = dict([*others.items(), (record.before, left)][-MAX_SHELVED:])
    back = state.shelf.get(record.agent, NO_SESSION)
    return msgspec.structs.replace(
        state,
        agent=record.agent,
        shelf=shelf,
        handoff=record,
        session=back.session,
        files=back.files,
        unsettled=back.unsettled,
    )


def _rewritten(state: State, seq: int, epoch: int, record: Rewrite) -> State:
    """The state with the trace. A record that names another file than the one there is one that no run has written."""
    before = state.files.get(record.path)
    if before is None or (before.size, before.sha256) != (record.size, record.sha256):
        return state
    newest = (*state.rewrites, RewriteAt(seq, epoch, record, before))[-MAX_REWRITES:]
    return msgspec.structs.replace(state, rewrites=newest, rewritten=max(state.rewritten, record.n))


def _with_past(state: State, path: str, time: float) -> tuple[PastFile, ...]:
    """The transcripts, with the file that the job leaves now, if it is one."""
    file = state.files.get(path)
    if file is None or file.size == 0 or not path.endswith(".jsonl"):
        return state.past
    others = (p for p in state.past if (p.name, p.file.session) != (path, file.session))
    return (*others, PastFile(path, file, time))[-MAX_PAST:]


def _recent(intent: Intent) -> RecentCall:
    input = intent.input
    return RecentCall(
        intent.call, intent.tool[:200], intent.cls, intent.time, (input.data or b"")[:MAX_INPUT], input.size
    )


def _ended_recent(call: RecentCall, end: End) -> RecentCall:
    if call.call != end.call:
        return call
    data = end.result.data if end.result is not None else None
    return msgspec.structs.replace(
        call,
        how="done" if end.finding == "completed" else end.how,
        output=(data or end.why.encode("utf-8", "replace"))[:MAX_OUTPUT],
        duration_ms=end.duration_ms,
    )


def _planned(state: State, ended: list[OpenCall], end: End) -> dict[str, object]:
    """The fields that change where the ended call stated a plan."""
    for intent in (c.intent for c in ended if end.how == "done"):
        before = (state.plan.tool, state.plan.input) if state.plan is not None else None
        result = (end.result and end.result.data) or b""
        if (plan := plan_behind(state.owner_agent, intent.tool, intent.input.data or b"", result, before)) is not None:
            said = state.progress and msgspec.structs.replace(state.progress, plan=None)
            return {"plan": PlanCall(intent.call, intent.time, intent.tool, plan), "progress": said}
    return {}


def _merged_progress(before: Progress | None, said: Progress) -> Progress:
    if before is None:
        return said
    return msgspec.structs.replace(
        said,
        title=said.title or before.title,
        phase=said.phase or before.phase,
        progress=said.progress if said.progress >= 0 else before.progress,
        note=said.note or before.note,
        plan=said.plan if said.plan is not None else before.plan,
    )


def _stepped(state: State, epoch: int, record: StatePut | StateGone | StepPaused | StepBegun | StepEnded) -> State:
    """The state after a record about a step. One that no run has written (too long, one name too many, an end of
    nothing) changes nothing."""
    replace = msgspec.structs.replace
    name = record.step if isinstance(record, StatePut | StateGone) else record.name
    known = state.steps.get(name)
    new = known is None and (isinstance(record, StateGone | StepEnded) or len(state.steps) >= MAX_STEPS)
    if new or not STEP_NAME.fullmatch(name) or len(msgspec.msgpack.encode(record)) > MAX_STEP_RECORD:
        return state
    at = known or StepAt(first=state.opened)
    version = state.state_version
    match record:
        case StatePut():
            at, version = replace(at, value=record, paused=None), max(version, record.version)
        case StateGone():
            at = replace(at, value=None, paused=None)
        case StepPaused():
            at = replace(at, paused=record)
        case StepBegun():
            at = replace(at, begun=record, epoch=epoch, ended=None)
        case StepEnded(how="not_started" | "not_done") if at.undecided:
            at = replace(at, begun=None)
        case StepEnded() if at.undecided:
            paused = None if record.how == "done" else at.paused
            at = replace(at, ended=record, failures=at.failures + (record.how == "failed"), paused=paused)
    steps = {**state.steps, name: at}
    if isinstance(record, StateGone) and at.begun is None:
        del steps[name]
    return replace(state, steps=steps, state_version=version)


def _with_packs(before: Workspace | None, record: Workspace) -> Workspace:
    """The record with all packs that it needs."""
    packs = before.packs if before is not None and not record.whole else ()
    kept = packs[: max(0, len(packs) - max(0, record.replaces))]
    return msgspec.structs.replace(record, packs=(*kept, *record.packs), replaces=0)


def workspace_holds(saved: Workspace, call: int) -> bool:
    """Whether a capture has the changes of a call that ran."""
    return call <= saved.holds or call in saved.also


def call_changed_files(intent: Intent, end: End, saved: Workspace | None) -> bool:
    """Whether the call may have changed files that the newest capture does not have."""
    ran = end.how in ("done", "failed") and intent.cls != "read_only"
    return ran and not (saved is not None and workspace_holds(saved, intent.call))


def _brief(open: OpenCall, end: End) -> EndedCall:
    """Without what its evidence and its result are; of a long input the beginning."""
    data = open.intent.input.data
    input = open.intent.input
    if data is not None and len(data) > MAX_BRIEF:
        input = Payload(size=MAX_BRIEF, data=data[:MAX_BRIEF])
    intent = msgspec.structs.replace(open.intent, input=input, before=())
    return EndedCall(intent, msgspec.structs.replace(end, result=None, why=""))


def exceeded_limit(state: State) -> str:
    """What makes a state one that no run has written; empty for none."""
    if len(state.open) > MAX_OPEN:
        return f"it has more than {MAX_OPEN} calls in flight"
    if len(state.files) > MAX_FILES:
        return f"it has more than {MAX_FILES} files"
    if any(len(each.files) > MAX_FILES for each in state.shelf.values()):
        return f"an agent that had it before has more than {MAX_FILES} files"
    trees = [*([state.workspace] if state.workspace is not None else []), *state.inside.values()]
    if len(state.inside) > MAX_INSIDE:
        return f"it has more than {MAX_INSIDE} repositories inside"
    if any(len(tree.packs) > MAX_PACKS for tree in trees):
        return f"its working tree stands on more than {MAX_PACKS} packs"
    if len(state.steps) > MAX_STEPS:
        return f"it has more than {MAX_STEPS} steps"
    return "it counts more calls than there can be" if state.next_call > MAX_CALL else ""


def apply_all(state: State, seq: int, epoch: int, records: Iterable[AnyRecord]) -> State:
    """The state after all records of one segment."""
    for record in records:
        state = apply(state, seq, epoch, record)
    return state


def rebase(state: State, before: State, after: State) -> State:
    """`state` with each file that grew out of one of `before` standing on its compacted form in `after` instead.

    A file that was removed or begun anew since `before` is left as it is."""
    kept = {(p.name, p.file.session, p.file.sha256): p for p in after.past}
    traces = {(r.seq, r.record.n): r for r in after.rewrites}
    shelf = {
        agent: msgspec.structs.replace(left, files=_rebase_files(left.files, old.files, new.files))
        if (old := before.shelf.get(agent)) and (new := after.shelf.get(agent))
        else left
        for agent, left in state.shelf.items()
    }
    return msgspec.structs.replace(
        state,
        files=_rebase_files(state.files, before.files, after.files),
        shelf=shelf,
        past=tuple(kept.get((p.name, p.file.session, p.file.sha256), p) for p in state.past),
        rewrites=tuple(traces.get((r.seq, r.record.n), r) for r in state.rewrites),
    )


def _rebase_files(
    now: dict[str, FileState], before: dict[str, FileState], after: dict[str, FileState]
) -> dict[str, FileState]:
    return {path: _rebase_file(file, before.get(path), after.get(path)) for path, file in now.items()}


def _rebase_file(now: FileState, before: FileState | None, after: FileState | None) -> FileState:
    if before is None or after is None or (now.chunks, now.base_size) != (before.chunks, before.base_size):
        return now
    count = len(before.layers)
    if now.layers[:count] != before.layers:
        return now
    return msgspec.structs.replace(
        now, chunks=after.chunks, base_size=after.base_size, layers=(*after.layers, *now.layers[count:])
    )
