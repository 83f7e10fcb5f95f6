"""Texts for tests: hostile ones written out by hand, ordinary ones and broken ones made from a seed.

    HOSTILE           one idea each; all are valid Unicode, so all survive Arrow, JSON and UTF-8
    MULTI_SCRIPT      ordinary sentences of many scripts: material to train vocabularies on
    ONE_MB_WORD       a single "word" of 1,000,000 letters; not in HOSTILE, since it takes slow tokenizers too long
    sentences(n, s)   n English-like documents of 0 to 400 words
    mutated(n, s)     the same documents with random code points put in, exchanged and taken out

Seeds: document i depends on (seed, i) only, so a longer list starts with the shorter one, on every Python version.
"""

import json
import random

import numpy as np

from tests.building import REVIEWS

MAX_WORDS = 400

_EMPTY_AND_SPACES = [
    "", " ", "     ", "\t", "\n", "\n\n\n", "\r\n", " \t\r\n\v\f ", "\u00a0", "\u3000\u3000",
    "\u2000\u2003\u2009\u202f\u205f", "\u200b", "\u200b\u200c\u200d\u2060", "\u2028\u2029\u0085", " leading",
    "trailing ", "  both  sides   and    repeated     inside  ",
    "first line\r\nsecond line\rthird line\nfourth\ttab", "zero\u200bwidth\u2060inside\u00adsoft hyphen",
    "no\u00a0break\u202fspaces\u3000wide",
]  # fmt: skip

_EMOJI = [
    "😀",
    "I ❤️ tests ❤ 🎉🎉🎉",
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👩🏽‍🚀 astronaut",
    "🇩🇪🇫🇷🇯🇵🇺🇸 and half a flag 🇩",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "👋🏻👋🏼👋🏽👋🏾👋🏿 alone: 🏿",
    "1️⃣ 2️⃣ #️⃣ ©️ ™️ ☎︎ ☎️",
    "\u200d\u200d joiners \ufe0f\ufe0f selectors",
]

_COMBINING = [
    "café naïve Ångström",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "\u0301 a mark with nothing under it",
    "e\u0301\u0301\u0301 q\u0307\u0323 q\u0323\u0307",
    "Z\u0351\u036b\u0343a\u0334\u0321\u0353l\u0357\u036c\u0324g\u0338\u0315\u0349o\u0335\u0322\u031b",
    "x" + "\u0300\u0316\u0334" * 100,
    "\u1e69 s\u0323\u0307 s\u0307\u0323",
    "Vi\u1ec7t Nam, Vie\u0323\u0302t Nam",
]

_SCRIPTS = [
    "我喜欢吃苹果,你呢?",
    "漢字と仮名が混ざった文章です。カタカナもあるよ!",
    "ﾊﾝｶｸ ｶﾅ か\u3099 が ヽヾ ー",
    "𠀀𠮷𪚥 beyond the basic plane",
    "한국어 문장입니다. 안녕하세요!",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8 jamo ㅋㅋㅋ",
    "كَتَبَ الوَلَدُ رِسَالَةً طَوِيلَةً إِلَى جَدَّتِهِ، للهٰ ﷺ ﻻ",
    "שָׁלוֹם לְכֻלָּם, מַה שְּׁלוֹמְכֶם הַיּוֹם?",
    "mixed עברית and العربية in one line",
    "\u202eright to left override\u202c \u2067isolate\u2069 \u061c",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ น้ำ",
    "क्षत्रिय हिन्दी में लिखा है। र्\u200dय क्\u200cष",
    "বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "ខ្មែរ ລາວ မြန်မာ བོད་ཡིག",
    "ქართული Հայերեն አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ",
    "Привет, мир! Ёжик, Їжак, Љубав",
    "ΟΔΥΣΣΕΥΣ Ὀδυσσεύς σς ΣΑΣ Σ.",
    "İstanbul ISPARTA ışık i\u0307 I\u0307",
    "Straße STRASSE ẞ ŒUVRE œuvre Ǆ ǅ ǆ",
    "ﬁne ﬂow ﬃ ﬅ Ĳ ŉ",
    "Ｆｕｌｌ　ｗｉｄｔｈ！？ ￥１００",
    "𝓗𝓮𝓵𝓵𝓸 𝕎𝕠𝕣𝕝𝕕 𝟘𝟙𝟚 𝚊𝚋𝚌 ⓐⓑⓒ ℌ ℵ ⅷ ㎏ ㍿",
]

