"""The parts of scripts/rehearse_scale.py. Each is a process of its own, so that its memory is its own."""
