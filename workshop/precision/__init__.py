"""Fewer bits: number formats, mixed precision, FP8.

* `formats`: tensors in fp32, tf32, bf16, fp16, E4M3, E5M2, E2M1, by hand and equal to torch's casts;
* `blocks`: formats whose numbers share a scale: MXFP8, NVFP4, NF4;
* `mixed`: 16 bits with fp32 masters, loss scaling, autocast;
* `scaling`: who shares a scale in FP8, and when amax is looked at;
* `fp8`: a linear layer whose products read 8 bits, by 8-bit units or emulated;
* `fp8_swap`: such layers put into a model in place, with the same state_dict;
* `fp8_libraries`: the same through Accelerate or Transformer Engine on GPUs.
"""
