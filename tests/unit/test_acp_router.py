"""Where each message of the Agent Client Protocol goes: one client, several agents, none of them trusted."""

from __future__ import annotations

from typing import Any

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
    passed = ask("initialize", 1, clientCapabilities={**mine, "terminal": False})
    assert router.from_client(ask("initialize", 1, clientCapabilities=mine)) == [ToAgent(RECEPTION, passed)]
    able = {"loadSession": True, "sessionCapabilities": {"list": {}, "fork": {}, "additionalDirectories": {}}}
    (told,) = router.from_agent(RECEPTION, answer(1, agentCapabilities=able))
    assert isinstance(told, ToClient)
    kept = {"loadSession": True, "sessionCapabilities": {"list": {}}}
    assert told.message["result"]["agentCapabilities"] == kept
    assert code(router.from_client(ask("session/fork", 2, sessionId="s1"))) == NO_METHOD


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
