#!/usr/bin/env python
"""Run other projects' programs on our datasets and exports, and compare their rows, logits or losses.

    scripts/check_clients.py [--work FOLDER] [--only NAME]...

Needs the network. Not part of scripts/check. FOLDER is a temporary one by default, and is reused otherwise. It gets the
bundled examples in all layouts and exports, and these environments when a client needs them:

    clients         this project's packages and 140 MB
    torch           the same with PyTorch, 5 GB, because its wheel for Linux needs CUDA's libraries; 1 GB if
                    PIP_EXTRA_INDEX_URL names an index with builds for the CPU. No client needs an accelerator
    axolotl         torch with Axolotl and its pinned releases, without packages for GPUs, 270 MB
    tunix           clients with tunix, 40 MB
    readers         torch with torchtitan, Megatron and OLMo-core, without what their readers don't import, 130 MB
    transformers4   torch with the last release of transformers 4, 160 MB
    maxtext         MaxText with JAX for the CPU and TensorFlow, in Python 3.12, 3 GB

A client is a program in scripts/clients. It prints figures, and fails if they differ from the shards. A client that
passes prints a section of docs/reference/clients.md. Exit status: 0 if none fails.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# MaxText's imports in a training run. It declares them in extras alone, which are for accelerators.
MAXTEXT = """
    maxtext==0.2.5 jax[cpu] flax optax grain orbax-checkpoint tensorflow-cpu tensorflow-datasets transformers datasets
    omegaconf aqtp qwix tensorboardx sentencepiece tiktoken ml-goodput-measurement cloud-accelerator-diagnostics drjax
    pydantic jsonlines sympy blobfile chex array_record etils einops google-cloud-storage gcsfs absl-py jinja2
    ml_collections pathwaysutils google-cloud-mldiagnostics tokamax jaxtyping pillow
