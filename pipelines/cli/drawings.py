"""Drawings in text: rows by length with the cut, and tokens marked by what they are.

What a terminal cannot show is drawn with plain characters: blocks where its encoding has none, colours where there are
none (NO_COLOR, a file, a pipe).
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from pipelines.prepare.audit.decode import TextPiece
from pipelines.prepare.plan.length_histogram import LengthHistogram
from tfrecord_io.shown import visible

_BAR = 40
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_BLOCK, _RULE, _OPEN, _CLOSE = "\u2588", "\u2500", "\u00ab", "\u00bb"
_LEARNED, _ANSWER = "bold green", "bold yellow"
_DOCUMENTS = ("magenta", "cyan")


def histogram(out: Console, found: LengthHistogram) -> Iterator[Text]:
    """Yield a line for each bin, with lines where a row length ends; the last one is the cut. At most 80 columns."""
    names = [found.name(index) for index in range(len(found.counts))]
    width, most = max(map(len, names)), max([*found.counts, 1])
    marks = {length: f"row length {length:,}" for length in found.row_lengths[:-1]}
    marks[found.cut] = f"cut at {found.cut:,}" if found.cuts else f"row length {found.cut:,}"
    if found.longer:
        marks[found.cut] += ": longer rows lose tokens" if found.cuts else ": longer rows are divided"
    for index, (name, count) in enumerate(zip(names, found.counts, strict=True)):
        bar = _bar(out, count / most)
        share = f"{count / max(found.num_rows, 1):.1%}" if count else ""
        style = "red" if found.edges[index] >= found.cut else "blue"
        yield Text.assemble(f"  {name:>{width}} ", (bar, style), f" {share}".rstrip())
        for length in [length for length in marks if found.edges[index] < length <= found.edges[index + 1]]:
            rule = (_RULE if _can(out, _RULE) else "-") * 4
            yield Text(f"  {'':>{width}} {rule} {marks.pop(length)}", style="bold")


def _bar(out: Console, share: float) -> str:
    """Return a bar of up to 40 characters, in steps of an eighth where the terminal has them."""
    if not _can(out, _BLOCK + _EIGHTHS):
        return "#" * max(round(share * _BAR), int(share > 0))
    eighths = max(round(share * _BAR * 8), int(share > 0))
    return (_BLOCK * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def marked(out: Console, pieces: Sequence[TextPiece], *, width: int) -> list[Text]:
    """Return the lines of a text, coloured or with plain marks; only the first `width` characters if it is long."""
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
        text.append(f" … ({characters} characters)" if _can(out, "…") else f" ... ({characters} characters)")
    return list(text.split("\n", allow_blank=True))


def _piece(out: Console, shown: str, piece: TextPiece) -> Text:
    if not _colours(out):
        start, end = _plain_marks(out)
        if piece.answer:
            return Text("{" + shown + "}")
        return Text(f"{start}{shown}{end}" if piece.learned else shown)
    if piece.answer or piece.learned:
        return Text(shown, style=_ANSWER if piece.answer else _LEARNED)
    return Text(shown, style=_DOCUMENTS[piece.document % 2] if piece.document else "")


def legend(out: Console, pieces: Iterable[TextPiece]) -> Text | None:
    """Return a line that says what the marks of these pieces mean; None if nothing is marked."""
    every = tuple(pieces)
    start, end = ("", "") if _colours(out) else _plain_marks(out)
    open_answer, close_answer = ("", "") if _colours(out) else ("{", "}")
    words = []
    if any(piece.learned for piece in every):
        words.append(Text(f"{start}to be learned{end}", style=_LEARNED if _colours(out) else ""))
    if any(piece.answer for piece in every):
        words.append(Text(f"{open_answer}the answer{close_answer}", style=_ANSWER if _colours(out) else ""))
    if any(piece.document > 1 for piece in every):
        words.append(Text("| the next document"))
    return Text.assemble("marks: ", Text(", ").join(words)) if words else None


def _colours(out: Console) -> bool:
    return out.is_terminal and not out.no_color and out.color_system is not None


def _plain_marks(out: Console) -> tuple[str, str]:
    return (_OPEN, _CLOSE) if _can(out, _OPEN + _CLOSE) else ("<<", ">>")


def _can(out: Console, characters: str) -> bool:
    """Return whether the output's encoding has these characters."""
    try:
        characters.encode(out.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
