"""Takes secrets out of text that leaves the machine for people: prompts, status, notifications, logs (DESIGN 6).

The resumable copy in the bucket is not redacted; everything else is. Patterns go by known key formats, by names that
say "secret" and by places where credentials stand (URLs, headers). Hashes, UUIDs, paths and ordinary file names pass.
All patterns run in linear time. What is found is replaced by `[redacted]`, its surroundings stay.
"""

from __future__ import annotations

import re

MARK = "[redacted]"

# Key formats that tell themselves apart; each must not begin in the middle of a longer word.
_KEYS = (
    r"(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Z0-9])",  # AWS access key ids
    r"AIza[0-9A-Za-z_-]{35}",  # Google API keys
    r"ya29\.[0-9A-Za-z_.-]{20,}",  # Google OAuth access tokens
    r"1//0[0-9A-Za-z_-]{20,}",  # Google OAuth refresh tokens
    r"GOCSPX-[0-9A-Za-z_-]{20,}",  # Google OAuth client secrets
    r"gh[pousr]_[0-9A-Za-z]{20,}",  # GitHub
    r"github_pat_[0-9A-Za-z_]{20,}",
    r"glpat-[0-9A-Za-z_-]{20,}",  # GitLab
    r"sk-(?=[A-Za-z_-]{0,80}[0-9])[0-9A-Za-z_-]{20,}",  # OpenAI, Anthropic, OpenRouter
    r"(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{10,}",  # Stripe
    r"whsec_[0-9A-Za-z+/=]{20,}",
    r"xox[abeoprs]-[0-9A-Za-z-]{10,}",  # Slack
    r"xapp-[0-9A-Za-z-]{10,}",
    r"npm_[0-9A-Za-z]{30,}",
    r"pypi-[0-9A-Za-z_-]{40,}",
    r"hf_[0-9A-Za-z]{30,}",  # Hugging Face
    r"dop_v1_[0-9a-f]{60,}",  # DigitalOcean
    r"SG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}",  # SendGrid
    r"eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{4,}\.[0-9A-Za-z_-]*",  # JWT
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
)
_KEY = re.compile(r"(?<![0-9A-Za-z_])(?:" + "|".join(_KEYS) + ")")

# A private key, also one whose end was cut off.
_PEM = re.compile(
    r"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
    r"((?:[A-Za-z0-9+/=\s\\:,.()]|-(?!----END))*)(-----END [A-Z0-9 ]{0,40}-----)?"
)

# scheme://user:password@host and scheme://token@host; a bare user name before @ stays (git@, user@).
_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)([^\s/:@'\"<>?#]{0,200}):([^\s/@'\"<>]{1,500})@", re.IGNORECASE)
_URL_TOKEN = re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)([^\s/:@'\"<>?#]{16,500})@", re.IGNORECASE)

_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key|x-goog-api-key|x-auth-token|api-key|private-token|set-cookie|cookie)"
    r"([\"']?\s{0,8}:\s{0,8}[\"']?)((?:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s{1,8})?)"
    r"([^\s\"'\\][^\n\"'\\]{0,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,8})(?=[^\s\"']{0,80}[0-9=])([A-Za-z0-9_.~+/=-]{12,})", re.IGNORECASE)
_LOGIN = re.compile(
    r"(\bcurl\b[^\n]{0,2000}?\s(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,200}:)([^\s\"']{1,500})"
)
_SSHPASS = re.compile(r"(\bsshpass\s{1,8}-p\s{0,8})([^\s]{1,500})")

# A name whose last part says that its value is secret, then = or : (or a space, after an option), then the value.
_NAME = (
    r"[A-Za-z0-9_.-]{0,80}?"
    r"(?:password|passwd|passphrase|(?<![A-Za-z])pass|(?<![A-Za-z])pwd|secret|token|(?<![A-Za-z0-9])_auth|"
    r"(?:api|access|secret|private|signing|encryption|auth|account|shared)[_-]?key(?:[_-]?id)?|"
    r"x-(?:amz|goog)-signature|credentials?)[0-9]{0,2}"
)
_VALUE = r"(\"(?:[^\"\\\n]|\\.){1,4000}\"|'[^'\n]{1,4000}'|[^\s\"'`,;&|<>(){}\[\]]{1,4000})"
_EDGE = r"(?<![A-Za-z0-9_.-])"
_ASSIGNED = re.compile(rf"{_EDGE}(-{{0,2}}{_NAME}[\"']?[ \t]{{0,4}}(?::=|=>|=|:)[ \t]{{0,4}}){_VALUE}", re.IGNORECASE)
_OPTION = re.compile(rf"{_EDGE}(--{_NAME}[ \t]{{1,4}})(?!-){_VALUE}", re.IGNORECASE)
_ESCAPED = re.compile(rf"{_EDGE}({_NAME}\\\"[ \t]{{0,4}}:[ \t]{{0,4}}\\\")([^\"\\\n]{{1,4000}})", re.IGNORECASE)

# Values that are not the secret but say where it is, or that there is none.
_HARMLESS = re.compile(
    r"[\"']?(?:\$|\$[A-Z_][A-Z0-9_]*|\$\$?\{.*|\$\(.*|\{\{.*|<[^>]*>|%[A-Za-z0-9_]+%|\*+|(?i:x){3,}|\.{3}|[0-9]{1,7}|"
    r"(?:~|\.{1,2})?(?:/[A-Za-z0-9_.@-]{1,40}){2,}/?|(?i:true|false|null|none|nil|undefined|yes|no|on|off|str|string|"
    r"int|bool|bytes|required|optional)|(?:os|process\.env|env|secrets|self|config|settings)\.\S*|\[redacted\])?[\"']?",
    re.DOTALL,
)
_CALL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    text = _PEM.sub(lambda m: f"{m[1]} {MARK} {m[3] or ''}".rstrip() if m[2].strip() else m[0], text)
    text = _URL.sub(lambda m: m[0] if _HARMLESS.fullmatch(m[3]) else f"{m[1]}{m[2]}:{MARK}@", text)
    text = _URL_TOKEN.sub(lambda m: m[0] if m[2] == MARK else f"{m[1]}{MARK}@", text)
    text = _HEADER.sub(lambda m: m[0] if _HARMLESS.fullmatch(m[4].strip()) else f"{m[1]}{m[2]}{m[3]}{MARK}", text)
    text = _BEARER.sub(lambda m: f"{m[1]}{m[2]}{MARK}", text)
    text = _KEY.sub(MARK, text)
    for pattern in (_LOGIN, _SSHPASS, _ASSIGNED, _OPTION, _ESCAPED):
        text = pattern.sub(_assigned, text)
    return text


def _assigned(m: re.Match[str]) -> str:
    value, follows = m[2], m.string[m.end() : m.end() + 1]
    if _HARMLESS.fullmatch(value) or (follows in ("(", "[") and follows and _CALL.fullmatch(value)):
        return m[0]
    quote = value[0] if value[0] in "\"'" and len(value) > 1 and value[-1] == value[0] else ""
    return f"{m[1]}{quote}{MARK}{quote}"
