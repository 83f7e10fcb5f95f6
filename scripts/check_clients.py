#!/usr/bin/env python
"""Programs of other people read what we write: does each find the same rows, and does MaxText's loss fall?

    scripts/check_clients.py [--work FOLDER] [--only NAME]...

Needs the network, and Python 3.12 for MaxText. Not part of scripts/check. In FOLDER (default: a temporary one, deleted
at the end; a kept one is used again) it makes three environments and says what it installs there:

    clients         this project's own packages, and without their dependencies those of PACKAGES, some 20 MB
    maxtext         MaxText with JAX for the CPU and TensorFlow, 2 GB
    transformers4   the last release of transformers 4, 100 MB

and prepares the bundled reviews in three layouts with every export. Each client is a program in scripts/clients that
prints what it read and fails if that is not what the shards hold. Exit status: 0 if none fails.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = (
    *("tfrecord", "crc32c", "seqio", "clu", "pyglove", "editdistance"),
    *("tf-models-official", "tf_keras", "tensorflow-hub", "gin-config", "tf_slim", "trl==1.16.0"),
)
# What MaxText imports to train; it declares nothing outside of extras, which are for accelerators.
MAXTEXT = (
    *("maxtext==0.2.5", "jax[cpu]", "flax", "optax", "grain", "orbax-checkpoint", "tensorflow-cpu", "tensorflow-text"),
    *("tensorflow-datasets", "transformers", "datasets", "omegaconf", "aqtp", "qwix", "tensorboardx", "sentencepiece"),
    *("tiktoken", "ml-goodput-measurement", "cloud-accelerator-diagnostics", "drjax", "pydantic", "jsonlines", "sympy"),
    *("blobfile", "chex", "array_record", "etils", "einops", "google-cloud-storage", "gcsfs", "absl-py", "jinja2"),
    *("ml_collections", "pathwaysutils", "google-cloud-mldiagnostics", "tokamax", "jaxtyping", "pillow"),
)
# Of environments that hold nothing of this project's: the interpreter, and what is installed.
SEPARATE = {"maxtext": ("python3.12", MAXTEXT), "transformers4": (sys.executable, ("transformers==4.57.*",))}
# Why a client is not run, or the code that was read for what it expects: PyTorch with its libraries has 3 GB.
NOT_RUN = {
    "TRL 1.16.0's trainer": "needs PyTorch; read trl/trainer/sft_trainer.py, _prepare_dataset, and its collator",
    "axolotl 0.19.0": "needs PyTorch; read axolotl/utils/data/wrappers.py, _is_dataset_already_tokenized",
    "Megatron-LM": "needs PyTorch; read megatron/core/datasets/indexed_dataset.py, _IndexReader (as MaxText's mmap)",
    "torchtitan": "needs PyTorch; read torchtitan/hf_datasets/text_datasets.py, torchtitan/components/data",
    "Levanter 1.1": "its release does not import with today's JAX (equinox's BuiltInKeyEntry)",
    "EasyDeL 0.3.0": "its release wants eformer 0.0.99.12 and ray; its loaders take `datasets`",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Client:
    """A program in scripts/clients, the environment that runs it, and its arguments: {work} is the folder."""

    environment: str
    program: str
    arguments: tuple[str, ...] = ()


def _maxtext(kind: str, files: str, *more: str) -> Client:
    return Client(environment="maxtext", program="maxtext_train.py", arguments=(kind, files, *more))


CLIENTS = {
    "datasets": Client(environment="clients", program="hf_datasets.py"),
    "tfds": Client(environment="clients", program="tfds_source.py"),
    "grain": Client(environment="clients", program="grain_shuffle.py"),
    "keras-hub on jax": Client(environment="clients", program="keras_hub_jax.py"),
    "model garden": Client(environment="clients", program="model_garden.py"),
    "seqio": Client(environment="clients", program="seqio_source.py"),
    "tfrecord": Client(environment="clients", program="tfrecord_package.py"),
    "trl templates": Client(environment="clients", program="trl_templates.py"),
    "transformers 4": Client(environment="transformers4", program="transformers_4.py"),
    "maxtext tfrecord": _maxtext("tfrecord", "{work}/concat/*-train-*.tfrecord"),
    "maxtext arrayrecord": _maxtext("arrayrecord", "{work}/concat-arrayrecord/*-train-*.array_record"),
    "maxtext parquet": _maxtext("parquet", "{work}/pad-parquet/*-train-*.parquet", "packing=true"),
    "maxtext mmap": _maxtext("mmap", "{work}/concat-megatron", "train_data_columns=['text']", "mmap_eod_id=3"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the clients. Returns: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, help="folder for environments and data, kept")
    parser.add_argument("--only", action="append", choices=CLIENTS, help="client to run; repeatable")
    options = parser.parse_args(argv)
    with _folder(options.work) as work:
        _prepare(work)
        failed = [name for name in options.only or CLIENTS if not _passes(name, CLIENTS[name], work)]
    for name, page in NOT_RUN.items():
        print(f"not run  {name}: {page}")
    print(f"failed: {', '.join(failed)}" if failed else "all clients read what the shards hold")
    return 1 if failed else 0


@contextlib.contextmanager
def _folder(kept: pathlib.Path | None) -> Iterator[pathlib.Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="check-clients-") as folder:
        yield pathlib.Path(folder)


def _prepare(work: pathlib.Path) -> None:
    """Build the reviews in three layouts, and export them."""
    if (work / "prepared").exists():
        return
    _ours("examples/reviews/train_tokenizer.py", str(work / "tokenizer"))
    for layout in ("pad", "concat", "pack"):
        options = ["--label-column", "label"] if layout == "pad" else []
        _build(work, layout, *options, *("--index", "dali") if layout == "pad" else ())
        _export(work, layout, "parquet")
        _export(work, layout, "arrayrecord")
    _export(work, "concat", "megatron", "--split", "train")
    names = ("attention_mask=input_mask", "token_type_ids=segment_ids", "label=label_ids")
    _export(work, "pad", "tfrecord", *(word for name in names for word in ("--rename", name)))
    _ours("scripts/clients/transformers_4.py", str(work), "write")
    (work / "prepared").touch()


def _build(work: pathlib.Path, layout: str, *options: str) -> None:
    output = ["--output", str(work / layout), "--tokenizer", str(work / "tokenizer"), "--layout", layout]
    lengths = ["--max-length", "64", "--shard-size", "20kB"]
    _ours("-m", "prep_tfrecords", "build", "examples/reviews", *output, *lengths, *options)


def _export(work: pathlib.Path, layout: str, to: str, *options: str) -> None:
    output = str(work / f"{layout}-{to}")
    _ours("-m", "prep_tfrecords", "export", str(work / layout), "--to", to, "--output", output, *options)


def _ours(*words: str) -> None:
    subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=_environment(), check=True, capture_output=True)


def _environment() -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    # MaxText's word for: without Google Cloud.
    return {**os.environ, **quiet, "KERAS_BACKEND": "jax", "DECOUPLE_GCLOUD": "TRUE", "PYTHONPATH": str(REPOSITORY)}


def _passes(name: str, client: Client, work: pathlib.Path) -> bool:
    """Run a client, and print its last lines."""
    python = _clients_python(work) if client.environment == "clients" else _separate_python(work, client.environment)
    if python is None:
        print(f"not run  {name}: no {SEPARATE[client.environment][0]} on PATH")
        return True
    arguments = [each.format(work=work) for each in client.arguments]
    program = str(REPOSITORY / "scripts" / "clients" / client.program)
    ended = subprocess.run(
        [str(python), program, str(work), *arguments], env=_environment(), cwd=work, capture_output=True, text=True
    )
    print(f"{'ok     ' if ended.returncode == 0 else 'FAILED '}  {name}")
    for line in (ended.stdout if ended.returncode == 0 else ended.stdout[-500:] + ended.stderr[-2000:]).splitlines():
        print(f"         {line}")
    return ended.returncode == 0


def _clients_python(work: pathlib.Path) -> pathlib.Path:
    """Return the interpreter of an environment on top of this one."""
    home = work / "clients"
    if not (home / "installed").exists():
        python = _new_environment(home, sys.executable)
        (folder,) = home.glob("lib/python*/site-packages")
        (folder / "of_this_project.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
        _install(python, "--no-deps", *PACKAGES)
        (home / "installed").touch()
    return home / "bin" / "python"


def _separate_python(work: pathlib.Path, environment: str) -> pathlib.Path | None:
    home = work / environment
    if not (home / "installed").exists():
        python, packages = SEPARATE[environment]
        found = shutil.which(python)
        if found is None:
            return None
        _install(_new_environment(home, found), *packages)
        (home / "installed").touch()
    return home / "bin" / "python"


def _new_environment(home: pathlib.Path, python: str) -> pathlib.Path:
    subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
    return home / "bin" / "python"


def _install(python: pathlib.Path, *words: str) -> None:
    print(f"installing {' '.join(words)} in {python.parent.parent}", flush=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