"""
MAXTEXT_DATE = "2026-11-29"  # the 178 packages have their versions of this day
# By name: the environment below ("" for this project's, None for an empty one with Python 3.12), and pip's arguments.
ENVIRONMENTS = {
    "clients": (
        "",
        "--no-deps tfrecord crc32c seqio clu pyglove editdistance trl==1.16.0 tf_slim tf-models-official tf_keras "
        "tensorflow-hub gin-config uv",
    ),
    "torch": ("", "torch trl==1.16.0 accelerate torchdata tyro spmd_types"),
    # Megatron-Bridge asks for Python 3.12; the modules of its reader do not need it.
    "readers": (
        "torch",
        "--no-deps --ignore-requires-python megatron-bridge==0.6.2 megatron-core torchtitan ai2-olmo-core==3.0.0 "
        "cached-path dataclass-extensions bettermap importlib_resources boto3 botocore s3transfer jmespath",
    ),
    "axolotl": (
        "torch",
        "--no-deps axolotl==0.19.0 transformers==5.16.1 trl==1.9.0 datasets==4.8.4 accelerate==1.13.0 "
        "huggingface_hub==1.17.0 tokenizers==0.23.1 peft==0.20.0 addict fire posthog wandb",
    ),
    "tunix": (
        "clients",
        "--no-deps google-tunix==0.1.7 google-metrax qwix jaxtyping wadler-lindig python-dotenv kagglehub tensorboardX "
        "perfetto",
    ),
    "transformers4": ("torch", "--no-deps transformers==4.57.6 tokenizers==0.22.2 huggingface_hub==0.36.0"),
    "maxtext": (None, MAXTEXT),
}


@dataclasses.dataclass(frozen=True)
class Client:
    """A program in scripts/clients. `packages`: named in its line of the table; `arguments`: after the work folder."""

    program: str
    packages: str
    environment: str = "clients"
    arguments: tuple[str, ...] = ()


CLIENTS = {
    "datasets": Client("hf_datasets.py", "datasets"),
    "tfds": Client("tfds_source.py", "tensorflow-datasets"),
    "grain": Client("grain_shuffle.py", "grain"),
    "keras-hub on jax": Client("keras_hub_fit.py", "keras-hub jax", arguments=("jax",)),
    "keras-hub on tensorflow": Client("keras_hub_fit.py", "keras-hub tensorflow", arguments=("tensorflow",)),
    "tunix": Client("tunix_sft.py", "google-tunix flax optax", "tunix"),
    "model garden": Client("model_garden.py", "tf-models-official"),
    "seqio": Client("seqio_source.py", "seqio"),
    "tfrecord": Client("tfrecord_package.py", "tfrecord"),
    "trl templates": Client("trl_templates.py", "trl"),
    "trl training on pairs": Client("trl_pair_training.py", "trl transformers torch", "torch"),
    "trl preferences": Client("trl_pairs.py", "trl torch", "torch"),
    "trainers": Client("torch_trainers.py", "trl transformers torch", "torch"),
    "loaders": Client("torch_loaders.py", "torch torchdata torchtitan", "readers"),
    "megatron-lm": Client("megatron_reader.py", "megatron-core", "readers"),
    "megatron-bridge": Client("bridge_reader.py", "megatron-bridge torch", "readers"),
    "olmo-core": Client("olmo_reader.py", "ai2-olmo-core torch", "readers"),
    "exports in transformers 5": Client("transformers_exports.py", "transformers torch", "torch"),
    "exports in transformers 4": Client("transformers_exports.py", "transformers torch", "transformers4"),
    "checkpoints": Client("transformers_checkpoints.py", "transformers torch keras-hub", "torch"),
    "tests with torch": Client("torch_tests.py", "torch", "torch"),
    "axolotl": Client("axolotl_packing.py", "axolotl transformers", "axolotl"),
    "transformers 4": Client("transformers_4.py", "transformers tokenizers", "transformers4"),
    "maxtext preferences": Client("maxtext_pairs.py", "maxtext", "maxtext"),
    "maxtext training": Client("maxtext_train.py", "maxtext jax flax", "maxtext"),
    "maxtext packing": Client("maxtext_packing.py", "maxtext grain", "maxtext"),
}
_VERSION = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"


def main(argv: list[str] | None = None) -> int:
    """Run the clients named on the command line, or all, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, help="folder for environments and data, kept")
    parser.add_argument("--only", action="append", choices=CLIENTS, help="client to run; repeatable")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="check-clients-") as folder:
        work = (options.work or pathlib.Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        _prepare(work)
        failed = [name for name in options.only or CLIENTS if not _passes(name, CLIENTS[name], work)]
    print(f"failed: {', '.join(failed)}" if failed else "all clients read what the shards hold")
    return 1 if failed else 0


def _prepare(work: pathlib.Path) -> None:
    """Build and export the bundled examples for all clients, unless the work folder has them."""
    if (work / "prepared").exists():
        return
    _ours("examples/reviews/train_tokenizer.py", str(work / "tokenizer"))
    for layout in ("pad", "concat", "pack"):
        options = ["--label-column", "label"] if layout == "pad" else []
        _build(work, layout, *options)
        _export(work, layout, "parquet")
        _export(work, layout, "arrayrecord")
    _export(work, "concat", "megatron", "--split", "train")
    _export(work, "concat", "olmo")
    _ours("examples/chats/train_tokenizer.py", str(work / "chat-tokenizer"))
    chats = ("examples/chats", "--output", str(work / "chat"), "--tokenizer", str(work / "chat-tokenizer"))
    _ours("-m", "prep_tfrecords", "build", *chats, "--layout", "chat", "--pack-rows", "--max-length", "128")
    _export(work, "chat", "megatron-bridge")
    _export(work, "chat", "olmo")
    _export(work, "concat", "parquet", "--documents", output="concat-documents")
    needed = ("--add", "attention_mask", "--add", "labels")
    _export(work, "pad", "parquet", *needed, "--drop", "label", output="pad-axolotl")
    _export(work, "pack", "parquet", *needed, "--documents", output="pack-axolotl")
    names = ("attention_mask=input_mask", "token_type_ids=segment_ids", "label=label_ids")
    _export(work, "pad", "tfrecord", *(word for name in names for word in ("--rename", name)))
    columns = ("--text-column", "en", "--target-column", "de", "--target-length", "64")
    _build(work, "seq2seq", *columns, data="translations")
    _ours("examples/chats/train_tokenizer.py", str(work / "chats-tokenizer"))
    for program in ("transformers_4.py", "transformers_exports.py", "maxtext_pairs.py"):
        _ours(f"scripts/clients/{program}", str(work), "write")
    (work / "prepared").touch()


def _build(work: pathlib.Path, layout: str, *options: str, data: str = "reviews") -> None:
    output = ["--output", str(work / layout), "--tokenizer", str(work / "tokenizer"), "--layout", layout]
    lengths = ["--max-length", "64", "--shard-size", "20kB"]
    _ours("-m", "prep_tfrecords", "build", f"examples/{data}", *output, *lengths, *options)


def _export(work: pathlib.Path, layout: str, to: str, *options: str, output: str = "") -> None:
    folder = str(work / (output or f"{layout}-{to}"))
    _ours("-m", "prep_tfrecords", "export", str(work / layout), "--to", to, "--output", folder, *options)


def _ours(*words: str) -> None:
    ended = subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=_environment(), capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(words)}\n{ended.stderr[-2000:]}")


