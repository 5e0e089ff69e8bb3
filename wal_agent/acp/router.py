"""Decide where each message of the Agent Client Protocol goes. Pure: bytes and processes are serve.py's.

Source: version 1 of the protocol, agentclientprotocol.com (JSON-RPC 2.0, one message a line). Messages pass unchanged
but for the ids of an agent's own requests, since several agents may use the same. The client sees one agent. Behind it
are the reception, an agent without a session, for what concerns none, and for each session a run of its own, whose
agent is given the client's `initialize` and `authenticate` first. The reception has no hooks: only what is named here
goes to it, so that nothing runs there. Any method of a session goes to the agent of that session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]
Id = str | int

VERSION = 1  # of the protocol; some agents would serve a draft of the next one
RECEPTION = 0  # the number of the agent without a session; runs are counted from 1
ALONE = ("initialize", "authenticate", "logout", "session/list")  # what the reception answers
FORK = "session/fork"
NEW = ("session/new", FORK)  # whose answer has the session's id
KNOWN = ("session/load", "session/resume")
DELETE = "session/delete"
CAPABILITIES_OUT = {  # of the agent, by group; "": beside the groups
    "": ("providers", "nes"),  # would be settings of the reception alone
    "mcpCapabilities": ("acp",),  # its messages name no session
    "sessionCapabilities": ("delete", "additionalDirectories"),  # the log stays; other folders are not saved
}
NO_TERMINAL = {"terminal": False}  # of the client: a command runs below its run, where what becomes of it is seen
UNASKED = ("terminal/", "mcp/")  # what begins so is refused to an agent, which was told that there is no such thing
CANCEL = "$/cancel_request"
OURS = "wal-agent"  # the id of what only a run's agent is asked
INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, FAILED = -32600, -32601, -32602, -32603


class ToClient(msgspec.Struct, frozen=True):
    message: Json


class ToAgent(msgspec.Struct, frozen=True):
    agent: int
    message: Json


class Begin(msgspec.Struct, frozen=True):
    """Start a run in `folder`, and send it `first`; `session`: the id of the session that it goes on with, "" for a new
    one. `source`: the session and the folder of which it is to be a fork."""

    agent: int
    folder: str
    session: str
    first: Json
    source: tuple[str, str] | None = None


class Opened(msgspec.Struct, frozen=True):
    """The client knows the session now. `new`: it is not one that it had before."""

    agent: int
    session: str
    folder: str
    new: bool


class AddSessions(msgspec.Struct, frozen=True):
    """Answer the client with this list of sessions and those that only the bucket has. `folder`: "" for all."""

    message: Json
    folder: str


class Finish(msgspec.Struct, frozen=True):
    """Nothing more goes to this agent."""

    agent: int


Action = ToClient | ToAgent | Begin | Opened | AddSessions | Finish


class _Run(msgspec.Struct):
    """An agent with a session, or that is to open one. `setup`: what it is asked before `opening`, the client's."""

    opening: Json
    setup: list[Json]
    folder: str
    session: str = ""


