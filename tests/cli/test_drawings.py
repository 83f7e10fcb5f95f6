"""Drawings on a terminal: tokens marked by kind."""

import io
import re
from typing import Any

import pytest

from pipelines.cli import drawings
from pipelines.prepare.audit.decode import TextPiece
from pipelines.terminal import tables
from tests import building
from tests.building import REVIEWS, built

EXAMPLES = building.REPOSITORY / "examples"
PIECES = (
    TextPiece(text="ask\n", document=1),
    TextPiece(text="told", learned=True, document=1),
    TextPiece(text="ask", document=2),
    TextPiece(text="that", answer=True, document=2),
)


def console(**options: Any) -> Any:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    return tables._Console(file=stream, highlight=False, markup=False, width=80, **options)


def printed(out: Any, lines: Any) -> str:
    for line in lines:
        out.print(line, soft_wrap=True)
    out.file.flush()
    return str(out.file.buffer.getvalue().decode(out.encoding))


def test_colours_say_what_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed(out := console(force_terminal=True, color_system="standard"), drawings.marked(out, PIECES, width=99))
    assert re.search(r"\x1b\[1;32mtold\x1b", text)
    assert re.search(r"\x1b\[1;33mthat\x1b", text)
    assert "«" not in text
    legend = drawings.legend(out, PIECES)
    assert legend is not None
    assert str(legend) == "marks: learned, the answer, | the next document"


def test_without_colours_there_are_plain_marks() -> None:
    text = printed(out := console(), drawings.marked(out, PIECES, width=99))
    assert text == "ask\n«told» | ask{that}\n"
    assert str(drawings.legend(out, PIECES)) == "marks: «learned», {the answer}, | the next document"
    assert drawings.legend(out, PIECES[:1]) is None


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = console(force_terminal=True, color_system="standard")
    assert "«told»" in printed(out, drawings.marked(out, PIECES, width=99))


def test_long_texts_are_shortened() -> None:
    pieces = (TextPiece(text="a" * 30), TextPiece(text="b" * 30, learned=True))
    out = console()
    assert printed(out, drawings.marked(out, pieces, width=40)) == f"{'a' * 30}«{'b' * 10}» … (60 characters)\n"


@pytest.mark.slow
def test_pieces_are_the_text_that_inspect_prints() -> None:
    from pipelines.prepare.audit import decode

    questions = built(EXAMPLES / "questions", layout="qa", text_column=("question", "context"), max_length=48)
    for root in (built(REVIEWS, layout="pack"), questions):
        for row in decode.decoded_rows(str(root), building.read_manifest(root), "train", rows=20):
            assert "".join(piece.text for piece in row.pieces) == row.text
            if row.features.get("answer"):
                assert row.features["answer"] in "".join(piece.text for piece in row.pieces if piece.answer)
