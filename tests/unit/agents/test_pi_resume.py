"""A restored session of pi's: what is cut, mended and put back; and twice is once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import pi as PI
from wal_agent.agents.base import LoggedCall
from wal_agent.agents.pi.resume import NOT_BEGUN

WS = Path("/new/place")
START = 1767225600.0  # 2026-01-01
ID = "019f0000-0000-7000-8000-000000000001"
Json = dict[str, Any]


def entry(id: str, parent: str | None, message: Json, second: int = 0) -> Json:
    time = f"2026-01-01T00:00:{second:02}.000Z"
    return {"type": "message", "id": id, "parentId": parent, "timestamp": time, "message": message}


def user(text: str) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}


def answer(*calls: tuple[str, str], text: str = "", stop: str = "toolUse") -> Json:
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "toolCall", "id": id, "name": "bash", "arguments": {"command": c}} for id, c in calls]
    model = {"api": "anthropic-messages", "provider": "p", "model": "m", "usage": {"input": 7, "totalTokens": 9}}
    return {"role": "assistant", "content": content, **model, "stopReason": stop, "timestamp": 1}


def result(id: str, text: str) -> Json:
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": id, "toolName": "bash", "content": content, "isError": False}


HEAD: Json = {"type": "session", "version": 3, "id": ID, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/old"}


def lines(*records: Json) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def call(n: int, id: str, command: str, result: bytes | None = None, failed: bool = False) -> LoggedCall:
    text = json.dumps({"command": command}).encode()
    return LoggedCall(n, "bash", text, result, failed, "" if result else "nobody knows.", START, id)


def done(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


def mended(main: bytes, *calls: LoggedCall) -> tuple[Any, list[Json]]:
    made = PI.reconcile(main, ID, WS, calls)
    again = PI.reconcile(made.data, ID, WS, calls)
    assert again.data == made.data and again.put_back == 0
    return made, [json.loads(x) for x in made.data.splitlines()]


def path(records: list[Json]) -> list[Json]:
    """What pi goes on with: from the last entry up to the root."""
    by_id = {r["id"]: r for r in records[1:]}
    out: list[Json] = []
    at: str | None = records[-1]["id"]
    while at:
        out.insert(0, by_id[at])
        at = by_id[at]["parentId"]
    return out


def told(records: list[Json]) -> list[tuple[str, str]]:
    """Results in the order that the model is told them."""
    messages = [r["message"] for r in path(records) if r["type"] == "message"]
    return [(m["toolCallId"], m["content"][0]["text"]) for m in messages if m["role"] == "toolResult"]


BATCH = (
    HEAD,
    entry("a", None, user("do it")),
    entry("b", "a", answer(("c1", "one"), ("c2", "two"), ("c3", "three"), text="Then.")),
)


def test_an_untouched_file_keeps_its_bytes_but_for_the_folder() -> None:
    main = lines(HEAD, entry("a", None, user("hi")), entry("b", "a", answer(text="yes", stop="stop")))
    made, records = mended(main)
    assert records[0] == {**HEAD, "cwd": str(WS)}
    assert made.data.split(b"\n")[1:] == main.split(b"\n")[1:]
    assert (made.put_back, made.messages, made.repairs) == (0, 2, ())


def test_a_batch_that_was_lost() -> None:
    made, records = mended(lines(*BATCH), call(1, "c1", "one", done("1")), call(2, "c2", "two"))
    assert told(records) == [("c1", "1"), ("c2", "outcome unknown: nobody knows."), ("c3", NOT_BEGUN)]
    assert made.put_back == 2
    assert [r["message"]["isError"] for r in records[-3:]] == [False, True, True]


def test_results_that_the_file_has_stay() -> None:
    main = lines(*BATCH, entry("r1", "b", result("c1", "from the file")))
    _, records = mended(main, call(1, "c1", "one", done("1")), call(2, "c2", "two", done("2")))
    assert told(records) == [("c1", "from the file"), ("c2", "2"), ("c3", NOT_BEGUN)]


def test_the_answer_itself_was_lost() -> None:
    made, records = mended(lines(*BATCH[:2]), call(1, "c1", "one", done("1")), call(2, "c2", "two"))
    assert [c["id"] for c in records[2]["message"]["content"]] == ["c1", "c2"]
    assert told(records) == [("c1", "1"), ("c2", "outcome unknown: nobody knows.")]
    assert made.put_back == 2
    assert path(records)[0]["id"] == "a"


def test_what_was_said_after_a_call_without_a_result_follows_it() -> None:
    later = [entry("u", "b", user("so?")), entry("x", "u", answer(text="hm", stop="stop"))]
    _, records = mended(lines(*BATCH, *later), call(2, "c2", "two", done("2")))
    assert [r["message"]["role"] for r in path(records)] == ["user", "assistant", "toolResult", "user", "assistant"]
    assert told(records) == [("c2", "2")], "what older answers lack is left to pi"


def test_a_torn_tail_and_damaged_lines_do_not_hide_what_was_said() -> None:
    good = lines(*BATCH, entry("r1", "b", result("c1", "1")), entry("r2", "r1", result("c2", "2")))
    rows = good.splitlines(keepends=True)
    rows[3] = b'{"type":"message","id":"r1"\n'
    made, records = mended(b"".join(rows) + b'{"type":"mess' + bytes(9), call(1, "c1", "one", done("1")))
    assert [r["id"] for r in path(records)][:2] == ["a", "b"]
    assert sorted(told(records)) == [("c1", "1"), ("c2", "2"), ("c3", NOT_BEGUN)]
    assert len(made.repairs) == 2


def test_a_lost_first_line() -> None:
    made, records = mended(lines(*BATCH)[30:])
    assert (records[0]["type"], records[0]["id"], records[0]["cwd"]) == ("session", ID, str(WS))
    assert [r["id"] for r in path(records)][:2] == ["a", "b"]
    assert any("first line" in text for text in made.repairs)


def test_what_pi_writes_twice_is_once() -> None:
    """It does so for a session that held no answer yet, as one that a recovery began."""
    main = lines(HEAD, entry("a", None, user("do it")))
    _, records = mended(main + main + lines(entry("b", "a", answer(text="yes", stop="stop"))))
    assert [r.get("id") for r in records] == [ID, "a", "b"]


def test_an_answer_that_broke_off_has_no_calls() -> None:
    _, records = mended(lines(*BATCH[:2], entry("b", "a", answer(("c1", "one"), stop="aborted"))))
    assert len(records) == 3


def test_ids_that_a_model_counts_anew() -> None:
    first = entry("b", "a", answer(("call_0", "one")), 1)
    main = lines(
        *BATCH[:2], first, entry("r", "b", result("call_0", "1"), 2), entry("d", "r", answer(("call_0", "two")), 3)
    )
    calls = [call(1, "call_0", "one", done("1")), call(2, "call_0", "two", done("2"))]
    calls = [LoggedCall(**{**_fields(c), "started": 1767225600.0 + s}) for c, s in zip(calls, (1.5, 3.5), strict=True)]
    made, records = mended(main, *calls)
    assert told(records) == [("call_0", "1"), ("call_0", "2")]
    assert made.put_back == 1


def test_an_id_alone_is_not_a_call() -> None:
    """The answer with the second call was lost; its id is that of the first, which has its result."""
    main = lines(*BATCH[:2], entry("b", "a", answer(("call_0", "one")), 1), entry("r", "b", result("call_0", "ONE"), 2))
    for command in ("deploy", "one"):
        lost = LoggedCall(**{**_fields(call(2, "call_0", command, done("DONE"))), "started": START + 9})
        made, records = mended(main, lost)
        assert made.put_back == 1 and told(records) == [("call_0", "ONE"), ("call_0", "DONE")]
        assert records[-2]["message"]["content"][0]["arguments"] == {"command": command}


def test_an_id_alone_is_not_an_open_call_either() -> None:
    main = lines(*BATCH[:2], entry("b", "a", answer(("call_0", "one")), 8), entry("u", "b", user("so?"), 9))
    early = LoggedCall(**{**_fields(call(2, "call_0", "deploy", done("DONE"))), "started": START + 3})
    _, records = mended(main, early)
    assert [r["message"]["content"][0].get("arguments") for r in records[-2:]] == [{"command": "deploy"}, None]
    other = LoggedCall(**{**_fields(early), "tool": "deploy", "started": START + 9})
    assert mended(main, other)[1][-2]["message"]["content"][0]["name"] == "deploy"


@pytest.mark.parametrize("answered", [True, False])
def test_an_input_that_pi_mended_is_still_that_call(answered: bool) -> None:
    """It makes a number of "5" where the tool wants one; the hook is told of what runs."""
    main = lines(*BATCH[:2], entry("b", "a", answer(("c1", "5")), 1))
    main += lines(entry("r", "b", result("c1", "ran"), 3)) if answered else b""
    logged = LoggedCall(1, "bash", b'{"command":5}', done("ran"), False, "", START + 2, "c1")
    made, records = mended(main, logged)
    assert made.put_back == (not answered) and told(records) == [("c1", "ran")]


def test_ids_that_are_spelt_like_ours() -> None:
    main = lines(*BATCH[:2], entry("b", "a", answer(("wal_call_1", "one")), 1))
    main += lines(entry("r", "b", result("wal_call_1", "ONE"), 2))
    logged = [call(1, "", "other", done("OTHER")), call(2, "wal_call_1", "one", done("ONE"))]
    _, records = mended(main, *logged)
    assert told(records) == [("wal_call_1", "ONE"), ("wal_call_1", "OTHER")]


def test_a_tool_in_the_place_of_one_of_pis_own_has_its_plain_name_in_the_session() -> None:
    logged = [LoggedCall(**{**_fields(c), "tool": "bash (extension)"}) for c in (call(1, "c1", "one", done("1")),)]
    made, records = mended(lines(*BATCH), *logged)
    assert made.put_back == 1 and told(records)[0] == ("c1", "1")
    _, records = mended(lines(*BATCH[:2]), *logged)
    assert [records[-2]["message"]["content"][0]["name"], records[-1]["message"]["toolName"]] == ["bash", "bash"]


def test_what_the_file_tells_has_the_hooks_name_of_a_tool() -> None:
    marked = {**result("c2", "2"), "details": {"wal-agent-tool": "bash (extension)"}, "isError": True}
    seen = PI.seen_calls(lines(*BATCH, entry("r1", "b", result("c1", "1")), entry("r2", "r1", marked)))
    assert [(s.tool, s.status) for s in seen] == [("bash", "done"), ("bash (extension)", "failed")]


def test_half_of_a_surrogate_pair_is_the_same_call() -> None:
    main = lines(*BATCH[:2], entry("b", "a", answer(("c1", "echo \ud83d"), ("c1x", "two")), 1))
    main += lines(entry("r", "b", result("c1", "1"), 3))
    logged = LoggedCall(1, "bash", b'{"command":"echo \\ufffd"}', done("1"), False)
    made, records = mended(main, logged)
    assert made.put_back == 0 and told(records) == [("c1", "1"), ("c1x", NOT_BEGUN)]


@pytest.mark.parametrize("depth", [300, 600, 990, 5000])
def test_what_is_nested_too_deep_is_junk_or_nothing(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    main = lines(*BATCH) + json.dumps(entry("d", "b", answer(("c9", "x")))).replace('"x"', deep).encode() + b"\n"
    assert mended(main, LoggedCall(1, "t", deep.encode(), deep.encode(), False, "", START, "c8"))[0].put_back == 1
    assert PI.seen_calls(main) == []


@pytest.mark.parametrize("size", range(1000, 1024))
def test_a_result_that_was_cut_comes_back_as_text(size: int) -> None:
    whole = json.dumps({"content": [{"type": "text", "text": "first"}, {"type": "text", "text": 'é"\n\\' * 400}]})
    kept = whole.replace(": ", ":").replace(", ", ",").encode()[:size] + b"\n[wal-agent: the rest could not be saved]"
    _, records = mended(lines(*BATCH[:2]), call(1, "c1", "one", kept))
    (text,) = (block["text"] for block in records[-1]["message"]["content"])
    assert text.startswith('first\né"\n\\é') and text.endswith("\n[wal-agent: the rest could not be saved]")
    assert "type" not in text and "u00e9" not in text


def test_the_notice_hangs_on_the_last_entry_that_can_carry_it() -> None:
    main = PI.reconcile(lines(*BATCH, {"type": "custom"}, {"type": "message", "message": user("x")}), ID, WS, []).data
    said = b"".join(PI.resume.inject_prompt(main, ID, WS, "go on"))
    assert said is not None and b"".join(PI.resume.inject_prompt(said, ID, WS, "go on")) == said
    made = [json.loads(x) for x in said.splitlines()]
    assert made[-1]["parentId"] == next(r["id"] for r in reversed(made[:-1]) if r.get("id"))
    assert path([r for r in made if r.get("id")])[0]["id"] == "a"


def _fields(call: LoggedCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__struct_fields__}


def test_images_come_back_and_long_texts_are_cut() -> None:
    image = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    content = [{"type": "text", "text": "x" * 90_000}, image, {"type": "text"}, 7]
    _, records = mended(lines(*BATCH[:2]), call(1, "c1", "one", json.dumps({"content": content}).encode()))
    text, kept = records[-1]["message"]["content"]
    assert kept == image and 40_000 < len(text["text"]) < 41_000 and "left out" in text["text"]


def test_results_in_words_of_ours_and_cut_off_ones() -> None:
    _, records = mended(
        lines(*BATCH), call(1, "c1", "one", b'"it was refused"', True), call(2, "c2", "two", b'{"content":[{"ty')
    )
    assert told(records)[:2] == [("c1", "it was refused"), ("c2", '{"content":[{"ty')]


def test_the_notice_is_the_last_word_once() -> None:
    made, _ = mended(lines(*BATCH))
    for prompt in ("@x $HOME \u2028 ünï \ud800", " ", "[wal-agent recovery] " + "k" * 9000):
        said = b"".join(PI.resume.inject_prompt(made.data, ID, WS, prompt))
        assert said is not None and said.startswith(made.data)
        assert b"".join(PI.resume.inject_prompt(said, ID, WS, prompt)) == said
        records = [json.loads(x) for x in said.split(b"\n")[:-1]]
        assert records[-1]["message"]["content"][0]["text"].endswith(prompt)
        assert records[-1]["message"]["content"][0]["text"].strip()
        assert path(records)[0]["id"] == "a"


def test_a_session_of_only_the_notice() -> None:
    said = b"".join(PI.resume.inject_prompt(b"", ID, WS, "go on"))
    assert said is not None
    head, last = (json.loads(x) for x in said.splitlines())
    assert (head["id"], head["cwd"], last["parentId"]) == (ID, str(WS), None)


ids = st.sampled_from(["c1", "c2", "c3", "wal_call_1", ""])
names = st.sampled_from(["a", "b", "c", "d", ""])
messages = st.one_of(
    st.builds(user, st.text(max_size=3)),
    st.builds(lambda calls: answer(*calls), st.lists(st.tuples(ids, st.sampled_from("xy")), max_size=3)),
    st.builds(result, ids, st.text(max_size=3)),
    st.just({"role": 7, "content": None}),
)
records = st.one_of(
    st.builds(entry, names, st.none() | names, messages, st.integers(0, 59)),
    st.just(HEAD),
    st.dictionaries(
        st.sampled_from(["type", "id", "parentId", "message", "timestamp"]), st.text(max_size=3) | st.none()
    ),
)
logged = st.builds(
    LoggedCall,
    st.integers(1, 3),
    st.sampled_from(["bash", "write"]),
    st.sampled_from([b'{"command":"x"}', b"[]", b"\xff"]),
    st.none() | st.sampled_from([done("1"), b"\xff", b'"x"', b"{}", b'{"content":7}']),
    st.booleans(),
    st.just(""),
    st.sampled_from([0.0, START + 10, START + 30]),
    st.sampled_from(["c1", "c2", "c3", "wal_call_1", "wal_call_2", ""]),
)


@given(st.lists(records, max_size=8), st.lists(logged, max_size=4, unique_by=lambda c: c.call), st.binary(max_size=4))
def test_twice_is_once(all: list[Json], calls: list[LoggedCall], tail: bytes) -> None:
    made = PI.reconcile(lines(*all) + tail, ID, WS, calls)
    again = PI.reconcile(made.data, ID, WS, calls)
    assert again.data == made.data
    assert again.put_back == 0
    PI.seen_calls(made.data)
    for line in made.data.split(b"\n")[:-1]:
        json.loads(line)


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    made = PI.reconcile(data, ID, WS, [call(1, "c1", "one")])
    assert PI.reconcile(made.data, ID, WS, [call(1, "c1", "one")]).data == made.data
    assert PI.proves_turn(made.data)
    PI.seen_calls(data)
