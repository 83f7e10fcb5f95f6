"""Load the tokenizer of a build. Launcher and workers use its copy with the user's settings, OUT/tokenizer."""

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import LayoutConfig, TokenizerConfig
from pipelines.prepare.process import hub_libraries
from pipelines.prepare.tokenize import library_failures, saved_copy
from pipelines.prepare.tokenize.chat import builtin_templates
from pipelines.prepare.tokenize.engines.base import BATTERY, HFTokenizer
from pipelines.prepare.tokenize.saved_copy import Files
from tfrecord_io import local_paths
from tfrecord_io.errors import TokenizerError
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.shown import first_line

DEFAULT_MAX_LENGTH = 512
# transformers uses 10^30 for "no known limit".
_NO_LIMIT = 10**9

_SENTINEL = re.compile(r"<extra_id_([0-9]+)>")

# Limits the size of tokenizer.json, which lists all unused ids too.
_MAX_ID = 1 << 24
_NOT_REPRODUCIBLE = "so a text gets other tokens each time, and the dataset could not be made again"

# _ENTRIES: vocabulary entries to compare. _SHOWN: characters and tokens to show of a text that differs.
_ENTRIES = 2_000
_SHOWN = 24
_OTHER_FILE = (
    "tokenizer %r: its class, %s, ignores parts of its tokenizer.json. The class turns %r into %s, the file into %s. "
    "The shards contain the tokens of the class, as AutoTokenizer gives them; for programs that read only "
    "tokenizer.json, such as vLLM, use the dataset's tokenizer/tokenizer.json. To have the tokens of the file instead, "
    'make a copy of the folder without config.json, and set "tokenizer_class": "PreTrainedTokenizerFast" in its '
    "tokenizer_config.json"
)

_log = logging.getLogger(__name__)


def resolve(config: TokenizerConfig, *, template: str | None = None) -> tuple[HFTokenizer, Files]:
    """Load a tokenizer and apply the user's settings. Return a copy and its files, from `saved_copy.save`.

    `template`: the name of a chat template. Raises: TokenizerError, also if the tokenizer has neither a pad nor an EOS
    token.
    """
    paths.require_tokenizer(config.name)
    tokenizer = _fetch(config)
    saved_copy.require_kind(tokenizer, config.name)
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template  # so that the tokenizer's digest includes the template
    builtin_templates.use(tokenizer, template)
    require_deterministic(tokenizer, config.name)
    tokenizer.truncation_side = config.truncation_side or tokenizer.truncation_side
    tokenizer.padding_side = config.padding_side or tokenizer.padding_side
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise TokenizerError(
                f"tokenizer {config.name!r} has neither a pad token nor an EOS token to pad with",
                remedy="set pad_token in its tokenizer_config.json",
            )
        _log.warning(
            "tokenizer %r has no pad token; rows are padded with its EOS token %s", config.name, tokenizer.eos_token
        )
        tokenizer.pad_token = tokenizer.eos_token
    copy, files = saved_copy.save(tokenizer, config.name)
    _compare_with_file(tokenizer, files, config)
    return copy, files


