"""Where each message of the Agent Client Protocol goes: one client, several agents, none of them trusted."""

from __future__ import annotations

from typing import Any, Literal

import acp
import acp.meta
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.acp.router import (
    FAILED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    NO_METHOD,
    RECEPTION,
    Action,
    AddSessions,
    Begin,
    Finish,
    Opened,
    Router,
    ToAgent,
    ToClient,
    with_sessions,
)

Json = dict[str, Any]


def ask(method: str, at: int | str, **params: object) -> Json:
    return {"jsonrpc": "2.0", "id": at, "method": method, "params": params}


def answer(at: object, **result: object) -> Json:
    return {"jsonrpc": "2.0", "id": at, "result": result}


def code(actions: list[Action]) -> int:
    (only,) = actions
    assert isinstance(only, ToClient)
    return int(only.message["error"]["code"])


def begun(**capabilities: object) -> Router:
    router = Router()
    router.from_client(ask("initialize", 1, protocolVersion=1))
    router.from_agent(RECEPTION, answer(1, protocolVersion=1, agentCapabilities=capabilities))
    return router


def opened(router: Router, at: int = 10, session: str = "s1", folder: str = "/work") -> int:
    """Open a new session; return the number of its agent."""
    (begin,) = router.from_client(ask("session/new", at, cwd=folder))
    assert isinstance(begin, Begin)
    (passed,) = router.from_agent(begin.agent, answer(begin.first["id"]))
    assert passed == ToAgent(begin.agent, ask("session/new", at, cwd=folder))
    done, known = router.from_agent(begin.agent, answer(at, sessionId=session))
    assert done == ToClient(answer(at, sessionId=session))
    assert known == Opened(begin.agent, session, folder, True)
    return begin.agent


def test_the_client_is_told_nothing_that_cannot_be_kept() -> None:
    router = Router()
    mine = {"fs": {"readTextFile": True}, "terminal": True}
    passed = ask("initialize", 1, protocolVersion=1, clientCapabilities={**mine, "terminal": False})
    asked = ask("initialize", 1, protocolVersion=2, clientCapabilities=mine)
    assert router.from_client(asked) == [ToAgent(RECEPTION, passed)]
    kept = {"loadSession": True, "sessionCapabilities": {"list": {}, "fork": {}}, "mcpCapabilities": {"http": True}}
    able = {
        **kept,
        "sessionCapabilities": {"list": {}, "fork": {}, "delete": {}, "additionalDirectories": {}},
        "mcpCapabilities": {"http": True, "acp": True},
        "providers": {},
        "nes": {},
    }
    (told,) = router.from_agent(RECEPTION, answer(1, agentCapabilities=able))
    assert isinstance(told, ToClient)
    assert told.message["result"]["agentCapabilities"] == kept

    whole = begun(**able)
    without = Router(forks=False)
    without.from_client(asked)
    (told,) = without.from_agent(RECEPTION, answer(1, agentCapabilities=able))
    assert isinstance(told, ToClient)
    assert "fork" not in told.message["result"]["agentCapabilities"]["sessionCapabilities"]
    for router in (without, whole):
        opened(router)
    fork = ask("session/fork", 12, sessionId="s1", cwd="/work")
    assert code(without.from_client(fork)) == NO_METHOD
    assert isinstance(whole.from_client(fork)[0], Begin)


# What becomes of each request and notification of the protocol's schema that a client may send: it goes to the
# reception, to the agent of its session, begins a run, or is refused.
WAYS: dict[str, Literal["reception", "session", "run", "refused"]] = {
    "initialize": "reception",
    "authenticate": "reception",
    "logout": "reception",
    "session/list": "reception",
    "session/new": "run",
    "session/load": "run",
    "session/resume": "run",
    "session/fork": "run",
    "session/prompt": "session",
    "session/cancel": "session",
    "session/close": "session",
    "session/set_mode": "session",
    "session/set_config_option": "session",
    "session/delete": "refused",
    "providers/list": "refused",
    "providers/set": "refused",
    "providers/disable": "refused",
    "mcp/message": "refused",
    **dict.fromkeys((f"nes/{name}" for name in ("start", "suggest", "accept", "reject", "close")), "refused"),
    **dict.fromkeys((f"document/did{name}" for name in ("Open", "Change", "Close", "Save", "Focus")), "refused"),
}


