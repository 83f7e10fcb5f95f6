"""Mark the learned tokens, answers and documents of a text, with colours or else with characters."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from pipelines.prepare.audit.decode import TextPiece
from tfrecord_io.shown import some, visible

_LEARNED, _ANSWER = "bold green", "bold yellow"
_DOCUMENTS = ("magenta", "cyan")


def marked(out: Console, pieces: Sequence[TextPiece], *, width: int) -> list[Text]:
    """Return console lines with the first `width` characters of a text. Learned pieces and answers are marked."""
    text, left = Text(), width
    for index, piece in enumerate(pieces):
        if left <= 0:
            break
        before = pieces[index - 1].document if index else piece.document
        if piece.document != before:
            text.append(" | ", style="bold")
        if piece.name:
            text.append(f"\n{piece.name}: ", style="bold")
        shown = visible(piece.text[:left], lines=True)
        left -= len(piece.text)
        text.append_text(_piece(out, shown, piece))
    if (characters := sum(len(piece.text) for piece in pieces)) > width:
        text.append(f" … ({some(characters, 'character')})")
    return list(text.split("\n", allow_blank=True))


def _piece(out: Console, shown: str, piece: TextPiece) -> Text:
    if not out.is_terminal or out.no_color or out.color_system is None:
        return Text(f"{{{shown}}}" if piece.answer else f"«{shown}»" if piece.learned else shown)
    style = _DOCUMENTS[piece.document % 2] if piece.document else ""
    return Text(shown, style=_ANSWER if piece.answer else _LEARNED if piece.learned else style)


def legend(out: Console, pieces: Iterable[TextPiece]) -> Text | None:
    """Return a line that explains the marks of these pieces, or None if they have no marks."""
    pieces, words = tuple(pieces), []
    if any(piece.learned for piece in pieces):
        words.append(_piece(out, "learned", TextPiece(text="", learned=True)))
    if any(piece.answer for piece in pieces):
        words.append(_piece(out, "the answer", TextPiece(text="", answer=True)))
    if any(piece.document > 1 for piece in pieces):
        words.append(Text("| the next document"))
    return Text.assemble("marks: ", Text(", ").join(words)) if words else None
