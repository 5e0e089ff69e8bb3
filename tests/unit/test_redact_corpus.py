"""redact on a corpus made for it: no known secret stays, and of real text nothing goes; in linear time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.redact_corpus import UNKNOWN, Sample, keys, leaks, placed
from wal_agent.redact import MARK, redact

KEPT = Path(__file__).with_name("redact_kept.txt").read_text().splitlines()
SIZE = 4_000


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


HOSTILE = (
    "a",
    "Aa1",
    "sk-a-",
    "-eyJ",
    "eyJaaaaaaaa.",
    "://",
    "://a:",
    "token",
    'token="',
    "curl \\\n",
    "cookie: ",
    "SG.a",
    '\\"',
)


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear(unit: str) -> None:
    """Eight times the text takes about eight times the CPU time; a quadratic pattern would take sixty-four times."""

    def took(size: int) -> float:
        times = []
        for _ in range(3):
            began = time.process_time()
            redact((unit * size)[:size])
            times.append(time.process_time() - began)
        return min(times)

    assert took(8 * SIZE) < 30 * took(SIZE) + 0.01
