"""Parts of scripts/benchmark.py: a synthetic corpus, the contenders, and the measurements.

words -> corpus -> Parquet              the input; nothing is downloaded
tokenizer_training                      a WordPiece, a byte-level BPE and a Unigram tokenizer, trained on that corpus
measure, figures, machine               run and measure a command; medians and tables; description of the machine
raw, common_script, reading_worker      contenders that run in separate processes
preparing, chat, reading, startup       the sections: contenders, and conclusions from their times
"""
