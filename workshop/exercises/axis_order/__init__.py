"""Exercise: which axis goes innermost?"""
