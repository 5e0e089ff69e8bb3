"""What is read of JSON that JavaScript wrote: halves of surrogate pairs, and how deep it may be."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import sessions
from tests.tiers import examples
from wal_agent.agents import AGENTS, session_files
from wal_agent.agents.base import LoggedCall
from wal_agent.agents.session_files import DEPTH, LineRecord, contains, decode_json, encode_json, records, well_formed
from wal_agent.safefs import map_file, write_pieces

_PIECES = st.lists(
    st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "\\ud83d", '"', "ud83d", "\n", "é", "\0"]), max_size=8
).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(text=_PIECES)
def test_any_text_that_javascript_writes_is_read_with_its_lone_surrogates_replaced(text: str) -> None:
    said = json.dumps({"a": text, text: [text]}).encode()
    meant = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert msgspec.json.decode(well_formed(said)) == json.loads(json.dumps({"a": meant, meant: [meant]}))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00 \uD83D"', rb'"\ufffd \ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\\ude00"', rb'"\ufffd\\ude00"'),
        (rb'"\ud7ff"', rb'"\ud7ff"'),
    ],
)
def test_only_the_half_of_a_pair_is_replaced(said: bytes, meant: bytes) -> None:
    assert well_formed(said) == meant
    msgspec.json.decode(well_formed(said))


@settings(deadline=None)
@given(junk=st.binary(max_size=40) | st.text(alphabet='\\ud83"\n', max_size=40).map(str.encode))
def test_what_is_no_json_is_left_as_bad_as_it_was(junk: bytes) -> None:
    assert well_formed(well_formed(junk)) == well_formed(junk)


def test_plain_text_is_not_copied() -> None:
    said = b'{"a": "b \\n \\ue000"}' * 100
    assert well_formed(said) is said


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("surrogate", [b"1", rb'"\ud83d"'])
def test_what_is_read_can_be_written_again_and_deeper_json_is_none(pair: tuple[bytes, bytes], surrogate: bytes) -> None:
    def nested(levels: int) -> bytes:
        return pair[0] * levels + surrogate + pair[1] * levels

    value = decode_json(nested(DEPTH))
    assert decode_json(encode_json(value)) == value
    for levels in (DEPTH + 1, 600, 100_000):
        with pytest.raises(ValueError, match="deep"):
            decode_json(nested(levels))


def test_a_line_that_is_too_deep_is_junk_as_it_stands() -> None:
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    assert [(value, bytes(line)) for value, line in records(deep + b'\n{"b":1}\n')] == [
        (None, deep),
        ({"b": 1}, b'{"b":1}'),
    ]


_S, _T = "aaaaaaaa-0000-4000-8000-000000000000", "2026-01-01T00:00:00.000Z"
_SESSIONS: dict[str, list[object]] = {
    "gemini": [
        {"sessionId": _S, "projectHash": "h", "startTime": _T, "lastUpdated": _T, "kind": "main"},
        {"id": "u", "timestamp": _T, "type": "user", "content": [{"text": "<hook_context>c</hook_context>\n\ngo"}]},
        {"id": "g", "timestamp": _T, "type": "gemini", "content": "did"},
    ],
    "claude": [
        {
            "type": "user",
            "uuid": "1",
            "parentUuid": None,
            "timestamp": _T,
            "message": {"role": "user", "content": "go"},
        },
        {"type": "assistant", "uuid": "3", "parentUuid": "2", "timestamp": _T, "message": {"id": "m", "content": []}},
    ],
    "codex": [
        {"timestamp": _T, "type": "session_meta", "payload": {"id": _S}},
        {"timestamp": _T, "type": "response_item", "payload": {"type": "message", "role": "assistant", "content": []}},
    ],
    "qwen": [
        {"uuid": "1", "parentUuid": None, "sessionId": "x", "type": "user", "cwd": "/old", "message": {"parts": []}},
        {
            "uuid": "3",
            "parentUuid": "2",
            "sessionId": "x",
            "type": "assistant",
            "timestamp": _T,
            "message": {"parts": []},
        },
    ],
    "pi": [
        {"type": "session", "id": _S, "timestamp": _T, "cwd": "/old"},
        {"type": "message", "id": "b", "parentId": "a", "timestamp": _T, "message": {"role": "user", "content": "go"}},
    ],
    "copilot": [
        {"type": "user.message", "id": "1", "timestamp": _T, "data": {"content": "go"}},
        {"type": "assistant.message", "id": "2", "timestamp": _T, "data": {"toolRequests": []}},
    ],
}


@pytest.mark.parametrize("agent", _SESSIONS)
@pytest.mark.parametrize("end", [b"\n", b"", b'\n{"torn', b"\n\0\0"])
def test_a_mapped_file_whose_records_are_shelved_gives_the_same_bytes(
    agent: str, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: what is restored does not depend on how much of it is in memory."""
    separator = json.dumps({"type": "x", "id": "u2028", "uuid": "9", "text": "a\u2028b"}, ensure_ascii=False)
    lines = [*(json.dumps(each) for each in _SESSIONS[agent]), "no JSON", separator]
    main = tmp_path / "main"
    main.write_bytes("\n".join(lines).encode() + end)
    call = LoggedCall(7, "run_shell_command", b'{"command":"make"}', b'{"llmContent":"ok"}', False)
    mended = AGENTS[agent].reconcile(main.read_bytes(), _S, tmp_path, [call])
    monkeypatch.setattr(session_files, "DECODED", 0)
    monkeypatch.setattr(session_files, "RELEASE", 16)
    monkeypatch.setattr(LineRecord, "_looked_at", (None, {}))
    mapped = AGENTS[agent].reconcile(map_file(main), _S, tmp_path, [call])
    assert mapped.data == mended.data
    assert (mapped.put_back, mapped.messages, mapped.repairs) == (mended.put_back, mended.messages, mended.repairs)
    if (prompt := AGENTS[agent].capabilities.inject_prompt) is not None:
        main.write_bytes(mapped.data)
        asked = b"".join(prompt(map_file(main), _S, tmp_path, "carry on"))
        assert asked == b"".join(prompt(mended.data, _S, tmp_path, "carry on")) and b"carry on" in asked


