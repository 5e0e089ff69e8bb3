"""agents/*/session.py: the compactions that appended lines report. The lines are those of the real programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Compacted

SUMMARY = "The orders were moved."


def claude(text: str) -> list[Any]:
    frame = "This session is being continued from a previous conversation that ran out of context. The summary below."
    used = "<system-reminder>\n<tools-used-before-summary>Bash</tools-used-before-summary>\n</system-reminder>"
    behind = "If you need specific details from before compaction (like code), read the full transcript at: /x.jsonl"
    content = f"{frame}\n\n{used}\nSummary:\n{text}\n\n{behind}"
    return [
        {"type": "system", "subtype": "compact_boundary", "uuid": "b", "compactMetadata": {"preTokens": 900}},
        {"type": "user", "uuid": "key", "isCompactSummary": True, "message": {"role": "user", "content": content}},
    ]


def codex(text: str) -> list[Any]:
    message = f"Another language model started to solve this problem and produced a summary of it:\n{text}"
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "move the shop"}]}
    payload = {"message": message, "replacement_history": [said]}
    return [{"timestamp": "t", "ordinal": 4, "type": "compacted", "payload": payload}]


def gemini(text: str) -> list[Any]:
    said = ["<session_context>", text, "Got it. Thanks for the additional context!", "move the shop"]
    messages = [{"id": f"m{n}", "type": "user", "content": [{"text": each}]} for n, each in enumerate(said)]
    return [{"$set": {"lastUpdated": "t"}}, {"$set": {"messages": messages}}]


def qwen(text: str) -> list[Any]:
    history = [{"role": "user", "parts": [{"text": text}]}, {"role": "user", "parts": [{"text": "move the shop"}]}]
    payload = {"info": {"originalTokenCount": 900}, "compressedHistory": history}
    return [{"uuid": "key", "type": "system", "subtype": "chat_compression", "systemPayload": payload}]


def copilot(text: str) -> list[Any]:
    done = {"success": True, "summaryContent": f"<summary>{text}</summary>", "preCompactionTokens": 900}
    failed = {"success": False, "error": "cancelled", "summaryContent": text}
    return [
        {"type": "session.compaction_complete", "id": "e1", "data": {**done, "compactionAttemptId": "key"}},
        {"type": "session.compaction_complete", "id": "e2", "data": failed},
    ]


def pi(text: str) -> list[Any]:
    framed = f"No prior history.\n\n---\n\n**Turn Context (split turn):**\n\n{text}\n\n<read-files>\na\n</read-files>"
    entry = {"type": "compaction", "id": "key", "summary": framed, "tokensBefore": 900, "fromHook": False}
    return [entry, {**entry, "id": "ours", "fromHook": True}]


MAKERS = {"claude": claude, "codex": codex, "gemini": gemini, "qwen": qwen, "copilot": copilot, "pi": pi}
each_agent = pytest.mark.parametrize("name", sorted(MAKERS))


def read(name: str, lines: list[Any]) -> list[Compacted]:
    reader = AGENTS[name].capabilities.compactions
    assert reader is not None
    return reader(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


@each_agent
def test_a_compaction_that_is_done_is_read_with_its_summary(name: str) -> None:
    (found,) = read(name, MAKERS[name](SUMMARY))
    assert found.summary == SUMMARY and SUMMARY in found.history
    assert found.tokens == (0 if name in ("codex", "gemini") else 900)
    assert name in ("codex", "gemini") or found.key == "key"
    assert read(name, MAKERS[name](SUMMARY)) == [found], "the same again has the same key"


@each_agent
def test_an_empty_summary_is_none_whatever_the_agent_writes_around_it(name: str) -> None:
    if name != "gemini":  # which drops an empty one, and keeps its history
        (found,) = read(name, MAKERS[name](""))
        assert found.summary == ""


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=9)
    | st.sampled_from(["compaction", "compacted", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "subtype", "payload", "data", "$set", "messages", "id"]), inner)
    ),
    max_leaves=10,
)


@each_agent
@given(lines=st.lists(junk, max_size=5))
def test_a_hostile_file_is_read_to_its_end(name: str, lines: list[Any]) -> None:
    found = read(name, [*lines, *MAKERS[name](SUMMARY)])
    assert found[-1].summary == SUMMARY
