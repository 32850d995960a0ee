# SPDX-License-Identifier: MIT
"""Bytes made of other bytes: what a hostile peer may send when it starts from something valid."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MAX_BYTES = 70_000
_EDGES = (0, 1, 2, 0x0D, 0x0A, 0x1F, 0x20, 0x3F, 0x40, 0x7F, 0x80, 0xBF, 0xC0, 0xFE, 0xFF)
_LENGTHS = (0, 1, 11, 12, 63, 64, 65, 253, 255, 256, 512, 4096, 16_384, 65_535)

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(chance: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """One input: a seed after a few mutations, two seeds joined, or bytes by chance alone."""
    if chance.random() < 0.02:
        return chance.randbytes(chance.choice(_LENGTHS))
    data = bytearray(chance.choice(seeds))
    if chance.random() < 0.15:
        other = chance.choice(seeds)
        data[_place(chance, data) :] = other[_place(chance, other) :]
    for _ in range(min(int(chance.expovariate(0.4)) + 1, 16)):
        chance.choice(_MUTATIONS)(chance, data, tokens)
    return bytes(data[:MAX_BYTES])


def _place(chance: random.Random, data: bytes | bytearray) -> int:
    return chance.randint(0, len(data))


def _flip(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice(_EDGES)


def _set_number(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    size = chance.choice((2, 3, 4))
    at = _place(chance, data)
    value = chance.choice((*_LENGTHS, len(data), max(len(data) - at - size, 0), 0xC000 | at, (1 << 8 * size) - 1))
    data[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def _cut(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    del data[_place(chance, data) :]


def _remove(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = _place(chance, data)
    del data[at : at + chance.randint(1, 16)]


def _repeat(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = _place(chance, data)
    part = data[at : at + chance.randint(1, 64)]
    data[at:at] = part * min(chance.choice((1, 2, 8, 300)), 1 + MAX_BYTES // max(len(part), 1))


def _insert(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = _place(chance, data)
    data[at:at] = chance.choice(tokens) if tokens else chance.randbytes(chance.randint(1, 8))


def _overwrite(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    part = chance.choice(tokens) if tokens else chance.randbytes(chance.randint(1, 8))
    at = _place(chance, data)
    data[at : at + len(part)] = part


def _noise(chance: random.Random, data: bytearray, tokens: Sequence[bytes]) -> None:
    at = _place(chance, data)
    data[at:at] = chance.randbytes(chance.randint(1, 16))


_MUTATIONS: tuple[Mutation, ...] = (
    _flip, _flip, _set, _set_number, _cut, _remove, _repeat, _insert, _insert, _overwrite, _noise,
)  # fmt: skip
