"""Writes numbers as people do: without exponents, and without more digits than they need."""

from __future__ import annotations

from decimal import Decimal

from pollwise.durations import short

#: Units for the rate of something rare, with their seconds.
_UNITS = (("a second", 1.0), ("a minute", 60.0), ("an hour", 3600.0), ("a day", 86400.0))


def plain(value: float) -> str:
    """A number with all its digits and no exponent: 4.0 -> '4', 5e-06 -> '0.000005'."""
    text = format(Decimal(repr(float(value))), "f")
    return text.removesuffix(".0")


def amount(value: float) -> str:
    """A number in three digits, or as a whole number from 100 on: 12.3, 0.004, 11,828."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else plain(float(f"{value:.3g}"))


def rate(a_second: float) -> str:
    """A rate in the first unit in which it is not tiny: 0.2 a second, 3 an hour."""
    name, seconds = next((each for each in _UNITS if a_second * each[1] >= 0.1), _UNITS[-1])
    return f"{amount(a_second * seconds)} {name}"


def money(dollars: float) -> str:
    """Dollars as text, with cents, or with two digits if it is less than a cent."""
    if dollars == 0 or dollars >= 0.095:
        return f"${dollars:,.2f}"
    return f"${plain(float(f'{dollars:.2g}'))}"


def brief(seconds: float) -> str:
    """Seconds in two or three digits."""
    return short(float(f"{seconds:.3g}"))


def percent(share: float) -> str:
    """A share that is neither rounded up to all nor down to nothing: 83%, 99.8%, less than 1%."""
    if 0 < share < 0.01:
        return "less than 1%"
    return f"{min(share, 0.999):.1%}" if 0.99 < share < 1 else f"{share:.0%}"


def compared(cost: float, other: float) -> str:
    """How a cost differs from another, before the name of the other: 12% more than."""
    if other <= 0 or abs(1 - cost / other) < 0.005:
        return "the same as"
    if cost > 2 * other:
        return f"{amount(cost / other)} times as much as"
    return f"{percent(abs(1 - cost / other))} {'less' if cost < other else 'more'} than"