_CONTROL = [
    "\x00", "nul\x00inside\x00", "".join(map(chr, range(1, 32))), "a\x07b\x08c\x1bd\x7fe",
    "".join(map(chr, range(0x80, 0xA0))), "\ufeffbyte order mark\ufeff", "replacement \ufffd\ufffd character",
    "\ufffe\uffff", "\ufdd0\U0001fffe\U0010ffff", "private \ue000\uf8ff\U000f0000\U00100000",
    "\U000e0001\U000e0020 tags and unassigned \u0378\U0003fffd", "\ufff9annotated\ufffatext\ufffb",
]  # fmt: skip

_LITERAL_TOKENS = [
    "[SEP]", "[CLS] x [MASK]", "a[SEP]b [PAD][UNK]c", "[sep] [ SEP ] [SEP", "<|endoftext|>",
    "before<|endoftext|>after <|begin_of_text|> x", "<s>", "</s>", "<unk>", "<pad>", " <s> a </s> b <unk> c <pad> ",
    "x<s>y</s>z<unk><pad><mask>", "<sep> <cls> <eop><eod> <extra_id_0>", "<0x41>", "<0x0A><0xFF> <0xZZ>", "\u2581",
    "\u2581a\u2581\u2581b \u2581", "Ġ", "ĠHello Ċ Ġ Ã©", "##ing ##", "@@ a@@ b</w>", "\ue000x\ue001y\ue003",
]  # fmt: skip

_WRITTEN = [
    "Don't you'll we've I'm he'd they're it's O'Neill's rock 'n' roll",
    "Don’t you’ll we’ve I’m ‘quoted’ “double” „low“ «guillemets»",
    "DON'T YOU'LL WE'VE",
    "!" * 500,
    "?!.,;:-–—…" * 80,
    "." * 99 + "a" + "_" * 101,
    "https://user:pass@example.com:8080/a/b.html?q=%20x&y=[1]#frag and mail@example.org",
    "C:\\Windows\\System32 /usr/local/bin ~/.config ../..",
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\tif x[0] != {"a": None}: pass',
    "SELECT * FROM t WHERE a='b''c'; -- \\n \\u0041 &amp; <br/>",
    '{"key": [1, 2.5e-10, null], "nested": {"\\u00e9": "é"}}',
    "0 1 12 123 1234 12345 1,234,567.89 -3.14 1e10 0x1F ½ ² ₃ 50% $9.99 €5 £3",
    "٠١٢٣٤٥٦٧٨٩ ०१२३ ๐๑๒ ০১২ 一二三 ⅠⅡⅢ ①②③ 𝟏𝟐 ᠐᠑",
    "ALL CAPS, lower, Title Case, cAmElCaSe, snake_case, kebab-case, XMLHttpRequest2",
    "supercalifragilisticexpialidocious " * 3 + "x" * 101,
    "a" * 99 + " " + "a" * 100 + " " + "a" * 101,
    "x" * 5000,
    "ab " * 2000,
    "中" * 1500,
    "a",
    ".",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ∑∫√ α≠β → ∞",
    "``backticks'' and ''quotes`` and \"plain\"",
    "``" * 3 + "''" * 3,
]

HOSTILE: list[str] = [*_EMPTY_AND_SPACES, *_EMOJI, *_COMBINING, *_SCRIPTS, *_CONTROL, *_LITERAL_TOKENS, *_WRITTEN]

