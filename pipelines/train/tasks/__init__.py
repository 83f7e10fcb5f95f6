"""Tasks: output sizes, losses and metrics of the model. The matching inputs and labels come from objectives.

    task        logits           labels          loss                            metrics beside the loss
    classify    [B, classes]     int32 [B]       cross-entropy                   accuracy, f1 (of 2), macro_f1, matthews
                [B, classes]     int32 [B, C]    sigmoid (several a row)         micro_f1, macro_f1
                [B, 1]           float32 [B]     squared error (float labels)    mae, pearson, spearman
    tokens      [B, L, classes]  int32 [B, L]    cross-entropy where weight > 0  accuracy, macro_f1
    span        [B, L, 2]        int32 [B, 2]    mean of two cross-entropies     exact_match, token_f1
    mlm         [B, P, V]        int32 [B, P]    as tokens                       accuracy, perplexity
    clm         [B, L, V]        int32 [B, L]    as tokens                       accuracy, perplexity
    seq2seq     [B, T, V]        int32 [B, T]    as tokens                       accuracy, perplexity

For mlm, only the P positions in the input `masked_positions` have logits, of L in a row. The classes of a span are the
positions of the row with text, and the first position, which stands for no answer.
All values are weighted sums, never means: the mean is taken once, over the whole global batch or the whole evaluation,
so that neither replicas with fewer weights nor fill rows bias it.

    kinds   tasks by their labels      binding   from options and manifest to one of these
"""

from pipelines.train.tasks.binding import bind, decoder_start
from pipelines.train.tasks.kinds import BoundTask

__all__ = ["BoundTask", "bind", "decoder_start"]
