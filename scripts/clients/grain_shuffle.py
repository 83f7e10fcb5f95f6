"""Check that Grain's ArrayRecordDataSource with a global shuffle has every row once, in another order."""

import glob

import grain
from tensorflow.core.example import example_pb2

from scripts.clients.expected import WORK, rows

files = sorted(glob.glob(f"{WORK}/pad-arrayrecord/*-train-*.array_record"))
source = grain.sources.ArrayRecordDataSource(files)
shuffled = grain.MapDataset.source(source).shuffle(seed=3)
examples = [example_pb2.Example.FromString(record) for record in shuffled]
ids = [list(example.features.feature["input_ids"].int64_list.value) for example in examples]
expected = rows("pad")["input_ids"].tolist()
assert sorted(ids) == sorted(expected)
assert ids != expected
print(f"{len(ids)} rows of {len(files)} files, shuffled over all of them")
