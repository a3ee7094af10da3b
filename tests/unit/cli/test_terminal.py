"""What the words of others can do to the terminal of who reads them: nothing."""

import io

import pytest
from nvcre_cli.terminal import Terminal
from rich.table import Table
from rich.text import Text


@pytest.mark.parametrize("as_cell", [False, True])
@pytest.mark.parametrize("sent", ["\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\x00", "\x7f", "a\x1b", "\u202e", "\u2066"])
def test_no_control_character_of_a_log_reaches_the_terminal(sent: str, as_cell: bool) -> None:
    written = io.StringIO()
    terminal = Terminal(file=written, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    table = Table(show_header=False)
    table.add_row(f"before {sent} after")
    terminal.print(table if as_cell else Text(f"before {sent} after"))
    told = written.getvalue()
    assert "before" in told
    assert "after" in told
    assert all(one.isprintable() or one == "\n" for one in told)


def test_the_terminal_s_own_colours_stay() -> None:
    written = io.StringIO()
    Terminal(file=written, force_terminal=True, color_system="standard").print(Text("red", style="red"))
    assert written.getvalue() == "\x1b[31mred\x1b[0m\n"
