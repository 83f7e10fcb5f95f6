"""Train the tokenizers of the benchmark on the corpus with `prep-tfrecords tokenizer`, on texts that fit in memory.

wordpiece   like BERT's, 30,000 entries      the `pad` layout
bpe         like GPT-2's, 32,000 entries     the `concat` layout
unigram     like T5's, 32,000 pieces; trained on a quarter of the text, because it takes longest
"""

import pathlib
import shutil

from scripts.benchmarks import corpus, measure

KINDS = {
    "wordpiece": ("wordpiece", "bert", 30_000),
    "bpe": ("byte-bpe", "gpt2", 32_000),
    "unigram": ("unigram", "t5", 32_000),
}
"""By name, the command's --kind, --style and --vocab-size."""
_CACHE_VERSION = 2


def trained(workdir: pathlib.Path, kind: str, *, sample_bytes: int) -> pathlib.Path:
    """Return the folder of a tokenizer, trained on the first `sample_bytes` of the corpus on the first call."""
    folder = workdir / f"tokenizer-v{_CACHE_VERSION}-{kind}-{sample_bytes}"
    if not folder.exists():
        option, style, size = KINDS[kind]
        num_bytes = sample_bytes // 4 if kind == "unigram" else sample_bytes
        texts = corpus.parquet(workdir, num_bytes=num_bytes, part_bytes=num_bytes)
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        words = ["tokenizer", str(texts), "--output", str(partial), "--kind", option, "--style", style]
        measure.run([*measure.PROGRAM, *words, "--vocab-size", str(size)])
        partial.rename(folder)
    return folder
