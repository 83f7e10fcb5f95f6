"""Compare the ids of saved tokenizers in transformers 4.57 with those in this project's release.

transformers_4.py WORK           with transformers 4.57: compare with ids.json in each folder of WORK/tokenizers
transformers_4.py WORK write     in this project's environment: save those folders as a build does
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer

TEXTS = (
    "Hello, World 2023!  It's 3.14",
    " a  b\n\n\tc",
    "naïve ΣΊΣΥΦΟΣ 中文 日本語 한국어 हिन्दी",
    "👩‍👩‍👧 e\u0301 <a> [SEP] </s>",
    "",
)
HOME = pathlib.Path(sys.argv[1], "tokenizers")


def write() -> None:
    """Save tokenizers of each kind, with added tokens, another normalizer or no change, and their token ids."""
    from tokenizers import normalizers

    from pipelines.prepare.tokenize import saved_copy
    from tests.support.tokenizers_zoo import FAST_KINDS, Zoo

    zoo = Zoo(HOME.parent / "zoo")
    for kind in FAST_KINDS:
        for change in ("as it is", "tokens", "lowercase"):
            tokenizer = zoo.tokenizer(kind)
            if change == "tokens":
                tokenizer.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]})
            if change == "lowercase":
                tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
            _, files = saved_copy.save(tokenizer, kind)
            folder = HOME / f"{kind}, {change}"
            saved_copy.write(files, str(folder))
            (folder / "ids.json").write_text(json.dumps(tokenizer(list(TEXTS))["input_ids"]))


def compare() -> None:
    """Exit with an error for the first saved tokenizer that returns other ids."""
    folders = sorted(HOME.iterdir())
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer(list(TEXTS))["input_ids"] != json.loads((folder / "ids.json").read_text()):
            sys.exit(f"{folder.name}: other ids")
    print(f"equal ids of {len(folders)} tokenizers")


if __name__ == "__main__":
    write() if sys.argv[2:] else compare()
