"""The sentencepiece library in a process of its own: it trains vocabularies, and encodes with them as a reference.

    python -I sentencepiece_oracle.py REQUEST.json OUTPUT.json

The request is a list of jobs, the output has an answer to each:

    {"train": LINES, "options": {...}, "path": PATH}                  writes a tokenizer.model; its pieces and settings
    {"build": [[PIECE, SCORE, TYPE], ...], "adds_space": ..., ...}    writes a BPE one of given pieces
    {"encode": LINES, "path": PATH}                                   the ids of the lines

It stands alone because the library breaks where warnings are errors, as they are in tests.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2


def train(job: dict[str, Any]) -> dict[str, Any]:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(job["train"]),
        model_writer=content,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **job["options"],
    )
    Path(job["path"]).write_bytes(content.getvalue())
    model = sentencepiece_model_pb2.ModelProto.FromString(content.getvalue())
    return {
        "pieces": [[piece.piece, piece.score, piece.type] for piece in model.pieces],
        "adds_space": model.normalizer_spec.add_dummy_prefix,
        "trims_spaces": model.normalizer_spec.remove_extra_whitespaces,
        "normalization": list(model.normalizer_spec.precompiled_charsmap),
    }


def build(job: dict[str, Any]) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    normalizer.name, normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces = (
        "identity",
        job["adds_space"],
        False,
    )
    for piece, score, kind in job["build"]:
        model.pieces.add(piece=piece, score=score, type=kind)
    Path(job["path"]).write_bytes(model.SerializeToString())


def encode(job: dict[str, Any]) -> list[list[int]]:
    processor = sentencepiece.SentencePieceProcessor(model_file=job["path"])
    return [processor.encode(line) for line in job["encode"]]


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    answers = [train(job) if "train" in job else build(job) if "build" in job else encode(job) for job in jobs]
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