class Router(msgspec.Struct):
    """The state of one client's connection. `forks`: the agent's forks of sessions may be offered."""

    forks: bool = True
    _setup: dict[str, Json] = {}  # by method: what each agent is asked first
    _runs: dict[int, _Run] = {}
    _asked: dict[Id, tuple[int, Json]] = {}  # the client's open requests, and who has them
    _asks: dict[str, tuple[int, Id]] = {}  # open requests of agents, by the id for the client
    _begun: int = 0
    _forwarded: int = 0

    def from_client(self, message: Json) -> list[Action]:
        """Return what a message of the client's leads to."""
        method, at = message.get("method"), message.get("id")
        if not isinstance(method, str):
            return self._answered(message)
        if at is None:
            return self._noted(method, message)
        if not isinstance(at, str | int) or at == OURS or at in self._asked:
            known = at if isinstance(at, str | int) else None
            return [_refusal(known, INVALID_REQUEST, "The id of a request must be new, a string or a number.")]
        params = _object(message.get("params"))
        session = params.get("sessionId")
        if method == FORK and not self.forks:
            return [
                _refusal(at, NO_METHOD, "A restored fork would lack its beginning. Start a new session: session/new.")
            ]
        if method == DELETE:
            return [
                _refusal(at, NO_METHOD, "wal-agent keeps each session's log. To delete one: wal-agent rm --job JOB")
            ]
        if method == "initialize":
            able = {**_object(params.get("clientCapabilities")), **NO_TERMINAL}
            asked = {**params, "protocolVersion": VERSION, "clientCapabilities": able}
            return self._ask(RECEPTION, {**message, "params": asked})
        if method in ALONE:
            return self._ask(RECEPTION, message)
        live = self._live(session)
        if method in NEW or (method in KNOWN and live is None):
            return self._open(message, params, live)
        if live is not None:
            return self._ask(live, message)
        if isinstance(session, str):
            why = f"No session {session!a:.80} is open here. Load it first: session/load."
            return [_refusal(at, INVALID_PARAMS, why)]
        return [_refusal(at, NO_METHOD, f"wal-agent passes {method!a:.80} on to no agent.")]

    def from_agent(self, agent: int, message: Json) -> list[Action]:
        """Return what a message of an agent's leads to."""
        method, at = message.get("method"), message.get("id")
        if isinstance(method, str) and at is None:
            if method == CANCEL:
                wanted = _object(message.get("params")).get("requestId")
                known = [ours for ours, whose in self._asks.items() if whose == (agent, wanted)]
                return [ToClient({**message, "params": {"requestId": ours}}) for ours in known]
            return [ToClient(message)]
        if not isinstance(at, str | int):
            return []
        if isinstance(method, str):
            if method.startswith(UNASKED):
                return [ToAgent(agent, _refusal(at, NO_METHOD, f"The client has no {method!a:.80} here.").message)]
            self._forwarded += 1
            ours = f"{agent}.{self._forwarded}"
            self._asks[ours] = agent, at
            return [ToClient({**message, "id": ours})]
        if at == OURS:
            return self._set_up(agent, message)
        asked = self._asked.get(at)
        if asked is None or asked[0] != agent:
            return []
        del self._asked[at]
        return self._settled(agent, asked[1], message)

    def gone(self, agent: int, why: str) -> list[Action]:
        """Return what the end of an agent leads to. `why`: for the client, where it waits for an answer or has a
        session there; "": the end was asked for."""
        run = self._runs.pop(agent, None)
        self._asks = {ours: whose for ours, whose in self._asks.items() if whose[0] != agent}
        open = [at for at, (whose, _) in self._asked.items() if whose == agent]
        for at in open:
            del self._asked[at]
        if open:
            return [_refusal(at, FAILED, why or "The session is closed.") for at in open]
        return [tell(run.session, why)] if run is not None and run.session and why else []

    # ---- the client's

    def _answered(self, message: Json) -> list[Action]:
        whose = self._asks.pop(str(message.get("id")), None)
        return [] if whose is None else [ToAgent(whose[0], {**message, "id": whose[1]})]

    def _noted(self, method: str, message: Json) -> list[Action]:
        params = _object(message.get("params"))
        if method == CANCEL:
            asked = self._asked.get(params.get("requestId", ""))
            return [] if asked is None else [ToAgent(asked[0], message)]
        live = self._live(params.get("sessionId"))
        return [] if live is None else [ToAgent(live, message)]

    def _ask(self, agent: int, message: Json) -> list[Action]:
        self._asked[message["id"]] = agent, message
        return [ToAgent(agent, message)]

    def _open(self, message: Json, params: Mapping[str, Any], live: int | None) -> list[Action]:
        """`live`: the agent of the session that the message names."""
        at, folder, session = message["id"], params.get("cwd"), params.get("sessionId", "")
        if "initialize" not in self._setup:
            return [_refusal(at, INVALID_REQUEST, "Send initialize first.")]
        if not isinstance(folder, str) or not isinstance(session, str):
            return [_refusal(at, INVALID_PARAMS, "cwd and sessionId must be strings.")]
        source = None
        if message["method"] == FORK:
            if live is None:
                return [
                    _refusal(at, INVALID_PARAMS, f"No session {session!a:.80} is open here. Load it, then fork it.")
                ]
            if any(whose == live and asked["method"] == "session/prompt" for whose, asked in self._asked.values()):
                return [_refusal(at, INVALID_REQUEST, "A turn of this session has not ended. Fork it when it has.")]
            source = session, self._runs[live].folder
        self._begun += 1
        agent = self._begun
        first, *rest = [{**asked, "id": OURS} for asked in self._setup.values()]
        self._runs[agent] = _Run(message, rest, folder)
        self._asked[at] = agent, message
        return [Begin(agent, folder, session if message["method"] in KNOWN else "", first, source)]

    def _live(self, session: object) -> int | None:
        return next((n for n, run in self._runs.items() if run.session and run.session == session), None)

    # ---- an agent's

    def _set_up(self, agent: int, message: Json) -> list[Action]:
        run = self._runs.get(agent)
        if run is None or run.session:
            return []
        at = run.opening["id"]
        if "error" in message:
            self._asked.pop(at, None)
            return [ToClient({"jsonrpc": "2.0", "id": at, "error": message["error"]}), Finish(agent)]
        return [ToAgent(agent, run.setup.pop(0) if run.setup else run.opening)]

    def _settled(self, agent: int, asked: Json, message: Json) -> list[Action]:
        """The agent has answered a request of the client's."""
        method, params, done = asked["method"], _object(asked.get("params")), "error" not in message
        result = _object(message.get("result"))
        if method == "initialize" and done:
            self._setup[method] = asked
            return [ToClient({**message, "result": self._without(result)})]
        if method == "authenticate" and done:
            self._setup[method] = asked
            told = [ToAgent(n, {**asked, "id": OURS}) for n, run in self._runs.items() if run.session]
            return [ToClient(message), *told]
        if method == "logout" and done:
            self._setup.pop("authenticate", None)
        if method == "session/list" and done:
            folder = params.get("cwd")
            return [AddSessions(message, folder if isinstance(folder, str) else "")]
        run = self._runs.get(agent)
        if run is None or run.opening is not asked:
            return [ToClient(message), *([Finish(agent)] if method == "session/close" and done else [])]
        if not done:
            return [ToClient(message), Finish(agent)]
        known = result.get("sessionId") if method in NEW else params.get("sessionId")
        run.session = str(known)
        return [ToClient(message), Opened(agent, run.session, run.folder, method in NEW)]

    def _without(self, result: Json) -> Json:
        """The answer to initialize without what is not passed on."""
        able = _object(result.get("agentCapabilities"))
        kept = {name: at for name, at in able.items() if name not in CAPABILITIES_OUT[""]}
        for group in CAPABILITIES_OUT.keys() & kept.keys():
            kept[group] = {name: at for name, at in _object(kept[group]).items() if name not in CAPABILITIES_OUT[group]}
        if not self.forks and "sessionCapabilities" in kept:
            kept["sessionCapabilities"].pop("fork", None)
        return {**result, "agentCapabilities": kept}


def tell(session: str, text: str) -> ToClient:
    """Return a message of the agent's to the person, outside of its turns."""
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": session, "update": chunk}
    return ToClient({"jsonrpc": "2.0", "method": "session/update", "params": params})


def with_sessions(message: Json, more: Sequence[Json]) -> Json:
    """Return the answer to session/list with the sessions that it lacks at its end."""
    result = _object(message.get("result"))
    listed = result.get("sessions")
    listed = listed if isinstance(listed, list) else []
    known = {each.get("sessionId") for each in listed if isinstance(each, dict)}
    return {**message, "result": {**result, "sessions": [*listed, *(m for m in more if m["sessionId"] not in known)]}}


def _refusal(at: object, code: int, why: str) -> ToClient:
    return ToClient({"jsonrpc": "2.0", "id": at, "error": {"code": code, "message": why}})


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}
