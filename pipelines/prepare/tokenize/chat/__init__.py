"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses a chat template, and renders conversations in worker processes
renderer        renders a batch in such a process
conversation    checks and converts a conversation
program         a compiled template
answers         finds the assistant's bytes in the rendered text
part_masks      finds bytes that are not learned
alignment       finds the tokens of these bytes
"""
