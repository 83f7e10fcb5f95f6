"""Audit of finished datasets: verify, repair, trace and decode."""
