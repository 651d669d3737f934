"""Numbers: a text is accepted if and only if the number it spells is within the bounds, whatever their size."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from mmspec_agent.grammar.numbers import NumberError, NumberRange, decimal
from mmspec_agent.grammar.terminal import Unwritable, terminal

from .byte_engine import accepting

STEPS = (
    None,
    None,
    None,
    "0.01",
    "0.1",
    "2.5",
    "5",
    "3",
    "0.25",
    "1e-6",
    "15",
    "1.5",
    "60",
    "1000",
    "6",
    "8",
    "15000",
    "1e9",
)


def spelled(draw: random.Random) -> str:
    kind, sign = draw.random(), draw.choice(["", "-"])
    if kind < 0.3:
        return f"{sign}{draw.randint(0, 12)}"
    if kind < 0.8:
        return (
            f"{sign}{draw.choice([0, 0, 1, 9, 10, 99, 137])}.{draw.choice(['0', '1', '15', '05', '50', '999', '001'])}"
        )
    return str(draw.randint(-(10**25), 10**25))


def near(draw: random.Random, numbers: NumberRange) -> str:
    """A number at a bound, or close to it, in one of its spellings."""
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    if not bounds or draw.random() < 0.4:
        return spelled(draw)
    places = draw.randint(0, 3)
    value = draw.choice(bounds) + Fraction(draw.choice([0, 0, 1, -1, draw.randint(-50, 50)]), 10**places)
    digits = str(int(abs(value) * 10**6)).zfill(7)
    whole, rest = digits[:-6], digits[-6:].rstrip("0")
    text = ("-" if value < 0 else "") + whole + (f".{rest}" if rest else draw.choice(["", ".0", ".00"]))
    return text + ("0" if "." in text and draw.random() < 0.3 else "")


def random_range(draw: random.Random) -> NumberRange:
    low, high = sorted(Fraction(spelled(draw)) for _ in range(2))
    step = draw.choice(STEPS)
    return NumberRange(
        draw.random() < 0.4,
        low if draw.random() < 0.7 else None,
        high if draw.random() < 0.7 else None,
        draw.random() < 0.4,
        draw.random() < 0.4,
        (Fraction(step),) if step else (),
        (Fraction(spelled(draw)),) if draw.random() < 0.2 else (),
    )


@pytest.mark.parametrize("seed", range(4))
def test_texts_of_random_ranges(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        numbers = random_range(draw)
        if numbers.is_empty:
            continue
        accepts = accepting(f"start: A\nA: {terminal(numbers.texts, False)}\n")
        for _ in range(40):
            text = near(draw, numbers)
            right = numbers.holds(Fraction(text)) and not (numbers.integer and "." in text)
            right = right and not (numbers.integer and numbers.low == 0 and text == "-0")
            assert accepts(text) is right, (numbers, text)
            assert numbers.admits(text) is right, (numbers, text)


@pytest.mark.parametrize("seed", range(3))
def test_begun_numbers_are_finished_within_the_range(seed: int) -> None:
    draw = random.Random(seed)
    finished = 0
    for _ in range(60):
        numbers = random_range(draw)
        text = near(draw, numbers)
        for end in range(len(text) + 1):
            more = numbers.finish(text[:end])
            if more is not None:
                finished += 1
                assert numbers.admits(text[:end] + more)
            elif not numbers.is_empty:
                assert not numbers.admits(text)
                break
    assert finished > 100


@pytest.mark.parametrize(
    ("numbers", "empty"),
    [
        (NumberRange(True, Fraction(1, 10), Fraction(9, 10)), True),
        (NumberRange(False, Fraction(1), Fraction(1), True), True),
        (NumberRange(False, Fraction(7), Fraction(13), multiples=(Fraction(14),)), True),
        (NumberRange(False, Fraction(7), Fraction(14), multiples=(Fraction(14),)), False),
        (NumberRange(True, Fraction(3), Fraction(3), excluded=(Fraction(3),)), True),
        (NumberRange(True, multiples=(Fraction(1, 3) * 3,)), False),
        (NumberRange(False, None, Fraction(0), False, True, (Fraction(1000),)), False),
    ],
)
def test_ranges_without_a_number_are_known(numbers: NumberRange, empty: bool) -> None:
    assert numbers.is_empty is empty


def test_what_has_no_decimal_digits_is_an_error() -> None:
    with pytest.raises(NumberError):
        assert NumberRange(low=Fraction(1, 3)).texts
    with pytest.raises(NumberError):
        assert NumberRange(high=Fraction(10) ** 2000).texts
    with pytest.raises(Unwritable):
        terminal(NumberRange(multiples=(Fraction(7, 10),)).texts, False)
    assert decimal(0.1) == Fraction(1, 10)


BEGUN = ["", "-", "0", "-0", "1", "-1", "12", "1.", "-0.", "1.5", "1e", "1E", "1e+", "-1E-", "1.5e", "1e5", "1E-07"]


@pytest.mark.parametrize("step", [None, "1", "10", "0.25", "3"])
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("bounds", [(None, None), ("-3", "500")])
def test_every_beginning_of_a_number_is_finished_or_none_is(
    step: str | None, integer: bool, bounds: tuple[str | None, str | None]
) -> None:
    low, high = (None if bound is None else Fraction(bound) for bound in bounds)
    numbers = NumberRange(integer, low, high, multiples=() if step is None else (Fraction(step),))
    written = accepting(f"start: NUMBER\nNUMBER: {terminal(numbers.texts, False)}\n")
    for begun in BEGUN:
        more = numbers.finish(begun)
        if more is not None:
            assert numbers.admits(begun + more), (begun, more)
            assert written(begun + more), (begun, more)
        for ending in ("", "0", "5", "00", ".0", ".25"):
            assert more is not None or not written(begun + ending), (begun, ending)
