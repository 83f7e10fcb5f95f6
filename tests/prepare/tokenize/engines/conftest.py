"""Engines serve a tokenizer only beside the release of `tokenizers` that they were compared with."""

import pytest

from pipelines.prepare.tokenize.engines.base import TOKENIZERS_TRIED, NotQualified, require_release


@pytest.fixture(autouse=True)
def qualified_release() -> None:
    try:
        require_release("tokenizers", tried=TOKENIZERS_TRIED)
    except NotQualified as error:
        pytest.skip(f"builds use the reference here: {error}")
