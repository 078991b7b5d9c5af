"""What goes wrong with a file, rule by rule: Accelerate's YAML, its FSDP and its mesh, DeepSpeed's JSON."""
