"""The cores that a process may use."""

import os
from pathlib import Path

import pytest

from pipelines.prepare.process import cores
from tests.support import seams


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of cgroups, with this process in /a/b and an affinity of eight cores."""
    (tmp_path / "own").write_text("2:cpu:/elsewhere\n0::/a/b\n")
    seams.put(monkeypatch, own_cgroup=tmp_path / "own", cgroups=tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "a" / "b").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({}, 8),
        ({"a/b": "max 100000"}, 8),
        ({"a/b": "200000 100000"}, 2),
        ({"a/b": "150000 100000"}, 2),
        ({"a/b": "10000 100000"}, 1),
        ({"a/b": "1600000 100000"}, 8),
        ({"a/b": "max 100000", "a": "300000 100000"}, 3),
        ({".": "400000 100000"}, 4),
        ({"a/b": "of another kind"}, 8),
    ],
)
def test_a_quota_of_the_cgroup_or_of_one_around_it_holds(cgroups: Path, quotas: dict[str, str], expected: int) -> None:
    for folder, quota in quotas.items():
        (cgroups / folder / "cpu.max").write_text(f"{quota}\n")
    assert cores.cores() == expected


@pytest.mark.parametrize(
    ("limits", "expected"), [({}, 4 << 30), ({"a/b": "max"}, 4 << 30), ({"a": "1000000"}, 1_000_000)]
)
def test_a_memory_limit_of_a_cgroup_holds(
    cgroups: Path, limits: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}.__getitem__)
    for folder, limit in limits.items():
        (cgroups / folder / "memory.max").write_text(f"{limit}\n")
    assert cores.memory_bytes() == expected
