"""Attacks the colours of a log's page: no code is shown, and no style outlives its end."""

import pytest

from runs.admin.log_styles import Piece, pieces


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", [("plain", "")]),
        ("", []),
        ("\x1b[31mred\x1b[0m plain", [("red", "bk-red"), (" plain", "")]),
        (
            "\x1b[1;32mgood\x1b[22m still green\x1b[39m",
            [("good", "bk-bold bk-green"), (" still green", "bk-green")],
        ),
        ("\x1b[91mbright\x1b[m", [("bright", "bk-red")]),
        ("\x1b[4m\x1b[3mboth\x1b[24m one", [("both", "bk-italic bk-underlined"), (" one", "bk-italic")]),
        ("\x1b[31m\x1b[38;5;200mpink", [("pink", "")]),
        ("\x1b[38;2;1;2;31mtrue colour", [("true colour", "")]),
        ("\x1b[48;5;31mon blue", [("on blue", "")]),
        ("\x1b[38:5:31mcolons", [("colons", "")]),
        ("\x1b[38mcut off", [("cut off", "")]),
        ("\x1b[999999999999mfar", [("far", "")]),
        ("<script>\x1b[33m&</script>", [("<script>", ""), ("&</script>", "bk-yellow")]),
    ],
)
def test_a_line_is_split_at_its_colours(text: str, found: list[tuple[str, str]]) -> None:
    assert pieces(text) == [Piece(*one) for one in found]
