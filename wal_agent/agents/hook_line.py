"""What a hook runs and exchanges: the wire between the hook client (hooks/client.c or .py) and the supervisor's socket,
the table of an agent's events, the answers to it, the shell line of a command hook, and the extension folder that holds
the hooks of one run.

One connection is one hook call. A frame is one byte of kind, four bytes of length (big endian), then the body:

    client  H  hello: "wal-agent-hook/1" NUL run NUL agent NUL event NUL client pid NUL agent pid
            D  a piece of what the agent wrote to the hook (any number of them, in order)
            E  end of the payload, empty
    server  A  answer: exactly what the client prints; for Gemini it ends with a NUL, which proves that it is whole
    client  T  told, empty: the answer is out. No T means that nobody knows what the agent was told (R7).

Whatever does not fit (order, size, version, numbers) raises `WireError`; the server then closes, the client ends
without a word, and the shell line denies.

Agents fail open: a hook that is missing, hangs, is killed or prints nothing lets the tool run. So the shell line, which
gets the payload on stdin, prints a refusal by itself unless the client brought a whole answer in time (I5). Only bash
built-ins decide, as of bash 3.2; no `timeout`, which macOS lacks. The deadlines nest: server < client < shell < agent.

The agent's own limit must never expire, since the tool then runs. Agent and hook may both be frozen for minutes (^Z, a
paused container), and an agent that thaws checks its limit before it reads the hook's output.

An extension folder `wal-agent-<run>` in the agent's own extensions folder (I7) has hooks that fire whatever the
user's and the project's settings hold, and no file of the user's is touched. Every process of that agent loads it, so
its hooks first ask whose process it is, and its folder appears and vanishes whole, by rename. The agent itself makes
nothing beside it.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.errors import ConfigError, Unreadable
from wal_agent.paths import SOCKET, shipped, shipped_program
from wal_agent.safefs import flock_state, real_path

if TYPE_CHECKING:  # what agents and gate need is imported late: a command that asks a run needs the wire alone
    from wal_agent.agents.base import Decision, Deny, HookEvent, HookSetup, HookTable, Injected

VERSION = "wal-agent-hook/1"
LINE_SIGN = "wal-agent:allow) exit 0;;"  # every hook line has it, also those that were installed long ago
STANDING = "|| exit 0; : wal-agent; "
"""In each line of an agent whose hooks stand in its settings alone (family.py); such a line becomes a hook line."""
MAX_FRAME = 1 << 20  # of one frame's body, either way
MAX_WHY = 200  # characters of why a payload cannot be read
MAX_PAYLOAD = 256 << 20
HEAD = struct.Struct(">cI")

HELLO, DATA, END, ANSWER, TOLD = b"H", b"D", b"E", b"A", b"T"

HOOK_SECONDS = 86_400  # the agent's own limit
SHELL_SECONDS = {True: 30, False: 5}  # firm: may wait for the bucket; other hooks are answered at once
CLIENT_SECONDS = {True: 25, False: 4}
ALLOW = b"wal-agent:allow\0"
_SAY = b"wal-agent:say "

GONE = (
    "wal-agent did not run this: its own hook had no answer from wal-agent (it ended, hangs or is broken), so the "
    "intent could not be saved. Nothing was changed. Do not try other ways; stop here and say so."
)

_ASK = (
    "out=; exec 3<&0; "
    "if IFS= read -r -t %(seconds)d -d '' out < <(exec %(client)s \"$PPID\" %(limit)d <&3 2>/dev/null); then "
    "case $out in "
    "%(sign)s "
    "'wal-agent:say {'*'}') printf '%%s' \"${out#wal-agent:say }\"; exit 0;; "
    "esac; fi; "
)

# How a hook's text begins: as a line that is made here, or with what an extension or installed_hooks.py puts before it.
_BEGINS = re.compile(
    r"out=; exec 3<&0; |(?:r=\$\()?bash -c 'out=; exec 3<&0; "
    r'|\[ "\$\w+" = \S+ \] \|\| \{ IFS= read -r p <|\[ -n "\$WAL_AGENT_RUN" \] && \[ -n "\$WAL_AGENT_SOCKET" \] '
)

REASON = {"reason": "{reason}"}
MCP_NAME = "wal-agent"  # of a run's MCP server, and so part of its tools' names (calls/rules/rules.d/60-tools.toml)
MCP_MARK = "mcp"  # a file in the run's folder, where it has such a server
PREFIX = "wal-agent-"
OWNER = "wal-agent.json"

# A line of its own, so that bash runs it before it parses what follows. The pid is the second way, for an agent that
# strips the environment of its hooks.
_MINE = '[ "$%(marker)s" = %(run)s ] || { IFS= read -r p <%(pid)s && [ "$p" = "$PPID" ]; } 2>/dev/null || exit 0\n'


class WireError(Exception):
    """The peer does not speak this protocol."""


class Hello(msgspec.Struct, frozen=True):
    run: str
    agent: str
    event: str
    pid: int  # of the client process
    agent_pid: int  # parent of the hook's shell; 0 = not known


class Call(msgspec.Struct):
    """One connection, fed with what arrives. `payload` may be used once `complete`; `told` comes after the answer."""

    limit: int = MAX_PAYLOAD
    hello: Hello | None = None
    payload: bytearray = msgspec.field(default_factory=bytearray)
    complete: bool = False
    told: bool = False
    _rest: bytearray = msgspec.field(default_factory=bytearray)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes as they come, cut anywhere."""
        self._rest += data
        at = 0
        while len(self._rest) - at >= HEAD.size:
            kind, size = HEAD.unpack_from(self._rest, at)
            if size > MAX_FRAME:
                raise WireError(f"frame of {size} bytes")
            if len(self._rest) - at - HEAD.size < size:
                break
            start = at + HEAD.size
            at = start + size
            self._take(kind, memoryview(self._rest)[start:at])
        del self._rest[:at]

    def _take(self, kind: bytes, body: memoryview) -> None:
        with body:
            if kind == HELLO and self.hello is None:
                self.hello = decode_hello(bytes(body))
            elif kind == DATA and self.hello is not None and not self.complete:
                if len(self.payload) + len(body) > self.limit:
                    raise WireError(f"payload over {self.limit} bytes")
                self.payload += body
            elif kind == END and self.hello is not None and not self.complete and not body:
                self.complete = True
            elif kind == TOLD and self.complete and not self.told and not body:
                self.told = True
            else:
                raise WireError(f"frame {kind!r} out of order")