@pytest.mark.parametrize("agent", sessions.ROUNDS)
def test_what_a_restore_keeps_in_memory_hardly_grows_with_the_session(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was said, nor inputs and results of calls: some bytes for each record. What other threads of this
    process allocate meanwhile is counted too, so the least of three measurements is what a restore needs."""
    monkeypatch.setattr(session_files, "DECODED", 1 << 16)
    monkeypatch.setattr(session_files, "RELEASE", 1 << 16)
    session, prompt = sessions.session_id(agent), AGENTS[agent].capabilities.inject_prompt
    call = LoggedCall(1, "a_tool", b'{"command":"make"}', b'"done"', False)
    named = LoggedCall(2, "a_tool", b'{"command":"make"}', b'"done"', False, call_id="id")

    def most(size: int) -> int:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        sessions.write_session(agent, folder / "main", size, "/elsewhere")
        tracemalloc.start()
        try:
            made = AGENTS[agent].reconcile(map_file(folder / "main"), session, folder, [call, named])
            write_pieces(folder / "child", made.pieces)
            if prompt is not None:
                write_pieces(folder / "prompted", prompt(map_file(folder / "child"), session, folder, "carry on"))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    most(1 << 19)  # imports what is imported late
    small, grown, bound = most(1 << 20), list[int](), (4 << 20) // 6
    while len(grown) < 3 and not any(each < bound for each in grown):
        grown.append(most(5 << 20) - small)
    assert min(grown) < bound, f"{small} bytes, and {grown} more"


def test_a_part_is_found_across_the_pieces_of_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_files, "RELEASE", 4)
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    for part in (b"0", b"34", b"2345", b"789"):
        assert contains(map_file(path), part) and contains(path.read_bytes(), part)
    assert not contains(map_file(path), b"43")
