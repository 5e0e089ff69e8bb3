"""A model behind a server with OpenAI's completions: the exact probabilities of what it does next.

Conversations are written as ChatML with tools in the form of Qwen and Hermes. A weak model is a lower bound for those
that the agents use, and an honest reader: it has not read our docs.
"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wal_agent.errors import UsageError

LEAST: Final = 0.005  # probability below which what begins so is not followed
TOPS: Final = 20  # tokens whose probabilities are asked for
CALLS: Final = ("<tool_call>", "<", "{", '{"', "```json", "<tools>")  # tokens with which a call begins
FENCES: Final = ("``", "```")  # with which one may begin: or a command as text, which nothing runs
IN_FENCES: Final = ("json", "{", '{"')
FORCED: Final = '<tool_call>\n{"name": "bash", "arguments": {"command":'  # its next token holds the quote and more
_TOOLS: Final = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def write_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Write a conversation as the model reads it, up to where it answers. The first message is the system's."""
    shown = "\n".join(json.dumps(tool) for tool in tools)
    text = ""
    for message in messages:
        role, said = message["role"], message["content"]
        if role == "system":
            said += _TOOLS.format(tools=shown)
        for call in message.get("tool_calls", ()):
            made = call["function"]
            said += f'\n<tool_call>\n{{"name": "{made["name"]}", "arguments": {made["arguments"]}}}\n</tool_call>'
        if role == "tool":
            role, said = "user", f"<tool_response>\n{said}\n</tool_response>"
        text += f"<|im_start|>{role}\n{said.lstrip()}<|im_end|>\n"
    return f"{text}<|im_start|>assistant\n"


class Model:
    """`server`: the address, such as http://127.0.0.1:8080."""

    def __init__(self, server: str, name: str) -> None:
        self._url, self._name = f"{server.rstrip('/').removesuffix('/v1')}/v1/completions", name

    def next_tokens(self, prompt: str) -> dict[str, float]:
        """Return the likeliest next tokens with their probabilities."""
        ask = {"model": self._name, "prompt": prompt, "max_tokens": 1, "logprobs": TOPS, "temperature": 0}
        made = self._post(ask)["choices"][0].get("logprobs") or {}
        if made.get("content"):  # llama.cpp's server
            tops = {t["token"]: t["logprob"] for t in made["content"][0]["top_logprobs"]}
        else:
            tops = (made.get("top_logprobs") or [{}])[0]
        if len(tops) < 2:
            raise UsageError(f"{self._url} returns no probabilities of tokens.", "Choose another server: --server URL")
        return {token: math.exp(log) for token, log in tops.items()}

    def begins_call(self, prompt: str) -> float:
        """Return the probability that the answer begins with a call."""
        begun = self.next_tokens(prompt)
        sure = sum(p for token, p in begun.items() if token.strip() in CALLS)
        fenced = {token: p for token, p in begun.items() if token.strip() in FENCES}
        return sure + sum(p * self._in_fence(prompt + token) for token, p in fenced.items())

    def _in_fence(self, prompt: str) -> float:
        return sum(p for token, p in self.next_tokens(prompt).items() if token.strip().startswith(IN_FENCES))

    def spread(self, prompt: str, ways: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Return the probability of each way to go on. A way is the beginnings of the texts that count for it; the
        longest that fits wins."""
        found = dict.fromkeys(ways, 0.0)
        begun = [("", 1.0)]
        while begun:
            so_far, p = begun.pop()
            for token, q in self.next_tokens(prompt + so_far).items():
                text = so_far + token
                fits = [(len(b), way) for way, begins in ways.items() for b in begins if text.startswith(b)]
                if fits:
                    found[max(fits)[1]] += p * q
                elif p * q >= LEAST and any(b.startswith(text) for begins in ways.values() for b in begins):
                    begun.append((text, p * q))
        return found

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(request, timeout=1800) as reply:
                return dict(json.load(reply))
        except OSError as error:
            raise UsageError(f"{self._url} does not answer: {error}.", "Start the server, or: --server URL") from None
