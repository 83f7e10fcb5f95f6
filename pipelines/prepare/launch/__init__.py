"""Launchers: a build (open, plan, run, commit), the estimate, which ends after the plan, and the tokenizer training."""
