"""Conversations, from lists of messages to tokens and a mask of what the assistant says.

messages        Arrow columns of messages
opening         a tokenizer's chat template, chosen and tried
template        such a template; worker processes render by it, and what becomes of one that does not end
protocol        what goes to those processes and back; what a row may take
renderer        what such a process does
conversation    one conversation: what is wrong with it, what a template sees of it
rendering       its text by the template, and which characters are the assistant's
texts           texts as one run of bytes, each marked as to be learned or not
alignment       which tokens those bytes are in
cutting         which turns stay of a conversation that is too long
encoder         all of it
"""
