# SPDX-License-Identifier: MIT
"""Objects to bytes and back."""

import base64
import collections
import copy
import dataclasses
import dbm.dumb
import decimal
import hashlib
import pickle
import shelve
import struct


@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int
    tags: set = dataclasses.field(default_factory=set, compare=False)


points = [Point(number % 3, number, {"a", "b", f"t{number}"}) for number in range(5)]
data = pickle.dumps(points)
print(len(data), hashlib.sha256(data).hexdigest(), pickle.loads(data) == copy.deepcopy(points))
with open("out/points.pickle", "wb") as file:
    file.write(data)
with shelve.Shelf(dbm.dumb.open("out/shelf", "n")) as shelf:
    shelf["points"] = points
    shelf["total"] = decimal.Decimal("0.1") * 3
    print(sorted(shelf), shelf["total"])
print(
    base64.b64encode(struct.pack("<IdH", 7, 2.5, 3)),
    collections.Counter("mississippi").most_common(2),
    sorted(points)[0],
)
