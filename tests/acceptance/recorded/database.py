# SPDX-License-Identifier: MIT
"""A database of orders."""

import sqlite3
import time
import uuid

connection = sqlite3.connect("out/orders.db")
connection.execute("drop table if exists orders")
connection.execute("create table orders (id text primary key, at real, item text, amount integer)")
with connection:
    for item, amount in (("tea", 3), ("coffee", 5), ("cake", 2)):
        connection.execute("insert into orders values (?, ?, ?, ?)", (str(uuid.uuid4()), time.time(), item, amount))
for row in connection.execute("select * from orders order by item"):
    print(row)
print(connection.execute("select sum(amount), count(*) from orders").fetchone())
connection.create_function("shout", 1, str.upper)
print(
    connection.execute("select group_concat(shout(item), '+') from (select item from orders order by item)").fetchall()
)
connection.close()
memory = sqlite3.connect(":memory:")
memory.executescript("create table t (x); insert into t values (1), (2);")
print(memory.execute("select max(x) from t").fetchone())
