"""What is shown where there is no room for everything: columns of a table, lines of lists. Pure.

Contract     `fit` lets columns go, the least important ones first, until the rest have the width
             below which they say nothing; what is left over goes to those that lack most. `share`
             gives each list its part of the height, and never hides one: a list without any line
             is still told of in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len, set_cell_size


class Wish(msgspec.Struct, frozen=True):
    natural: int  # so wide it shows everything
    least: int  # below this it says nothing
    going: int = 0  # where there is no room, the highest goes first; 0 never goes


def fit(wishes: Sequence[Wish], room: int, *, gap: int, edge: int = 0) -> dict[int, int] | None:
    """-> the columns that are shown, with their widths; None: even those that stay do not fit.
    `gap`: what a column takes besides its text; `edge`: what the table does."""
    shown = list(range(len(wishes)))

    def left() -> int:
        return room - edge - gap * len(shown) - sum(wishes[each].least for each in shown)

    while left() < 0:
        goes = max(shown, key=lambda each: wishes[each].going)
        if not wishes[goes].going:
            return None
        shown.remove(goes)
    widths = {each: wishes[each].least for each in shown}
    for _ in range(left()):
        lacks = max(shown, key=lambda each: wishes[each].natural - widths[each])
        if widths[lacks] >= wishes[lacks].natural:
            break
        widths[lacks] += 1
    return widths


def share(counts: Sequence[int], room: int, *, most: int, gap: int) -> list[int]:
    """Lines of each list, one more for each in turn while there is room. A list takes a heading
    with a gap before it, its lines, and one that tells how many more there are; or one line alone.
    """
    shown = [0] * len(counts)

    def height(lines: Sequence[int]) -> int:
        return sum(
            gap + 1 + each + (each < count) if each else 1
            for each, count in zip(lines, counts, strict=True)
        )

    grew = True
    while grew:
        grew = False
        for i, count in enumerate(counts):
            more = [*shown[:i], shown[i] + 1, *shown[i + 1 :]]
            if more[i] <= min(count, most) and height(more) <= room:
                shown, grew = more, True
    return shown


def shortened(text: str, width: int) -> str:
    """Without its middle: names that begin alike differ at their end."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 2
    tail = text
    while cell_len(tail) > width - 1 - head:
        tail = tail[1:]
    return f"{set_cell_size(text, head)}…{tail}"
