"""Orders: a graph of all kinds of processors that you can read in a minute.

    penstock graph run examples/orders.py --location ./orders-data
    penstock graph show examples/orders.py
    penstock graph status orders --location ./orders-data

Two shops sell things (`eu` and `us`). Their orders come together, are cleaned and paid; large ones
and small ones go different ways, and the large ones end up in a SQLite table: each of them once,
whatever is killed on the way. Kill it, run it again, and count: `orders.db` has every order once.
"""

import json

from penstock.graph import Graph
from penstock.spark import sinks

graph = Graph("orders", errors="orders-errors")

ORDERS = 2_000


# A source yields outputs with their position: after a crash it goes on behind the last one that
# was committed.
def shop(country, position):
    for n in range(0 if position is None else position + 1, ORDERS):
        order = {"id": f"{country}-{n}", "amount": (n * 37) % 500}
        if n % 500 == 499:
            order["amount"] = "a lot"  # somebody's mistake: see orders-errors
        yield json.dumps(order).encode(), n


@graph.source("eu")
def eu_shop(position):
    yield from shop("eu", position)


@graph.source("us")
def us_shop(position):
    yield from shop("us", position)


# Whichever has something; order is kept within each of them.
@graph.alts(["eu", "us"], "orders")
def either(message):
    return message


# One message in, one message out. What it raises is handled: the message goes to orders-errors.
@graph.pipe("orders", "clean")
def clean(message):
    order = json.loads(message.data)
    order["amount"] = int(order["amount"])
    return json.dumps(order).encode()


@graph.pipe("clean", "payments")
def charge(message):
    order = json.loads(message.data)
    return json.dumps({"paid": order["amount"]}).encode()


# The k-th order with the k-th payment.
@graph.join({"order": "clean", "payment": "payments"}, "paid")
def pay(order, payment):
    return json.dumps(json.loads(order.data) | json.loads(payment.data)).encode()


# Several outputs, all in one commit.
@graph.fork("paid", ["large", "small"])
def split(message):
    return {"large" if json.loads(message.data)["paid"] >= 250 else "small": message}


# A ready-made sink: a row for each message, once, by its delivery hash.
@graph.sink("large")
@sinks.sqlite("orders.db", table="large")
def large(message):
    return json.loads(message.data)


# Any side effect will do. The hash is the same on every attempt: what makes it idempotent.
@graph.sink("small")
def small(message, delivery_hash):
    pass


if __name__ == "__main__":
    print(graph.run("./orders-data"))
