"""Make the files that other servers need, all from the GGUF file that Octavo serves.

    python -m benchmarks.peer_files ~/peers --llama-cpp ~/llama.cpp/build/bin --openvino ~/openvino

``hf`` is a directory in Hugging Face layout with the same weights dequantised to bfloat16 (vLLM, and what OpenVINO's
are made of); ``q8_0.gguf`` and ``bf16.gguf`` are made by llama-quantize; ``openvino-fp16`` and ``openvino-int8`` by
optimum-cli of the virtual environment given. What is there already stays. Values are the file's own: good for
comparing speed and each server's answers with another's, not for judging what quantisation costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, processors

from engine.config import Checkpoint, CheckpointError, resolve_checkpoint
from models.checkpoint import CheckpointFormat
from models.gguf_weights import dequantized
from models.registry import family_of
from models.spec import ModelSpec
from server.text.gguf_vocabulary import load_gguf
from server.text.token_spelling import METASPACE

HF_DIRECTORY = "hf"
Q8_0_GGUF = "q8_0.gguf"
BF16_GGUF = "bf16.gguf"
OPENVINO_DIRECTORIES = {"fp16": "openvino-fp16", "int8": "openvino-int8"}
ARCHITECTURE = "gemma3"


def hugging_face_config(spec: ModelSpec) -> dict[str, object]:
    """``config.json`` of a Gemma 3 of text. ValueError for another architecture."""
    if spec.architecture != ARCHITECTURE:
        raise ValueError(f"only {ARCHITECTURE} can be written in Hugging Face layout, not {spec.architecture}")
    local = next(layer for layer in spec.layers if layer.window is not None)
    whole = next(layer for layer in spec.layers if layer.window is None)
    assert local.rope is not None
    assert whole.rope is not None
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_q_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.norm_eps,
        "query_pre_attn_scalar": round(spec.attention_scale**-2),
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": whole.rope.theta,
        "rope_local_base_freq": local.rope.theta,
        "sliding_window": local.window,
        "layer_types": ["full_attention" if one.window is None else "sliding_attention" for one in spec.layers],
        "attention_bias": spec.qkv_bias,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": spec.tied_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids),
        "pad_token_id": 0,
    }


def hugging_face_weights(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Every tensor in bfloat16 by its Hugging Face name; norms less one, as Gemma's are stored there."""
    names = family_of(spec).gguf_names
    assert names is not None
    weights = {}
    for tensor in checkpoint.gguf_file.tensors.values():
        placements = names.placements(tensor.name, spec)
        if not placements:
            continue
        [placement] = placements  # Gemma 3 has no tensors that hold several
        values = dequantized(tensor.data, tensor.quantization).reshape(tensor.shape)
        weights[placement.name] = (values - 1.0 if len(tensor.shape) == 1 else values).to(torch.bfloat16).contiguous()
    return weights


def hugging_face_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """A tokenizer.json's content: the vocabulary with its BOS in front, and texts put together again."""
    vocabulary = load_gguf(metadata)
    tokenizer = vocabulary.backend
    tokenizer.decoder = decoders.Sequence([decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    bos = vocabulary.special_tokens["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary.prefix_ids[0])]
    )
    return tokenizer


def write_hugging_face(checkpoint: Checkpoint, directory: Path) -> None:
    """Fill ``directory``, config.json last, so that one that was left half filled is told by its absence."""
    spec = checkpoint.read_spec()
    config = hugging_face_config(spec)
    directory.mkdir(parents=True, exist_ok=True)
    hugging_face_tokenizer(checkpoint.gguf_metadata()).save(str(directory / "tokenizer.json"))
    special = load_gguf(checkpoint.gguf_metadata()).special_tokens
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.max_position,
        **special,
    }
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    generation = {"bos_token_id": spec.bos_token_id, "eos_token_id": list(spec.eos_token_ids), "do_sample": False}
    _write_json(directory / "generation_config.json", generation)
    save_file(hugging_face_weights(checkpoint, spec), directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def quantize_command(program: Path, source: Path, target: Path, kind: str) -> list[str]:
    """llama-quantize's copy of a GGUF file in another type."""
    return [str(program), "--allow-requantize", str(source), str(target), kind]


def export_command(venv: Path, source: Path, target: Path, form: str) -> list[str]:
    """optimum-cli's export of a directory in Hugging Face layout, blind to this repository."""
    program = [str(venv.absolute() / "bin" / "optimum-cli"), "export", "openvino", "-m", str(source)]
    flags = ["--task", "text-generation-with-past", "--weight-format", form, str(target)]
    return ["env", "-u", "PYTHONPATH", "PYTHONSAFEPATH=1", *program, *flags]


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing; status 1 when a program that should have made a file failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", help="a GGUF file of a Gemma 3; default: the demo model")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="where llama-quantize is")
    parser.add_argument("--openvino", type=Path, metavar="VENV", help="where optimum-cli is")
    arguments = parser.parse_args(argv)
    try:
        checkpoint = resolve_checkpoint(arguments.model)
        if checkpoint.format is not CheckpointFormat.GGUF:
            raise ValueError(f"{checkpoint.path} is no GGUF file")
        directory = arguments.directory.absolute()
        model = directory / HF_DIRECTORY
        if not (model / "config.json").exists():
            write_hugging_face(checkpoint, model)
        partial = directory / "partial"  # what is under its own name is whole
        commands = {}
        if arguments.llama_cpp is not None:
            program = arguments.llama_cpp / "llama-quantize"
            for name, kind in ((Q8_0_GGUF, "Q8_0"), (BF16_GGUF, "BF16")):
                commands[name] = quantize_command(program, checkpoint.path, partial, kind)
        if arguments.openvino is not None:
            for form, name in OPENVINO_DIRECTORIES.items():
                commands[name] = export_command(arguments.openvino, model, partial, form)
        for name, command in commands.items():
            if not (directory / name).exists():
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                partial.rename(directory / name)
    except (CheckpointError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{path}" for path in sorted(directory.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
