"""What tests of several rooms share: servers, tokenizers, texts, damaged sources."""
