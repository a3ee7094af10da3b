"""Small plots for a terminal, of characters that every font has.  Values in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 40
_BLOCKS = "▁▂▃▄▅▆▇█"
_SHADES = "█▓▒░·"


def bar(value: float, highest: float, width: int = WIDTH) -> str:
    """`value` of `highest`; something as soon as there is anything."""
    if not highest > 0 or not value > 0:
        return ""
    return "█" * max(1, round(width * min(1.0, value / highest)))


def spark(values: Sequence[float], width: int = WIDTH) -> str:
    """A line of columns from 0 to the highest value; of many values each column is the mean of its share."""
    if not values or not max(values) > 0:
        return ""
    columns = min(width, len(values))
    cut = [values[index * len(values) // columns : (index + 1) * len(values) // columns] for index in range(columns)]
    means = [sum(part) / len(part) for part in cut]
    highest = max(means)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(mean / highest * len(_BLOCKS)))] for mean in means)


def shares(parts: Mapping[str, float], width: int = WIDTH) -> str:
    """A bar of the whole, each part in its shade, first part darkest."""
    total = sum(parts.values())
    if not total > 0:
        return ""
    drawn, at = "", 0.0
    for shade, seconds in zip(_SHADES, parts.values(), strict=False):
        at += seconds
        drawn += shade * (round(width * at / total) - len(drawn))
    return drawn
