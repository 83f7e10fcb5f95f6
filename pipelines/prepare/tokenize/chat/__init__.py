"""Conversations: lists of messages become tokens, with a loss mask on the assistant's text.

template        chooses a chat template, and renders conversations in worker processes
renderer        renders a batch of conversations inside a worker process
conversation    checks and converts one conversation
program         compiles a template and runs it
answers         finds the assistant's bytes in a rendered text
part_masks      finds the bytes of parts of an answer that are not learned
alignment       turns learned bytes into a loss mask on tokens
"""
