"""Programs that read what we write with libraries of others; `scripts/check_clients.py` runs them."""
