"""One reader for each kind of file: Accelerate and DeepSpeed, torchtitan, Megatron-LM, NeMo."""
