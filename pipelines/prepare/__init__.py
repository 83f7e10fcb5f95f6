"""From a Hugging Face dataset to shards. Nothing here imports TensorFlow: Beam workers must not need it."""
