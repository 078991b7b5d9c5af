"""Exercise: who am I among the ranks?"""
