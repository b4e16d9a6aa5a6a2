"""Fixtures of the suites with real processes: a bucket server, a prefix of it per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from conformance.factories import BUCKET, bucket_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[None]:
    with bucket_server():
        yield


@pytest.fixture
def bucket(server: None) -> str:
    """An empty location in the bucket."""
    return f"s3://{BUCKET}/integration-{next(_numbers)}"
