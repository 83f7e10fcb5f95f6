"""Engines turn batches of texts into the same token ids as `tokenizer(text, add_special_tokens=False)`.

The reference engines are `hf`, the Rust tokenizer, and `slow`, which also runs a tokenizer's Python code. `decide`
chooses another engine only if it supports the kind of tokenizer (docs/explanation/engines.md), and gives the same ids
for a list of test texts.
"""

from pipelines.prepare.tokenize.engines.base import BATTERY as BATTERY
from pipelines.prepare.tokenize.engines.base import Engine as Engine
from pipelines.prepare.tokenize.engines.base import HFTokenizer as HFTokenizer
from pipelines.prepare.tokenize.engines.base import HuggingFaceEngine as HuggingFaceEngine
from pipelines.prepare.tokenize.engines.base import NotQualified as NotQualified
from pipelines.prepare.tokenize.engines.base import SlowEngine as SlowEngine
from pipelines.prepare.tokenize.engines.base import Tokenizing as Tokenizing
from pipelines.prepare.tokenize.engines.base import copy_backend as copy_backend
from pipelines.prepare.tokenize.engines.base import is_reference as is_reference
from pipelines.prepare.tokenize.engines.base import utf8_of as utf8_of
from pipelines.prepare.tokenize.engines.choice import decide as decide
from pipelines.prepare.tokenize.engines.choice import ids_digest as ids_digest
from pipelines.prepare.tokenize.engines.choice import open_reference as open_reference
from pipelines.prepare.tokenize.engines.choice import why_slow as why_slow
