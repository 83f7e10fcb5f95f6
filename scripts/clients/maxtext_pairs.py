"""Compare MaxText's DPODataFormatting of our Parquet export of pairs with the arrays of `objectives.preference`.

maxtext_pairs.py WORK           with MaxText: compare
maxtext_pairs.py WORK write     in this project's environment: make the export and the arrays
"""

import pathlib
import sys

import numpy as np

WORK = pathlib.Path(sys.argv[1], "pairs")
COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
LENGTHS = ((64, 64), (24, 12))


def write() -> None:
    """Build and export the bundled pairs, and save the objective's arrays for each pair of lengths."""
    from prep_tfrecords import build, export
    from tfrecord_io import objectives, random_access

    tokenizer = str(WORK.parent / "chats-tokenizer")
    build("examples/preferences", output=WORK / "data", tokenizer=tokenizer, layout="preference", max_length=128)
    export(WORK / "data", to="parquet", output=WORK / "parquet")
    rows = random_access.open(WORK / "data")["train"]
    for prompt, answer in LENGTHS:
        objective = objectives.preference(prompt_length=prompt, answer_length=answer).bind(rows.manifest)
        arrays, _, _ = objective(rows.batch(range(len(rows))))
        np.savez(WORK / f"{prompt}.npz", pad_id=rows.manifest.tokenizer.pad_id, **arrays)


def compare() -> None:
    """Raise AssertionError for the first pair that MaxText pads or cuts in another way."""
    import pyarrow.parquet as pq
    from maxtext.input_pipeline.dpo_utils import DPODataFormatting

    rows = [row for path in sorted((WORK / "parquet").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    for prompt, answer in LENGTHS:
        expected = dict(np.load(WORK / f"{prompt}.npz"))
        formatting = DPODataFormatting(int(expected.pop("pad_id")), prompt + answer, COLUMNS, prompt)
        for at, row in enumerate(rows):
            for name, values in formatting.map(dict(row)).items():
                assert np.array_equal(values, expected[name][at]), (prompt, answer, at, name)
    print(f"{len(rows)} pairs equal the reader's arrays, with {' and '.join(f'{a} + {b}' for a, b in LENGTHS)} tokens")


if __name__ == "__main__":
    write() if sys.argv[2:] == ["write"] else compare()
