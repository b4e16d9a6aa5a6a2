"""A queue that speaks SQS, at AWS or anywhere else, through boto3.

    sqs://uploads                           by its name; region, credentials and endpoint as boto3
                                            finds them (AWS_REGION, AWS_ENDPOINT_URL_SQS, …)
    sqs://HOST[:PORT]/ACCOUNT/uploads       by its URL; over plain HTTP where a port is given
    https://HOST/ACCOUNT/uploads            the same, as SQS itself writes it
    …?region=R&endpoint=URL                 behind any of them

Contract     `source.queueport.Queue`. Messages come ten at a time, as SQS has it. A receipt that
             SQS does not take any more is a lease that is over. Refused credentials and addresses
             are InvalidErrors, whatever may go away by itself is an UnavailableError.
SQS' own     A standard queue may take a receipt although the lease is over. No harm: nothing is
             acknowledged before it is loaded, and a lease decides nothing but who is asked next.
Threads      A client of boto3 may be used by several.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from penstock.clock import Clock
from penstock.errors import InvalidError, NotFoundError, UnavailableError
from penstock.source.queueport import Limits, Received

_log = logging.getLogger("penstock")

#: Of SQS: messages of one call, seconds of one wait, seconds of one delivery in all.
_BATCH = 10
_WAIT_SECONDS = 20
_HELD_SECONDS = 43_200
#: Of a lease: how long one call may wait for a message.
_WAIT_SHARE = 0.25

_HINT = "sqs://NAME, or sqs://HOST:PORT/ACCOUNT/NAME, and behind it ?region=…&endpoint=…"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}(\.fifo)?")
_MISSING = ("NonExistentQueue", "QueueDoesNotExist")
#: A receipt that is used up, or not in time.
_OVER = ("MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue")


class Address(NamedTuple):
    name: str
    url: str | None  # None: SQS is asked for it
    region: str | None
    endpoint: str | None


def is_sqs(queue: str) -> bool:
    return queue.startswith(("sqs:", "https://", "http://"))


def parse_address(text: str) -> Address:
    def wrong(reason: str) -> InvalidError:
        return InvalidError(f"{text!r} is no queue of SQS: {reason}", hint=_HINT)

    inner = text.removeprefix("sqs://")
    # An address may be written in front of the URL that SQS gives.
    parts = urlsplit(inner if inner.startswith(("http://", "https://")) else f"sqs://{inner}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options.keys() - {"region", "endpoint"}:
        raise wrong(f"there is no option {name!r}")
    if text.startswith("sqs:") and not text.startswith("sqs://"):
        raise wrong("two slashes follow sqs:")
    if parts.username or parts.password or "@" in parts.netloc:
        raise wrong("credentials are not part of it; boto3 finds them")
    region, endpoint = options.get("region"), options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise wrong(f"an endpoint is a URL, not {endpoint!r}")
    *above, name = f"{parts.netloc}{parts.path}".split("/")
    if not _NAME.fullmatch(name):
        raise wrong(f"{name!r} is not a name")
    if not above and parts.scheme == "sqs":
        return Address(name, None, region, endpoint)
    if len(above) != 2 or not all(above):
        raise wrong("an address has a host, an account and a name")
    host = above[0]
    scheme = parts.scheme if parts.scheme != "sqs" else ("http" if ":" in host else "https")
    # The region of AWS' own hosts is in their names.
    told = re.match(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com", host)
    if told is not None:
        return Address(
            name, f"{scheme}://{host}/{above[1]}/{name}", region or told[1] or told[2], endpoint
        )
    base = f"{scheme}://{host}"
    return Address(name, f"{base}/{above[1]}/{name}", region, endpoint or base)


class SqsQueue:
    def __init__(self, client: Any, url: str, *, clock: Clock, attributes: dict[str, str]) -> None:
        self._client = client
        self._url = url
        self._clock = clock
        self._lease = float(attributes.get("VisibilityTimeout", 30))
        self._retention = float(attributes.get("MessageRetentionPeriod", 345_600))

    @classmethod
    def open(cls, address: str, *, clock: Clock) -> SqsQueue:
        """Of a queue that is there and lets itself be asked."""
        parsed = parse_address(address)
        with _translated(address):
            client = _client(parsed)
            url = parsed.url or client.get_queue_url(QueueName=parsed.name)["QueueUrl"]
            found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        attributes = found.get("Attributes", {})
        _warn_of_redrive(address, attributes.get("RedrivePolicy"))
        return cls(client, url, clock=clock, attributes=attributes)

    def receive(self, max_messages: int, wait: float) -> list[Received]:
        received: list[Received] = []
        until = self._clock.monotonic() + wait
        # As in queueports.py: deadlines count from before the call, so it waits for a part only.
        longest = min(_WAIT_SECONDS, max(1, int(self._lease * _WAIT_SHARE)))
        while len(received) < max_messages:
            began = self._clock.monotonic()
            # A second at least: a call that does not wait asks some of SQS' servers only, and may
            # bring nothing although there is something. Who has some need not wait for more.
            seconds = 0 if received else min(longest, max(1, math.ceil(until - began)))
            found = self._receive(min(_BATCH, max_messages - len(received)), seconds)
            deadline = began + self._lease
            received += [_received(message, deadline) for message in found]
            now = self._clock.monotonic()
            if not found and (received or now >= until):
                break
            # Nobody extends what is in hand before all of it is: of a queue that is slow, fewer.
            if received and received[0].deadline - now <= self._lease * (1 - _WAIT_SHARE):
                break
        return received

    def _receive(self, count: int, wait: int) -> list[dict[str, Any]]:
        with _translated(self._url):
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=wait,
                MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageDeduplicationId"],
            )
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def extend(self, received: Received, seconds: float) -> float | None:
        began = self._clock.monotonic()
        whole = min(math.ceil(seconds), _HELD_SECONDS)
        # Apart from the other errors: this one is an answer.
        over = self._client.exceptions.ClientError
        with _translated(self._url):
            try:
                self._client.change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=received.handle, VisibilityTimeout=whole
                )
            except over as error:
                if _code_of(error.response).endswith(_OVER):
                    return None
                raise
        return began + whole

    def acknowledge(self, received: Sequence[Received]) -> list[bool]:
        truths: list[bool] = []
        for start in range(0, len(received), _BATCH):
            batch = received[start : start + _BATCH]
            entries = [{"Id": str(i), "ReceiptHandle": each.handle} for i, each in enumerate(batch)]
            with _translated(self._url):
                answer = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
            for failed in answer.get("Failed", []):
                if not failed.get("SenderFault", True):
                    raise UnavailableError(f"{self._url}: {failed.get('Message', 'no reason')}")
            gone = {each["Id"] for each in answer.get("Successful", [])}
            truths += [str(i) in gone for i in range(len(batch))]
        return truths

    def send(self, body: str) -> None:
        fifo = self._url.endswith(".fifo")
        unique = self._clock.entropy(16).hex()
        more = {"MessageGroupId": "penstock", "MessageDeduplicationId": unique} if fifo else {}
        with _translated(self._url):
            self._client.send_message(QueueUrl=self._url, MessageBody=body, **more)

    def limits(self) -> Limits:
        return Limits(
            lease=self._lease,
            lease_max=_HELD_SECONDS,
            retention=self._retention,
        )

    def close(self) -> None:
        self._client.close()


def _received(message: dict[str, Any], deadline: float) -> Received:
    attributes = message.get("Attributes", {})
    return Received(
        id=message["MessageId"],
        body=message["Body"].encode(),
        attempts=max(1, int(attributes.get("ApproximateReceiveCount", 1))),
        handle=message["ReceiptHandle"],
        deadline=deadline,
        dedup_id=attributes.get("MessageDeduplicationId"),
    )


def _client(address: Address) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise InvalidError(
            "queues of SQS need boto3", hint="pip install '.[sqs]' in the clone"
        ) from None
    # A lease lasts seconds: a call that hangs for minutes would outlive it.
    config = Config(
        connect_timeout=5,
        read_timeout=_WAIT_SECONDS + 10,
        retries={"mode": "standard", "max_attempts": 3},
    )
    session = boto3.Session()
    region = address.region or os.environ.get("AWS_REGION") or session.region_name
    if region is None and address.endpoint is not None:
        region = "us-east-1"  # any will do where it is not AWS
    try:
        return session.client(
            "sqs", region_name=region, endpoint_url=address.endpoint, config=config
        )
    except ValueError as error:
        raise InvalidError(f"{address.endpoint}: {error}", hint=_HINT) from None


def _warn_of_redrive(address: str, policy: str | None) -> None:
    if policy is None:
        return
    with contextlib.suppress(ValueError, AttributeError):
        _log.warning(
            "%s moves messages away after %s deliveries, also of files that are merely being read "
            "elsewhere; the source counts failures itself",
            *(address, json.loads(policy).get("maxReceiveCount")),
        )


# ---- errors -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _translated(address: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

    try:
        yield
    except ClientError as error:
        raise _of_response(address, error.response) from None
    except (NoCredentialsError, NoRegionError) as error:
        raise InvalidError(
            f"{address}: {error}", hint="set AWS_REGION, and credentials as boto3 finds them"
        ) from None
    except BotoCoreError as error:
        raise UnavailableError(f"{address}: {error}") from None


def _code_of(response: Any) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _of_response(address: str, response: Any) -> Exception:
    code = _code_of(response)
    told = response.get("Error", {}).get("Message") or code
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if code.endswith(_MISSING):
        return NotFoundError(f"{address}: there is no such queue", hint="create it, or check it")
    if (
        status >= 500
        or "Throttl" in code
        or code in ("RequestThrottled", "OverLimit", "KmsThrottled")
    ):
        return UnavailableError(f"{address}: {told}")
    return InvalidError(f"{address}: {told} ({code})", hint="check credentials and permissions")
