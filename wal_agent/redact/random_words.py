"""Redact long words that are mixed of small letters, capitals and digits: keys of issuers that no rule knows.

Hashes, UUIDs and ids in hex or base32 have one case; names and paths have words in them; digests in base64 say what
they are; a file's or a host's name has a dot.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise

from wal_agent.redact.hits import MARK, compiled

_LEAST = 20
_RANDOM_WORD = (
    rf"(?:(?<![0-9A-Za-z_+/.~@%\\$#=-])|(?<==)|(?<=%[0-9A-F]{{2}})|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{{2}}m)|(?<=\\[nrt]))"
    rf"[0-9A-Za-z_+/-]{{{_LEAST},}}+={{0,2}}"
    r"(?![0-9A-Za-z_+/@(\[~-]|\\(?![nrt\"'])|\.[0-9A-Za-z]|%(?![0-9A-F]{2}))"
)
# What a digest, an id or public data says of itself, in the word or before it.
_SAYS = (
    r"(?:sha-?[0-9]{1,3}|md5|blake\w{1,3}|crc32c?|h1|hash|digest|checksum|fingerprint|integrity|etag|nonce|cursor|"
    r"(?<![A-Za-z])(?:id|ids|uid|uuid|guid|sid|cid)|[a-z](?:Id|ID|Uid|Hash)|base64|mappings|revision|version|build|"
    r"ssh-[a-z0-9]{3,10}|"
    r"ecdsa-[a-z0-9-]{1,30}|certificate-authority-data|caBundle)\\?[\"']?[\])]?[ \t]{0,4}[-:=,~]?[ \t]{0,4}\\?[\"']?\Z"
)
_OWN = (
    r"(?:sha\d{1,3}|md5|blake\w{1,3}|toolu|srvtoolu|call|fc|msg|req|resp|rs|run|step|thread|asst|chatcmpl|cmpl|gen|batch|"
    r"file|evt|cus|pi|ch|in|sub|prod|price|seti|pm|txn|session|job|index|chunk|vendor|main|app|style|polyfills)[_-]|"
    r"_Z|_R|AAAA[BCE]|iVBORw0KGgo|/9j/|R0lGOD|UklGR|PHN2Zy|JVBERi|LS0tLS1CRUdJTiBD|LS0tLS1CRUdJTiBQVUJM|H4sI|UEsDB"
)
_HEX = r"(?:0x)?[0-9a-fA-F_+/=-]+[uUlL]{0,3}"
_PUBLIC = r"-----BEGIN (?!(?:[A-Z0-9]{1,20} ){0,3}PRIVATE)[A-Z0-9 ]{1,40}-----[A-Za-z0-9+/=\s\\:,.()]*+"


def redact_random_words(text: str) -> str:
    """Redact the words that look random."""
    public = [m.span() for m in compiled(_PUBLIC).finditer(text)] if "-----BEGIN " in text else []

    def put(m: re.Match[str]) -> str:
        if not looks_random(m[0]) or compiled(_OWN).match(m[0]):
            return m[0]
        if compiled(_SAYS, re.IGNORECASE).search(text[max(0, m.start() - 48) : m.start()]):
            return m[0]
        n = bisect_right(public, (m.start(), len(text)))
        return m[0] if n and m.start() < public[n - 1][1] else MARK

    return compiled(_RANDOM_WORD).sub(put, text)


def looks_random(word: str) -> bool:
    """Whether no person, and no digest in hex, would be written so."""
    if compiled(_HEX).fullmatch(word):
        return False
    parts = word.rstrip("=").split("/")
    if len(parts) > 1 and (len(word) < 32 or any(_is_plain(part) for part in parts if len(part) > 2)):
        return False
    return _turns(word) or any(_turns(part) for part in re.split("[-_]", word) if _LEAST <= len(part) < len(word))


def _turns(word: str) -> bool:
    """Whether small letters, capitals and digits change so often that they make no words."""
    kinds = [1 if c.islower() else 2 if c.isupper() else 3 for c in word if c.isalnum()]
    pairs = list(pairwise(kinds))
    if len(kinds) < _LEAST or len(set(kinds)) < 3 or len(set(word)) < min(len(word), 30) // 2:
        return False
    numbers = (kinds[0] == 3) + sum(a != 3 and b == 3 for a, b in pairs)
    least = 0.5 if len(kinds) < 28 else 0.45 if len(kinds) < 36 else 0.4
    return numbers >= 2 and sum(a != b for a, b in pairs) >= least * len(pairs)


def _is_plain(part: str) -> bool:
    """A part of a path: of one kind of letters, or a capital and small ones."""
    return part.islower() or part.isupper() or part.isdigit() or part[1:].islower()
