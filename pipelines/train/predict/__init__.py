"""`train-tpu predict`: what a trained model says of a split, row by row, and of masked words in a text.

command         options in, errors in two lines                  predicting     a split, on all replicas, in order
config          what is asked for                                predictors/    one file for each task's columns
loading         the model of a folder, and its tokenizer         decoding       greedy and beam search
record_rows     which source row a record is                     fill_mask      candidates for masked words
output_file     Parquet or JSON lines, written at once
"""
