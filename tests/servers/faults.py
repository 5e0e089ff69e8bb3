"""What the proxy may do to one request, and plans that say when: a plan is a function of a request's method, path and
number (from 0, in the order of arrival)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Scheme = Literal["gs", "s3", "az"]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answered by the proxy; the store never hears of it."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LostReply:
    """Carried out; then the connection is closed without a byte."""


@dataclass(frozen=True, slots=True)
class ResetUpload:
    """Reset (RST) once `after` bytes of the request's body came; the store never hears of it."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Late:
    """The connection is closed now, and the store gets the request later: just before the n-th further one, or at
    `Proxy.release()`."""

    after: int | None = None


@dataclass(frozen=True, slots=True)
class SlowBody:
    """Carried out; the reply announces its whole body, of which `after` bytes come. Then the connection is closed, or
    the rest follows byte by byte with `pause` seconds between."""

    after: int = 0
    pause: float | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answered, until the proxy closes; the store never hears of it."""


@dataclass(frozen=True, slots=True)
class StaleClose:
    """Answered, as if the connection stayed; then it is closed: at once, or (not `noticed`) with a reset when the next
    request comes, as when both ends act at the same moment."""

    noticed: bool = True


Fault = Reply | LostReply | ResetUpload | Late | SlowBody | Hang | StaleClose
Plan = Callable[[str, str, int], Fault | None]


def calm(method: str, path: str, number: int) -> Fault | None:
    """The plan in which nothing goes wrong."""
    return None


@dataclass(slots=True)
class Script:
    """A plan that gives the faults, in order, to requests of `method` (all: "") whose path contains `path`; one each,
    or (`forever`) the last of them to every further one."""

    faults: list[Fault | None]
    method: str = ""
    path: str = ""
    forever: bool = False

    def __call__(self, method: str, path: str, number: int) -> Fault | None:
        if self.method not in ("", method) or self.path not in path or not self.faults:
            return None
        return self.faults[0] if self.forever and len(self.faults) == 1 else self.faults.pop(0)


_GCS_REASON = {
    403: "forbidden",
    408: "requestTimeout",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "backendError",
    503: "backendError",
}
_AZURE_CODE = {
    403: "AuthorizationPermissionMismatch",
    408: "OperationTimedOut",
    409: "OperationNotAllowedOnResource",
    412: "ConditionNotMet",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServerBusy",
}
_S3_CODE = {
    400: "RequestTimeout",
    403: "AccessDenied",
    408: "RequestTimeout",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


def refusal(scheme: Scheme, status: int, says: str = "injected on purpose") -> Reply:
    """The status as the service itself words it: S3's XML (503 is SlowDown, 409 ConditionalRequestConflict, a 400 is
    its RequestTimeout), Azure's, or GCS's JSON."""
    if scheme == "s3":
        code = _S3_CODE[status]
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{says}</Message></Error>'
        return Reply(status, body.encode(), (("Content-Type", "application/xml"),))
    if scheme == "az":
        code = _AZURE_CODE[status]
        body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{says}\n'
        body += "RequestId:0\nTime:2026-01-01T00:00:00.0000000Z</Message></Error>"
        return Reply(status, body.encode(), (("Content-Type", "application/xml"), ("x-ms-error-code", code)))
    error = {"message": says, "domain": "global", "reason": _GCS_REASON[status]}
    text = json.dumps({"error": {"code": status, "message": says, "errors": [error]}})
    return Reply(status, text.encode(), (("Content-Type", "application/json; charset=UTF-8"),))


@dataclass(slots=True)
class Storm:
    """A plan drawn from `seed`: the same requests in the same order meet the same faults. Rates are 0 to 1.

    `lost` and `stale` meet every request, `late` and `reset` those that write, `cut` those that read; `refused` is
    429, 500, 503 or S3's 409 without being carried out. `only` says which requests may be met at all.
    """

    seed: int
    scheme: Scheme
    lost: float = 0.0
    late: float = 0.0
    reset: float = 0.0
    refused: float = 0.0
    cut: float = 0.0
    stale: float = 0.0
    only: Callable[[str, str], bool] = lambda method, path: True
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def __call__(self, method: str, path: str, number: int) -> Fault | None:
        # Always the same number of draws, so that one changed rate does not shift all later faults.
        lost, late, reset, refused, cut, stale, size = (self._random.random() for _ in range(7))
        if not self.only(method, path):
            return None
        writes = method in ("PUT", "POST", "DELETE")
        statuses = (429, 500, 503, 409) if self.scheme == "s3" else (429, 500, 503)
        found: list[tuple[bool, Fault]] = [
            (lost < self.lost, LostReply()),
            (writes and late < self.late, Late(1 + int(8 * size))),
            (writes and reset < self.reset, ResetUpload(int(200 * size))),
            (refused < self.refused, refusal(self.scheme, statuses[int(size * len(statuses))])),
            (not writes and cut < self.cut, SlowBody(int(100 * size))),
            (stale < self.stale, StaleClose(noticed=size < 0.5)),
        ]
        return next((fault for hit, fault in found if hit), None)
