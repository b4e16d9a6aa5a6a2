from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from unit.source.driver import SourceDriver


@pytest_asyncio.fixture
async def world() -> AsyncIterator[SourceDriver]:
    """A source; whatever a test does with it, its rows are sound afterwards."""
    driver = await SourceDriver.open()
    yield driver
    await driver.sound()
