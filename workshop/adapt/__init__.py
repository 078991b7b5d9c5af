"""Adapt a model that is too large to train: few new weights, and a base in few bits.

``lora`` is low-rank adaptation by hand, ``nf4`` the four-bit numbers of QLoRA by hand, ``qlora`` a whole
model on them, and ``methods`` what the libraries offer (peft, bitsandbytes) behind one call. The handwritten
versions equal the libraries', and tests prove it.
"""
