"""Programs that read our datasets and exports with other libraries, for `scripts/check_clients.py`."""
