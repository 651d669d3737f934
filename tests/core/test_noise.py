"""Counter-based noise: Random123's known answers, and addresses that never share a number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mmspec_agent.core.noise import Purpose, ReplyNoise, philox4x32

KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _words(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    assert philox4x32(_words(counter), _words(key)).tolist() == _words(expected).tolist()


def test_known_answers_in_a_batch() -> None:
    counters, keys, expected = (np.stack([_words(known[i]) for known in KNOWN]) for i in range(3))
    assert (philox4x32(counters, keys) == expected).all()


def test_chosen_entries_equal_those_of_the_whole_vector() -> None:
    noise = ReplyNoise(7, 1, 2)
    whole = noise.uniforms(5, Purpose.TARGET, 1001)
    entries = np.array([0, 1, 2, 3, 4, 999, 1000, 517, 4])
    assert (noise.uniform(5, Purpose.TARGET, entries) == whole[entries]).all()
    assert (noise.gumbel(5, entries) == noise.gumbel(5, 1001)[entries]).all()
    assert ((whole > 0) & (whole < 1)).all()


def test_no_two_addresses_share_a_number() -> None:
    seen = set()
    for seed, reply, row in itertools.product((0, 1, 2**62, -1), (0, 1), (0, 1)):
        noise = ReplyNoise(seed, reply, row)
        for index, purpose, rank in itertools.product((0, 1, 70_000), Purpose, (0, 1, 1 << 16)):
            seen.update(noise.uniforms(index, purpose, 8, rank).tolist())
    assert len(seen) == 4 * 2 * 2 * 3 * len(Purpose) * 3 * 8


def test_the_numbers_are_uniform_and_the_same_everywhere() -> None:
    numbers = ReplyNoise(0).uniforms(0, Purpose.TARGET, 200_000)
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < 180
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
    assert ReplyNoise(0).key.tolist() == ReplyNoise(0).key.tolist()
    assert ReplyNoise(1).key.tolist() != ReplyNoise(0).key.tolist()
