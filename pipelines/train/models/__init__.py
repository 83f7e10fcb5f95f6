"""Models for a task on a dataset, with the manifest's features as inputs and logits as outputs.

KerasHub's backbone maps the features, int32 [B, L], to states [B, L, D]. The head maps the states to logits:

    classify         [B, classes]       after pooling
    tokens, span     [B, L, classes], [B, L, 2]
    clm, mlm         [B, L, V], and [B, P, V] at the P masked positions, with the tied embedding
    seq2seq          [B, T, V], from the decoder's states for T target tokens
"""

from pipelines.train.models.building import BuiltModel, build, build_again, reference_of, users_model
from pipelines.train.models.heads import inputs_of, taken

__all__ = ["BuiltModel", "build", "build_again", "inputs_of", "reference_of", "taken", "users_model"]