def _environment() -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    # DECOUPLE_GCLOUD: MaxText runs without Google Cloud.
    return {**os.environ, **quiet, "KERAS_BACKEND": "jax", "DECOUPLE_GCLOUD": "TRUE", "PYTHONPATH": str(REPOSITORY)}


def _passes(name: str, client: Client, work: pathlib.Path) -> bool:
    """Run a client, print its section of the page or its errors, and return whether it passes."""
    python = _python(work, client.environment)
    program = REPOSITORY / "scripts" / "clients" / client.program
    words = ([str(program), str(work), *client.arguments], ["-c", _VERSION, *client.packages.split()])
    ended, versions = (
        subprocess.run([str(python), *arguments], env=_environment(), cwd=work, capture_output=True, text=True)
        for arguments in words
    )
    if ended.returncode:
        print(f"FAILED  {name}\n{ended.stdout[-500:]}{ended.stderr[-2000:]}")
    else:
        figures = "\n".join(f"- {line}" for line in ended.stdout.splitlines())
        print(f"## {name}\n\nWith {versions.stdout.strip()}:\n\n{figures}\n", flush=True)
    return ended.returncode == 0


def _python(work: pathlib.Path, name: str) -> pathlib.Path:
    """Return the Python interpreter of an environment, which is made on the first call."""
    home, (below, packages) = work / name, ENVIRONMENTS[name]
    python = home / "bin" / "python"
    if (home / "installed").exists():
        return python
    # pip chooses from downloaded wheels: 16 minutes on a busy machine. uv reads their metadata: 7 seconds.
    uv = (str(_python(work, "clients")), "-m", "uv") if below is None else ()
    folders, since = _package_folders(work, below or ""), time.monotonic()
    if uv:
        _run(*uv, "venv", "--quiet", "--clear", "--python", "3.12", str(home))
        dated = ("--exclude-newer", MAXTEXT_DATE)
        _run(*uv, "pip", "install", "--quiet", "--python", str(python), *dated, *packages.split())
    else:
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        (folder,) = home.glob("lib/python*/site-packages")
        (folder / "others.pth").write_text("\n".join(folders))
        _run(str(python), "-m", "pip", "install", "--quiet", *packages.split())
    (home / "installed").touch()
    print(f"installed {name} in {time.monotonic() - since:.0f} s", flush=True)
    return python


def _package_folders(work: pathlib.Path, name: str) -> list[str]:
    """Return the folders of an environment's packages and those below it, this project's at the end."""
    if not name:
        return [path for path in sys.path if path.endswith("site-packages")]
    _python(work, name)
    below = _package_folders(work, ENVIRONMENTS[name][0] or "")
    return [*map(str, (work / name).glob("lib/python*/site-packages")), *below]


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    sys.exit(main())
