"""Job: one run of `build`, in a form for workers, without open files, secrets, or the list of source files."""

import dataclasses
from collections.abc import Mapping

from pipelines.prepare import layouts, storage
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.options.config import EngineName
from pipelines.prepare.plan.planning import ShardSpec, ShardTask
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.tokenize import saved_copy
from tfrecord_io import manifest
from tfrecord_io.errors import FormatError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run of `build`, which writes the dataset `name` to the folder `root`.

    `splits`: by the name of the split to write. `spec`: everything else that determines the bytes of shards. `engine`:
    affects only the speed. `ingested`: folder for the ingested copy of the source, if any. `strict`: whether the first
    rejected row ends the job. `appends_to`: fingerprint of the dataset to append to, if any.
    """

    root: str
    name: str
    fingerprint: str
    splits: Mapping[str, SplitSource]
    spec: ShardSpec
    engine: EngineName = "auto"
    ingested: str | None = None
    strict: bool = False
    appends_to: str | None = None

    def work_path(self, *parts: str) -> str:
        """Join `parts` to the path of the job's work folder, OUT/.prep/FINGERPRINT."""
        return storage.join(self.root, WORK_FOLDER, self.fingerprint, *parts)

    def shard_name(self, task: ShardTask, *, length: int | None = None) -> str:
        """Return the file name of a task's shard. `length`: the record length; None if all records have the same."""
        return manifest.shard_name(
            name=self.name,
            split=task.split,
            index=task.index,
            count=task.count,
            compression=self.spec.compression,
            length=length,
        )

    def receipt_path(self, task: ShardTask) -> str:
        return self.work_path(task.split, f"receipt-{task.index:05d}-of-{task.count:05d}.json")

    def open_encoder(self) -> layouts.BatchEncoder:
        """Return the layout's encoder, with the tokenizer in the work folder. Raises: FormatError if it has changed."""
        spec, tokenizer = self.spec, saved_copy.load(tokenizer_files(self))
        inputs = {"tokenizer": tokenizer, "facts": spec.facts, "length": spec.length, "columns": spec.columns}
        return layouts.open_encoder(spec.layout, **inputs, engine=self.engine, seed=spec.seed)


def decided_path(root: str, fingerprint: str, split: str) -> str:
    """Return the path of the file that lists a split's duplicate and contaminated rows, for the dataset in `root`."""
    return storage.join(root, WORK_FOLDER, fingerprint, "decided", f"{split}.parquet")


def rejected_path(split: str, index: int) -> str:
    """Return the path, relative to the dataset's folder, of the file that lists the rejected rows of task `index`."""
    return f"rejected/{split}-{index:05d}.jsonl"


def tokenizer_files(job: Job) -> saved_copy.Files:
    """Read the tokenizer's files from the job's work folder. Raises: FormatError if they have changed."""
    folder, expected = job.work_path("tokenizer"), job.spec.facts.content_sha256
    files = storage.read_folder(folder)
    # A delayed worker of an earlier job may have changed the files.
    if (got := saved_copy.bytes_digest(files)) != expected:
        raise FormatError(
            f"{folder}: the tokenizer's files have changed since they were saved: digest {got}, expected {expected}",
            remedy="delete this folder and run the same build again, which saves the tokenizer again; finished shards "
            "are kept",
        )
    return files
