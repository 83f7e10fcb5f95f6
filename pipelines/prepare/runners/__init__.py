"""Runners run the tasks of a build. Only this folder imports Beam."""

from collections.abc import Sequence

from pipelines.prepare.runners.runner import Runner


def local() -> Runner:
    from pipelines.prepare.runners import here

    return here.Here()


def choose(beam_args: Sequence[str], *, workers: int | None) -> Runner:
    """Return the runner for `beam_args`, the arguments after `--`; without any, the local runner."""
    if not beam_args:
        return local()
    from pipelines.prepare.runners import on_beam  # importing Beam takes 1.4 s of CPU and 70 MB

    return on_beam.OnBeam(beam_args, workers=workers)
