"""Parts of scripts/benchmark.py: a synthetic corpus, the contenders, and the measurements.

words -> corpus -> Parquet                   the input; nothing is downloaded
tokenizer_training                           WordPiece, byte-level BPE and Unigram, trained on that corpus
measure, figures                             run and measure a command; medians, tables and the machine
raw, common                                  contenders that run in separate processes
preparing, peers, chat, reading, startup     the sections: contenders, and conclusions from their times
export                                       a benchmark of exports; it is run alone
"""
