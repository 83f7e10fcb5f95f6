"""Compare fast engines with the reference tokenizer while a job runs."""