def frame(kind: bytes, body: bytes = b"") -> bytes:
    if len(body) > MAX_FRAME:
        raise WireError(f"frame of {len(body)} bytes")
    return HEAD.pack(kind, len(body)) + body


def answer(printed: bytes) -> bytes:
    """The server's one frame."""
    return frame(ANSWER, printed)


def encode_hello(hello: Hello) -> bytes:
    words = (VERSION, hello.run, hello.agent, hello.event, str(hello.pid), str(hello.agent_pid or ""))
    return "\0".join(words).encode()


def decode_hello(body: bytes) -> Hello:
    try:
        version, run, agent, event, pid, agent_pid = body.decode().split("\0")
        hello = Hello(run, agent, event, int(pid), int(agent_pid or 0))
    except ValueError as e:
        raise WireError(f"not a hello: {e}") from e
    if version != VERSION:
        raise WireError(f"version {version!r}, not {VERSION!r}")
    return hello


def client_command() -> tuple[str, ...]:
    """The hook client's argv on this machine: the native one, else a bare interpreter and the script."""
    native = native_client()
    return (str(native),) if native is not None else python_client()


def python_client() -> tuple[str, ...]:
    """The portable client's argv. The interpreter is not a venv's, which adds nothing but time."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    return (str(real_path(base)), "-I", "-S", "-E", str(shipped("hooks/client.py")))


def native_client() -> Path | None:
    """The compiled client, if there is one that belongs to this installation, runs on this machine (a folder may be
    shared by several) and speaks this wire (a checkout moves on without a build)."""
    path = shipped_program("hooks/client")
    try:
        if path and subprocess.run([path, VERSION], stdin=subprocess.DEVNULL, timeout=5, check=False).returncode == 0:
            return path
    except (OSError, subprocess.SubprocessError):
        pass
    return None


Payload = TypeVar("Payload", bound=msgspec.Struct)
Entry = tuple[type[Any], Callable[[Any], "HookEvent"]]


def on(payload: type[Payload], build: Callable[[Payload], HookEvent]) -> Entry:
    """Return an event's entry in an agent's table: the type of its payload, and what becomes of it."""
    return payload, build


def outer(event: str, payload: type[Payload], build: Callable[[Payload], HookEvent]) -> tuple[str, Entry]:
    """Return the entry of an event that means nothing where it is a subagent's own (`agent_id` of the payload)."""
    from wal_agent.agents.base import OtherEvent

    return event, on(payload, lambda p: OtherEvent(event) if getattr(p, "agent_id", "") else build(p))


