"""Exercise: which of many ranks is the culprit?"""
