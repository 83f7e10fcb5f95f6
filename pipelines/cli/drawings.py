"""Text drawings: a histogram of row lengths, and texts with their tokens marked.

Without colours (NO_COLOR, a file, a pipe), plain characters mark the tokens.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from pipelines.prepare.audit.decode import TextPiece
from pipelines.prepare.plan.length_histogram import LengthHistogram
from tfrecord_io.shown import visible

_BAR = 40
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_BLOCK = "\u2588"
_LEARNED, _ANSWER = "bold green", "bold yellow"
_DOCUMENTS = ("magenta", "cyan")


def histogram(found: LengthHistogram) -> Iterator[Text]:
    """Yield a histogram's lines of at most 80 columns: one for each bin, and a mark at each row length and the cut."""
    names = [found.name(index) for index in range(len(found.counts))]
    width, most = max(map(len, names)), max([*found.counts, 1])
    marks = {length: f"row length {length:,}" for length in found.row_lengths[:-1]}
    marks[found.cut] = f"cut at {found.cut:,}" if found.cuts else f"row length {found.cut:,}"
    if found.longer:
        marks[found.cut] += ": longer rows lose tokens" if found.cuts else ": longer rows are divided"
    for index, (name, count) in enumerate(zip(names, found.counts, strict=True)):
        eighths = max(round(count / most * _BAR * 8), int(count > 0))
        bar = (_BLOCK * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
        share = f"{count / max(found.num_rows, 1):.1%}" if count else ""
        style = "red" if found.edges[index] >= found.cut else "blue"
        yield Text.assemble(f"  {name:>{width}} ", (bar, style), f" {share}".rstrip())
        for length in [length for length in marks if found.edges[index] < length <= found.edges[index + 1]]:
            yield Text(f"  {'':>{width}} ──── {marks.pop(length)}", style="bold")


def marked(out: Console, pieces: Sequence[TextPiece], *, width: int) -> list[Text]:
    """Return the lines of a text with its tokens marked, limited to its first `width` characters."""
    text, left = Text(), width
    for index, piece in enumerate(pieces):
        if left <= 0:
            break
        before = pieces[index - 1].document if index else piece.document
        if piece.document != before:
            text.append(" | ", style="bold")
        shown = visible(piece.text[:left], lines=True)
        left -= len(piece.text)
        text.append_text(_piece(out, shown, piece))
    if (characters := sum(len(piece.text) for piece in pieces)) > width:
        text.append(f" … ({characters} characters)")
    return list(text.split("\n", allow_blank=True))


def _piece(out: Console, shown: str, piece: TextPiece) -> Text:
    if not out.is_terminal or out.no_color or out.color_system is None:
        return Text(f"{{{shown}}}" if piece.answer else f"«{shown}»" if piece.learned else shown)
    style = _DOCUMENTS[piece.document % 2] if piece.document else ""
    return Text(shown, style=_ANSWER if piece.answer else _LEARNED if piece.learned else style)


def legend(out: Console, pieces: Iterable[TextPiece]) -> Text | None:
    """Return a line that explains the marks of these pieces, or None if nothing is marked."""
    every, words = tuple(pieces), []
    if any(piece.learned for piece in every):
        words.append(_piece(out, "to be learned", TextPiece(text="", learned=True)))
    if any(piece.answer for piece in every):
        words.append(_piece(out, "the answer", TextPiece(text="", answer=True)))
    if any(piece.document > 1 for piece in every):
        words.append(Text("| the next document"))
    return Text.assemble("marks: ", Text(", ").join(words)) if words else None