def parser(events: Mapping[str, Entry]) -> Callable[[str, bytes], HookEvent]:
    """Return an agent's `parse`. It raises Unreadable when a payload is not what its event carries: the caller then
    denies."""
    from wal_agent.agents.base import OtherEvent
    from wal_agent.agents.session_files import well_formed

    decode = msgspec_compat.of_events({event: payload for event, (payload, _) in events.items()})

    def parse(event: str, payload: bytes) -> HookEvent:
        if event not in events:
            return OtherEvent(event)
        try:
            return events[event][1](decode[event].decode(well_formed(payload)))
        except Unreadable:
            raise
        except (msgspec.DecodeError, ValueError, RecursionError) as e:
            why = type(e).__name__ if isinstance(e, UnicodeError | RecursionError) else str(e)[:MAX_WHY]
            raise Unreadable(f"What the hook {event} was given cannot be read: {why}.") from e

    return parse


def renderer(
    refusals: Mapping[str, Callable[[Deny], str]], answers: Mapping[str, Callable[[str, str], bytes]]
) -> Callable[[str, Decision], bytes]:
    """Return an agent's `render`, for a client that hands the answer to the shell line. `refusals`: the agent's own
    refusal of each event that can be refused, any other is always allowed; `answers`: (event, words), the answer that
    adds words to the conversation at each event that can."""
    from wal_agent.agents.base import Allow

    def render(event: str, decision: Decision) -> bytes:
        if isinstance(decision, Allow):
            speak = answers.get(event) if decision.words else None
            return ALLOW if speak is None else speak(event, decision.words)
        refuse = refusals.get(event)
        return ALLOW if refuse is None else refuse_answer(refuse(decision))

    return render


def permission_deny(decision: Deny) -> str:
    """Return the deny of Claude Code and Codex, one line."""
    denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": decision.reason}
    return json.dumps({"hookSpecificOutput": denied})


def skip_pattern(tools: Sequence[str]) -> str:
    """Return a pattern for every tool but these, for an agent whose patterns have look-ahead."""
    return f"^(?!(?:{'|'.join(map(re.escape, tools))})$)"


def is_hook_line(argv: Sequence[str], wrapped: bool = False) -> bool:
    """Return whether this is a shell that runs one of wal-agent's lines and nothing else. `wrapped`: also as the
    argument of another command, but not as a part of what a tool evaluates."""
    ours = [word for word in argv[1:] if LINE_SIGN in word]
    return any(_BEGINS.match(word) or (wrapped and "eval " not in word) for word in ours)


def refuse_answer(refusal: str) -> bytes:
    """Return the answer that makes the line print `refusal`, one JSON object in one line without a raw NUL. The NUL
    behind it proves it whole. For `ALLOW` the line prints nothing: a hook without an opinion (I6)."""
    return _SAY + refusal.encode() + b"\0"


