"""Check that a card's paths, and the resolved files, lie inside the dataset.

A card is the YAML of `README.md` or `.huggingface.yaml`. It is checked before `datasets` requests its addresses and
expands its aliases.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve import data_files
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

CARDS = ("README.md", ".huggingface.yaml")
MOST_CARD_BYTES = 1 << 20
# Limits far above real cards: 21,000 class names are 42,000 nodes.
_MOST_NODES = 200_000
_MOST_DEPTH = 100
_LEADS_OUT = re.compile(r"^[/~]|::|://|(^|/)\.\.(/|$)")


def require_modest_cards(folder: str, *, where: str) -> None:
    """Check that a folder's dataset cards are small, and name only data inside it. Raises: SourceError; YAMLError."""
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    for name in CARDS:
        place = f"{where}, {name}"
        text = _read(storage.join(folder, name), where=place)
        if not name.endswith(".yaml"):
            text = str(block[2]) if (block := REGEX_YAML_BLOCK.search(text)) else ""
        _require_small(text, where=place)
        card = yaml.safe_load(text)
        configs = card.get("configs") if isinstance(card, Mapping) else None
        for config in configs if isinstance(configs, list) else ():
            named = (config.get("data_files"), config.get("data_dir")) if isinstance(config, Mapping) else ()
            if outside := next((path for path in _texts(named) if _LEADS_OUT.search(path)), None):
                cause = f"{place}: its data path {without_access(outside)!r} is outside the dataset"
                raise SourceError(cause, remedy="if you trust that path, give it as DATASET instead")


def _read(path: str, *, where: str) -> str:
    try:
        with storage.as_source_error(path):
            if data_files.describe(path).size > MOST_CARD_BYTES or not ("://" in path or os.path.isfile(path)):
                cause = f"{where}: more than {MOST_CARD_BYTES:,} bytes, or no regular file"
                raise SourceError(cause, remedy="name the data files with a glob, so that the card is not read")
            fs, inner = storage.file_system(path)
            content: bytes = fs.cat_file(inner)
    except FileNotFoundError:
        return ""
    return content.decode(errors="replace")


def _require_small(text: str, *, where: str) -> None:
    import yaml

    too_large = SourceError(
        f"{where}: more than {_MOST_NODES:,} values or {_MOST_DEPTH} levels, counted with aliases expanded",
        remedy="name the data files with a glob, so that the card is not read",
    )
    try:
        if _is_large(text):
            raise too_large
    except yaml.MarkedYAMLError as error:
        if "increasing" in (error.context or ""):  # the depth limit of libyaml
            raise too_large from error
        raise


def _is_large(text: str) -> bool:
    import yaml

    sizes: dict[str, int] = {}  # number of nodes in each finished anchor
    opened: list[tuple[str | None, int]] = []
    nodes = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor, _MOST_NODES)  # an alias inside its own anchor would expand without end
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = nodes - before
        if isinstance(event, yaml.ScalarEvent) and event.anchor:
            sizes[event.anchor] = 1
        if nodes > _MOST_NODES or len(opened) > _MOST_DEPTH:
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)


def require_inside(splits: Mapping[str, Sequence[str]], *, root: str, where: str) -> None:
    """Raise SourceError unless all files in `splits` lie in the folder or repository `root`."""
    from huggingface_hub import constants

    # The links of a snapshot lead to the Hub's cache.
    allowed = list(map(os.path.realpath, (root, constants.HF_HUB_CACHE)))
    for path in (path for paths in splits.values() for path in paths):
        file = path.rpartition("::")[2]  # `zip://a.csv::FILE` is a file in an archive
        if "://" in root:
            inside = path.startswith(f"{root}/") and ".." not in path.split("/")
        else:
            real = os.path.realpath(file)
            inside = "://" not in file and any(os.path.commonpath([real, folder]) == folder for folder in allowed)
        if not inside:
            raise SourceError(
                f"{where}: its card or a link leads to {without_access(path)}, expected only files inside the dataset",
                remedy="if you trust that path, give it as DATASET instead",
            )