MULTI_SCRIPT: list[str] = [
    *_SCRIPTS,
    *_COMBINING[:2],
    *_EMOJI[:3],
    "Am späten Nachmittag hörten wir im Café nebenan laute Musik, größer wurde die Menge später.",
    "Ma sœur a déjà acheté des gâteaux à l'épicerie où travaille François.",
    "¿Dónde está mañana el señor que vendió aquel paragüero tan pequeño?",
    "Jutro rano pójdę z siostrą kupić świeże jabłka i żółte kwiaty.",
    "Завтра утром мы поедем на поезде к бабушке в её деревню.",
    "Αύριο το πρωί θα πάμε με τους φίλους μας στη θάλασσα.",
    "今日はとても良い天気ですね。明日も晴れるでしょう。",
    "天气很好,我们一起去公园散步吧。",
    "나는 오늘 아침에 커피를 마셨습니다.",
    "أحب القراءة في المساء مع كوب من الشاي.",
    "हम कल सुबह बाज़ार जाएंगे और फल खरीदेंगे।",
]


# A block repeated, so that importing this module costs nothing.
ONE_MB_WORD: str = "".join(random.Random("one word").choices("etaoinshrdlu", k=1000)) * 1000


def _words(text: str) -> list[str]:
    return text.split()


# Everyday vocabulary; the grammar that joins it is _clause and _sentence.
_NOUNS = _words("""
    afternoon apple arm artist baby bag ball bank basket beach bed bird boat body book bottle box boy bread bridge
    brother building bus butter cake camera car card cat chair child church city class clock cloud coat coffee colour
    computer corner country cousin cow cup dance daughter day desk doctor dog door dream dress driver ear earth egg
    evening eye face family farm father field film fire fish floor flower food foot forest friend fruit game garden
    girl glass grass hair hand hat head heart hill holiday home horse hospital hotel hour house idea island job key
    kitchen lake lamp language leaf letter library life light line lion lunch machine man map market meal milk minute
    money month moon morning mother mountain mouse mouth museum music name neighbour news night nose number office
    orange page painting paper parent park party people phone picture place plane plant plate question radio rain river
    road room school sea season shirt shoe shop sister sky snow song spoon spring star station stone story street
    student summer sun table teacher ticket time town toy train tree village voice wall water week wind window winter
    woman word work world year
""")
_VERBS = _words("""
    asks believes brings builds buys calls carries catches changes chooses cleans closes cooks counts cuts describes
    draws drinks drops eats enjoys explains feels finds follows forgets gives hears helps hides holds hopes keeps knows
    learns leaves likes loses loves makes meets misses moves needs notices offers opens paints paid plays promised
    pulled pushed reached reads remembers repaired said saw sells sent shared showed sold started stopped studied
    takes teaches tells thinks threw told touched tried understands used visited waited walked wanted washed watched
    wins wondered worked writes
""")
_ADJECTIVES = _words("""
    angry beautiful big black blue brave bright broken busy careful cheap clean clever cold dark deep dry early easy
    empty expensive famous fast fresh friendly full funny good great green grey happy heavy high hot hungry important
    kind large late lazy little long loud lucky modern narrow new nice old open poor pretty quick quiet ready red rich
    round sad safe sharp short shy simple slow small soft strange strong sweet tall thin tired warm weak wet white wide
    wild wise wonderful yellow young
""")
_ADVERBS = _words("""
    again always carefully early finally gently happily here late loudly never often once outside quickly quietly
    rarely really slowly sometimes soon suddenly there today together tomorrow twice usually well yesterday
""")
_PREPOSITIONS = _words("""
    about above across after against along among around at before behind below beside between beyond by during for
    from in inside into near of off on over past through to toward under until up with without
""")
_DETERMINERS = _words("a the this that every another my your his her our their some any no")
_SUBJECTS = _words("I you he she we they it everyone nobody someone Anna Peter Maria London John Mrs. Dr.")
_JOINTS = _words("and but or because while although so when if")
_CONTRACTIONS = _words("don't isn't can't I'm you're they've we'll it's that's couldn't")
_ENDINGS = [".", ".", ".", ".", ".", "!", "?", "...", ";", ":"]


