"""Two thousand lines in many scripts, the same everywhere: what tokenizers are held against their references with.

Whole sentences, words of several scripts side by side, characters drawn from Unicode ranges, emoji with joiners and
modifiers, combining marks in and out of composed form, code, numbers, runs of whitespace and of single characters,
control characters, and text that looks like special tokens.
"""

# ruff: noqa: RUF001 - letters that look alike are the point

from __future__ import annotations

import random

NUM_LINES = 2000
SEED = 19700101

SENTENCES = """
The binder folds one sheet three times and has eight leaves, which makes sixteen pages.
I can't say that they've counted them, but we'll see; it's what she'd do, isn't it?
DON'T SHOUT: I'LL HEAR YOU, AND THEY'RE ASLEEP ALREADY!
Der Bücherwurm fraß zwölf große Blätter und ließ die übrigen Äpfel stehen.
Où étais-tu cet été-là ? L'élève naïf n'a pas reçu l'œuvre qu'il espérait.
El niño comió piñas y bebió agua; ¿cuántas páginas quedan? ¡Ninguna!
Příliš žluťoučký kůň úpěl ďábelské ódy, řekla babička.
Zażółć gęślą jaźń, a potem zamknij książkę.
Bạn có thể đọc trang này không? Tôi đã đọc nó hôm qua.
Şu kitabı İstanbul'dan aldım; ılık bir ışık vardı.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Щиро дякую, що прийшли: п'ять сторінок уже прочитано.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, είπε ο βιβλιοδέτης.
Το βιβλίο έχει δεκαέξι σελίδες· πόσες διάβασες;
الكتاب على الطاولة، والقلم بجانبه. كم صفحة قرأت اليوم؟
هذا النَّصُّ مُشَكَّلٌ كُلُّهُ لِلتَّجْرِبَةِ.
הספר מונח על השולחן, והעט לידו; כמה דפים קראת?
בְּרֵאשִׁית הָיָה סֵפֶר אֶחָד.
यह पुस्तक सोलह पृष्ठों की है। क्या आपने इसे पढ़ा है?
এই বইটিতে ষোলোটি পাতা আছে, তুমি কি পড়েছ?
இந்தப் புத்தகத்தில் பதினாறு பக்கங்கள் உள்ளன.
หนังสือเล่มนี้มีสิบหกหน้า คุณอ่านแล้วหรือยัง
ຫນັງສືຫົວນີ້ມີສິບຫົກຫນ້າ
ဤစာအုပ်တွင် စာမျက်နှာ ဆယ့်ခြောက် ရှိသည်။
წიგნს თექვსმეტი გვერდი აქვს.
Գիրքը տասնվեց էջ ունի։
ይህ መጽሐፍ አሥራ ስድስት ገጾች አሉት።
这本书有十六页，你读过了吗？装订工把一张纸折了三次。
這本書有十六頁，你讀過了嗎？裝訂工把一張紙折了三次。
この本は十六ページあります。もう読みましたか？カタカナとひらがなと漢字。
이 책은 열여섯 쪽입니다. 읽어 보셨나요? 종이를 세 번 접었습니다.
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎪᏪᎵ
def fold(sheet: int, times: int = 3) -> int:  return sheet << times  # leaves
for (size_t i = 0; i < n_pages; ++i) { pages[i]->ref_count -= 1; if (!pages[i]) continue; }
SELECT page_id, COUNT(*) AS holders FROM blocks WHERE ref_count >= 2 GROUP BY 1 ORDER BY 2 DESC;
<div class="page" data-id='16'>&nbsp;octavo &amp; quarto</div><!-- end -->
{"pages": [1, 2.5e-3, -0x1F, null, true], "title": "octavo\\n\\t\\u00e9", "nested": {"a": {}}}
https://example.org/a/b_c-d.html?q=1&r=%20x#frag mail@example.org C:\\path\\to\\file.txt ~/.cache/$USER
1234567890 12,345.67 1.000.000,50 3.14159265358979 1e-10 0xDEADBEEF 192.168.0.1 2024-02-29T23:59:59Z
$1,234.56 €99 £5 ¥1000 50% ±3 ≤ ≥ ≠ ∑∏∫√∞ ½ ² ³ ① Ⅷ ٣٤٥ १२३ 一二三 ๑๒๓
""".strip().split("\n")

