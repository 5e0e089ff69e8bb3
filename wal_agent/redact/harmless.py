"""Values that stand where a secret could and are none: they say where it is, of what type, or that there is none."""

from __future__ import annotations

import re

from wal_agent.redact.find import MARK, compiled

_HARMLESS = (
    r"[\"']?(?:\$|\$[A-Za-z_][A-Za-z0-9_]*|\$\$?\{.*|\$\(.*|\{+[^{}]*\}+|<[^>]*>|%[A-Za-z0-9_]+%|\*+|(?i:x){3,}|\.{2,}|"
    r"[0-9]{1,7}|.{0,2}|\#[0-9a-fA-F]{3,8}|https?://[^\s?@]{0,500}|[\^~<>=v]{0,3}[0-9]{1,9}(?:\.[0-9]{1,9}){1,3}(?:[-+.][a-z0-9.]{1,20})?|(?:~|\.{1,2})?(?:/[A-Za-z0-9_.@-]{1,40}){2,}/?|(?i:true|false|null|none|nil|undefined|yes|no|on|off|"
    r"required|optional|missing|invalid|expired|empty|unset|write|read|inherit|"
    r"typeof|new|await|async|function|lambda|void|self|this|import|return|if|else|not|the|this|is|are|was|for|from|with|"
    r"and|must|should|may|can|your|cannot|could|has|had|expected|got|basic|bearer)|(?:os|process\.env|env|secrets|"
    r"self|this|config|settings|var|local|data|module)\.\S*|\[redacted\].*)?[\"']?"
)
_TYPES = (
    r"(?i:str|string|int|integer|number|bool|boolean|bytes|any|object|dict|list|void|char|unknown|"
    r"secretstr|final)[?;!]?"
)


def is_harmless(value: str) -> bool:
    return value.startswith(MARK) or compiled(_HARMLESS, re.DOTALL).fullmatch(value) is not None


# What source code says where a file of settings would have the secret itself.
_CALLED = r"[A-Za-z_][A-Za-z0-9_.]*"
_DOTTED = r"[A-Za-z_]+(?:(?:\.|->|::|\?\.)[A-Za-z_]+)+[;!]?"
_OF_WORDS = r"_{0,2}[A-Za-z]+(?:_[A-Za-z]+)+|_?[a-z]+(?:[A-Z][a-z]+)+|(?:[A-Z][a-z]+){2,}"
_SAYS_SO = r"(?i)\w{0,40}(?:pass|secret|token|key|cred|auth|cookie|hash)\w{0,20}"


def is_code(value: str, follows: str) -> bool:
    """Whether a bare value is the name of something: `read(` of a call, `self.token`, `user_password`, `str`."""
    return (
        (follows in ("(", "[", "{") and compiled(_CALLED).fullmatch(value) is not None)
        or compiled(_TYPES).fullmatch(value) is not None
        or compiled(_DOTTED).fullmatch(value) is not None
        or compiled(_OF_WORDS).fullmatch(value) is not None
        or (
            compiled(_SAYS_SO).fullmatch(value) is not None
            and value.isidentifier()
            and not any(c.isdigit() for c in value)
        )
    )
