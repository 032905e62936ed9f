"""Slow, obvious answers for draws by weight and by common variates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, combinations
from statistics import NormalDist

from tests.naive import GOLDEN, MASK, mix64, node_stream

PASS_SALT = 0x6A09E667F3BCC909


def running_sums(weights: Sequence[float]) -> list[float]:
    """Running sums of a row's weights; they rise at each weight above 0, however small."""
    sums: list[float] = []
    for weight in weights:
        before = sums[-1] if sums else 0.0
        sums.append(max(before + weight, math.nextafter(before, math.inf)) if weight > 0 else before)
    return sums


def fraction(stream: int, turn: int) -> float:
    """The draw of one turn in [0, 1)."""
    return (mix64(stream + turn * GOLDEN) >> 11) * 2.0**-53


def draw_weighted(stream: int, weights: Sequence[float], count: int, is_replacing: bool) -> list[int]:
    """Positions that a node draws by weight: ``kernels/weighted.py`` with exact sums of fractions."""
    weighted = [i for i, weight in enumerate(weights) if weight > 0]
    if not weighted or count == 0:
        return []
    exact = [Fraction(weight) for weight in weights]
    if is_replacing and count > 0:
        sums = list(accumulate(exact))
        return [_first_above(sums, fraction(stream, turn) * sums[-1]) for turn in range(count)]
    if count < 0 or count >= len(weighted):
        return weighted
    if count >= len(weights) // 2 or (count > 64 and count * count > 8 * len(weights)):
        return _draw_by_waits(stream, weights, [], count)
    return _draw_successively(stream, exact, count, [], 0)


def _draw_successively(stream: int, weights: list[Fraction], count: int, drawn: list[int], turn: int) -> list[int]:
    sums = list(accumulate(weights))
    while len(drawn) < count:
        rest = list(accumulate(Fraction(0) if i in drawn else weight for i, weight in enumerate(weights)))
        is_half_drawn = 2 * rest[-1] < sums[-1]
        is_short = len(weights) <= len(drawn) * (count - len(drawn))
        if is_half_drawn and (is_short or rest[-1] * 2**36 < sums[-1] * len(weights)):
            return _draw_by_waits(stream, [float(weight) for weight in weights], drawn, count)
        u = Fraction(fraction(stream, turn))
        turn += 1
        position = _first_above(rest if is_half_drawn else sums, u * (rest if is_half_drawn else sums)[-1])
        drawn += [position] if position not in drawn else []
    return sorted(drawn)


def alias_table(weights: Sequence[float]) -> list[tuple[int, int]]:
    """Threshold out of 2**32 and alias of each place; Vose's method with two stacks."""
    total = 0.0
    for weight in weights:  # Python's sum rounds less
        total += weight
    if not total:
        return []
    scaled = [weight / total * len(weights) for weight in weights]
    light = [i for i, share in enumerate(scaled) if share < 1]
    heavy = [i for i, share in enumerate(scaled) if share >= 1]
    heaviest = max(range(len(weights)), key=lambda i: (weights[i], -i))
    table = [(0, heaviest) if weight == 0 else (2**32 - 1, i) for i, weight in enumerate(weights)]
    while light and heavy:
        low, high = light.pop(), heavy[-1]
        table[low] = (int(min(scaled[low] * 2**32, 2**32 - 1)), high)
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            light.append(heavy.pop())
    return table


def alias_entries(weights: Sequence[float]) -> list[int]:
    """The table as it is stored."""
    table = alias_table(weights)
    return [threshold << 32 | alias for threshold, alias in table] if table else [2**32 - 1] * len(weights)


