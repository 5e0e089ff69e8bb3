"""What Cloud Storage's refusals mean, in the words of the bucket contract. Pure: status and text in, an error out."""

from __future__ import annotations

import json
import re
from typing import Literal

from wal_agent.errors import Conflict, Denied, Misconfigured, NotFound, Unavailable, WalAgentError
from wal_agent.shown import heard

Op = Literal["get", "create", "replace", "delete", "list"]

LOGIN = "Log in with `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS."
_NEEDS: dict[Op, str] = {
    "get": "storage.objects.get",
    "create": "storage.objects.create",
    "replace": "storage.objects.create and storage.objects.delete",
    "delete": "storage.objects.delete",
    "list": "storage.objects.list",
}
_WHO = re.compile(r"([\w.+-]{1,100}@[\w.-]{1,100}|Anonymous caller) does not have (storage\.[A-Za-z.]{1,60}) access")
_NO_BUCKET = re.compile(r"bucket.{0,250}? does not exist", re.IGNORECASE)


def reply_text(body: bytes) -> str:
    """The store's own words in a reply to a refused request, made safe to print."""
    text = body.decode(errors="replace")
    try:
        text = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # a proxy's page, or nothing
    return heard(str(text))


def refusal_error(op: Op, bucket: str, key: str, who: str, status: int, text: str) -> WalAgentError:
    """The error for a reply. `bucket` and `key` are as the user writes them, `who` the account when known, else ""."""
    match status:
        case 412:
            return Conflict(f"{key} in {bucket} is another version.")
        case 404 if op in ("create", "list") or _NO_BUCKET.search(text):
            name = bucket.removeprefix("gs://").partition("/")[0]
            return Misconfigured(
                f"There is no bucket {name} in Cloud Storage.",
                f"Check the name, or make it with `gcloud storage buckets create gs://{name}`.",
            )
        case 404 if op == "replace":
            return Conflict(f"{key} in {bucket} is absent.")
        case 404:
            return NotFound(f"{bucket} holds no {key}.")
        case 401:
            return Denied(f"Cloud Storage does not accept the credentials{f' of {who}' if who else ''}.", LOGIN)
        case 403:
            return _forbidden(op, bucket, who, text)
    return Unavailable(f"Cloud Storage answered {status} for {bucket}{f' ({text})' if text else ''}.")


def _forbidden(op: Op, bucket: str, who: str, text: str) -> Denied:
    named = _WHO.search(text)
    who, permission = named.groups() if named else (who, _NEEDS[op])
    reason = f" ({text})" if text and not named else ""
    also = " (replacing an object needs storage.objects.delete too)" if op == "replace" else ""
    return Denied(
        f"{who or 'This account'} has no {permission} on {bucket}{reason}.",
        f"`gcloud auth list` shows the accounts; give this one roles/storage.objectUser on the bucket{also}.",
    )
