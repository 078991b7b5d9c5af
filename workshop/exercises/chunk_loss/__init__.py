"""Exercise: the loss of some tokens and its gradients, without autograd."""
