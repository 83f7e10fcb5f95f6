"""Layout `preference`: a prompt with its chosen and its rejected answer becomes one record (docs/format.md).

Ids equal the output of `DPOTrainer._prepare_dataset` in TRL 1.16. Masks equal the output of TRL's
`DataCollatorForPreference` with keep_start, or with keep_end for `--truncation-side left`.
"""

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.layouts import base
from pipelines.prepare.layouts.base import BatchEncoder, Encoded, Layout, LayoutContext, beside_reference, feature
from pipelines.prepare.layouts.documents import open_engines
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs, Rows
from pipelines.prepare.sources.columns.preferences import ANSWERS, FINDER
from pipelines.prepare.tokenize.chat.template import ChatRenderer, open_template
from pipelines.prepare.tokenize.engines import Engine, utf8_of
from pipelines.prepare.tokenize.ragged import RaggedTokens
from pipelines.prepare.tokenize.special_tokens import DocumentFrame, framed, open_frame
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.schema import ROLES, Side

# Three columns of texts (prompts; prompts with chosen answers; prompts with rejected answers), then `reasons` and
# `details` as in `Encoded`.
_Texts = tuple[Sequence[pa.Array], np.ndarray, Mapping[int, str]]


def _inputs(source: SourceConfig) -> Inputs:
    if source.text_columns != SourceConfig.text_columns:
        raise ConfigError(
            "--layout preference with --text-column, expected columns of prompts and answers",
            remedy="leave --text-column out, and name the columns with --prompt-column, --chosen-column and "
            "--rejected-column",
        )
    nested = base.named_columns(source, "prompt", *ANSWERS, "system", "tools")
    return Inputs(nested=nested, finder=FINDER)


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    if (truncation := context.layout.truncation) in ("only_first", "only_second"):
        raise ConfigError(
            f"--layout preference with --truncation {truncation}: this layout cuts both answers in the same way",
            remedy="leave --truncation out, or give --truncation do_not_truncate",
        )
    if context.columns.joins_pairs:
        return beside_reference(lambda engine: _PlainEncoder(engine, context), *open_engines(context))
    layout = context.layout
    template = open_template(
        context.tokenizer,
        date=layout.chat_date,
        name=layout.chat_template,
        options=layout.chat_options,
        finds_answers=False,
    )
    return beside_reference(lambda engine: _ChatEncoder(engine, context, template), *open_engines(context))