def _compare_with_file(tokenizer: HFTokenizer, files: Files, config: TokenizerConfig) -> None:
    folder = _folder(config)
    if folder is None or not tokenizer.is_fast or not (path := Path(folder, "tokenizer.json")).is_file():
        return
    if (content := path.read_bytes()) == files.get("tokenizer.json"):
        return
    from tokenizers import Tokenizer

    file = Tokenizer.from_buffer(content)
    file.no_truncation()
    file.no_padding()
    # Vocabulary entries too, because the battery may use none of a small vocabulary's merges.
    ids = range(0, file.get_vocab_size(), 1 + file.get_vocab_size() // _ENTRIES)
    texts = [*BATTERY, *file.decode_batch([[token_id] for token_id in ids])]
    with contextlib.suppress(library_failures.TextsNotEncoded), library_failures.encoding("it", num_texts=len(texts)):
        ours = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        theirs = [encoding.ids for encoding in file.encode_batch(texts, add_special_tokens=False)]
        for text, by_class, by_file in zip(texts, ours, theirs, strict=True):
            if by_class != by_file:
                kind = type(tokenizer).__name__
                _log.warning(_OTHER_FILE, config.name, kind, text[:_SHOWN], by_class[:_SHOWN], by_file[:_SHOWN])
                return


def facts(tokenizer: HFTokenizer, *, name: str, files: Files) -> TokenizerFacts:
    """Return the manifest's facts about a tokenizer, such as its vocabulary size. `files`: contents by name."""
    vocabulary = tokenizer.get_vocab()  # each call makes a new dict
    matches = ((_SENTINEL.fullmatch(token), token_id) for token, token_id in vocabulary.items())
    sentinels = sorted((int(match[1]), token_id) for match, token_id in matches if match)
    return TokenizerFacts(
        name=Path(name).name if os.path.isdir(name) else name,
        kind=type(tokenizer).__name__,
        # Not the number of entries, because added tokens may leave gaps.
        vocab_size=max(len(tokenizer) - 1, *tokenizer.all_special_ids, *vocabulary.values()) + 1,
        content_sha256=saved_copy.bytes_digest(files),
        special_ids=tuple(sorted(set(tokenizer.all_special_ids))),
        padding_side=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        eos_id=tokenizer.eos_token_id,
        bos_id=tokenizer.bos_token_id,
        cls_id=tokenizer.cls_token_id,
        sep_id=tokenizer.sep_token_id,
        mask_id=tokenizer.mask_token_id,
        unk_id=tokenizer.unk_token_id,
        sentinel_ids=tuple(token_id for _, token_id in sentinels),
    )


def resolve_length(tokenizer: HFTokenizer, layout: LayoutConfig) -> int:
    """Return the record length: the requested one, or by default the tokenizer's limit, at most 512."""
    limit = int(tokenizer.model_max_length)
    if layout.max_length is None:
        return min(limit, DEFAULT_MAX_LENGTH)
    if limit < _NO_LIMIT and layout.max_length > limit:
        _log.warning(
            "--max-length %d is over the limit of %d tokens that the tokenizer states for its model; "
            "if the model has only that many positions, give a smaller --max-length",
            layout.max_length,
            limit,
        )
    return layout.max_length


def _fetch(config: TokenizerConfig) -> HFTokenizer:
    name = os.path.expanduser(config.name)
    local = os.path.isdir(name)
    cached = local or not hub_libraries.hub_answers()
    with library_failures.raised_as(
        lambda error: TokenizerError(
            f"tokenizer {config.name!r} cannot be loaded: {first_line(error)}", remedy=_remedy(error, local=local)
        )
    ):
        tokenizer = saved_copy.class_for(name).from_pretrained(
            name,
            revision=config.revision or "main",
            trust_remote_code=False,
            local_files_only=cached,
            mistral_format=False,  # mistral-common reports no character offsets and saves no files
        )
    # Only now are the settings in the cache.
    if not local and (folder := _folder(config)):
        paths.refuse_files_outside(folder, config.name)
    return tokenizer


def _folder(config: TokenizerConfig) -> str | None:
    if os.path.isdir(folder := os.path.expanduser(config.name)):
        return folder
    from huggingface_hub import try_to_load_from_cache

    names = ("tokenizer.json", *local_paths.ARGUMENTS)
    cached = (try_to_load_from_cache(config.name, name, revision=config.revision) for name in names)
    return next((os.path.dirname(path) for path in cached if isinstance(path, str)), None)


def _remedy(error: BaseException, *, local: bool) -> str:
    if "tiktoken" in str(error):  # `transformers` tries tiktoken last, if sentencepiece is missing
        return "pip install 'sentencepiece<0.2.3' for a .model file of SentencePiece, or tiktoken for one of tiktoken"
    if local:
        return "check that the folder holds tokenizer.json or the vocabulary files, and tokenizer_config.json"
    return "check the spelling, the network and HF_HUB_OFFLINE; for a private or gated tokenizer, set HF_TOKEN"


def require_deterministic(tokenizer: HFTokenizer, name: str) -> None:
    """Check that the tokenizer always splits a text in the same way.

    Raises: TokenizerError if it uses sampling or dropout, has an id that is too large or has two entries, or has added
        tokens that its normalizer removes or makes equal.
    """
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    if sampling.get("enable_sampling"):
        raise TokenizerError(
            f"tokenizer {name!r} splits texts at random (enable_sampling), {_NOT_REPRODUCIBLE}",
            remedy="set enable_sampling to false in the sp_model_kwargs of its tokenizer_config.json",
        )
    if not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    if dropout := getattr(backend.model, "dropout", None):
        raise TokenizerError(
            f"tokenizer {name!r} leaves out merges at random (BPE dropout {dropout:g}), {_NOT_REPRODUCIBLE}",
            remedy='set "dropout" of the model to null in its tokenizer.json',
        )
    vocabulary = backend.get_vocab(with_added_tokens=False)
    largest = max([*vocabulary.values(), *backend.get_added_tokens_decoder()], default=0)
    if largest > _MAX_ID:
        raise TokenizerError(
            f"tokenizer {name!r} has the id {largest}, expected at most {_MAX_ID}",
            remedy="number the entries of the vocabulary in its tokenizer.json from 0",
        )
    if len(set(vocabulary.values())) < len(vocabulary):
        first, second, number = _clash((number, entry) for entry, number in vocabulary.items())
        raise TokenizerError(
            f"tokenizer {name!r}: the entries {first!r} and {second!r} of its vocabulary have the same id, {number}; a "
            "saved tokenizer keeps only one of them, at random",
            remedy="give each entry of the vocabulary a different id in its tokenizer.json",
        )
    _require_different_texts(backend, name)


def _require_different_texts(backend: Any, name: str) -> None:
    normalize = backend.normalizer.normalize_str if backend.normalizer is not None else str
    added = [token.content for token in backend.get_added_tokens_decoder().values() if token.normalized]
    texts = [(normalize(content), content) for content in added]
    remedy = 'take it out of "added_tokens" in its tokenizer.json, or set "normalized": false for it'
    for text, content in texts:
        if not text:
            raise TokenizerError(
                f"tokenizer {name!r}: its normalizer removes all of the added token {content!r}, and `tokenizers` "
                "would search for the empty text forever",
                remedy=remedy,
            )
    if len({text for text, _ in texts}) < len(texts):
        first, second, text = _clash(texts)
        raise TokenizerError(
            f"tokenizer {name!r}: its normalizer turns the added tokens {first!r} and {second!r} into the same text, "
            f"{text!r}; which of them the tokenizer finds depends on chance",
            remedy=remedy.replace("take it", "take one of them", 1),
        )


def _clash(pairs: Iterable[tuple[Any, str]]) -> tuple[str, str, Any]:
    (_, first), (key, second) = next(pair for pair in itertools.pairwise(sorted(pairs)) if pair[0][0] == pair[1][0])
    return first, second, key
