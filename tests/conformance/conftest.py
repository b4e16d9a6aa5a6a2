"""Fixtures of the store contract suite: a place and an open store, once per kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from conformance.factories import FACTORIES, Place, bucket_server, make_place
from penstock.store.port import Store


@pytest.fixture(scope="session")
def bucket() -> Iterator[None]:
    with bucket_server():
        yield


@pytest.fixture(params=FACTORIES)
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest_asyncio.fixture
async def place(store_kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with make_place(store_kind, request) as place:
        yield place


@pytest_asyncio.fixture
async def store(place: Place) -> Store:
    return await place.open()