def _without_shared(chosen: pa.Array, rejected: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Split pairs of texts as TRL's `extract_prompt` does. Return their common beginnings, and the rest of each text.

    A space before the first different character belongs to the rest. If one text begins with the other, so does the
    shorter text's last character. Unlike in TRL, texts without a common beginning stay whole.
    """
    first, second = (RaggedTokens(*utf8_of(texts)) for texts in (chosen, rejected))
    size = first.common_prefixes(second)
    before = first.offsets[:-1]
    differs = size < np.minimum(first.lengths, second.lengths)
    size -= ~differs & (size > 0)
    while len(inside := np.flatnonzero((size > 0) & _continues(first, size))):
        size[inside] -= 1
    after_space = np.flatnonzero(differs & (size > 0))
    size[after_space] -= first.ids[before[after_space] + size[after_space] - 1] == ord(" ")
    none = np.zeros_like(size)
    return (
        _strings(first.part(none, size)),
        _strings(first.part(size, first.lengths - size)),
        _strings(second.part(size, second.lengths - size)),
    )


def _continues(texts: RaggedTokens, places: np.ndarray) -> np.ndarray:
    inside = places < texts.lengths
    continues = np.zeros(len(places), bool)
    continues[inside] = texts.ids[(texts.offsets[:-1] + places)[inside]] & 0xC0 == 0x80
    return continues


def _strings(texts: RaggedTokens) -> pa.Array:
    offsets, data = pa.py_buffer(texts.offsets), pa.py_buffer(np.ascontiguousarray(texts.ids))
    return pa.LargeStringArray.from_buffers(len(texts), offsets, data)


def _fields(side: Side, context: LayoutContext) -> tuple[Field, Field]:
    roles: Any = (f"{side}_ids", f"{side}_mask", f"{side}_loss_mask")
    ids, mask, learned = (feature(role, ROLES[role].meaning, context.length) for role in roles)
    return Field(feature=ids, fill=context.facts.pad_id, mask=mask), Field(feature=learned, laid_out=UINT8)


class _PreferenceEncoder(RowsEncoder):
    _frame = DocumentFrame()

    def __init__(self, engine: Engine, context: LayoutContext) -> None:
        super().__init__(engine, context, list(itertools.chain(*(_fields(side, context) for side in ANSWERS))))
        self._engine, self._cuts_left = engine, context.tokenizer.truncation_side == "left"

    @abc.abstractmethod
    def _texts(self, rows: Rows) -> _Texts: ...

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        texts, reasons, _ = self._texts(rows)
        prompts, *_, starts = self._tokens(texts)
        count = int(np.count_nonzero((starts < prompts.lengths) & (reasons == "")))
        if not count:
            return ()
        return (
            f"in {count:,} of {len(rows):,} sampled rows the end of the prompt has other tokens before an answer than "
            "alone; as in TRL, the answer starts at the first different token",
        )

    def encode(self, rows: Rows) -> Encoded:
        texts, reasons, details = self._texts(rows)
        _, chosen, rejected, starts = self._tokens(texts)
        longest, shared = np.maximum(chosen.lengths, rejected.lengths), chosen.common_prefixes(rejected)
        keeps_all = self._context.layout.truncation == "do_not_truncate"
        reasons = reasons.copy()
        for reason, holds in {
            "chosen_empty": chosen.lengths == starts,
            "rejected_empty": rejected.lengths == starts,
            "answers_equal": (shared == longest) & (chosen.lengths == rejected.lengths),
            "too_long": (longest > self._context.length) & keeps_all,
            "prompt_too_long": (starts >= self._context.length) & (not self._cuts_left),
        }.items():
            reasons[(reasons == "") & holds] = reason
        ragged = self._row("chosen", chosen, starts) | self._row("rejected", rejected, starts)
        cut = chosen.lengths + rejected.lengths - sum(ragged[f"{side}_input_ids"].lengths for side in ANSWERS)
        return Encoded(
            ragged=ragged,
            arrays=rows.arrays,
            reasons=reasons,
            full_lengths=longest,
            tokens_cut=int(cut[reasons == ""].sum()),
            details=details,
            side_lengths={"chosen": chosen.lengths, "rejected": rejected.lengths},
        )

    def _tokens(self, texts: Sequence[pa.Array]) -> tuple[RaggedTokens, RaggedTokens, RaggedTokens, np.ndarray]:
        prompts, chosen, rejected = (framed(self._engine.encode(column), self._frame) for column in texts)
        starts = np.minimum(prompts.common_prefixes(chosen), prompts.common_prefixes(rejected))
        return prompts, chosen, rejected, starts

    def _row(self, side: Side, ids: RaggedTokens, starts: np.ndarray) -> dict[str, RaggedTokens]:
        is_answer = np.arange(len(ids.ids)) >= np.repeat(ids.offsets[:-1] + starts, ids.lengths)
        mask = RaggedTokens(is_answer.astype(np.uint8), ids.offsets)
        kept = np.minimum(ids.lengths, self._context.length)
        first = (ids.lengths - kept) * self._cuts_left
        return {f"{side}_input_ids": ids.part(first, kept), f"{side}_loss_mask": mask.part(first, kept)}


class _PlainEncoder(_PreferenceEncoder):
    def __init__(self, engine: Engine, context: LayoutContext) -> None:
        super().__init__(engine, context)
        tokenizer = context.tokenizer
        if (eos := tokenizer.eos_token) is None:
            raise TokenizerError(
                "--layout preference ends an answer with the EOS token, but this tokenizer has none",
                remedy="set eos_token in its tokenizer_config.json",
            )
        self._eos, self._frame = str(eos), open_frame(tokenizer, "tokenizer")
        if tokenizer.chat_template:
            self.notes = (
                "prompts and answers are plain texts, so they are joined without a chat template, as in TRL; add "
                "--chat-template default to use the tokenizer's",
            )

    def _texts(self, rows: Rows) -> _Texts:
        chosen, rejected = (rows.nested[side].cast(pa.large_string()) for side in ANSWERS)
        reasons = np.full(len(rows), "", dtype=object)
        if "prompt" in rows.nested:
            prompt = rows.nested["prompt"].cast(pa.large_string())
        else:
            prompt, chosen, rejected = _without_shared(chosen, rejected)
            reasons[np.asarray(pc.equal(prompt, ""))] = "prompt_empty"
        reasons[np.asarray(pc.equal(chosen, rejected))] = "answers_equal"
        for side, answer in (("rejected", rejected), ("chosen", chosen)):
            reasons[np.asarray(pc.equal(answer, ""))] = f"{side}_empty"
        return [prompt, self._joined(prompt, chosen), self._joined(prompt, rejected)], reasons, {}

    def _joined(self, prompt: pa.Array, answer: pa.Array) -> pa.Array:
        ends = pc.ends_with(answer, self._eos)
        end = pc.if_else(ends, pa.scalar("", pa.large_string()), pa.scalar(self._eos, pa.large_string()))
        return pc.binary_join_element_wise(prompt, answer, end, pa.scalar("", pa.large_string()))


class _ChatEncoder(_PreferenceEncoder):
    def __init__(self, engine: Engine, context: LayoutContext, template: ChatRenderer) -> None:
        super().__init__(engine, context)
        self._template, self.notes = template, template.notes

    def _texts(self, rows: Rows) -> _Texts:
        rendered = self._template.render(rows.nested)
        first = np.searchsorted(rendered.owners, np.arange(len(rows)))
        # Rejected rows have one empty text instead of three.
        places = [first + (rendered.reasons == "") * at for at in range(3)]
        return [rendered.texts.strings.take(pa.array(at)) for at in places], rendered.reasons, rendered.details


PREFERENCE = Layout(open_encoder=_open_encoder, inputs=_inputs)
