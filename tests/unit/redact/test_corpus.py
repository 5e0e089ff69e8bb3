"""redact on a corpus made for it: no known secret stays, and of real text nothing goes; in linear time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.redact.corpus import UNKNOWN, Sample, keys, leaks, placed
from wal_agent.redact import MARK, redact

KEPT = Path(__file__).with_name("kept.txt").read_text().splitlines()
SIZE = 12_000


def wrong(samples: list[Sample]) -> list[str]:
    return [s.form for s in samples if leaks(s, redact(s.text))]


def test_every_known_key_goes_wherever_it_stands() -> None:
    samples = list(keys(7))
    assert len(samples) > 900 and wrong(samples) == []


def test_every_secret_goes_that_its_place_tells() -> None:
    samples = list(placed(4))
    assert len(samples) > 700 and wrong(samples) == []


def test_most_words_of_chance_go() -> None:
    samples = list(keys(100, forms=UNKNOWN))
    assert len(wrong(samples)) < len(samples) / 10


def test_redacting_twice_changes_nothing() -> None:
    for sample in [*keys(2), *placed(1)]:
        once = redact(sample.text)
        assert redact(once) == once


def test_real_text_without_secrets_stays() -> None:
    """Lock files, listings, logs, code: hashes, paths, ids and integrity strings."""
    assert len(KEPT) > 800
    assert [line for line in KEPT if redact(line) != line] == []
    assert redact("\n".join(KEPT)) == "\n".join(KEPT)


def test_a_digest_that_begins_like_a_key_is_kept() -> None:
    digest = "r8_" + "DrqAfn6QLwQnmXEggveiSUxUaIL2p2nuPINelfFc9aB"
    assert redact(f"a/b.py,sha256={digest},14949") == f"a/b.py,sha256={digest},14949"
    assert redact(f"a {digest} b") == f"a {MARK} b"


# What the patterns begin with, over and over: each place is tried, and none leads far.
HOSTILE = (
    "a", "Aa1", "A1b_", "Aa1/", "sk-a-", "-eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaaa.eyJ", "://", "://a:", "://:a@", "json://",
    "token", "token ", "token=", 'token="', "token: a.b = ", "api_key", "key_", "KEY\n", "--token a", "pass ",
    "password=https://", 'password":"', 'password=\\\\\\"', "password: |\n  a\n", "curl \\\n", "7z -p1", "curl -u a",
    "cookie: ", "cookie: a= ", "authorization: ", "authorization: <a ", 'x-api-key", ', "bearer ", "SG.a", "\u0130",
    "logic.azure.com", "hooks.slack.com/", "login a password ", "a:5432:", "-----BEGIN ", "a -----END PRIVATE KEY-----",
    "-----BEGIN X-----", "0123456789abcdef-", "1:A", ".atlasv1.", "Q~", "M.", "\x1b[", "id=", "<password>", "echo a ",
    "set -a ", '\\"',
)  # fmt: skip


def took(text: str) -> float:
    """The CPU seconds of the quicker of two goes."""
    times = []
    for _ in range(2):
        began = time.process_time()
        redact(text)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("unit", ["-eyJ", "a", 'token="', "://:a@", "cookie: "])
def test_time_is_linear(unit: str) -> None:
    """Eight times the text takes about eight times the CPU time; a quadratic pattern would take sixty-four times."""
    assert took((unit * 8 * SIZE)[: 8 * SIZE]) < 30 * took((unit * SIZE)[:SIZE]) + 0.01


def test_no_text_is_a_trap() -> None:
    """Each of the patterns costs a few times what ordinary text does; with a look that goes over much of the text at
    every place it would be hundreds of times."""
    most = 30 * took("\n".join(KEPT)[:SIZE]) + 0.01
    assert [unit for unit in HOSTILE if took((unit * SIZE)[:SIZE]) > most] == []
    assert [unit for unit in HOSTILE[::2] if took(unit + "a" * SIZE) > most] == []


@pytest.mark.parametrize("before", ["\u0130\u0130\u0130 ", "\u1e9e ", "\u03a3 ", "\ufb03 "])
def test_letters_that_grow_in_small_ones_move_nothing(before: str) -> None:
    assert redact(f"{before}PASSWORD=zebra99 and the rest") == f"{before}PASSWORD={MARK} and the rest"
