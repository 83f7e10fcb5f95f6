"""Predict the masked words of a text with a model trained for `mlm`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from pipelines.terminal import tables
from pipelines.train import model_files, models
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict import loading
from tfrecord_io.errors import ConfigError
from tfrecord_io.objectives import MASKED_POSITIONS
from tfrecord_io.objectives.base import TokenFeatures


def fill(model_dir: str, text: str, *, top: int, build: str | None = None) -> list[list[dict[str, Any]]]:
    """Return, for each mask token of a text, the `top` most likely tokens, best first.

    A token is a dict with `id`, `token`, `probability`, and `text` (with the token filled in). `build`: the user's
    function that built the model, if any. Raises: ConfigError if the text has no mask token or too many tokens, or the
    model is for another task.
    """
    trained = model_files.read(model_dir)
    mask_id, length = trained.manifest.tokenizer.mask_id, trained.manifest.row_length
    if trained.task != "mlm" or mask_id is None:
        raise ConfigError(
            f"--fill-mask with --model {model_dir}, which was trained for {trained.task}, expected a model for mlm",
            remedy="give --data and --output instead of --fill-mask",
        )
    tokenizer = loading.load_tokenizer(model_dir)
    ids = np.array(tokenizer(text)["input_ids"], np.int64)
    if mask_id not in ids:
        mask = tokenizer.convert_ids_to_tokens(mask_id)
        raise ConfigError(
            f"--fill-mask {text!r:.100}: the text has no mask token, expected {mask}",
            remedy=f'write {mask} for each missing word: --fill-mask "… {mask} …"',
        )
    if len(ids) > length:
        raise ConfigError(
            f"--fill-mask: the text has {len(ids):,} tokens, but the model's rows have {length:,}",
            remedy="shorten the text",
        )
    places = np.flatnonzero(ids == mask_id)
    chances_PV = _chances(loading.load_model(model_dir, trained, build=build).model, trained, ids, places)
    best_PK = np.argsort(-chances_PV, axis=1, kind="stable")[:, :top]
    return [
        [_candidate(tokenizer, ids, at=int(at), token=int(token), chance=float(chances[token])) for token in best]
        for at, chances, best in zip(places, chances_PV, best_PK, strict=True)
    ]


def show(masks: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Print a table for each mask token. `masks`: the result of `fill`."""
    for number, candidates in enumerate(masks, start=1):
        title = f"mask {number} of {len(masks)}" if len(masks) > 1 else None
        rows = ((word["token"], word["text"], f"{word['probability']:.4f}") for word in candidates)
        tables.console().print(tables.table("token", "text", "probability", rows=rows, numbers=1, title=title))


def _chances(model: Any, trained: TrainedModel, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    tokens, facts, length = TokenFeatures.of(trained.manifest), trained.manifest.tokenizer, trained.manifest.row_length
    before = length - len(ids) if facts.padding_side == "left" else 0
    features = {name: np.zeros((1, length), np.int32) for name in tokens.inputs}
    features[tokens.ids][:] = facts.pad_id
    features[tokens.ids][0, before : before + len(ids)] = ids
    features[tokens.mask][0, before : before + len(ids)] = 1
    features[MASKED_POSITIONS] = (places + before)[np.newaxis].astype(np.int32)
    taken = models.taken(model, features)
    logits = model({name: ops.convert_to_tensor(values) for name, values in taken.items()}, training=False)[0]
    if MASKED_POSITIONS not in taken:
        logits = ops.take(logits, places + before, axis=0)
    return ops.convert_to_numpy(ops.softmax(ops.cast(logits, "float32")[:, : facts.vocab_size]))


def _candidate(tokenizer: Any, ids: np.ndarray, *, at: int, token: int, chance: float) -> dict[str, Any]:
    # Keep other mask tokens visible.
    special = set(tokenizer.all_special_ids) - {tokenizer.mask_token_id, tokenizer.unk_token_id}
    before, after = ([id_ for id_ in part.tolist() if id_ not in special] for part in (ids[:at], ids[at + 1 :]))
    written = tokenizer.convert_ids_to_tokens(token)
    return {"id": token, "token": written, "probability": chance, "text": tokenizer.decode([*before, token, *after])}
