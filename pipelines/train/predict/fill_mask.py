"""Candidates for the masked words of a text, from a model of `mlm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from pipelines.terminal import tables
from pipelines.train import model_files, models
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict import loading
from tfrecord_io.errors import ConfigError
from tfrecord_io.objectives import MASKED_POSITIONS
from tfrecord_io.objectives.tokens import TokenFeatures

__all__ = ["Candidate", "fill", "show"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token for a masked place: its id, how it is written, its probability, and the whole text with it."""

    id: int
    token: str
    probability: float
    text: str


def fill(model_dir: str, text: str, *, top: int, build: str | None = None) -> list[list[Candidate]]:
    """For each mask token in the text, in order, the `top` likeliest tokens.

    Raises: ConfigError if the text has no mask token or too many tokens, or the model is of another task.
    """
    trained = model_files.read(model_dir)
    facts = trained.manifest.tokenizer
    if trained.task != "mlm" or facts.mask_id is None:
        raise ConfigError(
            f"--fill-mask with --model {model_dir}: trained for {trained.task}, expected a model of --task mlm",
            remedy="give --data and --output for it",
        )
    tokenizer = loading.load_tokenizer(model_dir)
    ids = _ids(tokenizer, text, trained)
    model = loading.load_model(model_dir, trained, build=build).model
    places = np.flatnonzero(ids == facts.mask_id)
    chances_PV = _chances(model, trained, ids, places)
    return [
        [_candidate(tokenizer, ids, place=int(place), token=int(token), chance=float(chances[token])) for token in best]
        for place, chances in zip(places, chances_PV, strict=True)
        for best in [np.argsort(-chances, kind="stable")[:top]]
    ]


def show(masks: Sequence[Sequence[Candidate]]) -> None:
    """Prints a table for each mask token, on stderr."""
    console = tables.console()
    for number, candidates in enumerate(masks, start=1):
        title = f"mask {number} of {len(masks)}" if len(masks) > 1 else None
        table = tables.table("token", "text", "probability", numbers=1, title=title)
        for each in candidates:
            table.add_row(each.token, each.text, f"{each.probability:.4f}")
        console.print(table)


def _ids(tokenizer: Any, text: str, trained: TrainedModel) -> np.ndarray:
    """int64 [n]: the text's tokens, special ones included."""
    facts, length = trained.manifest.tokenizer, trained.manifest.row_length
    ids = np.array(tokenizer(text)["input_ids"], np.int64)
    mask = tokenizer.convert_ids_to_tokens(facts.mask_id)
    if facts.mask_id not in ids:
        raise ConfigError(
            f"--fill-mask {text!r:.100}: no mask token in it, expected {mask}",
            remedy=f'write {mask} where a word is missing: --fill-mask "… {mask} …"',
        )
    if len(ids) > length:
        raise ConfigError(
            f"--fill-mask: {len(ids)} tokens, but the model's rows have {length}", remedy="shorten the text"
        )
    return ids


def _chances(model: Any, trained: TrainedModel, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    """float32 [P, V]: the probability of each token at each masked place."""
    tokens, facts, length = TokenFeatures.of(trained.manifest), trained.manifest.tokenizer, trained.manifest.row_length
    before = length - len(ids) if facts.padding_side == "left" else 0
    row = np.full(length, facts.pad_id)
    row[before : before + len(ids)] = ids
    inside = (np.arange(length) >= before) & (np.arange(length) < before + len(ids))
    features = {name: np.zeros((1, length), np.int32) for name in tokens.inputs}
    features[tokens.ids] = row[np.newaxis].astype(np.int32)
    features[tokens.mask] = inside[np.newaxis].astype(np.int32)
    features[MASKED_POSITIONS] = (places + before)[np.newaxis].astype(np.int32)
    taken = models.taken(model, features)
    logits = model({name: ops.convert_to_tensor(each) for name, each in taken.items()}, training=False)[0]
    if MASKED_POSITIONS not in taken:
        logits = ops.take(logits, places + before, axis=0)
    return ops.convert_to_numpy(ops.softmax(ops.cast(logits, "float32")[:, : facts.vocab_size]))


def _candidate(tokenizer: Any, ids: np.ndarray, *, place: int, token: int, chance: float) -> Candidate:
    filled = ids.copy()
    filled[place] = token
    # Other masks stay to be seen; the tokens that frame a row do not.
    mask_id = tokenizer.mask_token_id
    special = set(tokenizer.all_special_ids) - {mask_id, tokenizer.unk_token_id}
    kept = [int(each) for at, each in enumerate(filled) if at == place or int(each) not in special]
    return Candidate(
        id=token,
        token=tokenizer.convert_ids_to_tokens(token),
        probability=chance,
        text=tokenizer.decode(kept),
    )
