"""Pages of reports. They load nothing from the network, and all text of systems and test sets is escaped."""

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from seq2seq import __version__
from seq2seq.console import escape_control_characters

Row = Sequence[str]


def filled_page(template: str, **fields: str) -> str:
    """Return a page of this package with HTML in place of its fields, such as {{title}}. All pages have one style."""
    folder = files("seq2seq.evaluation")
    fields |= {"version": __version__, "style": folder.joinpath("report_style.css").read_text(encoding="utf-8").strip()}
    # All fields are replaced in one pass, so that {{title}} in the text of a sentence stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]],
                  folder.joinpath(template).read_text(encoding="utf-8"))


def page_table(head: Row, rows: Sequence[Row], raw_from: int | None = None) -> str:
    """Return a table. On a narrow screen, each row is a card with the titles of the columns.

    raw_from: index of the first column with HTML cells; later columns are HTML, too.
    """
    def cell(index: int, value: str) -> str:
        inner = value if raw_from is not None and index >= raw_from else escaped(value)
        return f'<td data-title="{escaped(head[index])}">{inner}</td>'

    titles = "".join(f'<th scope="col">{escaped(value)}</th>' for value in head)
    body = "".join(f"<tr>{''.join(cell(index, value) for index, value in enumerate(row))}</tr>" for row in rows)
    return (f'<div class="wide rows" tabindex="0"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'
            "</div>")


def escaped(text: str) -> str:
    """Return a text as HTML, with visible escapes in place of control characters."""
    return html.escape(escape_control_characters(text))
