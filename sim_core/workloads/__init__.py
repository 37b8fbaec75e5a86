"""What is trained: one immutable `Workload`, the readers that make it, and the rules that move it to other plans."""
