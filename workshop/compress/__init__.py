"""Smaller models from larger ones: quantization, distillation, pruning."""
