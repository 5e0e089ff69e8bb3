"""The vocabulary of the log: every record type, data only. docs/FORMAT.md describes the bytes.

Times are seconds since 1970 (UTC) by the writer's clock and serve people only: order comes from the log.
Fields are added with defaults and never change their meaning; an unknown record type makes a log unreadable for an
older wal-agent on purpose (nothing is skipped silently).
"""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT = 1

Class = Literal["read_only", "idempotent", "mutation", "unknown"]
CHANGING: tuple[Class, ...] = ("mutation", "unknown")  # what is not as well done twice
Finding = Literal["completed", "not_started", "partial", "unknown"]
PROVEN: tuple[Finding, ...] = ("completed", "not_started")  # of the others something must look, or do the rest
CallState = Literal["open", "runs_on", "cut", "refused", "done", "failed", "verified", "resolved"]
Ending = Literal["done", "failed", "refused", "verified", "resolved", "denied", "interrupted", "acknowledged"]
"""How a call ended (PROTOCOL.md, I8). The last three are words of older logs; `ending` spells them as today's."""
Cause = Literal["first", "closed", "released", "unlocked", "dead"]
EndSource = Literal["hook", "session", "recovery", "person", "supervisor"]
Late = Literal["model", "approval", "tool", "start", "exit"]
"""What takes longer than it should: the model's answer, a person's approval (or the call that was approved), a tool;
in non-interactive runs also the agent's first turn, and its exit after the last one."""
PhaseName = Literal[
    "starting",
    "awaiting_model",
    "executing_tools",
    "awaiting_approval",
    "awaiting_user",
    "compacting",
    "pausing",
    "draining",
    "stopped",
]
ExitClass = Literal[
    "completed",  # its own completion event came, and 0
    "incomplete",  # 0 without it
    "failed",  # an ordinary failure of its own: its code is passed through
    "interrupted",  # by a person (^C)
    "out_of_memory",  # the kernel's OOM killer
    "heap",  # V8 had no more heap
    "context",  # the conversation is too long for the model
    "quota",  # rate limit or quota of the model's provider
    "killed",  # by a signal that nobody here sent
    "hung",  # we ended it: the hard timeout
    "stopped",  # we ended it: fenced, hooks silent, ...
    "drained",
    "paused",
]


Trigger = Literal["periodic", "phase_change", "pre_compaction", "pre_shutdown", "manual"]
StepState = Literal["open", "active", "done"]
TaskPhase = Literal["gathering", "planning", "executing", "reviewing"]
RewriteKind = Literal["rewind", "compact", "undo"]
StepEnding = Literal["done", "failed", "paused", "not_started", "not_done"]

MAX_PROMPT = 64 << 10  # bytes of a prompt that are kept
_EARLIER = frozenset(("denied", "interrupted", "acknowledged"))


