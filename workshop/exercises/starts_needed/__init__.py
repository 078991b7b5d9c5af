"""Exercise: how often must a job be started, when its time limit is shorter than the training?"""
