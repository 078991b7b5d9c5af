"""Fewer bits: number formats, mixed precision, FP8.

* `formats`: tensors in fp32, tf32, bf16, fp16, E4M3, E5M2, E2M1, by hand and equal to torch's casts;
* `blocks`: formats whose numbers share a scale: MXFP8, NVFP4, NF4;
* `mixed`: 16 bits with fp32 masters, loss scaling, autocast.
"""