def test_each_method_of_the_schema_has_a_way() -> None:
    """I1: the reception, whose hooks are silent, gets nothing that could run a tool."""
    assert WAYS.keys() == set(acp.meta.AGENT_METHODS.values())
    for method, way in WAYS.items():
        router = begun()
        agent, other = opened(router, 10, "s1"), opened(router, 11, "s2")
        named = "s3" if method in ("session/load", "session/resume") else "s2"
        (first, *_) = router.from_client(
            ask(method, 12, cwd="/work", **({"sessionId": named} if way != "refused" else {}))
        )
        match way:
            case "reception":
                assert isinstance(first, ToAgent) and first.agent == RECEPTION, method
            case "session":
                assert isinstance(first, ToAgent) and first.agent == other, method
            case "run":
                assert isinstance(first, Begin) and first.agent not in (agent, other), method
            case "refused":
                assert code([first]) == NO_METHOD, method
    assert code(router.from_client(ask("session/delete", 13, sessionId="s1"))) == NO_METHOD


# What becomes of each request and notification of an agent's.
FROM_AGENT: dict[str, Literal["client", "refused"]] = {
    "session/request_permission": "client",
    "session/update": "client",
    "fs/write_text_file": "client",
    "fs/read_text_file": "client",
    "elicitation/create": "client",
    "elicitation/complete": "client",
    **dict.fromkeys(
        (f"terminal/{name}" for name in ("create", "output", "release", "wait_for_exit", "kill")), "refused"
    ),
    **dict.fromkeys((f"mcp/{name}" for name in ("connect", "message", "disconnect")), "refused"),
}


def test_an_agent_gets_from_the_client_what_it_was_told_that_it_may() -> None:
    """I8: no command runs in the editor's terminal, where nothing proves what became of it."""
    assert FROM_AGENT.keys() == set(acp.meta.CLIENT_METHODS.values())
    router = begun()
    agent = opened(router)
    for method, way in FROM_AGENT.items():
        (only,) = router.from_agent(agent, ask(method, 0, sessionId="s1"))
        if way == "client":
            assert isinstance(only, ToClient), method
        else:
            assert isinstance(only, ToAgent), method
            assert (only.agent, only.message["error"]["code"]) == (agent, NO_METHOD)


@pytest.mark.parametrize("method", ["_session/rename", "qwen/control/session/close", "session/set_model", "x"])
def test_a_method_that_the_schema_lacks_needs_a_session_that_is_open(method: str) -> None:
    """I1: an agent's own extensions reach only agents whose hooks log."""
    router = begun()
    agent = opened(router)
    asked = ask(method, 12, sessionId="s1")
    assert router.from_client(asked) == [ToAgent(agent, asked)]
    assert code(router.from_client(ask(method, 13, sessionId="s2"))) == INVALID_PARAMS
    assert code(router.from_client(ask(method, 14))) == NO_METHOD
    assert router.from_client({"jsonrpc": "2.0", "method": method, "params": {}}) == []


def test_a_fork_is_a_run_of_its_own_made_by_the_agent_from_its_copy() -> None:
    router = begun()
    source = opened(router, 10, "s1", "/source")
    fork = ask("session/fork", 11, sessionId="s1", cwd="/work")
    assert code(router.from_client({**fork, "params": {"sessionId": "s2", "cwd": "/work"}})) == INVALID_PARAMS
    router.from_client(ask("session/prompt", 12, sessionId="s1"))
    assert code(router.from_client(fork)) == INVALID_REQUEST, "its turn may make a call that the fork would not know of"
    router.from_agent(source, answer(12, stopReason="end_turn"))
    (begin,) = router.from_client(fork)
    assert isinstance(begin, Begin)
    assert (begin.session, begin.source) == ("", ("s1", "/source"))
    assert router.from_agent(begin.agent, answer("wal-agent")) == [ToAgent(begin.agent, fork)]
    told = router.from_agent(begin.agent, answer(11, sessionId="s2"))
    assert told == [ToClient(answer(11, sessionId="s2")), Opened(begin.agent, "s2", "/work", True)]
    for session, agent in (("s1", source), ("s2", begin.agent)):
        prompt = ask("session/prompt", f"p{session}", sessionId=session)
        assert router.from_client(prompt) == [ToAgent(agent, prompt)]


