"""The dialects over real HTTP: what a script says is streamed as the API does it, and what a CLI sends back is told."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from wal_agent.rehearsal.dialects import Anthropic, Chat, Gemini, Responses
from wal_agent.rehearsal.model import Called, Dialect, HistoryText, Json, Model, Returned, Turn

READ = ("Read", {"path": "a"})
BASH = ("Bash", {"command": "echo é"})
PATCH = ("apply_patch", {"input": "*** Begin Patch\n*** End Patch"})


def fetch(url: str, body: Json | None = None) -> tuple[int, str, str]:
    """Status, content type and text."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as r:
            return r.status, r.headers["Content-Type"], r.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.headers["Content-Type"], e.read().decode()


def post(url: str, body: Json) -> Json:
    status, kind, text = fetch(url, body)
    assert (status, kind) == (200, "application/json")
    value: Json = json.loads(text)
    return value


def stream(url: str, body: Json) -> list[Json]:
    """The events; one that has a name has it as its type too."""
    status, kind, text = fetch(url, {**body, "stream": True})
    assert (status, kind) == (200, "text/event-stream")
    events: list[Json] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        event: Json = {"type": "done"} if fields["data"] == "[DONE]" else json.loads(fields["data"])
        assert fields.get("event") in (None, event.get("type"))
        events.append(event)
    return events


def test_anthropic() -> None:
    turns = [
        Turn(text="second", when="4 files"),
        Turn(text="look", calls=[READ, BASH]),
        Turn(status=529),
        Turn(text="plain", calls=[READ]),
    ]
    with Model(Anthropic(), turns) as model:
        url = model.url + "/v1/messages?beta=true"
        hello = {"role": "user", "content": "hello"}
        body: Json = {"model": "m", "system": [{"type": "text", "text": "be"}], "tools": [{}], "messages": [hello]}

        side = stream(url, {**body, "tools": []})
        assert [e["delta"]["text"] for e in side if e["type"] == "content_block_delta"] == ["ok"]
        assert post(url, {"messages": [hello]})["content"] == [{"type": "text", "text": "ok"}]
        assert post(model.url + "/v1/messages/count_tokens", body) == {"input_tokens": 100}
        assert fetch(model.url + "/v1/models")[0] == 200
        assert fetch(model.url + "/v1/nothing")[0] == 404
        assert not model.requests

        events = stream(url, body)
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert [e["type"] for e in events] == ["message_start", *block * 3, "message_delta", "message_stop"]
        assert [e["index"] for e in events if e["type"] in block] == [0] * 3 + [1] * 3 + [2] * 3
        assert events[0]["message"]["content"] == []
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert (starts[0], deltas[0]) == ({"type": "text", "text": ""}, {"type": "text_delta", "text": "look"})
        uses = [{**s, "input": json.loads(d["partial_json"])} for s, d in zip(starts[1:], deltas[1:], strict=True)]
        assert [(u["type"], u["name"], u["input"]) for u in uses] == [("tool_use", *READ), ("tool_use", *BASH)]
        one, two = (u["id"] for u in uses)
        assert one != two and one.startswith("toolu_")

        results = [
            {"type": "tool_result", "tool_use_id": one, "content": "an a"},
            {
                "type": "tool_result",
                "tool_use_id": two,
                "content": [{"type": "text", "text": t} for t in ("4 files", "é")],
            },
            {"type": "text", "text": "and?"},
        ]
        said = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "look"}, *uses]
        follow = [hello, {"role": "assistant", "content": said}, {"role": "user", "content": results}]
        assert stream(url, {**body, "messages": follow})[2]["delta"]["text"] == "second"
        assert model.history() == [
            HistoryText("system", "be"),
            HistoryText("user", "hello"),
            HistoryText("model", "look"),
            Called(*READ, one),
            Called(*BASH, two),
            Returned(one, "an a"),
            Returned(two, "4 files\né"),
            HistoryText("user", "and?"),
        ]

        status, _, text = fetch(url, body)
        assert (status, json.loads(text)["error"]["type"]) == (529, "overloaded_error")
        answer = post(url, body)
        assert [b["type"] for b in answer["content"]] == ["text", "tool_use"]
        assert answer["stop_reason"] == "tool_use"
        assert answer["content"][1]["id"] not in (one, two)
        assert len(model.requests) == 4