class Data(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of the plain values inside records."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="t"):
    """Base of the records; `t` names the type in the bytes."""

    time: float


class Payload(Data, frozen=True):
    """Bytes, inline when small, else a blob's name. Exactly one of `data` and `blob` is set; `size` is in bytes."""

    size: int
    data: bytes | None = None
    blob: str | None = None  # `<sha256, 64 hex digits>-<epoch>`, see wal/keys.py


class Host(Data, frozen=True):
    """Where a run lives. Same `boot` and `pidns` = the same kernel and process table (PROTOCOL.md, owner death)."""

    name: str
    boot: str
    pidns: str
    pid: int
    lock: str  # absolute path of the file that the supervisor holds a flock on while it lives
    file: str = ""  # which file that is (device and inode): a copy of a disk has another one at its path

    def same_kernel(self, boot: str, pidns: str) -> bool:
        """Whether who lives there sees the same processes, so that a flock and a process list mean something. Pods on
        one node share the boot id but not the process table, hence both."""
        return bool(boot) and (self.boot, self.pidns) == (boot, pidns)


class Owner(Data, frozen=True):
    """Whose job it is. `user`: a name for people. `person` and `folder`: random ids that one machine keeps for a person
    and for a folder. What is not known is empty; a record from a bucket may say anything."""

    user: str = ""
    person: str = ""
    folder: str = ""


class Fact(Data, frozen=True):
    """One thing that was true before a call: `what` names the kind (file, ...), `where` a path, `value` e.g. a hash."""

    what: str
    where: str
    value: str


class Verdict(Data, frozen=True):
    """What the evidence says of a dangling intent, and why, in one sentence for the prompt. `verify`: the read-only
    commands that the agent was asked to look with, `; ` between them."""

    call: int
    finding: Finding
    why: str
    verify: str = ""


class Pack(Data, frozen=True):
    """A git pack file, cut into `parts`. `size` in bytes, `sha256` in hex, both of the whole."""

    size: int
    sha256: str
    parts: tuple[Payload, ...]


class Repository(Data, frozen=True):
    """The user's repository around a captured workspace.

    `head`: commit id, "" on an unborn branch. `branch`: full ref name, "" when HEAD is detached. `identity`: what two
    clones of one project share (`origin:<url without credentials>`, `root:<commit>`). `prefix`: of the workspace in the
    repository, posix, "" for its top. `remote`: a remote-tracking ref holds `head`. `busy`: "merge", "rebase", ...
    where one was in progress. `linked`: it is a linked worktree (`git worktree add`)."""

    head: str
    branch: str
    identity: tuple[str, ...] = ()
    prefix: str = ""
    remote: bool = False
    busy: str = ""
    linked: bool = False


class TaskOf(Data, frozen=True):
    """Whose task a job is (docs/TASKS.md). `epoch`: of the caller's run that asked for it and bounds its calls, 0 where
    a person asked; `checkpoint`: the number of the caller's checkpoint right before it; `depth`: tasks it is inside,
    itself included."""

    job: str
    epoch: int = 0
    checkpoint: int = 0
    depth: int = 1


class Opening(Record, frozen=True, kw_only=True, tag="opening"):
    """First record of an epoch; its segment takes the log over (R1)."""

    run: str
    epoch: int
    cause: Cause
    host: Host
    agent: str
    agent_version: str
    version: str  # of wal-agent
    workspace: str  # absolute path
    args: tuple[str, ...] = ()  # the agent's arguments as the user typed them
    interactive: bool = False  # with these arguments; a run without any may go on with those of the log, and theirs
    trace: str = ""  # W3C trace id of the run (32 hex digits), "" where it is not traced
    parents: tuple[str, ...] = ()  # the live runs inside whose tools this one was started, the outermost first
    owner: Owner = Owner()
    snapshot: int = 0  # the newest one listed before this was placed; if it counts, the run began from none older
    task: TaskOf | None = None  # None: the job is no task, or this run did nothing of it (a command at rest)


class AgentStarted(Record, frozen=True, kw_only=True, tag="agent_started"):
    """The agent's process runs (again)."""

    pid: int
    session: str
    resumed: bool


class Turn(Record, frozen=True, kw_only=True, tag="turn"):
    """A turn of the conversation began, or the agent said that it completed (the only proof of a clean end)."""

    state: Literal["started", "completed"]
    session: str
    prompt: Payload | None = None  # UTF-8, what the turn began with; None: no person's words, or ours at a recovery


class Intent(Record, frozen=True, kw_only=True, tag="intent"):
    """A tool is about to run (I1). `call` numbers the job's calls from 1 and is never used twice.

    `unlogged`: the tool started before this record: no hook announced it (I5). Without an end it may have run."""

    call: int
    tool: str
    input: Payload  # JSON object, the agent's own spelling
    cls: Class
    rule: str  # which rule gave the class
    session: str
    agent_call: str = ""  # the agent's id of the call, where it has one
    before: tuple[Fact, ...] = ()
    unlogged: bool = False


class End(Record, frozen=True, kw_only=True, tag="end"):
    """The one end of a call (I8). `by` says who knew it; `why` is a sentence for people where `how` is not done.

    `interrupted` is what older versions wrote of a call that was cut off: it is read as `Cut`."""

    call: int
    how: Ending
    by: EndSource
    why: str = ""
    result: Payload | None = None  # JSON, as the agent's after-hook gave it
    duration_ms: int = 0  # by the monotonic clock of the run that it began in; 0: it began in another one, or not known
    finding: Finding | None = None

    def __post_init__(self) -> None:
        if self.how in _EARLIER:
            msgspec.structs.force_setattr(self, "how", ending(self.how, self.by))


def ending(how: Ending, by: EndSource = "recovery") -> Ending:
    """Return an older log's word for an end as today's. What the agent interrupted stays as it is: it was no end."""
    if how == "interrupted":
        return "verified" if by == "recovery" else how
    return {"denied": "refused", "acknowledged": "resolved"}.get(how, how)  # type: ignore[return-value]


class Cut(Record, frozen=True, kw_only=True, tag="cut"):
    """The agent, a signal, a time limit or a person stopped the call after it may have begun. It stays open (I8).

    `why`: a sentence for people. `result`: as in End, where the agent gave one."""

    call: int
    by: EndSource
    why: str
    result: Payload | None = None


class RunsOn(Record, frozen=True, kw_only=True, tag="runs_on"):
    """The agent has its result, and something of the call still runs. It stays open (I8).

    `task`: the agent's own id of its background task, "" for none. `pids`: processes of the call that lived then.
    `serves`: it is meant to keep running (a server, a watcher), so no recovery asks about it. `result`: as in End."""

    call: int
    by: EndSource
    why: str
    task: str = ""
    pids: tuple[int, ...] = ()
    serves: bool = False
    result: Payload | None = None


def call_state(held: Cut | RunsOn | None = None, how: Ending | Literal[""] = "") -> CallState:
    """Return the one word for a call (GLOSSARY). `held`: the newest word on an open one; `how` it ended, "" for not."""
    if how == "interrupted":
        return "cut"
    if how:
        return ending(how)  # type: ignore[return-value]
    return "open" if held is None else "cut" if isinstance(held, Cut) else "runs_on"


def state_text(state: CallState) -> str:
    """Return the word as people read it."""
    return {"runs_on": "runs on", "resolved": "resolved by a person"}.get(state, state)


class Edit(Data, frozen=True):
    """Replace the bytes from `offset` on by `data` (which may go beyond the old end)."""

    offset: int
    data: Payload


class FileDelta(Record, frozen=True, kw_only=True, tag="file"):
    """A captured file: apply `edits` in order to the version before, cut to `size`; the result has `sha256` (I4).

    `path` is the agent module's logical name (posix, relative). `settled`: every call with a number up to this that had
    ended is told by this version of the file itself (0: not known); its results need not be kept beside it.
    """

    path: str
    size: int
    sha256: str
    edits: tuple[Edit, ...]
    session: str
    settled: int = 0


class FileGone(Record, frozen=True, kw_only=True, tag="file_gone"):
    path: str


class Pending(Data, frozen=True, kw_only=True):
    """Files that a capture does not hold yet, or holds as they were before: the next captures go on with them.

    `names`: the first ones, for people. `repository`: so do the commits and the index."""

    files: int
    size: int
    names: tuple[str, ...] = ()
    repository: bool = False


class Workspace(Record, frozen=True, kw_only=True, tag="workspace"):
    """A capture of the working tree (RECOVERY.md): `commit` of our own object directory, whole in `packs` and those of
    the captures before it, back to the last one that says `whole`; `replaces`: without that many of them, from
    the newest on, whose place its own take. `holds`: every call numbered up to this had ended when the capture
    began, so it has their effects. `files` and `size` (bytes) count what the tree has. `left_out`: what is not
    saved, for people, the first ones; `left_out_more` counts the others. `also`: calls above `holds` that had
    ended as well. `pending`: None when all files are saved. `parts`: so many packs, from the first on, hold what
    was saved in parts, and are not sent again as one; `grown`: bytes of the packs behind the first that took in
    new files, so that they replace nothing. `folder`: of a repository inside, its path below the workspace, posix;
    such a capture has packs of its own. `inside`: the repositories inside that have captures of their own."""

    holds: int
    commit: str
    packs: tuple[Pack, ...] = ()
    whole: bool = False
    replaces: int = 0
    repository: Repository | None = None
    files: int = 0
    size: int = 0
    left_out: tuple[str, ...] = ()
    left_out_more: int = 0
    also: tuple[int, ...] = ()
    pending: Pending | None = None
    parts: int = 1
    grown: int = 0
    folder: str = ""
    inside: tuple[str, ...] = ()


class Recovery(Record, frozen=True, kw_only=True, tag="recovery"):
    """What a recovery found and told. `told` is the prompt as given to the agent, redacted; `left_out` names what the
    session set beside the conversation."""

    from_epoch: int
    verdicts: tuple[Verdict, ...]
    told: str
    leftovers: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    put_back: int = 0
    seconds: dict[str, float] = {}
    left_out: tuple[str, ...] = ()


class Answer(Record, frozen=True, kw_only=True, tag="answer"):
    """The agent was asked about an open call and its turn completed. The call stays open (I8).

    `looked`: calls that succeeded since and touch what this one names; without any, nothing has looked at its effect,
    and the answer counts for nothing. `because`: the agent's own words, redacted; they prove nothing."""

    call: int
    looked: tuple[int, ...] = ()
    because: str = ""


class PlanStep(Data, frozen=True):
    """One step of the agent's plan, in its own words."""

    text: str
    state: StepState = "open"


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """What the agent or a person says of the task (`wal-agent checkpoint`). An empty field changes nothing.

    `progress` in percent, -1 for none; `plan`: None for none, empty for "there is no plan any more"."""

    title: str = ""
    phase: TaskPhase | Literal[""] = ""
    progress: int = -1
    note: str = ""
    plan: tuple[PlanStep, ...] | None = None
    by: Literal["agent", "person"] = "agent"


class Checkpoint(Record, frozen=True, kw_only=True, tag="checkpoint"):
    """The job's state in a few kilobytes, for any agent: a view of the log in front of it (docs/CHECKPOINTS.md).

    `number` counts the job's checkpoints from 1. `body`: canonical JSON whose `sha256` covers the rest of it. `task`:
    the job of the task that begins behind it, whose log is the expanded trace of its result."""

    number: int
    trigger: Trigger
    body: bytes
    role: Literal["", "rewind_target"] = ""
    task: str = ""


class Compaction(Record, frozen=True, kw_only=True, tag="compaction"):
    """The agent says that it is about to compact its conversation (some then do not). The captures in front of this
    record have the conversation as it is before: session files only grow, so a length names a transcript.

    `n` counts the job's compactions from 1. `trigger`: the agent's own word (auto, manual), "" where it gives none.
    `tokens`: of the conversation, as the agent counts them, else the bytes since the compaction before by four; 0 in
    older logs. `plan`: as the agent last said it."""

    n: int
    session: str
    trigger: str = ""
    tokens: int = 0
    plan: tuple[PlanStep, ...] = ()


class CompactionDone(Record, frozen=True, kw_only=True, tag="compaction_done"):
    """Compaction `n` of the job is done. `missing`: what the new history lacks of what the agent must know (task, plan,
    calls). `lost`: its summary says nothing, so the agent has lost the conversation. `tokens`: of the conversation
    before, as the agent counts them, 0: not reported."""

    n: int
    session: str
    missing: tuple[str, ...] = ()
    lost: bool = False
    tokens: int = 0


class Mark(Record, frozen=True, kw_only=True, tag="mark"):
    """A place of the conversation that has a name, for `wal-agent rewind`. `key`: of the newest message there, as the
    agent's module spells it; "" in front of the first."""

    name: str
    session: str
    key: str = ""


class Rewrite(Record, frozen=True, kw_only=True, tag="rewrite"):
    """The session was rewritten while no agent worked in it (docs/COMPACTION.md); the file after it follows in the same
    segment. `path`, `size` and `sha256`: its main file before, the trace; `result`: the hash of the file after it.

    `n` counts the job's rewrites from 1. `turns`: how many the model does not get any more; `compact`: what it gets in
    their place; `tokens` and `left`: estimates, before and after. `undoes`: the rewrite that is taken back, 0 for
    none. `tree`: where the working tree was put back with it, the newest segment that still had the one before."""

    n: int
    kind: RewriteKind
    session: str
    path: str
    size: int
    sha256: str
    result: str
    turns: int = 0
    first: str = ""
    last: str = ""
    compact: Payload | None = None
    tokens: int = 0
    left: int = 0
    undoes: int = 0
    tree: int = 0


class Handoff(Record, frozen=True, kw_only=True, tag="handoff"):
    """The job goes on with `agent` instead of `before`, whose session stays in the log. What `agent` itself had saved
    in this job before, if anything, is the session again. `since`: the newest call when it had the job last, 0 if it
    never had."""

    before: str
    agent: str
    since: int = 0


class MessageGiven(Record, frozen=True, kw_only=True, tag="message"):
    """A message is about to be given to the agent, or a control message to be carried out (docs/MESSAGES.md).

    `sender` and `id` say which; `sent`: since 1970, by the sender's clock. `verb`: of a control message."""

    sender: str
    id: str
    sent: float
    text: Payload
    verb: str = ""
    driver: str = "bucket"


class MessageSeen(Record, frozen=True, kw_only=True, tag="message_seen"):
    """The agent has had the message in a turn that it completed, or its restored session has it.

    `refused`: why a control message was not carried out; `answer`: what became of one that was."""

    sender: str
    id: str
    refused: str = ""
    answer: str = ""


class StatePut(Record, frozen=True, kw_only=True, tag="state_put"):
    """A value that the job keeps under the name `step`: the last write wins (docs/STEPS.md).

    `version` counts the values of the whole job and is never used twice. `expires`: since 1970, 0 for never.
    `attempt`: 1, and one more for each opening behind the one in which the step was first seen."""

    step: str
    version: int
    value: Payload
    expires: float = 0.0
    attempt: int = 1


class StateGone(Record, frozen=True, kw_only=True, tag="state_gone"):
    """The value of `step` was deleted, or has expired."""

    step: str


class StepPaused(Record, frozen=True, kw_only=True, tag="step_paused"):
    """A pause of the job was asked for inside the step `name`, `until` (since 1970), for `reason`."""

    name: str
    until: float
    reason: str = ""


class StepBegun(Record, frozen=True, kw_only=True, tag="step_begun"):
    """The command of a step is about to run (I1). Without an end behind it, it may have had its effect.

    `verify`: the shell command that can look whether it had, for people: no command of a log is ever run. `attempt` as
    in StatePut."""

    name: str
    command: tuple[str, ...]
    verify: str = ""
    attempt: int = 1


class StepEnded(Record, frozen=True, kw_only=True, tag="step_ended"):
    """The one end of a step that has begun. `by` says who knew it.

    `code`: of the command, as a shell counts. `stdout` and `stderr`: their beginnings, None where nothing is kept;
    `stdout_size` and `stderr_size`: how many bytes there were. `paused`: it failed after it had asked for a pause."""

    name: str
    how: StepEnding
    by: Literal["command", "verify", "person", "supervisor"] = "command"
    code: int = 0
    stdout: Payload | None = None
    stdout_size: int = 0
    stderr: Payload | None = None
    stderr_size: int = 0


class PhaseChange(Record, frozen=True, kw_only=True, tag="phase"):
    """What the run does from now on, as one word (supervise/context.py). It rides with the next record that goes into
    the log anyway, so it may come late, never out of order. `tool`: what runs or waits then."""

    phase: PhaseName
    was: PhaseName
    tool: str = ""


class RunEnded(Record, frozen=True, kw_only=True, tag="run_ended"):
    """The agent's process ended. `completed`: its completion event came (RECOVERY.md: clean is never rc 0 alone).

    `cls` is "" in logs of before there were classes. `place`: what stays equal when it dies again at the same place
    (the session and its newest call). `until`: paused so long (since 1970), for `reason`, in the pauser's words."""

    code: int  # exit code; -N = killed by signal N
    completed: bool
    why: str = ""
    cls: ExitClass | Literal[""] = ""
    place: str = ""
    until: float = 0.0
    reason: str = ""


AnyRecord = (
    Opening
    | AgentStarted
    | Turn
    | Intent
    | End
    | Cut
    | RunsOn
    | FileDelta
    | FileGone
    | Workspace
    | Recovery
    | Answer
    | Progress
    | Checkpoint
    | Compaction
    | CompactionDone
    | Mark
    | Rewrite
    | Handoff
    | MessageGiven
    | MessageSeen
    | StatePut
    | StateGone
    | StepPaused
    | StepBegun
    | StepEnded
    | PhaseChange
    | RunEnded
)
