"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

`template` renders batches in worker processes (`renderer`, `conversation`, `program`). `answers` and
`unlearned_parts` find the learned bytes of a rendered text. `alignment` turns them into a loss mask on tokens.
"""
