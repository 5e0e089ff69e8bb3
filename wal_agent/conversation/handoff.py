"""Hand a job from one agent to another (docs/HANDOFF.md): the same job, log and working tree, another agent's session.

The log keeps the session of the agent that had the job; `Handoff` is the record that puts it aside. What the new agent
reads of that conversation is a transcript in Markdown, in parts of a bounded size, in a private folder: an agent cannot
read another one's session format. Secrets are taken out of it, since the new agent sends it to another provider.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wal_agent.conversation.transcript import Line, read_lines
from wal_agent.errors import Damaged
from wal_agent.records import Handoff, Opening
from wal_agent.redact import redact
from wal_agent.safefs import make_private_folder
from wal_agent.text import clock_time
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.state import FileState, RecentCall, State, apply

PART: Final = 200_000  # characters of one part, some agents read no more of a file at once
MAX_PARTS: Final = 10  # the newest ones
MAX_SOURCE: Final = 256 << 20  # bytes of a session file; of a longer one no transcript is written


def hand_over(state: State, opening: Opening) -> Handoff | None:
    """Return the record that makes `state` the job of `opening`'s agent; None where it is that already, or nobody's.
    Pure."""
    before = state.owner_agent
    if not before or before == opening.agent:
        return None
    known = state.shelf.get(opening.agent)
    return Handoff(time=opening.time, before=before, agent=opening.agent, since=known.call if known else 0)


def handed_over(state: State, record: Handoff) -> State:
    """The state behind the record; where it is placed in the log does not matter for what is planned. The run before
    ended when it did, not when it was handed over. Pure."""
    return msgspec.structs.replace(apply(state, 0, state.epoch, record), time=state.time)


class AgentCall(msgspec.Struct, frozen=True):
    """A call, and the agent that made it."""

    agent: str
    call: RecentCall


def calls_since(state: State) -> tuple[AgentCall, ...]:
    """The calls that other agents made since the agent that has the job now had it last, as far as the log keeps them
    at hand, oldest first; those that only read are left out. Pure."""
    since = state.handoff.since if state.handoff else 0
    made = (c for c in state.recent if c.call > since and c.cls != "read_only" and c.how)
    return tuple(AgentCall(_agent_at(state, c.time), c) for c in made)


def _agent_at(state: State, time: float) -> str:
    """The agent that had the job then: that of the newest opening before, or of the agent before this one."""
    agents = [o.opening.agent for o in state.openings if o.opening.time <= time]
    return agents[-1] if agents else state.handoff.before if state.handoff else ""


class Transcript(msgspec.Struct, frozen=True):
    """Where the conversations of the agents before can be read. `parts`: oldest first; `agents`: whose they are, the
    newest last. `problem`: what is missing and why, in sentences."""

    parts: tuple[Path, ...] = ()
    agents: tuple[str, ...] = ()
    problem: str = ""


def write_transcript(folder: Path, state: State, main_files: Mapping[str, str], blobs: Blobs) -> Transcript:
    """Write what all agents before said and did as Markdown into `folder`, which is made. `main_files`: of each agent,
    the name of its session. Never fails."""
    assert state.handoff is not None
    last = state.handoff.before
    agents = [*(name for name in state.shelf if name not in (last, state.handoff.agent)), last]
    problems: list[str] = []
    found: dict[str, FileState] = {}
    for agent in agents:
        left = state.shelf.get(agent)
        file = left.files.get(main_files.get(agent, "")) if left else None
        if file is None or file.size == 0:
            problems.append(f"Nothing of {agent}'s conversation was saved.")
        elif file.size > MAX_SOURCE:
            problems.append(f"{agent}'s conversation is too long for a transcript.")
        else:
            found[agent] = file
    try:
        if found:
            make_private_folder(folder)
            return _write_parts(folder, found, blobs, problems)
    except OSError as error:
        problems.append(f"No transcript could be written: {error.strerror}.")
    return Transcript(problem=" ".join(problems))


def _write_parts(folder: Path, files: Mapping[str, FileState], blobs: Blobs, problems: list[str]) -> Transcript:
    told: list[str] = []

    def entries(scratch: Path) -> Iterator[str]:
        for n, (agent, file) in enumerate(files.items()):
            try:
                write_file(blobs, file, scratch / str(n))
                with (scratch / str(n)).open("rb") as lines:
                    said = map(describe, read_lines(lines))
                    if (first := next(said, None)) is None:
                        problems.append(f"{agent}'s saved conversation holds no text.")
                        continue
                    told.append(agent)
                    yield f"# The conversation of {agent}\n\n{first}"
                    yield from said
            except Damaged as error:
                problems.append(f"{agent}'s conversation cannot be read: {error.what}")

    with tempfile.TemporaryDirectory(prefix="wal-agent-handoff-", dir=folder) as scratch:
        newest = deque(enumerate(split(entries(Path(scratch)))), maxlen=MAX_PARTS)
    written = tuple(_write_part(folder, n + 1, text) for n, text in newest)
    if newest and (dropped := newest[0][0]):
        problems.append(f"The first {dropped} parts are left out.")
    return Transcript(written, tuple(told), " ".join(problems))


def _write_part(folder: Path, number: int, text: str) -> Path:
    path = folder / f"part-{number}.md"
    path.touch(0o600)
    path.write_text(redact(text), "utf-8", errors="replace")
    return path


def describe(line: Line) -> str:
    """One entry of the transcript. Pure."""
    said = f", {clock_time(line.time)} UTC" if line.time else ""
    return f"## {line.role or 'other'}{said}\n\n{line.text.strip()}\n\n"


def split(entries: Iterable[str], size: int = PART) -> Iterator[str]:
    """Join entries to parts of at most `size` characters; a longer entry is a part of its own. Pure."""
    part: list[str] = []
    length = 0
    for entry in entries:
        if part and length + len(entry) > size:
            yield "".join(part)
            part, length = [], 0
        part.append(entry)
        length += len(entry)
    if part:
        yield "".join(part)
