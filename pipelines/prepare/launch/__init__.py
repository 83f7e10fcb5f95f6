"""The launcher: open, plan, run, commit; and the estimate that stops before the run."""