def draw_by_alias(stream: int, weights: Sequence[float], num: int, count: int, is_replacing: bool) -> list[int]:
    """Positions among the first ``num`` of a row that a node draws by the row's alias table."""
    table = alias_table(weights)
    drawn: list[int] = []
    turn = 0
    while table and len(drawn) < count and turn < 4 * count:
        product = mix64(stream + turn * GOLDEN) * len(weights)
        turn += 1
        place, rest = product >> 64, product % 2**64 >> 32
        position = place if rest < table[place][0] else table[place][1]
        if position < num and (is_replacing or position not in drawn):
            drawn.append(position)
    if len(drawn) == count:
        return drawn if is_replacing else sorted(drawn)
    eligible = weights[:num]
    if is_replacing:
        return drawn + draw_weighted(stream + turn * GOLDEN, eligible, count - len(drawn), True)
    weighted = [i for i, weight in enumerate(eligible) if weight > 0]
    if len(weighted) <= count:
        return weighted
    return _draw_successively(stream, [Fraction(weight) for weight in eligible], count, sorted(drawn), turn)


def uses_alias(num: int, degree: int, count: int, is_replacing: bool) -> bool:
    """Whether a node draws by its row's alias table."""
    return count > 0 and degree <= 2 * num and (is_replacing or (count <= 64 and num > 2 * count))


def _draw_by_waits(stream: int, weights: Sequence[float], drawn: list[int], count: int) -> list[int]:
    waits = {}
    for i, weight in enumerate(weights):
        if weight > 0 and i not in drawn:
            u = (mix64((stream ^ PASS_SALT) + i * GOLDEN) // 2048 + 0.5) * 2.0**-53
            waits[i] = math.log(-math.log(u)) - math.log(weight)  # the logarithm of the wait, which is finite
    return sorted([*drawn, *sorted(waits, key=lambda i: waits[i])[: count - len(drawn)]])


def _first_above(sums: Sequence[Fraction], x: Fraction) -> int:
    """The first position whose sum is above a number; bisection, as sums are many."""
    return bisect_right(sums, x)


def chances_of_sets(weights: Sequence[float], count: int) -> dict[tuple[int, ...], float]:
    """The exact chance of each set of ``count`` positions under successive sampling."""
    exact = [Fraction(weight) for weight in weights]
    chances: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for _ in range(count):
        grown: dict[tuple[int, ...], Fraction] = {}
        for drawn, chance in chances.items():
            rest = sum(weight for i, weight in enumerate(exact) if i not in drawn)
            for i, weight in enumerate(exact):
                if i not in drawn and weight > 0:
                    key = tuple(sorted((*drawn, i)))
                    grown[key] = grown.get(key, Fraction(0)) + chance * weight / rest
        chances = grown
    return {drawn: float(chances.get(drawn, 0)) for drawn in combinations(range(len(weights)), count)}


def take_heaviest(weights: Sequence[float], num: int, count: int) -> list[int]:
    """The heaviest of the first ``num`` positions, equal ones in order, never those without weight."""
    order = sorted((i for i in range(num) if weights[i] > 0), key=lambda i: (-weights[i], i))
    return order if count < 0 else order[:count]


def labor_variate(key: int, first_seed: int, second_seed: int, share: float) -> float:
    """A neighbour's variate, in [0, 1) for share 0, else of the normal distribution."""
    first, second = node_stream(first_seed, key), node_stream(second_seed, key)
    if share == 0:
        return first / 2.0**64
    u1, u2 = ((bits // 2048 + 0.5) * 2.0**-53 for bits in (first, second))
    inverse = NormalDist().inv_cdf
    return math.cos(share * math.pi / 2) * inverse(u1) + math.sin(share * math.pi / 2) * inverse(u2)


def draw_labor(
    keys: Sequence[int],
    count: int,
    first_seed: int,
    second_seed: int,
    share: float,
    places: Sequence[int] | None = None,
) -> list[int]:
    """Positions of the neighbours with the smallest variates, in stored order; ties by a place hash.

    ``places`` are positions in the whole row, if ``keys`` holds only some of its edges.
    """
    places = range(len(keys)) if places is None else places

    def rank(i: int) -> tuple[float, int, int]:
        place_hash = mix64((node_stream(first_seed, keys[i]) + places[i] * GOLDEN) & MASK) % (1 << 16)
        return labor_variate(keys[i], first_seed, second_seed, share), place_hash, i

    order = sorted(range(len(keys)), key=rank)
    return sorted(order if count < 0 else order[:count])