def test_chat() -> None:
    turns = [
        Turn(text="second", when="an a"),
        Turn(text="look", calls=[READ, BASH]),
        Turn(status=429),
        Turn(calls=[READ]),
    ]
    with Model(Chat(), turns) as model:
        url = model.url + "/v1/chat/completions"
        first = [
            {"role": "system", "content": "an a"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        ]
        body: Json = {"model": "m", "tools": [{}], "messages": first}

        assert stream(url, {"messages": first})[0]["choices"][0]["delta"]["content"] == "ok"
        side = post(url, {"messages": first})["choices"][0]
        assert side == {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        assert fetch(model.url + "/v1/models")[0] == 200
        assert not model.requests

        events = stream(url, body)
        assert events.pop() == {"type": "done"}
        assert {(e["id"], e["object"]) for e in events} == {(events[0]["id"], "chat.completion.chunk")}
        assert events[-1]["choices"] == [] and events[-1]["usage"]["total_tokens"] == 110
        choices = [e["choices"][0] for e in events[:-1]]
        assert [c["finish_reason"] for c in choices] == [None, None, None, "tool_calls"]
        assert choices[0]["delta"] == {"role": "assistant", "content": "look"}
        calls = [call for c in choices for call in c["delta"].get("tool_calls", [])]
        functions = [c["function"] for c in calls]
        assert [c["index"] for c in calls] == [0, 1]
        assert [(f["name"], json.loads(f["arguments"])) for f in functions] == [READ, BASH]
        one, two = (c["id"] for c in calls)
        assert one != two and one.startswith("call_")

        follow = [
            *first,
            {"role": "assistant", "content": "look", "tool_calls": calls},
            {"role": "tool", "tool_call_id": one, "content": "an a"},
            {"role": "tool", "tool_call_id": two, "content": [{"type": "text", "text": "é"}]},
        ]
        assert stream(url, {**body, "messages": follow})[0]["choices"][0]["delta"]["content"] == "second"
        assert model.history() == [
            HistoryText("system", "an a"),
            HistoryText("user", "hello"),
            HistoryText("model", "look"),
            Called(*READ, one),
            Called(*BASH, two),
            Returned(one, "an a"),
            Returned(two, "é"),
        ]

        status, _, text = fetch(url, body)
        assert (status, json.loads(text)["error"]["message"]) == (429, "scripted")
        choice = post(url, body)["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert choice["message"]["tool_calls"][0]["id"] not in (one, two)
        assert len(model.requests) == 4


def test_responses() -> None:
    turns = [
        Turn(text="second", when="an a"),
        Turn(text="look", calls=[BASH, PATCH]),
        Turn(status=500),
        Turn(text="code mode"),
    ]
    with Model(Responses(), turns) as model:
        url = model.url + "/v1/responses"
        first = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "an a"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        ]
        body: Json = {"model": "m", "instructions": "be", "tools": [{}], "input": first}

        side = stream(url, {"input": "hello", "tools": []})
        assert side[-1]["response"]["output"][0]["content"][0]["text"] == "ok"
        assert fetch(model.url + "/v1/models")[0] == 200
        assert not model.requests

        events = stream(url, body)
        item = ["response.output_item.added", "response.output_item.done"]
        text_item = [item[0], "response.output_text.delta", item[1]]
        assert [e["type"] for e in events] == ["response.created", *text_item, *item * 2, "response.completed"]
        done = [e["item"] for e in events if e["type"] == item[1]]
        assert events[-1]["response"]["output"] == done
        assert events[-1]["response"]["id"] == events[0]["response"]["id"]
        assert events[-1]["response"]["end_turn"] is False
        assert events[2]["delta"] == "look"
        message, function, custom = done
        assert (message["type"], message["content"][0]["text"]) == ("message", "look")
        assert (function["type"], function["name"], json.loads(function["arguments"])) == ("function_call", *BASH)
        assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", PATCH[0], PATCH[1]["input"])
        one, two = function["call_id"], custom["call_id"]
        assert one != two and one.startswith("call_")

        follow = [
            *first,
            message,
            {"type": "reasoning", "summary": []},
            function,
            custom,
            {"type": "function_call_output", "call_id": one, "output": "an a"},
            {
                "type": "custom_tool_call_output",
                "call_id": two,
                "output": [{"type": "input_text", "text": "é"}, {"type": "input_text", "text": "b"}],
            },
        ]
        assert stream(url, {**body, "input": follow})[2]["delta"] == "second"
        assert model.history() == [
            HistoryText("system", "be"),
            HistoryText("system", "an a"),
            HistoryText("user", "hello"),
            HistoryText("model", "look"),
            Called(*BASH, one),
            Called(*PATCH, two),
            Returned(one, "an a"),
            Returned(two, "é\nb"),
        ]

        status, _, text = fetch(url, body)
        assert (status, json.loads(text)["error"]["type"]) == (500, "server_error")
        code_mode = [{"type": "additional_tools", "role": "developer", "tools": [{}]}, *first]
        assert stream(url, {"input": code_mode})[2]["delta"] == "code mode"
        assert model.history() == [HistoryText("system", "an a"), HistoryText("user", "hello")]
        assert len(model.requests) == 4


@pytest.mark.parametrize("make", [Anthropic, Chat, Responses])
def test_an_empty_request_is_no_history(make: Callable[[], Dialect]) -> None:
    assert make().history({}) == []
    assert make().last({}) == ""


@pytest.mark.refused
@pytest.mark.parametrize(
    ("dialect", "path", "body", "kind"),
    [
        (Anthropic(), "/v1/messages", {"messages": [{"role": "assistant", "content": "x"}]}, "invalid_request_error"),
        (Chat(), "/v1/chat/completions", {"messages": [{"role": "tool"}]}, "invalid_request_error"),
        (Responses(), "/v1/responses", {"input": [{"type": "function_call_output"}]}, "invalid_request_error"),
        (Gemini(), "/v1beta/models/m:generateContent", {"contents": [{"parts": []}]}, "INVALID_ARGUMENT"),
    ],
)
def test_a_conversation_that_the_api_refuses(dialect: Dialect, path: str, body: Json, kind: str) -> None:
    """As the real one does, with 400 and its own form of an error, before the script has a word in it."""
    with Model(dialect, [Turn("never")]) as model:
        status, _, text = fetch(model.url + path, {**body, "tools": [{"name": "t"}]})
        assert status == 400
        error = json.loads(text)["error"]
        assert kind in (error.get("type"), error.get("status"))
        assert model.requests == [] and len(model.turns) == 1