def context_answer(event: str, words: str) -> bytes:
    """Return the answer of Claude Code and Codex that adds `words` to the conversation."""
    return refuse_answer(json.dumps({"hookSpecificOutput": {"hookEventName": event, "additionalContext": words}}))


def speaking_answer(event: str, words: str) -> bytes:
    """Return the answer of Claude Code, Codex and Qwen Code that adds `words`; at a turn's end the turn goes on."""
    if event == "Stop":
        return refuse_answer(json.dumps({"decision": "block", "reason": words}))
    return context_answer(event, words)


def bash_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """Return the line for an agent that runs hooks with bash. Without an answer it prints `refusal` (None: nothing)."""
    client = (*setup.client, str(setup.run_dir / "hook.sock"), setup.run, agent, event)
    ask = _ASK % {
        "seconds": SHELL_SECONDS[firm],
        "client": shlex.join(client),
        "limit": CLIENT_SECONDS[firm],
        "sign": LINE_SIGN,
    }
    return ask + ("exit 0" if refusal is None else f"printf '%s' {shlex.quote(refusal)}; exit 0")


def sh_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """Return the line for an agent that runs hooks with any POSIX shell and blocks on exit code 2 with stderr text."""
    bash = f"bash -c {shlex.quote(bash_line(setup, agent, event, firm, refusal))}"
    return (
        f"{bash} || exit 0" if refusal is None else f"{bash} || {{ printf '%s\\n' {shlex.quote(GONE)} >&2; exit 2; }}"
    )


def exit_line(line: str) -> str:
    """Return a line of `sh_line` whose refusals have the form `REASON`, for an agent that takes only an exit code."""
    text = "r=${r#*': \"'}; r=${r%%\\\"\\}}"
    return f'r=$({line}) || exit $?; [ -z "$r" ] || {{ {text}; printf \'%s\\n\' "$r" >&2; exit 2; }}'


class ExtensionKind(msgspec.Struct, frozen=True):
    """One agent's extensions. `marker`: the variable that tells an agent's process whose it is. `more`: files that
    this agent wants beside its manifest, made for a place."""

    title: str
    manifest: str
    marker: str
    more: Callable[[Path], Mapping[str, str]] = lambda place: {}

    def inject(self, setup: HookSetup, home: Path, table: Mapping[str, object]) -> Injected:
        """Place the extension in `home`/extensions: of the agent's state folder, or of the run's own. ConfigError when
        it cannot be."""
        from wal_agent.agents.base import Injected

        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", setup.run):
            raise ConfigError(f"{setup.run!r} cannot be a run's name.")
        texts = [str(setup.run_dir), *setup.client]
        if any(c in text for text in texts for c in "$\n\0"):
            raise ConfigError(
                f"A path of wal-agent's own holds a character that {self.title}'s hooks cannot carry: {texts}."
            )
        place = home / "extensions" / extension_name(setup.run)
        stage = _beside(home) / f".{place.name}.new"
        try:
            _clear(stage)
            (stage / "hooks").mkdir(parents=True)
            for name, text in self._files(setup, place, table).items():
                (stage / name).write_text(text)
            place.parent.mkdir(exist_ok=True)
            _bury(place, home)  # of the same run, when its agent is started again
            _put(stage, place, self.manifest)
        except OSError as e:
            _clear(stage)
            raise ConfigError(f"{self.title}'s hooks could not be placed in {place}: {e.strerror or e}.") from e
        return Injected(env={self.marker: setup.run}, paths=(place,))

    def _files(self, setup: HookSetup, place: Path, table: Mapping[str, object]) -> dict[str, str]:
        # The agent fills in the variable: no other run's agent finds the context file.
        manifest: dict[str, object] = {
            "name": place.name,
            "version": "1.0.0",
            "contextFileName": f"${self.marker}.md",
        }
        if setup.mcp:
            passed = {name: f"${name}" for name in setup.mcp.variables}  # the agent fills them in
            manifest["mcpServers"] = {MCP_NAME: setup.mcp.as_json(env=passed)}
        return {
            self.manifest: json.dumps(manifest),
            **self.more(place),
            "hooks/hooks.json": json.dumps({"hooks": table}, indent=1),
            OWNER: json.dumps({"host": socket.gethostname(), "lock": str(setup.run_dir / "lock")}),
            f"{setup.run}.md": setup.protocol,
        }


