"""Upload of an export to the Hugging Face Hub. `huggingface_hub` finds the user's token."""

import contextlib
from collections.abc import Iterator

from pipelines.prepare import storage
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.shown import cause_without_secrets, first_line

_LOGIN = "run `hf auth login` with a token that may write there, or set HF_TOKEN to one"


def prepare(name: str, output: str) -> None:
    """Check that `output` is local; create the private Hub dataset `name`. Raises: ConfigError, OutputError."""
    import huggingface_hub

    if storage.local_path(output) is None:
        cause = f"--push: only a local folder can be uploaded, not {output}"
        raise ConfigError(cause, remedy="choose a local --output")
    if name.count("/") != 1:
        raise ConfigError(f"--push {name}: expected ORG/NAME", remedy="write for example --push me/reviews")
    with _as_output_error(name):
        huggingface_hub.HfApi().create_repo(name, repo_type="dataset", private=True, exist_ok=True)


def upload(name: str, folder: str) -> None:
    """Upload the export in `folder`, except files that the Hub has. Raises: OutputError."""
    import huggingface_hub

    with _as_output_error(name):
        huggingface_hub.HfApi().upload_folder(
            repo_id=name,
            repo_type="dataset",
            folder_path=folder,
            ignore_patterns=[f"{WORK_FOLDER}/*"],
            commit_message="Export by prep-tfrecords",
        )


@contextlib.contextmanager
def _as_output_error(name: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"--push {name}: {first_line(error)}", remedy="correct the name") from error
    except Exception as error:  # from the Hub's client, its HTTP library, or hf_xet
        is_refused = storage_errors.status_of(error) in (401, 403)
        raise OutputError(
            f"{name}: the Hub did not accept the dataset ({first_line(error)})",
            remedy=_LOGIN if is_refused else "run the same command again; finished files are kept",
        ) from cause_without_secrets(error)
