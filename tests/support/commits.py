"""A request for the example reviews, and the commit of its job."""

from pipelines.prepare.dataset import commit
from pipelines.prepare.launch.open_job import OpenJob
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from tests import building
from tests.building import REVIEWS
from tfrecord_io import manifest


def request(root: str) -> PrepareConfig:
    return PrepareConfig(
        source=SourceConfig(dataset=str(REVIEWS), label_column="label"),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=root, name="reviews", shard_bytes=20_000),
        layout=LayoutConfig(max_length=32),
    )


def committed(opened: OpenJob) -> manifest.Manifest:
    return commit.commit(opened.job, items=opened.items, identity=opened.identity, max_error_rate=0.0)
