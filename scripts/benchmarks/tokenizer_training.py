"""Train the tokenizers of the benchmark on the corpus with `prep-tfrecords tokenizer`, on texts that fit in memory.

wordpiece   like BERT's, 30,000 entries      the `pad` layout
bpe         like GPT-2's, 32,000 entries     the `concat` layout
unigram     like T5's, 32,000 pieces; trained on a quarter of the text, because it takes longest
"""

import pathlib
import shutil

from scripts.benchmarks import corpus, measure

KINDS = {
    "wordpiece": ("wordpiece", "bert", 30_000, 20_000_000),
    "bpe": ("byte-bpe", "gpt2", 32_000, 20_000_000),
    "unigram": ("unigram", "t5", 32_000, 5_000_000),
}
"""By name, the command's --kind, --style and --vocab-size, and the bytes of text."""
_CACHE_VERSION = 3


def trained(workdir: pathlib.Path, kind: str) -> pathlib.Path:
    """Return the folder of a tokenizer, trained on the first call. `kind`: a key of `KINDS`."""
    folder = workdir / f"tokenizer-v{_CACHE_VERSION}-{kind}"
    if not folder.exists():
        option, style, size, num_bytes = KINDS[kind]
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        words = ["tokenizer", str(corpus.parquet(workdir, num_bytes=num_bytes)), "--output", str(partial)]
        measure.run([*measure.PROGRAM, *words, "--kind", option, "--style", style, "--vocab-size", str(size)])
        partial.rename(folder)
    return folder