RANGES = (
    *((0x00A1, 0x024F), (0x0250, 0x02FF), (0x0370, 0x03FF), (0x0400, 0x052F), (0x0531, 0x058A), (0x0591, 0x05F4)),
    *((0x0600, 0x06FF), (0x0900, 0x097F), (0x0980, 0x09FE), (0x0B85, 0x0BCD), (0x0E01, 0x0E5B), (0x0F00, 0x0FBC)),
    *((0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x1248), (0x1E00, 0x1FFE), (0x2010, 0x2027)),
    *((0x2030, 0x205E), (0x20A0, 0x20C0), (0x2100, 0x218B), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x25FF)),
    *((0x2600, 0x27BF), (0x3001, 0x303F), (0x3041, 0x30FF), (0x3105, 0x312F), (0x3400, 0x3500), (0x4E00, 0x9FA5)),
    *((0xA720, 0xA7CA), (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF01, 0xFFEE), (0x10400, 0x1044F), (0x1D400, 0x1D4FF)),
    *((0x1F300, 0x1F64F), (0x20000, 0x20100), (0x0300, 0x036F), (0x13000, 0x13020)),
)

EMOJI = ["👋🏽", "👩‍👩‍👧‍👦", "🤽‍♀️", "🇩🇪🇯🇵", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "☺", "1️⃣", "👨🏿‍🚀", "🫠", "😀😀😀", "⚕︎"]
COMPOSED = [
    "é",
    "e\u0301",
    "ñ",
    "n\u0303",
    "Å",
    "A\u030a",
    "\u212b",
    "ệ",
    "e\u0323\u0302",
    "e\u0302\u0323",
    "한",
    "\u1112\u1161\u11ab",
]
SPACES = [
    " ",
    "  ",
    "   ",
    "    ",
    " " * 7,
    " " * 16,
    " " * 40,
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    "\n  ",
    " \n",
    "\u00a0",
    "\u3000",
    "\u2009",
    "\u2028",
    "\x0b",
    "\x85",
]
CONTROLS = [
    "\x00",
    "\x01",
    "\x07",
    "\x1b[0m",
    "\x7f",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u202e",
    "\u00ad",
    "\ufffd",
    "\ufffc",
    "\U000e0001",
    "\ue000",
]
LOOKALIKES = [
    "<s>",
    "</s>",
    "< s>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|user|>",
    "<|eot_id|>",
    "<|end_of",
    "[INST]",
    "[/INST]",
    "<0x0A>",
    "<0x41>",
    "<start_of_turn>",
    "<end_of_turn>",
    "▁",
    "▁▁",
    "Ġ",
    "Ċ",
    "##ing",
    "<unused5>",
]
BREAKS = [");\n//", "*/\n/", "}\r\n//", "://\n", "!\n\n/"]
RUNS = "a-=_*.!#/0 9é한漢\n>あ"


def corpus() -> list[str]:
    """The lines, all different. A line may hold line breaks; none holds a lone surrogate or ``<unk>``."""
    generator = random.Random(SEED)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    lines = dict.fromkeys(SENTENCES)
    makers = (_fragment, _mixture, _drawn, _garnished, _run)
    while len(lines) < NUM_LINES:
        lines[generator.choice(makers)(generator, words)] = None
    return [line for line in lines if line]


def _fragment(generator: random.Random, words: list[str]) -> str:
    """Part of a sentence, cut anywhere, at times in capitals."""
    sentence = generator.choice(SENTENCES)
    start = generator.randrange(len(sentence))
    text = sentence[start : start + generator.randint(1, 60)]
    return text.upper() if generator.random() < 0.1 else text


def _mixture(generator: random.Random, words: list[str]) -> str:
    """Words of several languages with spaces of all kinds between them, and around them."""
    parts = [generator.choice(SPACES) if generator.random() < 0.2 else ""]
    for _ in range(generator.randint(1, 9)):
        parts.append(generator.choice(words))
        parts.append(generator.choice(SPACES) if generator.random() < 0.3 else " ")
    return "".join(parts if generator.random() < 0.2 else parts[:-1])


def _drawn(generator: random.Random, words: list[str]) -> str:
    """Characters drawn from a few Unicode ranges."""
    text = ""
    for _ in range(generator.randint(1, 4)):
        first, last = generator.choice(RANGES)
        text += "".join(chr(generator.randint(first, last)) for _ in range(generator.randint(1, 8)))
        text += generator.choice(["", " ", "  ", "\n"])
    return text


def _garnished(generator: random.Random, words: list[str]) -> str:
    """Words with emoji, marks, control characters, numbers and lookalikes of special tokens among them."""
    parts = []
    for _ in range(generator.randint(1, 8)):
        parts.append(
            generator.choice(generator.choice([EMOJI, COMPOSED, CONTROLS, LOOKALIKES, BREAKS, SPACES, words, words]))
        )
        if generator.random() < 0.2:
            parts.append(str(generator.randint(0, 10 ** generator.randint(1, 12))))
        parts.append(generator.choice(["", "", " "]))
    return "".join(parts)


def _run(generator: random.Random, words: list[str]) -> str:
    """Runs of one character, which show how ties between merges are broken."""
    runs = (generator.choice(RUNS) * generator.randint(1, 35) for _ in range(generator.randint(1, 3)))
    return generator.choice(["", "", generator.choice(words)]).join(runs)
