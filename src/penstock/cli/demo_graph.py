"""The demo's fifth act: orders through a graph on Spark, its driver killed in the middle.

Contract     A real `penstock graph run` of demo_flow.py (alts, pipe, join, fork and sink), killed
             (SIGKILL) while it works and begun again. Every twentieth order cannot be read and has
             to end in the error stream. What is compared: the orders and payments that went in,
             and those that came out, as large ones in a SQLite table, as small ones in a stream, or
             as errors.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np

import penstock
from penstock.cli.demo_crowd import LOCATION
from penstock.cli.demo_driver import Driver, FlowResult, compare
from penstock.clock import perf_counter

#: The graph; not imported here, because it needs Spark.
FLOW = Path(__file__).with_name("demo_flow.py")
EU, US, ORDERS, PAYMENTS = "eu", "us", "orders", "payments"
CLEAN, PAID, LARGE, SMALL, ERRORS = "clean", "paid", "large", "small", "demo-errors"
#: Messages of one step: few, so that there are many moments to be killed in.
STEP = 1_000
COUNT = 6_000  # of each shop
BAD_EVERY = 20


def run_graph(work: Path, *, kills: int, report: Callable[[str], None]) -> FlowResult:
    location, database = work / LOCATION, work / "large.db"
    begun = perf_counter()
    os.environ["PENSTOCK_DEMO_DATABASE"] = str(database)
    command = ("graph", "run", str(FLOW), "--location", str(location))
    with penstock.open(location) as db:
        expected = write_orders(db)
        small = db.stream(SMALL)
        for n in range(kills):
            report(f"a graph on Spark works on {2 * COUNT:,} orders")
            with Driver(work, *command) as driver:
                driver.until(lambda n=n: small.info().length > n * STEP)  # type: ignore[misc]
                report(f"kill {n + 1}: the graph's driver, its JVM and its workers")
        report("the graph goes on where it was")
        with Driver(work, *command) as driver:
            driver.finish()
        report("comparing")
        found = read_results(db, database)
    return compare(expected, found, kills, perf_counter() - begun)


def write_orders(db: penstock.Database) -> list[str]:
    """-> what has to come out: every order, and every payment that met one"""
    amounts = np.random.default_rng(5).integers(1, 1000, 2 * COUNT).tolist()
    expected: list[str] = []
    for place, shop in enumerate((EU, US)):
        entries = []
        for n in range(COUNT):
            order, amount = f"{shop}-{n}", amounts[place * COUNT + n]
            bad = n % BAD_EVERY == BAD_EVERY - 1
            expected.append(f"error {order}" if bad else f"order {order} {amount}")
            value = "a lot" if bad else amount
            entries.append(json.dumps({"order": order, "amount": value}).encode())
        db.stream(shop).write_many(entries)
    good = 2 * (COUNT - COUNT // BAD_EVERY)
    db.stream(PAYMENTS).write_many([json.dumps({"payment": n}).encode() for n in range(good)])
    return expected + [f"payment {n}" for n in range(good)]


def read_results(db: penstock.Database, database: Path) -> list[str]:
    with sqlite3.connect(database) as sink:
        rows = sink.execute('select "order", amount, payment from large').fetchall()
    for data in _entries(db, SMALL):
        row = json.loads(data)
        rows.append((row["order"], row["amount"], row["payment"]))
    found = [f"order {order} {amount}" for order, amount, _ in rows]
    found += [f"payment {payment}" for _, _, payment in rows]
    orders = {offset: json.loads(data)["order"] for offset, data in enumerate(_entries(db, ORDERS))}
    for data in _entries(db, ERRORS):
        ((_, offset),) = _inputs(json.loads(data))
        found.append(f"error {orders[offset]}")
    return found


def _entries(db: penstock.Database, name: str) -> list[bytes]:
    column: list[bytes] = db.stream(name).to_arrow()["data"].to_pylist()
    return column


def _inputs(error: dict[str, list[dict[str, object]]]) -> list[tuple[str, int]]:
    return [(str(each["stream"]), int(str(each["offset"]))) for each in error["inputs"]]
