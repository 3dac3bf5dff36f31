"""Mistral (Jiang et al., 2023): a Llama whose layers may all see a window only. Its GGUF files call it "llama"."""

from __future__ import annotations

from models.families.family import Family
from models.families.llama import read_llama
from models.families.names import LLAMA_NAMES

MISTRAL = Family("mistral", architectures=("MistralForCausalLM",), read=read_llama, names=LLAMA_NAMES)
