"""Layout `chat`: conversations rendered by the tokenizer's chat template, with a loss mask on the assistant's text.

`sources.columns.chats` has converted other formats to messages. docs/format.md specifies ids, mask and truncation. If
prompt and completion are plain texts, no template applies unless --chat-template names one, as in TRL's `SFTTrainer`.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.layouts import base
from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, beside_reference
from pipelines.prepare.layouts.documents import PackBuilder, open_engines, packed_features
from pipelines.prepare.layouts.rows_builder import UINT8, Field, RowsEncoder, ids_field
from pipelines.prepare.options.config import Side, SourceConfig
from pipelines.prepare.sources.columns.chats import FINDER, PAIR
from pipelines.prepare.sources.columns.extraction import Inputs, Purpose, Rows
from pipelines.prepare.sources.columns.messages import objects_of
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.conversation import roles_without_effect
from pipelines.prepare.tokenize.chat.template import REWRITES, ChatRenderer, Rendered, Texts, open_template
from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, id_dtype, offsets_of
from pipelines.prepare.tokenize.special_tokens import DocumentFrame, framed, open_frame, without_frame
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.schema import Feature


def _inputs(source: SourceConfig) -> Inputs:
    if source.text_columns != SourceConfig.text_columns:
        raise ConfigError(
            "--layout chat with --text-column, expected a column of messages",
            remedy="leave --text-column out, and name the column with --messages-column unless its name is messages",
        )
    nested = base.named_columns(source, "messages", "prompt", "completion", "system", "tools")
    if "messages" in nested and not nested.keys().isdisjoint(PAIR):
        raise ConfigError(
            "--messages-column with --prompt-column or --completion-column, expected one form of conversations",
            remedy="name the messages, or the prompt and its completion",
        )
    return Inputs(nested=nested, finder=FINDER)


def _open_encoder(context: LayoutContext) -> BatchEncoder:
    engine, reference = open_engines(context)
    if not isinstance(reference, HuggingFaceEngine):
        raise TokenizerError(
            "--layout chat needs each token's place in the text, which this tokenizer does not report",
            remedy="choose a tokenizer with a tokenizer.json",
        )
    layout, aligner = context.layout, Aligner(context.tokenizer, dtype=id_dtype(context.facts.vocab_size))
    if context.columns.joins_pairs:
        if layout.learn_not:
            raise ConfigError(
                "--learn-not with prompts and completions that are texts: only messages have thoughts and tool calls",
                remedy="leave --learn-not out, or choose a template, for example with --chat-template default",
            )
        return beside_reference(lambda engine: PairEncoder(engine, context, aligner), engine, reference)
    template = open_template(
        context.tokenizer,
        date=layout.chat_date,
        name=layout.chat_template,
        options=layout.chat_options,
        learn=layout.learn or "all",
        learns_prompts=layout.learn in ("all", "each"),
        whole_turns=layout.learn_whole_turns,
        learn_not=layout.learn_not.split(",") if layout.learn_not else [],
    )
    return beside_reference(lambda engine: ChatEncoder(engine, context, template, aligner), engine, reference)


class _LearningEncoder(RowsEncoder):
    def __init__(self, engine: Engine, context: LayoutContext, aligner: Aligner) -> None:
        mask = base.feature("loss_mask", "1 on the tokens to be learned", context.length)
        field = Field(feature=mask, side=context.facts.padding_side, laid_out=UINT8)
        super().__init__(engine, context, [ids_field(context), field])
        self._engine, self._aligner = engine, aligner

    def features(self) -> tuple[Feature, ...]:
        if not self._context.layout.pack_rows:
            return super().features()
        return (*packed_features(self._context.length), self.fields[-1].feature)

    def builder(self) -> Builder:
        if not self._context.layout.pack_rows:
            return super().builder()
        return PackBuilder(length=self._context.length, pad_id=self._context.facts.pad_id)

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        return ()  # the template writes special tokens itself


class PairEncoder(_LearningEncoder):
    def __init__(self, engine: Engine, context: LayoutContext, aligner: Aligner) -> None:
        super().__init__(engine, context, aligner)
        try:
            begin, end = (open_frame(context.tokenizer, mode) for mode in ("tokenizer", "eos"))
        except TokenizerError as error:
            remedy = "choose a template with --chat-template, or set eos_token in its tokenizer_config.json"
            raise TokenizerError(error.cause, remedy=remedy) from error
        self._frame = DocumentFrame(before=begin.before, after=end.after)
        self._learned = DocumentFrame(before=(0,) * len(self._frame.before), after=(1,) * len(end.after))
        if context.tokenizer.chat_template:
            self.notes = (
                "prompts and completions are plain texts, so they are joined without a chat template, as in TRL; "
                "give --chat-template default to use the template",
            )

    def encode(self, rows: Rows) -> Encoded:
        ids, mask = self._tokens(rows)
        ids, mask = without_frame(ids, self._frame, mask)
        ids, mask = framed(ids, self._frame), framed(mask, self._learned)
        reasons = np.where(ids.lengths > self._context.length, "too_long", "").astype(object)
        return Encoded(
            ragged={"input_ids": ids, "loss_mask": mask}, arrays=rows.arrays, reasons=reasons, full_lengths=ids.lengths
        )

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        return base.notes_on_ends(self._tokens(rows)[0], self._frame, self._context.tokenizer.convert_ids_to_tokens)

    def _tokens(self, rows: Rows) -> tuple[RaggedTokens, RaggedTokens]:
        prompts, completions = (rows.nested[part].cast(pa.large_string()) for part in PAIR)
        texts = pc.binary_join_element_wise(prompts, completions, pa.scalar("", pa.large_string()))
        spans = np.stack([pc.binary_length(prompts).to_numpy(), pc.binary_length(texts).to_numpy()], axis=1)
        learned = pa.LargeListArray.from_arrays(pa.array(2 * np.arange(len(spans) + 1)), pa.array(spans.ravel()))
        ids, mask = self._aligner.align(self._engine.encode(texts), Texts.of(texts, learned))
        return ids, RaggedTokens(mask, ids.offsets)


class ChatEncoder(_LearningEncoder):
    def __init__(self, engine: Engine, context: LayoutContext, template: ChatRenderer, aligner: Aligner) -> None:
        super().__init__(engine, context, aligner)
        learn = template.settings.learn
        self._template, self._of_cut = template, template if learn != "each" else template.learning("last")
        self._side: Side = context.tokenizer.truncation_side if learn == "all" else "left"
        chosen = context.layout.learn is not None
        self.notes = tuple(note for note in template.notes if not (chosen and note is REWRITES))

    def notes_on(self, rows: Rows) -> tuple[str, ...]:
        messages = itertools.chain.from_iterable(row or () for row in objects_of(rows.nested["messages"]))
        return tuple(
            f'messages of the role {role} with "train": true are not learned; only messages of the role assistant are'
            for role in roles_without_effect(messages)
        )

    def encode(self, rows: Rows) -> Encoded:
        rendered, ragged = self._encoded(rows.nested, self._template)
        owners, full_lengths = rendered.owners, ragged["input_ids"].lengths
        long = np.flatnonzero((rendered.reasons == "")[owners] & (full_lengths > self._context.length))
        ragged, does_fit = self._cut(rows.nested, rendered, ragged, long)
        learned = ragged["loss_mask"]
        is_kept = np.diff(np.concatenate([[0], np.cumsum(learned.ids)])[learned.offsets]) > 0
        is_kept[long[~does_fit]] = False
        reasons = rendered.reasons.copy()
        has_text = np.bincount(owners[is_kept], minlength=len(reasons)) > 0
        has_long = np.bincount(owners[long], minlength=len(reasons)) > 0
        lacking = (reasons == "") & ~has_text
        reasons[lacking] = np.where(has_long[lacking], "too_long", "no_assistant")
        usable = (reasons == "")[owners]
        of_rows = np.bincount(owners, weights=full_lengths, minlength=len(reasons)).astype(np.int64)
        tokens_cut = int(full_lengths[usable].sum() - learned.lengths[usable & is_kept].sum())
        several = self._template.settings.learn == "each"
        kept = np.flatnonzero(is_kept | ~usable)
        return Encoded(
            ragged={name: values.take(kept) for name, values in ragged.items()} if several else ragged,
            arrays=rows.arrays,
            reasons=reasons,
            full_lengths=of_rows,
            tokens_cut=tokens_cut,
            owners=owners[kept] if several else None,
            details={**rendered.details, **_other_roles(rows.nested["messages"], reasons)},
        )

    def _encoded(
        self, columns: Mapping[Purpose, pa.Array], template: ChatRenderer
    ) -> tuple[Rendered, dict[str, RaggedTokens]]:
        rendered = template.render(columns)
        ids, mask = self._aligner.align(self._engine.encode(rendered.texts.strings), rendered.texts)
        return rendered, {"input_ids": ids, "loss_mask": RaggedTokens(mask, ids.offsets)}

    def _cut(
        self,
        columns: Mapping[Purpose, pa.Array],
        rendered: Rendered,
        ragged: dict[str, RaggedTokens],
        texts: np.ndarray,
    ) -> tuple[dict[str, RaggedTokens], np.ndarray]:
        """Cut conversations to the most turns that fit into a record, found by binary search.

        `texts`: the indices of the conversations' texts. Returns: token ids and loss masks of all texts, by feature
        name; and whether any turn fits, for each of `texts`.
        """
        columns = {name: column.take(pa.array(rendered.owners[texts])) for name, column in columns.items()}
        long, counts = columns["messages"], rendered.num_messages[texts].tolist()
        conversations = [row[:count] for row, count in zip(objects_of(long), counts, strict=True)]
        kept = [cuts([message["role"] for message in messages], side=self._side) for messages in conversations]
        starts = offsets_of(pc.list_value_length(long).to_numpy(zero_copy_only=False))
        fits, fails = np.zeros(len(texts), np.int64), np.array([len(choices) + 1 for choices in kept], np.int64)
        while len(undecided := np.flatnonzero(fails - fits > 1)):
            middle = (fits + fails)[undecided] // 2
            parts = [starts[at] + kept[at][number - 1] for at, number in zip(undecided, middle, strict=True)]
            flat = long.flatten().take(pa.array(np.concatenate(parts)))
            shorter = pa.LargeListArray.from_arrays(pa.array(offsets_of(np.array([len(part) for part in parts]))), flat)
            taken = {name: column.take(pa.array(undecided)) for name, column in columns.items()}
            shortened, tokens = self._encoded({**taken, "messages": shorter}, self._of_cut)
            is_short = (shortened.reasons == "") & (tokens["input_ids"].lengths <= self._context.length)
            fits[undecided[is_short]], fails[undecided[~is_short]] = middle[is_short], middle[~is_short]
            places, short = texts[undecided[is_short]], np.flatnonzero(is_short)
            ragged = {name: exchanged(ragged[name], places, tokens[name].take(short)) for name in ragged}
        return ragged, fits > 0


def cuts(roles: Sequence[str], *, side: Side) -> list[np.ndarray]:
    """Return the possible cuts of a conversation, shortest first: each an array of the indices of messages to keep.

    `roles`: the messages' roles. `side`: the end at which turns are removed. The whole conversation is not included.
    """
    places = np.arange(len(roles))
    if side == "right":
        kept = [places[: at + 1] for at, role in enumerate(roles) if role == "assistant"]
    else:
        opening = next((at for at, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        questions = [at for at, role in enumerate(roles) if role == "user"]
        kept = [np.concatenate([places[:opening], places[at:]]) for at in reversed(questions)]
    return [indices for indices in kept if len(indices) < len(roles)]


def _other_roles(messages: pa.Array, reasons: np.ndarray) -> dict[int, str]:
    rows = np.flatnonzero(reasons == "no_assistant")
    roles = [sorted({str(message["role"]) for message in row}) for row in objects_of(messages.take(pa.array(rows)))]
    return {
        int(at): f"the roles are {', '.join(names)}"
        for at, names in zip(rows, roles, strict=True)
        if "assistant" not in names
    }


CHAT = Layout(open_encoder=_open_encoder, inputs=_inputs)
ANSWERS = dataclasses.replace(CHAT, one_record=False)
PACKED_CHAT = dataclasses.replace(ANSWERS, joins_rows=True)
