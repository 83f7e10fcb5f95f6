"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses a chat template, and renders conversations in worker processes
renderer        renders a batch in such a process, with limits on time and size
conversation    checks a conversation and converts it
program         a compiled template
answers         finds the assistant's bytes in the rendered text
part_masks      finds bytes that are not learned
alignment       finds the tokens of these bytes
"""
