"""Serve a model: many requests at once, on memory in blocks.

From the inside out: `blocks` is who holds which piece of memory, `paged` one forward pass over new
tokens of many sequences, `server` lets requests in and out at every step, `speculate` has a cheap draft
guess several tokens that the model then checks at once. It is small enough to be read in one sitting;
lesson 56_serving grows it. Who serves for real takes vLLM or SGLang.
"""
