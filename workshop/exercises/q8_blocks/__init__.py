"""Exercise: the blocks that llama.cpp calls Q8_0."""
