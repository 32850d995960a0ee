# SPDX-License-Identifier: MIT
"""Names and numbers that nobody could guess."""

import os
import random
import secrets
import string
import uuid

print(uuid.uuid4(), uuid.uuid1().hex, uuid.uuid5(uuid.NAMESPACE_DNS, "example.org"))
print(secrets.token_hex(8), secrets.token_urlsafe(12), secrets.randbelow(10**9), os.urandom(6).hex())
deck = list(range(20))
random.shuffle(deck)
print(deck, random.random(), random.gauss(0, 1), random.choices(string.ascii_letters, k=8))
print(random.Random().randint(1, 10**9), random.SystemRandom().random(), random.sample(range(1000), 5))
print({word: hash(word) for word in ("red", "green", "blue")}, list({"red", "green", "blue"}))
