"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses a chat template, and renders conversations in worker processes
renderer        renders a batch in a worker process
conversation    checks and converts a conversation
program         a compiled template
answers         finds the assistant's bytes in a rendered text
part_masks      finds the bytes of an answer's parts that are not learned
alignment       finds the tokens to be learned
"""
