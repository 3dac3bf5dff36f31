"""Checkpoints whose weights are published as codes with scales: GPTQ, AWQ, compressed-tensors, fp8."""
