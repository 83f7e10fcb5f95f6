"""What scripts/torture.py does to a dataset, one module for each section.

    ground       corpus, tokenizer, and clean builds: what everything else is compared with
    processes    starts the command line as processes that can be killed
    figures      one line of the table: what was claimed, how often it was tried, how often it was wrong

Equal input gives equal bytes, so every claim about damage, crashes and races comes down to one comparison: in the end
all files are those of a build to which nothing happened, or there is no manifest.
"""
