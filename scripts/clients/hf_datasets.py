"""Compare the rows of `datasets.load_dataset` with each Parquet export's shards."""

import datasets

from scripts.clients.expected import WORK, rows, unpadded

for layout in ("pad", "concat", "pack"):
    data = datasets.load_dataset(f"{WORK}/{layout}-parquet", cache_dir=f"{WORK}/hf-cache")["train"]
    assert list(data["input_ids"]) == unpadded(rows(layout)), layout
    print(f"{layout}: {data.num_rows} rows of {data.features}")