def mcp_args(env: Mapping[str, str], *args: str) -> tuple[str, ...]:
    """Return arguments of an agent that are for a run with an MCP server; () in other runs."""
    return args if SOCKET in env and Path(env[SOCKET]).with_name(MCP_MARK).exists() else ()


def owner_guard(setup: HookSetup, marker: str) -> str:
    """The first line of a hook: it leaves at once in a process of the agent that is not this run's."""
    pid = shlex.quote(str(setup.run_dir / "agent.pid"))
    return _MINE % {"marker": marker, "run": shlex.quote(setup.run), "pid": pid}


def extension_name(run: str) -> str:
    return PREFIX + re.sub(r"[^a-zA-Z0-9-]", "-", run)


def extension_hooks(
    setup: HookSetup, events: Sequence[str], of_tools: Collection[str], line: Callable[[str], str], timeout: int
) -> HookTable:
    """Event -> groups. `of_tools`: events that fire for a tool, and so not for a skipped one. `timeout` in the agent's
    own unit."""
    table: HookTable = {}
    for event in events:
        hook = {
            "name": extension_name(setup.run),  # of this run only: a name that was disabled once is not met again
            "type": "command",
            "command": line(event),
            "timeout": timeout,
        }
        group: dict[str, object] = {"hooks": [hook]}
        if event in of_tools and setup.skip:
            group = {"matcher": skip_pattern(setup.skip), **group}
        table[event] = [group]
    return table


def sweep_extensions(home: Path) -> None:
    """Remove the extensions of this host's dead runs; each names its run's lock."""
    for place in home.glob(f"extensions/{PREFIX}*"):
        if not place.is_symlink() and place.is_dir() and _dead(place):
            _bury(place, home)
    for left in _beside(home).glob(f".{PREFIX}*"):  # a stage or a grave that its maker did not come back to
        with suppress(FileNotFoundError):
            if not left.is_symlink() and time.time() - left.stat().st_mtime > 3600:
                _clear(left)


def _beside(home: Path) -> Path:
    """A folder that the agent does not look into, on the file system of the extensions (which may be a link)."""
    return real_path(home / "extensions").parent


def _put(stage: Path, place: Path, manifest: str) -> None:
    """Move a whole extension to its place. Where `extensions` is a mount of its own the manifest comes last: what has
    none is no extension. OSError."""
    try:
        stage.rename(place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(stage, place, ignore=lambda folder, names: [manifest] if folder == str(stage) else [])
        shutil.copyfile(stage / manifest, place / f".{manifest}").rename(place / manifest)
        _clear(stage)


def _bury(place: Path, home: Path) -> None:
    """Take an extension away whole: an agent that starts right now sees all of it or nothing."""
    grave = _beside(home) / f".{place.name}.old"
    _clear(grave)
    try:
        place.rename(grave)
    except OSError as error:
        if error.errno != errno.EXDEV:
            return
        for manifest in place.glob("*-extension.json"):
            manifest.unlink(missing_ok=True)
        _clear(place)
    _clear(grave)


def _dead(place: Path) -> bool:
    try:
        owner = json.loads((place / OWNER).read_bytes())
        host, lock = str(owner["host"]), str(owner["lock"])
    except (OSError, ValueError, LookupError, TypeError):
        return False  # not ours, or unreadable: leave it
    return host == socket.gethostname() and flock_state(lock) != "held"


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
