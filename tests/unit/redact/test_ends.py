"""Texts that are cut: no part of a key stays because the rest of it lay behind the cut."""

from __future__ import annotations

import json

import pytest

from wal_agent.calls.quote import inline, safe, show_input
from wal_agent.redact import MARGIN, MARK, redact, redact_ends, redact_head
from wal_agent.text import HEARD, quote

KEY = "ghp_" + "a1B2c3D4e5" * 4
PARTS = tuple(KEY[i : i + 12] for i in range(len(KEY) - 11))
MOST = 1_000
BODY = "\n".join(f"MIIEzebra{n:03}+/abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOP" for n in range(50))
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"


def across(cut: int, of: int) -> list[str]:
    """Texts of `of` characters with a key at places around the cut."""
    return [
        f"{'x ' * of}"[: cut - back] + f" {KEY} " + f"{'y ' * of}"[: of - cut + back] for back in (44, 30, 20, 15, 1)
    ]


def partly(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


@pytest.mark.parametrize("of", [MOST + 60, 3 * MARGIN + MOST])
def test_a_key_across_a_cut_leaves_nothing(of: int) -> None:
    for text in [*across(MOST // 2, of), *across(of - MOST // 2, of)]:
        said = redact_ends(text, MOST)
        assert len(said) <= MOST and partly(said) == []
        assert said.startswith("x x ") and said.rstrip().endswith(" y")
    for text in across(MOST, of):
        assert partly(redact_head(text, MOST)) == [] and len(redact_head(text, MOST)) <= MOST


def test_what_is_looked_at_ends_in_a_key_and_all_before_shrinks() -> None:
    """So that the cut key would stand where nothing is cut off by its length alone."""
    lines = f"{KEY}\n" * 1_000
    for shift in range(0, 44, 5):
        text = "x" * shift + "\n" + lines
        assert partly(redact_head(text, MOST)) == [] and partly(redact_ends(text, MOST)) == []
        blank = " " * (HEARD + MARGIN - 20 - shift) + KEY + " " * 100
        assert partly(quote(blank)) == [] and partly(quote(" " * (HEARD - 20) + KEY + " z")) == []


def test_what_lies_across_the_end_of_what_is_looked_at_goes_however_little_is_left() -> None:
    """The rest is one long key, which becomes a mark of ten characters."""
    long, more = "ghp_" + "a1B2c3D4e5" * 3_000, " z" * 2 * MARGIN
    for seen in (19, 16, 13):
        head = f"{long[: MOST + MARGIN - seen - 1]} {KEY}{more}"
        assert partly(redact_head(head, MOST)) == [] and redact_head(long + more, MOST) == ""
        tail = f"{more}{KEY} {long[: MOST // 2 + MARGIN - seen - 1]}"
        assert partly(redact_ends(tail, MOST)) == [] and redact_ends(tail, MOST).startswith(" z")


@pytest.mark.parametrize("at", [MOST // 2 - 600, MOST // 2 - 20, 3 * MARGIN - MOST // 2 - len(PEM) + 500])
def test_a_private_key_across_a_cut_leaves_nothing(at: int) -> None:
    text = ("a word\n" * 9_000)[: max(0, at)] + "\n" + PEM + "a word\n" * 9_000
    assert "zebra" not in redact_ends(text[: 3 * MARGIN], MOST) and "zebra" not in redact_head(text, MOST)


@pytest.mark.parametrize("of", [MOST + 60, 3 * MARGIN + MOST])
def test_a_cut_shows(of: int) -> None:
    """Else two ends read as one text, such as a command that was never run."""
    said = redact_ends("x " * (of // 2), MOST)
    assert len(said) <= MOST and said.count("…") == 1
    assert [redact_ends("x" * of, most) for most in (0, 1, 2, 3)] == ["", "…", "…", "x…x"]


def test_a_short_text_is_whole() -> None:
    assert redact_ends("a b", 100) == "a b" == redact_head("a b", 100)
    assert redact_head("abc", 0) == "" == redact_ends("", 10)


@pytest.mark.parametrize("back", [40, 25, 13, 1])
def test_what_a_prompt_shows_of_a_call_has_no_part_of_a_key(back: int) -> None:
    """The cuts of quote.py: of a text, of a field's name, of its value, of a patch and of a patch's file."""
    for cut in (5_000, 15_000):
        text = "x " * 2_500 + "x" * (5_000 - back) if cut > 5_000 else ("x " * 2_500)[: 5_000 - back]
        assert partly(safe(f"{text} {KEY} {'y ' * 9_000}")) == []
    assert partly(inline(f"{'x ' * 250}"[: 500 - back] + f" {KEY} " + "y " * 4_000)) == []
    for fields in (
        {"x" * (39 - back % 30) + " " + KEY + " " + "y" * 60: 1},
        {"note": ("x " * 200)[: 200 - back] + f" {KEY} " + "y " * 5_000},
        {"note": ("x " * 4_000)[: 5_000 - back] + f" {KEY} " + "y " * 5_000},
    ):
        assert partly(show_input("x", json.dumps(fields).encode())) == []
    patch = f"*** Add File: {'d/' * 200}"[: 133 - back] + f" {KEY} " + "y" * 300 + "\n+x\n" * 900
    assert partly(show_input("apply_patch", json.dumps({"patchText": patch}).encode())) == []


@pytest.mark.parametrize("value", ["correct horse battery staple", "horse " * 90, "horse\nstaple"])
def test_a_field_whose_name_says_secret_is_secret_as_a_whole(value: str) -> None:
    said = show_input("x", json.dumps({"passphrase": value, "n": 1}).encode())
    assert said == f"passphrase: {MARK}\nn: 1"


def test_what_is_cut_is_redacted_once() -> None:
    text = f"x {KEY} y"
    assert redact_ends(text, 1_000) == redact(text) == redact_ends(redact(text), 1_000)
