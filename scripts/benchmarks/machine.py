"""Describe the machine and versions of a measurement in one line."""

import datetime
import importlib.metadata
import os
import pathlib
import platform

_LIBRARIES = ("apache-beam", "datasets", "transformers", "tokenizers", "pyarrow", "numpy", "numba", "tensorflow")


def line() -> str:
    """Return CPU model, cores, memory, versions and date."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    versions = ", ".join(f"{library} {_version(library)}" for library in _LIBRARIES)
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (
        f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}; "
        f"Python {platform.python_version()}, {versions}; {today}"
    )


def _cpu() -> str:
    """Return the CPU model with family, number and widest vectors, since the name of a virtual CPU says little."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    facts = {key.strip(): value.strip() for key, _, value in (text.partition(":") for text in lines)}
    vectors = "AVX-512" if "avx512f" in facts.get("flags", "") else "AVX2" if "avx2" in facts.get("flags", "") else ""
    numbers = f"family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"
    return f"{facts.get('model name', platform.processor())} ({numbers}{', ' + vectors if vectors else ''})"


def _version(library: str) -> str:
    # TensorFlow's wheel without GPU code has another name.
    installed = {found.name.lower(): found.version for found in importlib.metadata.distributions()}
    return (
        installed.get(library) or installed.get(f"{library}-cpu") or installed.get(f"{library}_cpu") or "not installed"
    )
