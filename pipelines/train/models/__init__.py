"""Models for a task on a dataset, with the manifest's features as inputs and logits as outputs.

inputs by the dataset's feature names              backbone (KerasHub)                 head
input_ids        int32 [B, L]  ─► token_ids    ─┐
attention_mask   int32 [B, L]  ─► padding_mask ─┼─► sequence [B, L, D] ─┬─ pool ─► dense ─► logits [B, classes]
token_type_ids   int32 [B, L]  ─► segment_ids  ─┘  (if it takes them) └─ tied embedding ─► logits [B, L, V]
                   for tokens and span: sequence ─► dense ─► logits [B, L, classes], [B, L, 2]
masked_positions int32 [B, P]  ─► for mlm: sequence at these positions ─► logits [B, P, V]
decoder_input_ids, decoder_attention_mask int32 [B, T] ─► for seq2seq: decoder's sequence ─► logits [B, T, V]

`building` combines `backbones`, `heads`, and the heads in checkpoints of transformers (`checkpoint`).
"""

from pipelines.train.models.building import BuiltModel, build, build_again, reference_of, users_model
from pipelines.train.models.heads import inputs_of, taken

__all__ = ["BuiltModel", "build", "build_again", "inputs_of", "reference_of", "taken", "users_model"]
