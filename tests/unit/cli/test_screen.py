"""text.py: what people read, on stderr alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cli.shelf import EVIL, SECRET
from wal_agent.limits import report_bug
from wal_agent.text import lines, printable, say


@settings(deadline=None)
@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    """Hosts, reasons and tool names come from the bucket and the agent; they must not move a cursor or forge a line."""
    shown = printable(text)
    assert shown.isprintable() or not shown
    assert len(shown) == len(text)
    assert "".join(c for c in text if c.isprintable()) == "".join(
        c for c, was in zip(shown, text, strict=True) if was.isprintable()
    )


def test_a_message_goes_to_stderr_and_a_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"job {EVIL}x\nmore")
    lines(["  a\nwal-agent: forged", f"  b{EVIL}"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "wal-agent: job ?[2J?31m?x more\n  a wal-agent: forged\n  b?[2J?31m?\n"


def test_no_rows_are_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines([])
    assert capsys.readouterr() == ("", "")


def test_a_closed_stderr_costs_the_message_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: stdout belongs to the agent, also when there is no stderr to write to."""
    monkeypatch.setattr(sys, "stderr", None)
    say("lost")
    monkeypatch.undo()

    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    say("lost")
    lines(["lost"])
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def broken() -> Exception:
    try:
        raise KeyError(f"token={SECRET}")
    except KeyError as error:
        return error


def test_a_bug_is_one_line_and_a_private_report(tmp_path: Path) -> None:
    line = report_bug(broken(), {"XDG_STATE_HOME": str(tmp_path)})
    (report,) = (tmp_path / "wal-agent" / "reports").iterdir()
    assert line == f"a bug in wal-agent: KeyError. The full report is in {report}; please send it."
    assert report.stat().st_mode & 0o777 == 0o600
    assert report.parent.stat().st_mode & 0o777 == 0o700
    text = report.read_text()
    assert "Traceback" in text and "in broken" in text and SECRET not in text


def test_a_bug_without_a_place_to_report_it_is_still_told_and_keeps_secrets(tmp_path: Path) -> None:
    (tmp_path / "wal-agent").write_text("in the way")
    line = report_bug(broken(), {"XDG_STATE_HOME": str(tmp_path)})
    assert line.startswith("a bug in wal-agent: KeyError") and "could not be written" in line
    assert SECRET not in line


def test_what_is_said_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    """An error may quote a URL with credentials in it, or a child's command line."""
    say("https://me:zebra9lion@store.example.org/b: no answer")
    lines(["  stopped    curl -u me:zebra9lion https://h"])
    told = capsys.readouterr().err
    assert "zebra9" not in told and told.count("[redacted]") == 2 and "store.example.org/b: no answer" in told