def test_agents_of_sessions_follow_a_login_and_new_ones_a_logout() -> None:
    router = begun()
    agent = opened(router)
    router.from_client(ask("authenticate", 2, methodId="key"))
    told, passed = router.from_agent(RECEPTION, answer(2))
    assert told == ToClient(answer(2))
    assert passed == ToAgent(agent, {**ask("authenticate", 2, methodId="key"), "id": "wal-agent"})
    assert router.from_agent(agent, answer("wal-agent")) == []
    router.from_client(ask("logout", 3))
    router.from_agent(RECEPTION, answer(3))
    opened(router, 11, "s2")


def test_each_session_has_an_agent_of_its_own_that_is_set_up_as_the_client_did() -> None:
    router = begun()
    router.from_client(ask("authenticate", 2, methodId="key"))
    router.from_agent(RECEPTION, answer(2))
    (begin,) = router.from_client(ask("session/new", 3, cwd="/work"))
    assert isinstance(begin, Begin)
    assert begin.first["method"] == "initialize"
    after = [a for _ in range(2) for a in router.from_agent(begin.agent, answer("wal-agent"))]
    assert [a.message["method"] for a in after if isinstance(a, ToAgent)] == ["authenticate", "session/new"]


def test_a_refused_setup_ends_the_run_and_answers_the_client() -> None:
    router = begun()
    (begin,) = router.from_client(ask("session/new", 3, cwd="/work"))
    assert isinstance(begin, Begin)
    error = {"code": -32000, "message": "log in"}
    told, end = router.from_agent(begin.agent, {"jsonrpc": "2.0", "id": "wal-agent", "error": error})
    assert told == ToClient({"jsonrpc": "2.0", "id": 3, "error": error})
    assert end == Finish(begin.agent)


def test_a_message_goes_to_the_agent_of_its_session() -> None:
    router = begun()
    first, second = opened(router, 10, "s1"), opened(router, 11, "s2")
    for agent, session in ((first, "s1"), (second, "s2")):
        prompt = ask("session/prompt", f"p{session}", sessionId=session)
        assert router.from_client(prompt) == [ToAgent(agent, prompt)]
        cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
        assert router.from_client(cancel) == [ToAgent(agent, cancel)]
    stop = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "ps2"}}
    assert router.from_client(stop) == [ToAgent(second, stop)]


def test_two_agents_may_use_one_id() -> None:
    router = begun()
    agents = [opened(router, 10, "s1"), opened(router, 11, "s2")]
    asked = [router.from_agent(agent, ask("session/request_permission", 0, sessionId="s")) for agent in agents]
    ids = [a.message["id"] for (a,) in asked if isinstance(a, ToClient)]
    assert len(set(ids)) == 2
    for agent, at in zip(agents, ids, strict=True):
        assert router.from_client(answer(at, outcome="x")) == [ToAgent(agent, answer(0, outcome="x"))]
        assert router.from_client(answer(at, outcome="x")) == []  # once


def test_an_agent_answers_only_what_it_was_asked() -> None:
    router = begun()
    first, second = opened(router, 10, "s1"), opened(router, 11, "s2")
    router.from_client(ask("session/prompt", 12, sessionId="s1"))
    assert router.from_agent(second, answer(12, stopReason="end_turn")) == []
    assert router.from_agent(first, answer(12, stopReason="end_turn")) == [ToClient(answer(12, stopReason="end_turn"))]
    assert router.from_agent(first, answer(12)) == []


