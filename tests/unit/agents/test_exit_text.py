"""agents/program.py and agents/*/cli.py: last words as the real programs said them when a scripted model refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import ExitCause, TurnFailed
from wal_agent.agents.program import retry_after_seconds

NOW = datetime(2026, 11, 22, 12, 17, 0).timestamp()
LONG = ExitCause("context", "the conversation is too long for the model")
STACK = "    at classifyGoogleError (file:///x/chunk.js:307344:16)\n    at async main (file:///x/gemini.js:17627:5)"
GEMINI = "YOLO mode is enabled.\nError when talking to Gemini API Full report available at: /tmp/x.json "
CODEX = "OpenAI Codex v0.169.0\n--------\nuser\nsay hi\nERROR: Reconnecting... 5/5\n"
USAGE = "You’ve hit your usage limit. Upgrade to Pro (https://x.example) or try again at 2:17 PM."
ROOM = "Codex ran out of room in the model's context window. Start a new thread or clear earlier history."

SAID = [
    (
        "gemini",
        f"{GEMINI}TerminalQuotaError: You have exhausted your daily quota on this model.\n{STACK} {{ status: 429 }}",
        ExitCause("quota", "You have exhausted your daily quota on this model."),
    ),
    (
        "gemini",
        f"{GEMINI}TerminalQuotaError: You exceeded your current quota. Please retry in 3600s.\n"
        f"Suggested retry after 3600s.\n{STACK} {{\n  retryDelayMs: 3600000,\n  status: 429\n}}",
        ExitCause("quota", "You exceeded your current quota. Please retry in 3600s.", 3600.0),
    ),
    (
        "gemini",
        f"{GEMINI}RetryableQuotaError: The model is overloaded. Please try again later.\n{STACK} {{\n  status: 503\n}}",
        ExitCause("quota", "The model is overloaded. Please try again later."),
    ),
    (
        "gemini",
        f'{GEMINI}_ApiError: {{"error":{{"code":400,"message":"The input token count (1200000) exceeds the maximum '
        f'number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}}}\n{STACK} {{\n  status: 400\n}}',
        LONG,
    ),
    ("gemini", f"{GEMINI}_ApiError: API key not valid.\n{STACK} {{\n  status: 400\n}}", None),
    ("gemini", "Attempt 1 failed: You exceeded your current quota. Please retry in 34.07s.. Retrying\n", None),
    ("codex", f"{CODEX}ERROR: {USAGE}\nERROR: {USAGE}\n", ExitCause("quota", USAGE, 7200.0)),
    ("codex", f"{CODEX}ERROR: {ROOM}\nERROR: {ROOM}\ntokens used\n0\n", LONG),
    (
        "codex",
        f"{CODEX}ERROR: We’re currently experiencing high demand, which may cause temporary errors.\n",
        ExitCause("quota", "We’re currently experiencing high demand, which may cause temporary errors."),
    ),
    ("codex", f"{CODEX}ERROR: Quota exceeded. Check your plan and billing details.\n", None),
    ("codex", "user\nsay 'usage limit'\n", None),
    (
        "qwen",
        "[API Error: 400 Your input exceeds the context window of this model. Please adjust your input and try again.]",
        LONG,
    ),
    ("qwen", "[API Error: 500 The server had an error]\n", ExitCause("quota", "500 The server had an error")),
    ("qwen", "[API Error: 401 Incorrect API key provided]\n", None),
    (
        "copilot",
        "\n429 This request would exceed your account's rate limit. Please try again later.\n\n\nChanges    +0 -0\n",
        ExitCause("quota", "429 This request would exceed your account's rate limit. Please try again later."),
    ),
    (
        "copilot",
        "Failed to get response from the AI model; retried 5 times (total 14.50 seconds) Last error: 529 Overloaded\n",
        ExitCause("quota", "529 Overloaded"),
    ),
    ("copilot", "The provider rejected the prompt as too long, but automatic recovery could not reduce it.\n", LONG),
    ("copilot", "400 Your credit balance is too low to access the Anthropic API.\n", None),
    ("pi", '500 {"error":{"type":"server_error"}}\n', ExitCause("quota", '500 {"error":{"type":"server_error"}}')),
    (
        "pi",
        "Anthropic stream ended before message_stop\n",
        ExitCause("quota", "Anthropic stream ended before message_stop"),
    ),
    (
        "pi",
        "Warning: x\nterminated: other side closed (UND_ERR_SOCKET)\n",
        ExitCause("quota", "terminated: other side closed (UND_ERR_SOCKET)"),
    ),
    ("pi", "Connection error.: connect ECONNREFUSED\n400 Bad request\n", None),
    (
        "opencode",
        "\x1b[91m\x1b[1mError: \x1b[0mYour input exceeds the context window of this model. Please adjust it.\n",
        LONG,
    ),
]


@pytest.mark.parametrize(("agent", "said", "death"), SAID)
def test_last_words(agent: str, said: str, death: ExitCause | None) -> None:
    exit_cause = AGENTS[agent].capabilities.exit_cause
    assert exit_cause is not None
    assert exit_cause(said.encode(), NOW) == death
    # behind what is no text
    assert exit_cause(b"\xff\xfe\0" * 99 + b"\n" + said.encode(), NOW) == death


@pytest.mark.parametrize("agent", sorted(a for a in AGENTS if AGENTS[a].capabilities.exit_cause))
def test_hostile_words_are_read_in_no_time(agent: str) -> None:
    exit_cause = AGENTS[agent].capabilities.exit_cause
    assert exit_cause is not None
    for piece in (b"", b"\0", b"ERROR: ", b"[API Error: ", b"429 ", b"retry in 1", b"Error when talking to Gemini API"):
        exit_cause(piece * (65536 // max(1, len(piece))), NOW)
        exit_cause(b"ERROR: rate limit " + piece * 5000, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please retry in 34.07s.", 34.07),
        ("Rate limit reached: Limit 30000. Please try again in 28m48s.", 1728.0),
        ("try again in 6ms", 0.006),
        ("Please try again in 1h5m0s.", 3900.0),
        ("Try again in 2 days 3 hours 4 minutes", 183_840.0),
        ("Suggested retry after 3600s.", 3600.0),
        ("retry in 5s\nretry in 9s", 9.0),
        ("try again at 2:17 PM.", 7200.0),
        ("try again at 11:17 AM.", 23 * 3600.0),
        ("try again at Nov 24th, 2026 12:17 PM.", 2 * 86_400.0),
        ("try again at Feb 30th, 2026 12:17 PM.", 0.0),
        ("Please try again later.", 0.0),
        ("retry in a while", 0.0),
        ("", 0.0),
    ],
)
def test_the_time_until_a_retry(text: str, seconds: float) -> None:
    assert retry_after_seconds(text, NOW) == pytest.approx(seconds, abs=0.0005)


def test_a_time_with_its_zone() -> None:
    now = datetime(2026, 11, 22, 12, 0, tzinfo=UTC).timestamp()
    assert retry_after_seconds("You've hit your limit · resets 3pm (UTC)", now) == 3 * 3600
    assert retry_after_seconds("You've hit your limit · resets 3:30pm (Europe/Berlin)", now) == 2.5 * 3600


@pytest.mark.parametrize(
    ("error", "said", "cls"),
    [
        ("rate_limit", "API Error: Request rejected (429) · This request would exceed your rate limit.", "quota"),
        ("server_error", "API Error: 529 Overloaded. This is a server-side issue, usually temporary.", "quota"),
        ("invalid_request", "Prompt is too long · the request is ~213462 tokens (limit 200000)", "context"),
        ("billing_error", "Credit balance is too low", "other"),
        ("authentication_failed", "Invalid API key", "other"),
        (None, None, "other"),
    ],
)
def test_claude_tells_by_a_hook(error: str | None, said: str | None, cls: str) -> None:
    payload = {"session_id": "s", "error": error, "last_assistant_message": said}
    event = AGENTS["claude"].parse("StopFailure", json.dumps(payload).encode())
    assert isinstance(event, TurnFailed) and (event.session, event.cls) == ("s", cls)
