"""Prompts for `benchmarks.speculation`: three kinds of writing, which repeat their prompts a lot, a little, not at all.

For a base model, which continues text: an edit is shown by an example before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_EXAMPLE = '''# Task: in the function below, rename the parameter `a` to `left`. Write the whole function again.
# Before:
def add(a, b):
    """Add two numbers."""
    total = a + b
    return total

# After:
def add(left, b):
    """Add two numbers."""
    total = left + b
    return total

'''


def _edit(task: str, function: str) -> str:
    return f"{_EXAMPLE}# Task: {task} Write the whole function again.\n# Before:\n{function}\n# After:\n"


_PARSE = '''def parse_settings(path):
    """Read a file of settings, one `name = value` on a line, and return them as a dictionary."""
    settings = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, separator, value = line.partition("=")
            if not separator:
                raise ValueError(f"line {number}: expected name = value, found {line!r}")
            settings[name.strip()] = value.strip()
    return settings
'''

_STOCK = '''def restock(shelf, deliveries, limit):
    """Put deliveries on a shelf until it is full, and return what did not find a place."""
    remaining = []
    for item, amount in deliveries:
        present = shelf.get(item, 0)
        accepted = min(amount, limit - present)
        if accepted > 0:
            shelf[item] = present + accepted
        if accepted < amount:
            remaining.append((item, amount - accepted))
    return remaining
'''

_ARTICLE = (
    "The lighthouse on Brana Point was lit for the first time in the autumn of 1871. It was built of grey granite "
    "from the quarry at Hallin, eleven kilometres inland, and every stone came down the river on flat barges "
    "because there was no road. The keeper, Elias Thorne, lived there with his family for thirty-four years. He "
    "wrote down the weather four times a day, and the records that he left are the longest of that coast. In the "
    "winter of 1889 a storm broke the lantern room, and Thorne kept a fire of driftwood burning on the gallery for "
    "two nights, by which the mail ship Adelaide found the channel. The lamp was changed from oil to paraffin in "
    "1902 and to electric light in 1926. Since 1974 nobody has lived at Brana Point, and the light is switched on "
    "from the harbour office in Hallin. The granite tower still stands as it was built, though the barges and the "
    "quarry are gone."
)

_MEETING = (
    "Minutes of the water board. The board met on Tuesday with seven of nine members present. The engineer reported"
    " that the pump at the north well had failed twice in March and that a new pump would cost 41,000 crowns. The "
    "treasurer said that the reserve stood at 63,000 crowns and that the roof of the filter house had to be "
    "repaired before winter for about 18,000 crowns. Two members wanted to wait with the pump until the prices of "
    "the summer were known. The engineer answered that the north well supplied the hospital and that a third "
    "failure could not be bridged. The board decided by five votes to two to buy the new pump now and to repair the"
    " roof of the filter house in September. The chair closed the meeting at half past nine."
)


def _summary(text: str) -> str:
    return f"Text:\n{text}\n\nThe most important sentences of the text, word by word:\n1."


PROMPTS: Mapping[str, Sequence[str]] = {
    "rewriting code": (
        _edit("rename the variable `settings` to `result`.", _PARSE),
        _edit("rename the parameter `limit` to `capacity`.", _STOCK),
    ),
    "summarising": (_summary(_ARTICLE), _summary(_MEETING)),
    "free writing": (
        "The old man opened the door of the shop and",
        "Here is how I spent the first week of my journey through the mountains. On Monday",
    ),
}