def test_what_waits_for_an_agent_that_ends_is_answered() -> None:
    router = begun()
    agent = opened(router)
    router.from_client(ask("session/prompt", 12, sessionId="s1"))
    assert code(router.gone(agent, "it ended with 137")) == FAILED
    assert code(router.from_client(ask("session/prompt", 13, sessionId="s1"))) == INVALID_PARAMS
    (begin,) = router.from_client(ask("session/load", 14, sessionId="s1", cwd="/work"))
    assert isinstance(begin, Begin)
    assert (begin.agent, begin.folder, begin.session) == (2, "/work", "s1")


def test_an_end_that_was_asked_for_is_not_told() -> None:
    router = begun()
    agent = opened(router)
    close = ask("session/close", 12, sessionId="s1")
    assert router.from_client(close) == [ToAgent(agent, close)]
    assert router.from_agent(agent, answer(12)) == [ToClient(answer(12)), Finish(agent)]
    assert router.gone(agent, "") == []


def test_a_list_is_completed() -> None:
    router = begun()
    router.from_client(ask("session/list", 2, cwd="/work"))
    assert router.from_agent(RECEPTION, answer(2, sessions=[])) == [AddSessions(answer(2, sessions=[]), "/work")]
    mine = [{"sessionId": "a", "cwd": "/work"}, {"sessionId": "b", "cwd": "/work"}]
    whole = with_sessions(answer(2, sessions=[{"sessionId": "a", "title": "t"}]), mine)
    assert [each["sessionId"] for each in whole["result"]["sessions"]] == ["a", "b"]
    assert with_sessions(answer(2, sessions="no list"), [])["result"]["sessions"] == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ask("session/prompt", 5, sessionId="none"), INVALID_PARAMS),
        (ask("session/new", 5), INVALID_PARAMS),
        (ask("session/load", 5, cwd="/work", sessionId=7), INVALID_PARAMS),
        ({**ask("session/new", 5), "id": None, "x": 1, "method": "session/new"}, 0),
        (ask("session/new", "wal-agent", cwd="/work"), INVALID_REQUEST),
    ],
)
def test_what_cannot_be_meant_is_refused(message: Json, expected: int) -> None:
    actions = begun().from_client(message)
    assert code(actions) == expected if expected else all(isinstance(a, ToAgent) for a in actions)


def test_an_id_that_is_none_is_not_sent_back() -> None:
    (told,) = begun().from_client({"jsonrpc": "2.0", "id": {"a": 1}, "method": "x"})
    assert isinstance(told, ToClient)
    assert told.message["id"] is None


def test_nothing_is_opened_before_initialize() -> None:
    assert code(Router().from_client(ask("session/new", 1, cwd="/work"))) == INVALID_REQUEST


scalars = st.none() | st.booleans() | st.integers(-2, 14) | st.sampled_from(["s1", "/work", "wal-agent", "1.1", ""])
METHODS = """initialize authenticate session/new session/load session/prompt session/close session/list session/cancel
session/update session/request_permission $/cancel_request session/fork x"""
methods = st.sampled_from(METHODS.split())
params = st.dictionaries(st.sampled_from(["sessionId", "cwd", "requestId", "methodId"]), scalars, max_size=3)
parts = {
    "id": scalars | st.lists(scalars, max_size=1),
    "method": methods | scalars,
    "params": params | scalars,
    "result": params | scalars,
    "error": params,
}
hostile = st.fixed_dictionaries({}, optional=parts)


@given(st.lists(st.tuples(st.sampled_from(["client", "agent", "gone"]), st.integers(0, 3), hostile), max_size=25))
def test_no_message_breaks_the_router(messages: list[tuple[str, int, Json]]) -> None:
    router = begun()
    opened(router)
    for sender, agent, message in messages:
        if sender == "client":
            router.from_client(message)
        elif sender == "agent":
            router.from_agent(agent, message)
        else:
            router.gone(agent, "it ended")
