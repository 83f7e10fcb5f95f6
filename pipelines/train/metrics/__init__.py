"""Metrics of an evaluation: from logits and labels to named numbers.

    on the devices                                        on the host, in float64
    scores         [3, C] right, predicted, actual   ──►  accuracy, f1, macro_f1, matthews
    evaluation     losses, weights: sums             ──►  loss, perplexity
                   rows, where sums are not enough   ──►  scores: mae, pearson, spearman; answers: exact_match, token_f1

Sums are added over replicas and steps; rows are gathered, and those that only fill up a batch are dropped.
"""
