"""The graph of the demo: two shops, one stream of orders, payments, and a table of large ones.

Run by `penstock graph run` in a process that the demo kills; see demo_graph.py.
"""

from __future__ import annotations

import json
import os
from typing import Any

from penstock.cli.demo_graph import (
    CLEAN,
    ERRORS,
    EU,
    LARGE,
    ORDERS,
    PAID,
    PAYMENTS,
    SMALL,
    STEP,
    US,
)
from penstock.graph import Graph, Message
from penstock.spark import sinks

LARGE_AMOUNT = 500
DATABASE = os.environ.get("PENSTOCK_DEMO_DATABASE", "large.db")

graph = Graph("demo", errors=ERRORS)


@graph.alts([EU, US], ORDERS, step_max=STEP)
def either(message: Message) -> Message:
    return message


@graph.pipe(ORDERS, CLEAN, step_max=STEP)
def clean(message: Message) -> bytes:
    order = json.loads(message.data)
    return json.dumps({"order": order["order"], "amount": int(order["amount"])}).encode()


@graph.join({"order": CLEAN, "payment": PAYMENTS}, PAID, step_max=STEP)
def pay(order: Message, payment: Message) -> bytes:
    return json.dumps(json.loads(order.data) | json.loads(payment.data)).encode()


@graph.fork(PAID, [LARGE, SMALL], step_max=STEP)
def split(message: Message) -> dict[str, Message]:
    large = json.loads(message.data)["amount"] >= LARGE_AMOUNT
    return {LARGE if large else SMALL: message}


@graph.sink(LARGE, step_max=STEP)
@sinks.sqlite(DATABASE, table="large")
def store(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(message.data)
    return row
