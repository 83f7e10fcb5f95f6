"""Detect JSON files that `datasets` 5.2 mistakes for agent traces because of their column names and types.

`datasets` replaces the columns of agent traces with columns from the package teich. Conversations may have the same
columns, so rows with the requested columns are read unchanged.
"""

from collections.abc import Sequence
from typing import Any

from pipelines.prepare.options.source_config import CHATS
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

OPTION = "parse_agent_traces"


def streams_of(builder: Any, named: Sequence[str] | None) -> dict[str, Any]:
    """Return a builder's streams by split. `named`: columns that the user named; None if the user set `OPTION`.

    Raises: SourceError if the rows need teich, which is not installed.
    """
    is_default = named is not None and getattr(builder.config, OPTION, False) and builder.info.features is None
    if not is_default:
        return dict(builder.as_streaming_dataset())
    from datasets import config
    from datasets.packaged_modules.json.json import has_agent_traces_markers

    builder.config.parse_agent_traces = False
    streams = dict(builder.as_streaming_dataset())
    builder.config.parse_agent_traces = True  # doesn't affect these streams, which have features
    features = builder.info.features
    wanted = [*CHATS.values(), [name.partition(".")[0] for name in named or ()]]
    if (
        features is None
        or not has_agent_traces_markers(features)
        or any(set(columns) <= set(features) for columns in wanted)
    ):
        return streams
    if not config.TEICH_AVAILABLE:
        first = next(path for paths in builder.config.data_files.values() for path in paths)
        raise SourceError(
            f"{without_access(first)}: `datasets` takes its rows for traces of an agent, and needs teich to read them",
            remedy=f"install the package teich; or add --source-option {OPTION}=false, and choose among the columns "
            f"{', '.join(features)}",
        )
    builder.info.features = None
    return dict(builder.as_streaming_dataset())
