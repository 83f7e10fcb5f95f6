"""Read OLMo exports with OLMo-core's packed dataset, and compare the ids and mask of every document."""

import glob
import tempfile

import datasets
import numpy as np
from olmo_core.data import NumpyPackedFSLDatasetConfig, TokenizerConfig

from scripts.clients import expected
from scripts.clients.expected import WORK
from tfrecord_io import random_access


def read(name: str, **options: bool) -> list[tuple[list[int], list[int]]]:
    """Return the token ids and the mask of learned tokens of each document that OLMo-core reads, sorted."""
    facts = random_access.open(f"{WORK}/{name}").manifest.tokenizer
    masks = [f"{WORK}/{name}-olmo/labels_mask_part_*-train-*.npy"]
    config = NumpyPackedFSLDatasetConfig(
        tokenizer=TokenizerConfig(facts.vocab_size, eos_token_id=facts.end_id, pad_token_id=facts.pad_id),
        work_dir=tempfile.mkdtemp(),
        paths=[f"{WORK}/{name}-olmo/token_ids_part_*-train-*.npy"],
        label_mask_paths=masks if glob.glob(masks[0]) else None,
        expand_glob=True,
        generate_doc_lengths=True,
        sequence_length=256,
        **options,
    )
    dataset = config.build()
    dataset.prepare()
    documents = []
    for row in (dataset[at] for at in range(len(dataset))):
        ends = np.cumsum(row["doc_lens"].numpy())
        for ids, mask in zip(*(np.split(row[key].numpy(), ends) for key in ("input_ids", "label_mask")), strict=True):
            if len(ids) and not (ids == facts.pad_id).all():
                documents.append((ids.tolist(), mask.astype(int).tolist()))
    return sorted(documents)


joined = datasets.load_dataset(f"{WORK}/concat-documents", cache_dir=f"{WORK}/hf-cache")["train"]["input_ids"]
by_eos = [(ids, [1] * len(ids)) for ids in joined]
packed = expected.documents("chat")
for name, ours, options in (("concat", by_eos, {}), ("chat", packed, {"use_array_if_local": False})):
    theirs = read(name, **options)
    assert theirs == sorted(ours), name
    print(f"{name}: {len(theirs)} documents, {sum(sum(mask) for _, mask in theirs):,} tokens learned")
