"""What commands write to stdout."""

from __future__ import annotations

import json

import pytest

from wal_agent.text import answer_json


def test_an_answer_is_json_whatever_a_record_holds(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json({"age": float("nan"), "size": [float("inf"), 1.5], "text": "\x1b[31m\x9b"})
    written = capsys.readouterr().out
    assert json.loads(written, parse_constant=pytest.fail) == {"age": None, "size": [None, 1.5], "text": "\x1b[31m\x9b"}
    assert written.isascii() and written.count("\n") == 1 and "\x1b" not in written