def sentences(count: int, seed: int) -> list[str]:
    return [_document(random.Random(f"sentences {seed} {index}")) for index in range(count)]


def mutated(count: int, seed: int) -> list[str]:
    documents = sentences(count, seed)
    return [_mutate(text, random.Random(f"mutated {seed} {index}")) for index, text in enumerate(documents)]


def _document(rng: random.Random) -> str:
    num_words = int((MAX_WORDS + 1) * rng.random() ** 2)
    words: list[str] = []
    while len(words) < num_words:
        words += _sentence(rng)
    text = ""
    for word in words[:num_words]:
        joint = "\n\n" if text.endswith(".") and rng.random() < 0.05 else " "
        text += joint + word if text else word
    return text


def _sentence(rng: random.Random) -> list[str]:
    words = _clause(rng)
    while rng.random() < 0.35:
        words[-1] += rng.choice(["", ","])
        words += [rng.choice(_JOINTS), *_clause(rng)]
    words[0] = words[0][0].upper() + words[0][1:]
    words[-1] += rng.choice(_ENDINGS)
    if rng.random() < 0.08:
        words[0], words[-1] = '"' + words[0], words[-1] + '"'
    return words


def _clause(rng: random.Random) -> list[str]:
    words = [rng.choice(_SUBJECTS)] if rng.random() < 0.5 else _noun_phrase(rng)
    words.append(rng.choice(_VERBS))
    words += _noun_phrase(rng)
    if rng.random() < 0.6:
        words += [rng.choice(_PREPOSITIONS), *_noun_phrase(rng)]
    if rng.random() < 0.25:
        words.append(rng.choice(_ADVERBS))
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words)), rng.choice(_CONTRACTIONS))
    return words


def _noun_phrase(rng: random.Random) -> list[str]:
    kind = rng.random()
    noun = rng.choice(_NOUNS)
    if kind < 0.08:
        return [_number(rng), noun + "s"]
    if kind < 0.5:
        return [rng.choice(_DETERMINERS), rng.choice(_ADJECTIVES), noun]
    return [rng.choice(_DETERMINERS), noun]


def _number(rng: random.Random) -> str:
    whole = rng.randrange(10 ** rng.randint(1, 6))
    return rng.choice([f"{whole}", f"{whole:,}", f"{whole / 100:.2f}", f"${whole}", f"{whole % 100}%"])


# Half of the mutations stay in blocks where normalisers and pre-tokenizers have work to do.
_BUSY_BLOCKS = [(0x00, 0x20), (0x7F, 0x180), (0x300, 0x370), (0x2000, 0x2070), (0x3000, 0x3100), (0xFF00, 0xFFF0)]


def _mutate(text: str, rng: random.Random) -> str:
    characters = list(text)
    for _ in range(1 + int(len(characters) * 0.1 * rng.random())):
        position = rng.randrange(len(characters) + 1)
        length = rng.randrange(3)
        characters[position : position + length] = [_code_point(rng) for _ in range(rng.randrange(4))]
    return "".join(characters)


def _code_point(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return chr(rng.randrange(*rng.choice(_BUSY_BLOCKS)))
    number = rng.randrange(0x110000 - 0x800) if rng.random() < 0.5 else rng.randrange(0x10000 - 0x800)
    return chr(number if number < 0xD800 else number + 0x800)


_WORDS = " ".join(sentences(100, seed=7)).split()
_SIGNS = "".join(MULTI_SCRIPT)


def english(words: int, rng: np.random.Generator) -> str:
    return " ".join(_WORDS[index] for index in rng.integers(0, len(_WORDS), words))


def foreign(signs: int, rng: np.random.Generator) -> str:
    return "".join(_SIGNS[index] for index in rng.integers(0, len(_SIGNS), signs))


def reviews() -> list[str]:
    lines = (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]
