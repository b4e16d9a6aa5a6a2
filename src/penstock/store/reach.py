"""Whether a bucket answers this process and, where it does not, why.

Contract     `reach` returns when the bucket has answered one small request. Else it says what is
             wrong: NotFoundError, there is no such bucket; InvalidError, it refuses these
             credentials; UnavailableError, all the rest, after LOOK_SECONDS at the latest.
Why          SlateDB asks again and again, for ever and without a word, whatever the answer was: a
             process that has not the AWS_* variables would hang. So it is asked only when a bucket
             is there.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from penstock.errors import InvalidError, NotFoundError, PenstockError, UnavailableError

LOOK_SECONDS = 15.0
#: A connection that was closed is no reason yet.
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=LOOK_SECONDS)}
#: Where machines at AWS find the credentials of their role.
_METADATA = "//169.254.169.254/"
_HINT = "credentials, region and endpoint come from the AWS_* variables of this process"
_PLAIN_HINT = "an endpoint without TLS needs AWS_ALLOW_HTTP=true"


def first_line(text: object) -> str:
    """Of an error of the client: below it is how it sees things from the inside."""
    return str(text).strip().partition("\n")[0]


async def reach(location: str, bucket: str, path: str) -> None:
    """`bucket` is its URL, `path` is where the store lies in it."""
    try:
        store = from_url(bucket, retry_config=_RETRIES)
        async with asyncio.timeout(LOOK_SECONDS):
            # The fewest names that a store has; that there are none is an answer, too.
            async for _ in obstore.list(store, prefix=f"{path}/manifest"):
                return
    except TimeoutError:
        raise UnavailableError(
            f"{location}: no answer within {LOOK_SECONDS:.0f} seconds", hint=_HINT
        ) from None
    except (BaseError, OSError, ValueError) as error:
        raise _explained(location, str(error)) from error


def _explained(location: str, text: str) -> PenstockError:
    # The client tells in words only what the bucket answered to a list.
    line = first_line(text)
    said = re.sub(r"^(Generic \w+ error: |Error performing list request: )+", "", line)
    if _METADATA in line:  # which the client asks when nothing else gives it any
        return UnavailableError(f"{location}: there are no credentials; {said}", hint=_HINT)
    answer = re.search(r"list request: .*status code: (\d+)", line)
    code = re.search(r"<Code>(\w+)</Code>", text)
    match answer and answer[1]:
        case "404":
            return NotFoundError(f"{location}: there is no such bucket", hint="create it first")
        case "401" | "403" as status:
            reason = code[1] if code else status
            return InvalidError(f"{location}: access is refused: {reason}", hint=_HINT)
    plain = "builder error" in line and " http://" in line
    return UnavailableError(f"{location}: {said}", hint=_PLAIN_HINT if plain else _HINT)
