"""Split a line of a log at its colours, as terminals write them, into pieces with classes of the stylesheet."""

import re
from typing import NamedTuple

from runs.logs import STYLE

COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
# The code that begins the style, and the one that ends it.
SWITCHES = {1: "bold", 2: "faint", 3: "italic", 4: "underlined"}
ENDS = {21: {"bold"}, 22: {"bold", "faint"}, 23: {"italic"}, 24: {"underlined"}}
FOREGROUND, BRIGHT, DEFAULT = 30, 90, 39
# Of 256 colours or of any: how many further numbers name it. Its place in the stylesheet is none.
LONG = {5: 1, 2: 3}
NUMBER = re.compile(r"\d+")


class Piece(NamedTuple):
    text: str
    classes: str


def pieces(text: str) -> list[Piece]:
    found, styles, colour, begin = [], set[str](), "", 0
    for code in STYLE.finditer(text):
        found.append(_piece(text[begin : code.start()], styles, colour))
        styles, colour = _after(code[0], styles, colour)
        begin = code.end()
    found.append(_piece(text[begin:], styles, colour))
    return [piece for piece in found if piece.text]


def _piece(text: str, styles: set[str], colour: str) -> Piece:
    names = [*sorted(styles), *([colour] if colour else [])]
    return Piece(text, " ".join(f"bk-{name}" for name in names))


def _after(code: str, styles: set[str], colour: str) -> tuple[set[str], str]:
    numbers = [int(number[0][:3]) for number in NUMBER.finditer(code)] or [0]
    styles, at = set(styles), 0
    while at < len(numbers):
        number = numbers[at]
        if number == 0:
            styles, colour = set(), ""
        elif number in SWITCHES:
            styles.add(SWITCHES[number])
        elif number in ENDS:
            styles -= ENDS[number]
        elif number in (38, 48):
            at += 1 + LONG.get(numbers[at + 1], 0) if at + 1 < len(numbers) else 0
            colour = "" if number == 38 else colour
        elif number == DEFAULT:
            colour = ""
        elif FOREGROUND <= number < FOREGROUND + len(COLOURS):
            colour = COLOURS[number - FOREGROUND]
        elif BRIGHT <= number < BRIGHT + len(COLOURS):
            colour = COLOURS[number - BRIGHT]
        at += 1
    return styles, colour
