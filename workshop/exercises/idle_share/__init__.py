"""Exercise: how long a device stands idle that is handed kernels one after the other."""
