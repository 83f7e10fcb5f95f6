"""Trials of engines, for scripts/qualify_engines.py and the short suite in the tests.

    kinds        tokenizers of every kind in use, trained here on text of many scripts
    strings      hostile, random and mutated texts, each generator from a seed
    comparing    an engine against the reference: texts, whole rows, and the shortest text that differs; the table
    strange      tokenizers combined at random, and texts for each

An engine is qualified for a kind of tokenizer if no text gives other ids.
"""
